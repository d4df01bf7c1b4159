"""The always-on checks: every event of every test is held against the rules of the paper.

Promise: a rule that is seen to be broken ends the run as of that event, with the messages that prove it. No rule looks
inside a peer: messages on the wire, saves, start() results and applied messages are all there is, so any
implementation can be checked. A rule never guesses: where a crash or a delay leaves it open what a peer has done, it
assumes the best.

Not promised: that every wrong peer is caught at once. The tests make the occasions, the checks use them.

Start reading at checker.py; facts.py is what the rules share; each rule is one small class in election.py, logs.py,
commits.py, durability.py or budgets.py.
"""

from raftlab.check.rules.checker import CHUNK, LIVENESS_RULES, RULES, RuleChecker

__all__ = ["CHUNK", "LIVENESS_RULES", "RULES", "RuleChecker"]
