"""Random scenarios. Start at sequence.py; what is drawn is in step_generator.py."""
