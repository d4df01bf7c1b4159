"""Random scenarios. Start at lane.py; what is drawn is in drawer.py."""
