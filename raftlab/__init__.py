"""raftlab: the lab itself. Student code imports nothing of it.

    def test_initial_election_2a(make_config):
        cfg = make_config(servers=3)
        cfg.begin("Test (2A): initial election")
        cfg.check_one_leader()

A test written like this gets seeds, replay and reports for nothing. Start reading at layout.py, the list of
the packages, and harness/config.py.
"""

from labsim import guard
from raftlab import layout

# Before anything else here runs: the tester measures real seconds, and may. And in a report the reader wants the lines
# of the peer and of the test, not those of what lies between.
for _folder in layout.OURS:
    guard.trust(str(layout.ROOT / _folder / "__init__.py"))
