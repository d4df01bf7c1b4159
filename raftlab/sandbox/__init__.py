"""Sandboxed peers: each incarnation runs in a confined process, and the tester loads none of its code.

supervisor.py owns time, network, disks and verdict; launcher.py has the peer's files; processes.py, the processes;
confinement.py, what they cannot do. The peer's side is raftlab/guest. docs/instructor/sandbox.md is the guide.
Start at `launcher.SandboxedLauncher`; loader.py chooses between it and the in-process launcher.
"""
