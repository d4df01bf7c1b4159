"""Real processes: the same raft.py and the same service as in the lab, over TCP and on disk, with a prompt.

`serving.py` is one process, `disk.py` what it saves to, `prompt.py` what a person types. `lab serve` and `lab kv`,
beside this folder, use the same.
"""
