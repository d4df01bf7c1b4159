"""`lab shrink`: minimizes a failing run. Start at command.py; search.py has the algorithm."""
