"""Peers as guests: each incarnation is a process of its own, behind walls, and the tester loads none of its code.

protocol.py is what the two sides say to each other, guest.py the side that runs a peer, nursery.py the process that
guests are forked from, walls.py what they cannot do, host.py the side that owns time, network, disks and verdict, with
the processes (processes.py), the types of messages (message_types.py) and the peer's files (programs.py) that it has.
docs/isolation.md is the same for readers. Start at `programs.SandboxedLauncher`;
loader.py is where a tool chooses between it and peers in its own process.
"""
