"""`lab next`: how far a peer is, and what to do next. The milestones of each part are in milestones.py."""
