"""The fuzzer: random runs, until one of them fails. Start at command.py."""
