"""labtest: the tester. `Config` is the harness a test talks to, `plugin` runs tests inside simulations.

    def test_initial_election_2a(make_config):
        cfg = make_config(servers=3)
        cfg.begin("Test (2A): initial election")
        cfg.check_one_leader()

A test written like this gets seeds, replay and reports for nothing. Start reading at config.py.
"""

from labsim import guard

# Before anything else here runs: the tester measures real seconds, and may.
guard.trust(__file__)
