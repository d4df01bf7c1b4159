"""Benchmarks: the cost of an operation here, next to that of an alternative in the same run. `python -m bench`."""
