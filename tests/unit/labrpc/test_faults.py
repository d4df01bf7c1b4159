"""labrpc with faults: the statistics of each fault over thousands of calls, and equal runs for equal seeds.

Seeds are fixed, so nothing here is flaky; the bounds are four standard deviations wide all the same, so that a
change of the order of draws does not break a test.
"""

import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labrpc import Network
from labrpc.conditions import NetworkConditions
from labrpc.events import DropReason
from labsim import Simulation, threading, time
from unit.labrpc.test_network import Args, Lab, Reply, assert_nothing_in_flight, events, simulation, together

ROOT = Path(__file__).parents[3]
CALLS = 2000


def assert_rate(hits: int, of: int, expected: float) -> None:
    spread = 4 * math.sqrt(expected * (1 - expected) / of)
    assert abs(hits / of - expected) <= spread, f"{hits} of {of} is {hits / of:.4f}, not {expected:.4f} ± {spread:.4f}"


def assert_uniform(values: list[float], low: float, high: float) -> None:
    """Asserts that values are uniformly distributed over the range."""
    assert low <= min(values) and max(values) <= high, f"{min(values)}..{max(values)}, not {low}..{high}"
    for part in range(4):
        edge = low + (high - low) * part / 4
        assert_rate(sum(edge <= value < edge + (high - low) / 4 for value in values), len(values), 0.25)


def run(body: Callable[[], Any], seed: int = 1) -> Any:
    return Simulation(seed).run(body)


def timed_calls(lab: Lab, calls: int = CALLS, method: str = "say", **where: str) -> list[tuple[Any, float]]:
    """The reply of each of so many calls at once, and how many ms it took."""

    def call(i: int) -> tuple[Any, float]:
        began = time.monotonic()
        reply = lab.call(method, Args(i), **where)
        assert reply is None or reply.text == f"said {i}"
        return reply, round((time.monotonic() - began) * 1000, 6)

    sim = simulation()
    tasks = [sim.spawn(call, i) for i in range(calls)]  # cheaper than as many threads
    for task in tasks:
        sim.join(task)
    assert_nothing_in_flight(lab.network)
    return [task.value for task in tasks]


def notes() -> Counter[str]:
    return Counter(event.note for event in events("drop"))


# ---- MIT's faults ----------------------------------------------------------------------------------------------


def test_reliable_network_has_no_loss_and_no_delay() -> None:
    def body() -> None:
        lab = Lab()
        assert all(reply is not None and ms == 0 for reply, ms in timed_calls(lab))
        assert lab.network.get_count("0") == CALLS

    run(body)


def test_unreliable_loses_a_tenth_of_requests_and_replies() -> None:
    def body() -> None:
        lab = Lab()
        lab.network.reliable(False)
        results = timed_calls(lab)
        assert_rate(notes()[DropReason.LOST_REQUEST], CALLS, 0.1)
        reached = lab.network.get_count("0")
        assert reached == CALLS - notes()[DropReason.LOST_REQUEST] == len(lab.services[0].seen)
        assert_rate(notes()[DropReason.LOST_REPLY], reached, 0.1)
        assert sum(reply is None for reply, _ in results) == notes().total()

    run(body)


def test_unreliable_delays_requests_by_up_to_26_ms() -> None:
    def body() -> None:
        lab = Lab()
        lab.network.reliable(False)
        results = timed_calls(lab)
        assert_uniform([ms for reply, ms in results if reply is not None], 0, 26)

    run(body)


@pytest.mark.parametrize("long_delays", [False, True])
def test_caller_of_a_lost_message_returns_at_once(long_delays: bool) -> None:
    """A lost reply used to cost up to 7 s when delays were long."""

    def body() -> None:
        lab = Lab(2)
        lab.network.reliable(False)
        lab.network.long_delays(long_delays)
        assert max(ms for reply, ms in timed_calls(lab) if reply is None) <= 26
        lab.network.reliable(True)
        lab.network.link("client", "1", loss=1)
        assert timed_calls(lab, 10, target="1") == [(None, 0)] * 10

    run(body)


def test_long_reordering_delays_two_thirds_of_replies() -> None:
    def body() -> None:
        lab = Lab()
        lab.network.long_reordering(True)
        results = timed_calls(lab)
        assert all(reply is not None for reply, _ in results)
        late = [ms - 200 for _, ms in results if ms]
        assert_rate(len(late), CALLS, 2 / 3)
        assert min(late) >= 0 and 1500 < max(late) <= 2001
        # MIT's Intn(1 + Intn(2000)): P(extra < x) = x/2000 * (1 + ln(2000/x)). Half are within 373 ms.
        for extra_ms in (100, 373, 1000, 1500):
            expected = extra_ms / 2000 * (1 + math.log(2000 / extra_ms))
            assert_rate(sum(ms < extra_ms for ms in late), len(late), expected)

    run(body)


def test_long_reordering_really_reorders() -> None:
    """Of consecutive calls, about one third of the pairs return in reverse order."""

    def body() -> None:
        lab = Lab()
        lab.network.long_reordering(True)
        order: list[int] = []

        def call(i: int) -> None:
            time.sleep(i / 1000)
            lab.call("say", Args(i))
            order.append(i)

        together(*(lambda i=i: call(i) for i in range(1000)))
        assert lab.services[0].seen == list(range(1000)), "the requests came in order"
        place = {number: at for at, number in enumerate(order)}
        turned = sum(place[i] > place[i + 1] for i in range(999))
        # The former late and the latter not: 2/9. Both late, and the former by more: nearly half of 4/9.
        assert_rate(turned, 999, 2 / 9 + 2 / 9)

    run(body)


@pytest.mark.parametrize(("long_delays", "limit_ms"), [(False, 100), (True, 7000)])
@pytest.mark.parametrize("why", [DropReason.NO_SERVER, DropReason.UNPLUGGED, DropReason.LINK_CUT])
def test_call_to_nowhere_takes_up_to_100_ms_or_7_s(long_delays: bool, limit_ms: float, why: str) -> None:
    def body() -> None:
        lab = Lab()
        lab.network.long_delays(long_delays)
        if why is DropReason.NO_SERVER:
            lab.network.delete_server("0")
        elif why is DropReason.UNPLUGGED:
            lab.network.enable("client-0", False)
        else:
            lab.network.link("client", "0", cut=True)
        results = timed_calls(lab, 1000)
        assert {reply for reply, _ in results} == {None}
        assert_uniform([ms for _, ms in results], 0, limit_ms)
        assert notes() == {why: 1000}

    run(body)


@pytest.mark.parametrize("how", ["delete_server", "disable", "delete_end"])
def test_pending_call_notices_a_cut_within_100_ms(how: str) -> None:
    def body() -> None:
        lab = Lab()
        lab.network.long_delays(True)

        def cut_off() -> None:
            time.sleep(1)
            if how == "delete_server":
                lab.network.delete_server("0")
            elif how == "disable":
                lab.network.enable("client-0", False)
            else:
                lab.network.delete_end("client-0")

        threading.Thread(target=cut_off).start()
        results = timed_calls(lab, 1000, "gated")
        assert {reply for reply, _ in results} == {None}
        assert_uniform([ms for _, ms in results], 1001, 1100)

    run(body)


def test_request_arrives_but_reply_does_not_after_disable() -> None:
    def body() -> None:
        lab = Lab()
        lab.network.latency(10, 10)
        threading.Timer(0.005, lambda: lab.network.enable("client-0", False)).start()
        assert timed_calls(lab, 1)[0][0] is None
        time.sleep(0.1)
        assert lab.services[0].seen == [0]
        assert list(notes()) == [DropReason.UNPLUGGED_ON_THE_WAY, DropReason.NOBODY_WAITS]

    run(body)


@pytest.mark.parametrize("switch", ["long_reordering", "latency"])
def test_delayed_reply_is_lost_with_its_server(switch: str) -> None:
    def body() -> None:
        lab = Lab()
        if switch == "latency":
            lab.network.latency(150, 150)
        else:
            lab.network.long_reordering(True)
        threading.Timer(0.180, lambda: lab.network.delete_server("0")).start()
        results = timed_calls(lab, 300)
        late = [reply for reply, ms in results if ms]
        assert len(late) >= 150
        assert set(late) == {None}
        assert len(lab.services[0].seen) == 300, "all were answered"

    run(body)


# ---- beyond MIT ---------------------------------------------------------------------------------------------------


def test_duplicates_arrive_up_to_200_ms_later() -> None:
    def body() -> None:
        lab = Lab()
        lab.network.duplicates(0.25)
        results = timed_calls(lab)
        assert all(reply is not None and ms == 0 for reply, ms in results), "the first answer counts"
        time.sleep(1)
        seen = Counter(lab.services[0].seen)
        assert set(seen.values()) == {1, 2}
        twice = [number for number, times in seen.items() if times == 2]
        assert_rate(len(twice), CALLS, 0.25)
        assert lab.network.get_count("0") == CALLS + len(twice)
        assert lab.network.get_total_count() == CALLS
        assert_uniform([e.at_ns / 1e6 for e in events("duplicate")], 0, 200)
        assert sorted(e.detail.decode_args().number for e in events("duplicate")) == sorted(twice)
        assert notes() == {DropReason.NOBODY_WAITS: len(twice)}
        # Another message with the same id: its handler may have replied differently.
        first = {e.message: e.detail for e in events("send")}
        assert all(e.detail is not first[e.message] and e.detail.id == e.message for e in events("duplicate"))

    run(body)


def test_lost_reply_does_not_end_a_call_with_a_pending_duplicate() -> None:
    """Losing either copy's reply used to end the call."""

    def body() -> None:
        lab = Lab()
        lab.network.duplicates(1)
        lab.network.link("0", "client", loss=0.5)
        results = timed_calls(lab)
        assert_rate(sum(reply is None for reply, _ in results), CALLS, 0.25)
        at_once = sum(ms == 0 for _, ms in results)
        assert_rate(at_once, CALLS, 0.5)
        assert_uniform([ms for _, ms in results if ms], 0, 200)
        time.sleep(1)
        assert len(lab.services[0].seen) == 2 * CALLS
        assert_nothing_in_flight(lab.network)

    run(body)


def test_duplicate_does_not_reach_a_deleted_server() -> None:
    def body() -> None:
        lab = Lab()
        lab.network.duplicates(1)
        timed_calls(lab, 100)
        lab.network.delete_server("0")
        time.sleep(1)
        assert len(lab.services[0].seen) == 100
        assert events("duplicate") == []

    run(body)


def test_latency_applies_each_way_even_when_reliable() -> None:
    def body() -> None:
        lab = Lab()
        lab.network.latency(2, 10)
        results = timed_calls(lab)
        assert all(reply is not None for reply, _ in results)
        there = [e.at_ns / 1e6 for e in events("deliver")]
        assert_uniform(there, 2, 10)
        arrived = {e.message: e.at_ns for e in events("answer")}
        assert_uniform([(e.at_ns - arrived[e.message]) / 1e6 for e in events("reply")], 2, 10)
        lab.network.latency(0, 0)
        assert timed_calls(lab, 1) == [(Reply("said 0"), 0)]

    run(body)


def test_link_faults_affect_one_direction_of_one_pair() -> None:
    def body() -> None:
        lab = Lab(2)
        lab.network.link("client", "0", latency_ms=(5, 15), loss=0.3)
        results = timed_calls(lab)
        assert_rate(sum(reply is None for reply, _ in results), CALLS, 0.3)
        assert_uniform([ms for _, ms in results], 5, 15)
        assert notes() == {DropReason.LOST_REQUEST: CALLS - lab.network.get_count("0")}
        assert timed_calls(lab, 100, target="1") == [(Reply(f"said {i}"), 0) for i in range(100)]
        assert timed_calls(lab, 100, source="1") == [(Reply(f"said {i}"), 0) for i in range(100)]

    run(body)


def test_latency_and_loss_of_a_link_apply_to_replies() -> None:
    def body() -> None:
        lab = Lab()
        lab.network.link("0", "client", latency_ms=(5, 15), loss=0.3)
        results = timed_calls(lab)
        assert lab.network.get_count("0") == CALLS
        assert_rate(sum(reply is None for reply, _ in results), CALLS, 0.3)
        assert_uniform([ms for _, ms in results], 5, 15)
        assert notes() == {DropReason.LOST_REPLY: CALLS - sum(reply is not None for reply, _ in results)}

    run(body)


def test_one_way_cut_stops_requests_or_replies() -> None:
    def body() -> None:
        lab = Lab(2)
        lab.network.link("0", "1", cut=True)
        assert {reply for reply, _ in timed_calls(lab, 20, source="0", target="1")} == {None}
        assert lab.services[1].seen == [], "0's requests do not get to 1"
        assert {reply for reply, _ in timed_calls(lab, 20, source="1", target="0")} == {None}
        assert len(lab.services[0].seen) == 20, "1's requests get to 0, but not 0's replies to 1"
        assert notes() == {DropReason.LINK_CUT: 40}
        lab.network.link("0", "1", cut=False)
        assert timed_calls(lab, 1, source="0", target="1") == [(Reply("said 0"), 0)]
        assert timed_calls(lab, 1, source="1", target="0") == [(Reply("said 0"), 0)]

    run(body)


def reachable(lab: Lab, servers: int) -> set[str]:
    pairs = [(source, target) for source in map(str, range(servers)) for target in map(str, range(servers))]
    replies = together(*(lambda s=s, t=t: lab.call("say", Args(1), source=s, target=t) for s, t in pairs))
    return {source + target for (source, target), reply in zip(pairs, replies, strict=True) if reply is not None}


def test_a_partition_cuts_between_its_groups_and_heals() -> None:
    def body() -> None:
        lab = Lab(4)
        everything = {f"{i}{j}" for i in range(4) for j in range(4)}
        assert reachable(lab, 4) == everything
        lab.network.partition(["0", "1"], ["2"])
        between = {"02", "20", "12", "21"}
        assert reachable(lab, 4) == everything - between, "3 is in no group, and reaches all"
        lab.network.partition(["0"], ["1", "2", "3"])
        assert reachable(lab, 4) == everything - {"01", "02", "03", "10", "20", "30"}
        lab.network.link("0", "1", latency_ms=(3, 3))
        lab.network.partition()
        assert reachable(lab, 4) == everything
        assert timed_calls(lab, 1, source="0", target="1") == [(Reply("said 0"), 3)], "healing mends cuts only"
        lab.network.link("0", "1", latency_ms=(0, 0))
        assert lab.network.conditions == NetworkConditions(), "a network made good is like a new one"

    run(body)


def test_invalid_fault_settings_are_refused() -> None:
    network = Network()
    for wrong in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match=rf"^duplicates\(\): probability must be 0..1, got {wrong}$"):
            network.duplicates(wrong)
        with pytest.raises(ValueError, match=rf"^link\(\): probability must be 0..1, got {wrong}$"):
            network.link("0", "1", loss=wrong)
    for low, high in ((-1, 2), (3, 2), (0, math.inf), (math.nan, 1)):
        with pytest.raises(
            ValueError, match=rf"^latency\(\): latency must satisfy 0 <= min_ms <= max_ms, got {low} and {high}"
        ):
            network.latency(low, high)
        with pytest.raises(ValueError, match=r"^link\(\): latency must satisfy 0 <= min_ms <= max_ms, got "):
            network.link("0", "1", latency_ms=(low, high))
    with pytest.raises(ValueError, match=r"^partition\(\): server '1' is in two groups"):
        network.partition(["0", "1"], ["1", "2"])
    assert network.conditions == NetworkConditions(), "what is refused changes nothing"


def test_faults_work_on_real_threads_too() -> None:
    lab = Lab()
    lab.network.latency(1, 3)
    lab.network.duplicates(1)
    lab.network.link("0", "client", loss=0.5)
    began = time.monotonic()
    replies = together(*(lambda i=i: lab.call("say", Args(i)) for i in range(20)))
    assert time.monotonic() - began >= 0.002
    assert {None} < {None if reply is None else "" for reply in replies}
    lab.network.cleanup()
    assert_nothing_in_flight(lab.network)


# ---- combined faults -----------------------------------------------------------------------------------------------


def storm(seed: int, *, trace: bool = True, calls: int = 10_000, kills: bool = False) -> str:
    """Callers on five servers, with all faults, while servers are added and deleted: the digest."""
    sim = Simulation(seed, trace=trace)

    def body() -> None:
        lab = Lab(5, nodes=True)
        network = lab.network
        network.reliable(False)
        network.long_reordering(True)
        if kills:
            network.long_delays(True)
            network.duplicates(0.2)
            network.latency(0, 2)

        def call_all(source: str) -> None:
            for i in range(calls // 50):
                lab.call("slow" if kills and i % 7 == 0 else "say", Args(i), source=source, target=str(i % 5))

        callers = [
            threading.Thread(target=call_all, args=(str(i % 5),), name=f"caller {i}", daemon=True) for i in range(50)
        ]
        for caller in callers:
            caller.start()
        step = 0
        while kills and any(caller.is_alive() for caller in callers):
            time.sleep(0.5)
            step += 1
            victim = str(step % 5)
            if step % 3 == 0:
                network.delete_server(victim)
            elif step % 3 == 1:
                network.enable(f"{victim}-{(step + 1) % 5}", step % 2 == 0)
                network.partition([victim], ["client", str((step + 2) % 5)])
            else:
                network.add_server(victim, lab.server(victim))
        for caller in callers:
            caller.join()
        time.sleep(10)
        assert_nothing_in_flight(network)
        assert network.get_total_count() == calls
        if trace:
            sent = {e.message for e in events("send")}
            ended = Counter(e.message for e in events() if e.kind == "reply" or e.kind == "drop")
            assert len(sent) == calls
            assert sent == set(ended), "every call ended, with a reply or a reason"
            assert max(Counter(e.message for e in events("reply")).values()) == 1

    sim.run(body)
    return sim.digest()


def test_nothing_is_in_flight_after_many_calls() -> None:
    for seed in range(3):
        storm(seed, calls=1_000, kills=True)


def test_digest_is_the_same_in_any_process_traced_or_not() -> None:
    # Two other processes, at the same time.
    others = [
        subprocess.Popen(
            [sys.executable, __file__, "3", trace],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/tests"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed, trace in (("1", "traced"), ("2", "untraced"))
    ]
    digests = {storm(4, calls=100)} | {storm(3)} | {other.communicate(timeout=60)[0].strip() for other in others}
    assert len(digests) == 2, "one of each seed"
    assert all(len(digest) == 32 for digest in digests)


if __name__ == "__main__":
    print(storm(int(sys.argv[1]), trace=sys.argv[2] == "traced"))
