"""Preemption: where, how long, whose time it costs, and that one seed is one run."""

from labsim import Simulation
from labsim.choices import DefaultSource, OverridingSource, RecordingSource, SeededSource
from raftlab.races.preemption import DISTRIBUTIONS, Preemption
from raftlab.trace.events import CAUGHT_UP, PREEMPT
from unit.races.run_peer import run_peer

COUNTS = """
class Peer:
    def __init__(self):
        self.mu = threading.Lock()
        self.n = 0
        self.unseen = {"n": 0}
    def work(self):
        for _ in range(200):
            with self.mu:
                self.n += 1
            unseen = vars(self)["unseen"]
            unseen["n"] += 1
def main():
    peer = Peer()
    threads = [threading.Thread(target=peer.work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return peer.n, vars(peer)["unseen"]["n"]
"""


def test_unlocked_increments_are_lost():
    ran = run_peer(COUNTS, preempt=True)
    assert ran.error is None
    counted, unseen = ran.value
    assert counted == 800
    assert unseen < 800
    assert run_peer(COUNTS).value == (800, 800)


def test_one_seed_is_one_run():
    digests = [run_peer(COUNTS, seed, preempt=True).digest for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


def test_recorded_preemptions_are_replayed_or_removed():
    recording = RecordingSource(SeededSource(3))
    first = run_peer(COUNTS, preempt=True, choice_source=recording)
    choices = recording.choices
    again = run_peer(COUNTS, preempt=True, choice_source=OverridingSource(DefaultSource(), choices))
    assert again.digest == first.digest
    assert again.value == first.value
    assert {place[0] for place, _ in choices.chosen} >= {"preempt", "preempt unlocked"}
    for key in [key for key in choices.chosen if key[0][0] in ("preempt", "preempt unlocked")]:
        del choices.chosen[key]
    assert run_peer(COUNTS, preempt=True, choice_source=OverridingSource(DefaultSource(), choices)).value == (800, 800)


def test_preemption_event_has_task_line_and_delay():
    ran = run_peer(COUNTS, 5, preempt=True)
    lost = [event.detail for event in ran.simulation.trace if event.kind == PREEMPT]
    assert {loss.file for loss in lost} == {"peer.py"}
    assert {"main()", "Thread-1 (work)"} <= {loss.task for loss in lost}
    delayed_of_64 = [loss.late_ns for loss in lost if loss.late_ns]
    assert delayed_of_64
    assert min(delayed_of_64) >= 1_000_000
    assert max(delayed_of_64) <= 60_000_000
    caught_up = [event for event in ran.simulation.trace if event.kind == CAUGHT_UP]
    assert len(caught_up) <= len(delayed_of_64)


def test_overlapping_delays_count_once():
    simulation = Simulation(1)
    node = simulation.node("1")

    def delayed_of_64(ms):
        simulation.preempt(ms * 1_000_000)

    def main():
        for ms in (10, 30):
            simulation.spawn(delayed_of_64, ms, node=node)
        simulation.sleep(20_000_000)
        assert simulation.lost_time_ns(node, 0) == 20_000_000
        simulation.pause(node)
        simulation.sleep(5_000_000)
        simulation.resume(node)
        simulation.sleep(50_000_000)
        assert node.delayed == 0
        assert simulation.lost_time_ns(node, 0) == 30_000_000

    simulation.run(main)


def test_timer_callbacks_are_not_preempted():
    simulation = Simulation(1)

    def main():
        simulation.call_later(1000, simulation.preempt, 5)
        simulation.sleep(2000)
        return simulation.now_ns

    assert simulation.run(main) == 2000


def test_invalid_recorded_preemption_is_ignored():
    class Absurd(DefaultSource):
        def choose(self, place, ordinal, distribution):
            return (
                Preemption(-3 if ordinal % 2 else 10_000)
                if place[0] in ("preempt", "preempt unlocked")
                else distribution.default
            )

    assert run_peer(COUNTS, preempt=True, choice_source=Absurd()).value == (800, 800)


def test_distributions_have_the_stated_frequencies():
    for distribution in DISTRIBUTIONS.values():
        drawn = [distribution.sample((n * 0x9E3779B97F4A7C15) % 2**64) for n in range(4096)]
        lost = [loss for loss in drawn if loss.at]
        assert abs(len(lost) / 4096 - distribution.preempted_of_64 / 64) < 0.05
        assert {loss.at for loss in lost} == set(range(1, distribution.block + 1))
        assert abs(sum(loss.late_ns > 0 for loss in lost) / len(lost) - distribution.delayed_of_64 / 64) < 0.05
        assert distribution.default == Preemption()


TWO_SECTIONS = """
class Peer:
    def __init__(self):
        self.mu = threading.Lock()
        self.free = True
        self.taken = 0
    def take(self):
        with self.mu:
            free = self.free
        with self.mu:
            if free:
                self.free = False
                self.taken += 1
def main():
    peer = Peer()
    threads = []
    for _ in range(4):
        threads.append(threading.Thread(target=peer.take))
        threads[-1].start()
        time.sleep(0.065)
    for thread in threads:
        thread.join()
    return peer.taken
"""


def test_thread_is_delayed_between_critical_sections():
    # Threads start 65 ms apart, so one is overtaken only by a longer delay, which is possible only between sections.
    assert run_peer(TWO_SECTIONS).value == 1
    runs = [run_peer(TWO_SECTIONS, seed, preempt=True) for seed in range(12)]
    assert {run.error for run in runs} == {None}
    assert any(run.value > 1 for run in runs)
