"""labsim.log: the student's own lines. They are in the trace and change nothing else."""

import pytest

from labsim import LogLine, Simulation, log, threading, time
from raft.messages import RequestVoteArgs, RequestVoteReply
from raft.raft import Raft
from raftlab.harness.in_process import InProcessLauncher
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect


def lines(simulation):
    return [event for event in simulation.trace if event.kind == "log"]


def test_a_line_has_its_time_and_its_peer():
    simulation = Simulation(seed=1)

    def peer():
        time.sleep(0.25)
        log("vote", "granted")

    def main():
        log("test", "begins")
        node = simulation.node("2")
        simulation.join(simulation.spawn(peer, node=node))

    simulation.run(main)
    assert [(e.at_ns, e.node, e.incarnation, e.message, e.detail) for e in lines(simulation)] == [
        (0, "", 0, 0, LogLine("test", "begins")),
        (250_000_000, "2", 1, 0, LogLine("vote", "granted")),
    ]


def test_arguments_are_read_when_the_line_is_written():
    simulation = Simulation(seed=1)

    def main():
        entries = [1]
        log("log", "entries %s", entries)
        entries.append(2)

    simulation.run(main)
    assert lines(simulation)[0].detail == LogLine("log", "entries [1]")


@pytest.mark.parametrize(
    ("text", "args", "shown"),
    [
        ("100 % done", (), "100 % done"),
        ("{braces} %d", (), "{braces} %d"),
        ("%d of %s", (1, "x"), "1 of x"),
        (["a", 1], (), "['a', 1]"),
        ("%d", ("x",), "%d ('x',) (badly formatted: %d format: a real number is required, not str)"),
        ("no place", (7,), "no place (7,) (badly formatted: not all arguments converted during string formatting)"),
    ],
)
def test_text_is_formatted_as_by_logging_and_never_fails(text, args, shown):
    simulation = Simulation(seed=1)
    simulation.run(lambda: log("t", text, *args))
    assert lines(simulation)[0].detail == LogLine("t", shown)


def test_an_argument_that_cannot_be_shown_does_not_end_the_run():
    class Broken:
        def __repr__(self):
            raise RuntimeError("no")

    simulation = Simulation(seed=1)
    simulation.run(lambda: log("t", "%s", Broken()))
    assert lines(simulation)[0].detail == LogLine("t", "(a line that cannot be formatted: RuntimeError)")


class Counting:
    def __init__(self):
        self.shown = 0

    def __str__(self):
        self.shown += 1
        return "shown"


def test_nothing_is_formatted_where_no_trace_is_kept():
    value = Counting()
    Simulation(seed=1, trace=False).run(lambda: log("t", "%s", value))
    log("t", "%s", value)  # and outside a simulation
    assert value.shown == 0
    Simulation(seed=1).run(lambda: log("t", "%s", value))
    assert value.shown == 1


class Talkative(Raft):
    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        reply = super().request_vote(args)
        log("vote", "%s for %d", "yes" if reply.vote_granted else "no", args.candidate_id)
        return reply


@collect
def elect(make_config):
    cfg = make_config(servers=3)
    cfg.disconnect(cfg.check_one_leader())
    cfg.check_one_leader()


def test_lines_change_neither_the_run_nor_its_digest():
    silent = run_test(elect, InProcessLauncher(Raft), 3)
    talkative = run_test(elect, InProcessLauncher(Talkative), 3)
    untraced = run_test(elect, InProcessLauncher(Talkative), 3, simulation=Simulation(3, trace=False))
    assert lines(talkative.simulation)
    assert [e.kind for e in talkative.simulation.trace if e.kind != "log"] == [e.kind for e in silent.simulation.trace]
    assert silent.digest == talkative.digest == untraced.digest


def test_a_real_thread_beside_a_simulation_writes_nowhere():
    log("t", "outside")
    thread = threading.Thread(target=log, args=("t", "outside"))
    thread.start()
    thread.join()
