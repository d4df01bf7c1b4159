"""The key/value service: replicated state machines above the very same Raft peers, and the clerk that clients use.

`messages.py` holds what clerk and servers say to each other, `server.py` the service on one server, `client.py` the
clerk. Start reading at server.KVServer, with §8 of the Raft paper beside it.
"""
