"""`lab cluster`: the same raft.py and service as in the lab, as real processes over TCP and on disk, with a prompt.

server.py runs one process; durable_store.py saves its data; client.py is a client; prompt.py reads commands.
"""
