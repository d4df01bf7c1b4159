"""The disk of one peer. What it promises is said in raftapi/persister.py."""

from raftapi import Persister as Persister
