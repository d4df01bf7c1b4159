"""Real processes: the same raft.py and the same service as in the lab, over TCP and on disk, with a prompt.

`server.py` is one process, `disk.py` what it saves to, `client.py` a client, `prompt.py` what a person types.
"""
