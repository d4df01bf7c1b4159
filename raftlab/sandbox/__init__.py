"""Sandboxed peers: each incarnation is a process, confined, and the tester loads none of its code.

The peer's side is raftlab/guest. Here are supervisor.py, which owns time, network, disks and verdict; launcher.py,
which has the peer's files; processes.py; confinement.py, what a sandboxed process cannot do; and message_types.py.
docs/instructor/isolation.md is for readers. Start at `launcher.SandboxedLauncher`. loader.py is where a tool
chooses between it and peers in its own process.
"""
