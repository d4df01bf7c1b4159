"""The Raft peer. `raft.py` is the one file a student edits.

`messages.py` holds what peers say to each other and to the service above them, `persister.py` the disk that
outlives a crash. Start reading at raft.Raft, with Figure 2 of the Raft paper beside it.
"""
