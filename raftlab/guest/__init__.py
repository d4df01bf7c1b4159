"""What runs inside the process of a sandboxed peer. Start at fork_server.py, which forks it, and peer_process.py."""
