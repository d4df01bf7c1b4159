"""Figures: what an operation costs here, beside the same done otherwise in the same run. `python -m bench`."""
