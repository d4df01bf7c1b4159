"""labrpc without faults: what MIT's labrpc tests check, and errors for mistakes in a program.

Tests that take `runtime` run twice, in a simulation and on real threads. Faults are in test_faults.py.
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import pytest

import labgob
from labrpc import ClientEnd, Message, Network, RpcError, Server, Service
from labrpc.events import DropReason
from labsim import Deadlock, Event, Node, Simulation, TaskFailed, current_simulation, queue, threading, time

SEEDS = range(5)
PATIENCE_S = 10.0


@dataclasses.dataclass(slots=True)
class Args:
    number: int
    items: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Reply:
    text: str
    items: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Other:
    number: int


class Echo:
    """A service with handlers of all kinds."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.kept: list[Any] = []
        self.gate = threading.Event()

    def say(self, args: Args) -> Reply:
        self.seen.append(args.number)
        return Reply(f"said {args.number}")

    def keep(self, args: Args) -> Reply:
        self.kept.append(args)
        reply = Reply("kept", args.items)
        self.kept.append(reply)
        return reply

    def double(self, number: int) -> int:
        return 2 * number

    def join(self, words: list[str]) -> dict[str, int]:
        return {word: len(word) for word in words}

    def any(self, value: Any) -> Any:
        return value

    def slow(self, args: Args) -> Reply:
        time.sleep(args.number / 1000)
        return self.say(args)

    def gated(self, args: Args) -> Reply:
        self.gate.wait()
        return self.say(args)

    def bare(self, args):  # type: ignore[no-untyped-def]  # the mistake under test
        return args

    def two(self, args: Args, more: int) -> Reply:
        return Reply("never")

    def nothing(self, args: Args) -> None:
        pass

    def forgets(self, args: Args) -> Reply:
        pass  # type: ignore[return-value]  # the mistake under test

    def perhaps(self, args: Args) -> Reply | None:
        return None

    def other(self, args: Args) -> Reply:
        return Other(1)  # type: ignore[return-value]  # the mistake under test

    def lock(self, args: Args) -> Any:
        return threading.Lock()

    def misfit(self, args: Args) -> Other:
        return Other("one")  # type: ignore[arg-type]  # the mistake under test

    def unseen(self, args: "Nowhere") -> Reply:  # type: ignore[name-defined]  # noqa: F821  the mistake under test
        return Reply("never")

    def fails(self, args: Args) -> Reply:
        raise ZeroDivisionError("by nought")

    def exits(self, args: Args) -> Reply:
        sys.exit("enough")

    def _hidden(self, args: Args) -> Reply:
        return Reply("never")


class Lab:
    """A network with servers "0", "1", ... and an end of every server, and of a client, to every server."""

    def __init__(self, servers: int = 1, *, nodes: bool = False) -> None:
        self.network = Network(seed=1)
        self.services = [Echo() for _ in range(servers)]
        self.nodes: list[Node | None] = [None] * servers
        self.ends: dict[tuple[str, str], ClientEnd] = {}
        for i in range(servers):
            if nodes:
                self.nodes[i] = simulation().node(str(i))
            self.network.add_server(str(i), self.server(str(i)))
        for source in ("client", *map(str, range(servers))):
            for target in map(str, range(servers)):
                self.ends[source, target] = self.wire(f"{source}-{target}", target, source)

    def server(self, name: str) -> Server:
        """A new server for this name, with its own node and service."""
        server = Server(self.nodes[int(name)])
        server.add_service(Service(self.services[int(name)]))
        return server

    def wire(self, name: str, target: str, owner: str = "client") -> ClientEnd:
        end = self.network.make_end(name, owner)
        self.network.connect(name, target)
        self.network.enable(name, True)
        return end

    def end(self, source: str = "client", target: str = "0") -> ClientEnd:
        return self.ends[source, target]

    def call(self, method: str, args: Any, *, source: str = "client", target: str = "0") -> Any:
        return self.ends[source, target].call(f"Echo.{method}", args)


def simulation() -> Simulation:
    found = current_simulation()
    assert found is not None
    return found


def simulate(body: Callable[[], object], *, seeds: range = SEEDS) -> None:
    for seed in seeds:
        Simulation(seed).run(body)


def assert_nothing_in_flight(network: Network) -> None:
    assert network._in_flight == {}
    if current_simulation() is None:
        assert network._transport._callers == set()  # type: ignore[union-attr]


def together(*bodies: Callable[[], object]) -> list[Any]:
    """The results of functions that run concurrently."""
    results: list[Any] = [None] * len(bodies)

    def run(i: int) -> None:
        results[i] = bodies[i]()

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a call did not return"
    return results


@pytest.fixture(params=["simulated", "real"])
def runtime(request: pytest.FixtureRequest) -> Callable[[Callable[[], object]], None]:
    return simulate if request.param == "simulated" else lambda body: body()


Runtime = Callable[[Callable[[], object]], None]


# ---- what the MIT lab's tests check ----------------------------------------------------------------------


def test_call_returns_the_reply(runtime: Runtime) -> None:
    def body() -> None:
        lab = Lab()
        assert lab.call("say", Args(7)) == Reply("said 7")
        assert lab.call("double", 21) == 42
        assert_nothing_in_flight(lab.network)

    runtime(body)


def test_values_of_all_types_arrive_unchanged() -> None:
    def body() -> None:
        lab = Lab()
        assert lab.call("keep", Args(1, [1, 2])) == Reply("kept", [1, 2])
        assert lab.services[0].kept[0] == Args(1, [1, 2])
        assert lab.call("join", ["a", "bcd"]) == {"a": 1, "bcd": 3}
        for value in ["text", 3, 2.5, True, b"bytes", [1, "x"], {"k": [1]}, (1, 2)]:
            back = lab.call("any", value)
            assert back == value and type(back) is type(value)

    simulate(body)


PROGRAM = """
from dataclasses import dataclass

@dataclass
class Answer:
    text: str

class Peer:
    def ask(self, number: int) -> Answer:
        self.before_it_answers()
        return Answer(f"answered {number}")
"""


def test_thread_that_outlives_its_server_reads_replies(runtime: Runtime) -> None:
    """Two peers, each with its own copy of one program; the caller's server goes while it waits."""

    def body() -> None:
        network = Network(seed=1)
        programs: list[dict[str, Any]] = [{"__name__": "program"}, {"__name__": "program"}]
        for i, program in enumerate(programs):
            exec(PROGRAM, program)
            program["Peer"].before_it_answers = lambda _: network.delete_server("0")
            server = Server()
            server.add_service(Service(program["Peer"]()))
            network.add_server(str(i), server)
        end = network.make_end("0-1", "0")
        network.connect("0-1", "1")
        network.enable("0-1", True)
        answer = end.call("Peer.ask", 7)
        assert answer.text == "answered 7"
        assert type(answer) is programs[0]["Answer"]

    runtime(body)


def test_a_disabled_end_gets_none_until_it_is_enabled(runtime: Runtime) -> None:
    def body() -> None:
        lab = Lab()
        lab.network.enable("client-0", False)
        assert lab.call("say", Args(1)) is None
        assert lab.services[0].seen == []
        lab.network.enable("client-0", True)
        assert lab.call("say", Args(2)) == Reply("said 2")
        assert_nothing_in_flight(lab.network)

    runtime(body)


def test_end_without_a_server_gets_none() -> None:
    def body() -> None:
        lab = Lab()
        network = lab.network
        network.make_end("loose")
        network.enable("loose", True)
        assert network._ends["loose"].call("Echo.say", Args(1)) is None
        assert lab.wire("astray", "nobody").call("Echo.say", Args(1)) is None
        late = lab.wire("early", "later")
        network.add_server("later", network._servers["0"])
        assert late.call("Echo.say", Args(3)) == Reply("said 3")
        assert_nothing_in_flight(network)

    simulate(body)


def test_requests_are_counted_per_server_and_in_total(runtime: Runtime) -> None:
    def body() -> None:
        lab = Lab(2)
        for i in range(17):
            lab.call("say", Args(i))
        for i in range(5):
            lab.call("say", Args(i), target="1")
        network = lab.network
        assert (network.get_count("0"), network.get_count("1"), network.get_count("2")) == (17, 5, 0)
        assert network.get_total_count() == 22
        network.enable("client-0", False)
        lab.call("say", Args(0))
        assert network.get_count("0") == 17, "not reached"
        assert network.get_total_count() == 23, "sent, though"

    runtime(body)


def test_bytes_of_sent_requests_and_delivered_replies_count() -> None:
    def body() -> None:
        lab = Lab()
        args, reply = Args(3, [1, 2, 3]), Reply("kept", [1, 2, 3])
        sent, received = len(labgob.encode(args)), len(labgob.encode(reply))
        for _ in range(10):
            assert lab.call("keep", args) == reply
        assert lab.network.get_total_bytes() == 10 * (sent + received)
        lab.network.enable("client-0", False)
        lab.call("keep", args)
        assert lab.network.get_total_bytes() == 11 * sent + 10 * received

    simulate(body, seeds=range(1))


@pytest.mark.parametrize("reliable", [True, False])
def test_many_concurrent_clients(runtime: Runtime, reliable: bool) -> None:
    def body() -> None:
        clients, calls = 12, 5
        lab = Lab()
        lab.network.reliable(reliable)
        ends = [lab.wire(f"end {i}", "0") for i in range(clients)]

        def client(i: int) -> int:
            good = 0
            for j in range(calls):
                reply = ends[i].call("Echo.say", Args(100 * i + j))
                assert reply in ([Reply(f"said {100 * i + j}")] if reliable else [Reply(f"said {100 * i + j}"), None])
                good += reply is not None
            return good

        good = together(*(lambda i=i: client(i) for i in range(clients)))
        seen = lab.services[0].seen
        assert len(seen) == len(set(seen)) == lab.network.get_count("0")
        assert lab.network.get_total_count() == clients * calls
        if reliable:
            assert sum(good) == len(seen) == clients * calls
        else:
            assert 0 < sum(good) <= len(seen) <= clients * calls
        assert_nothing_in_flight(lab.network)

    runtime(body)


def test_many_concurrent_calls_on_one_end(runtime: Runtime) -> None:
    def body() -> None:
        lab = Lab()
        replies = together(*(lambda i=i: lab.call("slow", Args(i)) for i in range(30)))
        assert replies == [Reply(f"said {i}") for i in range(30)]
        assert lab.network.get_count("0") == 30
        assert_nothing_in_flight(lab.network)

    runtime(body)


def test_calls_to_a_disconnected_server_do_not_delay_later_ones(runtime: Runtime) -> None:
    """MIT's TestRegression1."""

    def body() -> None:
        lab = Lab()
        stuck = [lambda: lab.call("gated", Args(1)) for _ in range(20)]

        def cut_then_ask() -> tuple[float, Any]:
            while lab.network.get_count("0") < 20:
                time.sleep(0.001)
            lab.network.enable("client-0", False)
            other = lab.wire("other", "0")
            began = time.monotonic()
            reply = other.call("Echo.say", Args(2))
            return time.monotonic() - began, reply

        *nones, (took_s, reply) = together(*stuck, cut_then_ask)
        assert nones == [None] * 20
        assert reply == Reply("said 2")
        assert took_s < 0.1
        lab.services[0].gate.set()
        assert_nothing_in_flight(lab.network)

    runtime(body)


def test_call_ends_when_its_server_is_deleted(runtime: Runtime) -> None:
    """MIT's TestKilled."""

    def body() -> None:
        lab = Lab()

        def delete() -> float:
            while lab.network.get_count("0") < 1:
                time.sleep(0.001)
            lab.network.delete_server("0")
            return time.monotonic()

        def call() -> tuple[Any, float]:
            return lab.call("gated", Args(1)), time.monotonic()

        (reply, ended), deleted = together(call, delete)
        assert reply is None
        assert ended - deleted <= (0.1 if current_simulation() else 1.0)
        assert_nothing_in_flight(lab.network)
        assert lab.network.get_count("0") == 0
        lab.services[0].gate.set()

    runtime(body)


# ---- handlers take their time ----------------------------------------------------------------------------


class Relay:
    """Calls the next server, which calls back while it waits."""

    def __init__(self, next_end: ClientEnd) -> None:
        self.next_end = next_end

    def count_down(self, number: int) -> int:
        if number == 0:
            return 0
        time.sleep(0.002)
        answer: int = self.next_end.call("Relay.count_down", number - 1)
        return answer + 1


def test_a_handler_may_wait_and_call(runtime: Runtime) -> None:
    def body() -> None:
        lab = Lab(0)
        for i in range(2):
            server = Server()
            server.add_service(Service(Relay(lab.wire(f"relay {i}", str(1 - i)))))
            lab.network.add_server(str(i), server)
        assert lab.wire("client", "0").call("Relay.count_down", 10) == 10
        assert_nothing_in_flight(lab.network)

    runtime(body)


def test_handler_that_never_returns_blocks_no_other_call(runtime: Runtime) -> None:
    def body() -> None:
        lab = Lab()
        threading.Thread(target=lambda: lab.call("gated", Args(1)), daemon=True).start()
        while lab.network.get_count("0") < 1:
            time.sleep(0.001)
        for i in range(10):
            assert lab.call("say", Args(i)) == Reply(f"said {i}")
        assert len(lab.network._in_flight) == 1
        lab.network.cleanup()
        lab.services[0].gate.set()

    runtime(body)


def test_the_answer_of_a_deleted_server_is_never_delivered() -> None:
    """The handler continues (only a crash stops it), and replies before the caller has given up."""

    def body() -> None:
        lab = Lab()

        def delete_and_replace() -> None:
            time.sleep(0.010)
            lab.network.delete_server("0")
            server = Server()
            server.add_service(Service(Echo()))
            lab.network.add_server("0", server)
            lab.services[0].gate.set()

        reply, _ = together(lambda: lab.call("gated", Args(1)), delete_and_replace)
        assert lab.services[0].seen == [1], "it was answered"
        assert reply is None
        assert [e.kind for e in events()] == ["send", "deliver", "drop", "answer", "drop"]
        assert [e.note for e in events("drop")] == [DropReason.SERVER_GONE, DropReason.NOBODY_WAITS]
        assert lab.call("say", Args(2)) == Reply("said 2")
        assert_nothing_in_flight(lab.network)

    simulate(body, seeds=range(20))


def test_concurrent_calls_are_handled_in_any_order() -> None:
    handled, answered = set(), set()

    def body() -> None:
        lab = Lab()
        order: list[int] = []
        together(*(lambda i=i: (lab.call("say", Args(i)), order.append(i)) for i in range(3)))
        handled.add(tuple(lab.services[0].seen))
        answered.add(tuple(order))

    simulate(body, seeds=range(100))
    assert len(handled) == len(answered) == 6


def test_changes_after_the_call_do_not_reach_the_receiver() -> None:
    def body() -> None:
        lab = Lab()
        args = Args(1, [1, 2])
        lab.network.latency(5, 5)

        def change_in_transit() -> None:
            time.sleep(0.001)
            args.items.append(3)
            args.number = 9

        reply, _ = together(lambda: lab.call("keep", args), change_in_transit)
        received, returned = lab.services[0].kept
        assert received == Args(1, [1, 2])
        received.items.append(4)
        assert args.items == [1, 2, 3]
        returned.items.append(5)
        assert reply == Reply("kept", [1, 2])

    simulate(body)


# ---- crashes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latency_ms", [0, 50])
def test_a_call_ends_when_its_servers_node_is_killed(latency_ms: int) -> None:
    """Even if the server is not deleted: with a request in its handler, or in flight either way."""

    def body() -> None:
        lab = Lab(2, nodes=True)
        lab.network.latency(latency_ms, latency_ms)

        def kill() -> None:
            time.sleep(0.070)
            assert lab.nodes[0] is not None
            simulation().kill(lab.nodes[0])

        def call(method: str, **where: str) -> tuple[Any, float]:
            return lab.call(method, Args(1), **where), time.monotonic()

        *dead, (alive, _), _ = together(
            lambda: call("gated"), lambda: call("slow"), lambda: call("slow", target="1"), kill
        )
        assert alive == Reply("said 1")
        for reply, at in dead if latency_ms else dead[:1]:
            assert reply is None
            assert 0.070 < at <= 0.170
        # From now on too.
        began = time.monotonic()
        assert lab.call("say", Args(2)) is None
        assert 0 < time.monotonic() - began <= 0.1 + latency_ms / 1000
        late = {DropReason.NOBODY_WAITS} if latency_ms else set()
        assert {e.note for e in events("drop")} == {DropReason.SERVER_GONE} | late
        assert_nothing_in_flight(lab.network)

    simulate(body)


def test_killed_caller_gets_no_reply_and_is_released() -> None:
    def body() -> None:
        lab = Lab(2, nodes=True)
        caller = lab.nodes[1]
        assert caller is not None
        simulation().spawn(lambda: lab.call("slow", Args(10), source="1"), node=caller)
        time.sleep(0.005)
        bytes_before = lab.network.get_total_bytes()
        simulation().kill(caller)
        time.sleep(0.010)
        assert [e.kind for e in events()] == ["send", "deliver", "answer", "drop"]
        assert events("drop")[0].note == DropReason.CALLER_GONE
        assert lab.network.get_total_bytes() == bytes_before
        assert_nothing_in_flight(lab.network)

    simulate(body)


def test_server_with_a_used_name_replaces_the_old_one(runtime: Runtime) -> None:
    """The calls on the old one were never answered."""

    def body() -> None:
        lab = Lab()
        new = Server()
        new.add_service(Service(Echo()))

        def replace() -> None:
            while lab.network.get_count("0") < 1:
                time.sleep(0.001)
            lab.network.add_server("0", new)

        assert together(lambda: lab.call("gated", Args(1)), replace) == [None, None]
        assert lab.call("say", Args(1)) == Reply("said 1")
        assert lab.network.get_count("0") == 1
        lab.services[0].gate.set()
        assert_nothing_in_flight(lab.network)

    runtime(body)


def test_deleting_an_end_ends_its_calls_and_no_others() -> None:
    def body() -> None:
        lab = Lab()
        other = lab.wire("other", "0")

        def delete() -> None:
            time.sleep(0.005)
            lab.network.delete_end("client-0")
            lab.services[0].gate.set()

        calls = (lambda: lab.call("gated", Args(1)), lambda: other.call("Echo.gated", Args(2)), delete)
        assert together(*calls) == [None, Reply("said 2"), None]
        assert lab.call("say", Args(3)) is None, "it stays dead"
        assert lab.network.make_end("client-0") is not lab.end()
        assert_nothing_in_flight(lab.network)

    simulate(body)


def test_cleanup_ends_every_call_for_good(runtime: Runtime) -> None:
    def body() -> None:
        lab = Lab()
        lab.network.long_delays(True)

        def clean_up() -> None:
            while lab.network.get_count("0") < 3:
                time.sleep(0.001)
            lab.network.enable("client-0", False)  # in real time its callers now wait for a while
            lab.network.cleanup()
            lab.services[0].gate.set()

        calls = [lambda i=i: lab.call("gated", Args(i)) for i in range(3)]
        assert together(*calls, clean_up) == [None] * 4
        assert_nothing_in_flight(lab.network)
        assert lab.call("say", Args(1)) is None

    runtime(body)


def test_cleanup_ends_real_timer_threads() -> None:
    before = set(threading.enumerate())
    lab = Lab()
    lab.network.latency(60_000, 60_000)
    threads = [threading.Thread(target=lambda: lab.call("say", Args(1))) for _ in range(5)]
    for thread in threads:
        thread.start()
    while len(lab.network._in_flight) < 5:
        time.sleep(0.001)
    lab.network.cleanup()
    for thread in threads:
        thread.join(PATIENCE_S)
    deadline_s = time.monotonic() + PATIENCE_S
    while set(threading.enumerate()) - before:
        assert time.monotonic() < deadline_s, "threads were left behind"
        time.sleep(0.001)
    assert lab.services[0].seen == []
    assert_nothing_in_flight(lab.network)


# ---- mistakes, each a clear error -----------------------------------------------------------------------------

CANNOT = " cannot be an RPC: "

MISTAKES = [
    (
        "Ecko.say",
        Args(1),
        "client called 'Ecko.say' of 0: no service 'Ecko' for 'Ecko.say'; its services: Echo",
    ),
    (
        "say",
        Args(1),
        "client called 'say' of 0: 'say' is not a method; write 'Service.method', as in 'Raft.request_vote'",
    ),
    (
        "Echo.sya",
        Args(1),
        "client called 'Echo.sya' of 0: Echo has no method 'sya'; its methods: any, bare, double, exits, fails, "
        "forgets, gated, join, keep, lock, misfit, nothing, other, perhaps, say, slow, two, unseen",
    ),
    (
        "Echo._hidden",
        Args(1),
        "client called 'Echo._hidden' of 0: Echo has no method '_hidden'; its methods: any, bare, ",
    ),
    ("Echo.seen", Args(1), "client called 'Echo.seen' of 0: Echo has no method 'seen'; its methods: any, bare, "),
    (
        "Echo.bare",
        Args(1),
        f"client called 'Echo.bare' of 0: Echo.bare(args){CANNOT}annotate its one argument and its reply, "
        "as in 'def bare(self, args: Args) -> Reply'",
    ),
    ("Echo.two", Args(1), f"{CANNOT}annotate its one argument and its reply, as in 'def two("),
    (
        "Echo.nothing",
        Args(1),
        f"{CANNOT}it returns None, which the caller takes for a lost reply; return a value",
    ),
    (
        "Echo.unseen",
        Args(1),
        f"{CANNOT}name 'Nowhere' is not defined; define this name at module level, or import it there",
    ),
    ("Echo.say", Other(1), "client called Echo.say of 0 with an Other; pass an Args"),
    ("Echo.say", 5, "client called Echo.say of 0 with an int; pass an Args"),
    ("Echo.say", None, "client called Echo.say of 0 with None; pass an Args"),
    (
        "Echo.say",
        Args("seven"),  # type: ignore[arg-type]  # the mistake under test
        "client called Echo.say of 0 with an argument of the wrong type: Args.number: expected int, got str",
    ),
    (
        "Echo.join",
        [1],
        "client called Echo.join of 0 with an argument of the wrong type: list[str][0]: expected str, got int",
    ),
    (
        "Echo.forgets",
        Args(1),
        "Echo.forgets of 0 returned None, which the caller takes for a lost reply; return a Reply",
    ),
    (
        "Echo.perhaps",
        Args(1),
        "Echo.perhaps of 0 returned None, which the caller takes for a lost reply",
    ),
    ("Echo.other", Args(1), "Echo.other of 0 returned an Other; return a Reply, as annotated"),
    (
        "Echo.lock",
        Args(1),
        "Echo.lock of 0 returned a value that cannot be encoded: cannot encode <class 'labsim.threading.Lock'>",
    ),
    ("Echo.exits", Args(1), "Echo.exits of 0 called sys.exit(enough)"),
]


@pytest.mark.parametrize(("method", "args", "text"), MISTAKES, ids=[f"{m}-{type(a).__name__}" for m, a, _ in MISTAKES])
def test_mistake_in_a_call_fails_the_run_and_is_explained(method: str, args: Any, text: str) -> None:
    def body() -> None:
        Lab(nodes=True).end().call(method, args)

    with pytest.raises(TaskFailed) as failed:
        Simulation(1).run(body)
    assert isinstance(failed.value.__cause__, RpcError)
    assert text in str(failed.value.__cause__)
    assert f"task {method} from client of node 0 ended with an exception at 0.000000 s" in str(failed.value)
    assert failed.value.node == "0"


def test_none_from_a_killed_server_is_a_lost_reply(runtime: Runtime) -> None:
    def body() -> None:
        lab = Lab()
        killed = lab.server("0")
        killed.killed = True
        lab.network.add_server("0", killed)
        assert lab.call("forgets", Args(1)) is None
        assert_nothing_in_flight(lab.network)

    runtime(body)


def test_exception_in_a_handler_fails_the_run_and_names_the_peer() -> None:
    def body(nodes: bool) -> None:
        Lab(nodes=nodes).call("fails", Args(1))

    with pytest.raises(TaskFailed, match=r"task Echo\.fails from client of node 0 ended with an exception") as failed:
        Simulation(1).run(lambda: body(True))
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    with pytest.raises(TaskFailed, match=r"task Echo\.fails of 0 from client ended with an exception"):
        Simulation(1).run(lambda: body(False))


def test_undecodable_reply_is_reported_as_the_server_s_fault() -> None:
    def body() -> None:
        Lab().call("misfit", Args(1))

    with pytest.raises(RpcError) as failed:
        Simulation(1).run(body)
    assert (
        str(failed.value)
        == "Echo.misfit of 0 returned a reply that client cannot decode: Other.number: expected int, got str"
    )


def test_unencodable_arguments_are_refused_at_the_caller() -> None:
    def body() -> None:
        lab = Lab()
        with pytest.raises(labgob.EncodeError, match="Lock"):
            lab.call("any", threading.Lock())
        assert lab.network.get_total_count() == 0
        assert_nothing_in_flight(lab.network)

    simulate(body)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("method", "why"), [("fails", "by nought"), ("other", "return a Reply, as annotated")])
def test_failed_handler_on_real_threads_fails_every_call(method: str, why: str) -> None:
    lab = Lab()
    outcomes: queue.Queue[BaseException | None] = queue.Queue()

    def wait_elsewhere() -> None:
        try:
            lab.call("gated", Args(1))
            outcomes.put(None)
        except BaseException as error:
            outcomes.put(error)

    threading.Thread(target=wait_elsewhere, daemon=True).start()
    while lab.network.get_count("0") < 1:
        time.sleep(0.001)
    whole = f"(?s)task Echo.{method} of 0 from client ended with an exception:\nTraceback.*{why}"
    with pytest.raises(TaskFailed, match=whole):
        lab.call(method, Args(1))
    waiting = outcomes.get(timeout=PATIENCE_S)
    assert isinstance(waiting, TaskFailed) and why in str(waiting)
    with pytest.raises(TaskFailed, match=whole) as failed:
        lab.call("say", Args(1))
    assert isinstance(failed.value.__cause__, (ZeroDivisionError, RpcError))
    with pytest.raises(TaskFailed, match=whole):
        lab.network.cleanup()
    assert lab.services[0].seen == []
    lab.services[0].gate.set()


def test_failed_handler_prints_its_traceback_before_calls_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = threading.Event()
    shown: list[tuple[BaseException | None, bool]] = []

    def show(args: Any) -> None:
        # A slow hook: a caller that failed too early would fail while the hook waits.
        shown.append((args.exc_value, told.wait(0.05)))

    monkeypatch.setattr("threading.excepthook", show)
    with pytest.raises(TaskFailed):
        Lab().call("fails", Args(1))
    told.set()
    ((error, told_before),) = shown
    assert isinstance(error, ZeroDivisionError) and not told_before


def test_failing_excepthook_leaves_no_caller_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def show(args: Any) -> None:
        if args.exc_type is ZeroDivisionError:
            raise SystemExit("the hook itself")

    monkeypatch.setattr("threading.excepthook", show)
    with pytest.raises(TaskFailed, match="by nought"):
        Lab().call("fails", Args(1))


def test_a_network_made_outside_is_refused_inside() -> None:
    lab = Lab()
    with pytest.raises(RpcError) as failed:
        Simulation(1).run(lambda: lab.call("say", Args(1)))
    assert str(failed.value) == "call(): this Network was made outside the simulation; make it inside"


def test_names_are_checked() -> None:
    network = Network()
    network.make_end("a")
    with pytest.raises(ValueError, match=r"^make_end\(\): an end called 'a' exists already"):
        network.make_end("a")
    for use in (network.delete_end, lambda name: network.connect(name, "0"), lambda name: network.enable(name, True)):
        with pytest.raises(ValueError, match=r"^no end is called 'b'; make it with make_end\(\)$"):
            use("b")


def test_deadlock_report_names_the_awaited_reply() -> None:
    with pytest.raises(Deadlock, match=r"the reply of 0 to Echo\.gated"):
        Simulation(1).run(lambda: Lab().call("gated", Args(1)))


# ---- the trace ------------------------------------------------------------------------------------------------


def events(kind: str = "") -> list[Event]:
    """The network's events so far, of that kind."""
    trace = simulation().trace
    assert trace is not None
    return [event for event in trace if isinstance(event.detail, Message) and kind in ("", event.kind)]


def test_trace_has_each_step_of_a_call() -> None:
    def body() -> None:
        lab = Lab(2, nodes=True)
        lab.network.latency(5, 5)
        caller = lab.nodes[1]
        assert caller is not None
        args = Args(7, [1])
        assert simulation().call_on(caller, lambda: lab.call("say", args, source="1")) == Reply("said 7")
        assert [(e.kind, e.at_ns // 1_000_000, e.node, e.incarnation, e.message, e.note) for e in events()] == [
            ("send", 0, "1", 1, 1, ""),
            ("deliver", 5, "0", 1, 1, ""),
            ("answer", 5, "0", 1, 1, ""),
            ("reply", 10, "1", 1, 1, ""),
        ]
        [message] = {id(e.detail): e.detail for e in events()}.values()
        assert (message.id, message.source, message.target) == (1, "1", "0")
        assert message.service_method == "Echo.say"
        assert message.request == labgob.encode(args)
        assert message.reply == labgob.encode(Reply("said 7"))
        assert message.decode_args() == args
        assert message.decode_reply() == Reply("said 7")
        assert repr(message) == "<Message 1 Echo.say 1->0>"

    simulate(body)


def test_a_message_without_an_answer_has_no_reply() -> None:
    def body() -> None:
        lab = Lab()
        lab.network.enable("client-0", False)
        lab.call("say", Args(1))
        send, drop = events()
        assert send.detail is drop.detail
        assert send.detail.decode_reply() is None
        assert (drop.kind, drop.note, drop.node, drop.incarnation) == ("drop", DropReason.UNPLUGGED, "", 0)

    simulate(body)


def test_trace_decodes_messages_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Any] = []

    def decode(data: bytes, as_type: Any) -> Any:
        decoded.append(as_type)
        return labgob.decode(data, as_type)

    for module in ("network", "server", "message"):
        monkeypatch.setattr(f"labrpc.{module}.decode", decode)

    def body() -> None:
        Lab().call("say", Args(1))
        assert decoded == [Args, Reply], "once by the handler, once by the caller"
        events("send")[0].detail.decode_args()
        assert decoded == [Args, Reply, Args]

    Simulation(1).run(body)


def test_every_step_of_a_call_is_in_the_digest() -> None:
    def run(number: int, reply_number: int) -> str:
        def body() -> None:
            lab = Lab()
            lab.services[0].say = answer  # type: ignore[method-assign]
            lab.call("say", Args(number))

        def answer(args: Args) -> Reply:
            return Reply(str(reply_number))

        sim = Simulation(1)
        sim.run(body)
        return sim.digest()

    assert run(1, 1) == run(1, 1)
    assert len({run(1, 1), run(2, 1), run(1, 2)}) == 3
