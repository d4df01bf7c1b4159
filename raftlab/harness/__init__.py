"""What makes runs: `Config`, servers, launchers, runtimes. Start at config.py, what a test calls, and run.py."""
