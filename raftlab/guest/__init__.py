"""What runs inside a sandboxed peer's process. Start at fork_server.py, which starts them, and peer_process.py."""
