"""Checks every event of every test against the rules of the paper.

Promise: a broken rule ends the run at the event that breaks it, with the messages as evidence. Rules read only
messages, saves, results of start() and applied commands, so they check any implementation. If a crash or a delay
leaves open what a peer has done, a rule assumes the best. Not promised: that a rule finds every incorrect peer.

Start at checker.py. facts.py is what the rules share. Each rule is a class in election.py, logs.py, commits.py,
durability.py or budgets.py.
"""

from raftlab.check.rules.checker import CHUNK, LIVENESS_RULES, RULES, RuleChecker

__all__ = ["CHUNK", "LIVENESS_RULES", "RULES", "RuleChecker"]
