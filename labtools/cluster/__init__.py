"""Real processes: the same raft.py and the same service as in the lab, over TCP and on disk, with a prompt.

`serving.py` is one process, `disk.py` what it saves to, `asking.py` a client, `prompt.py` what a person types.
"""
