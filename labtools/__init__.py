"""labtools: what is run around the tests. One command, `lab`; start reading at cli.py."""

from labsim import guard

guard.trust(__file__)
