"""Messages that wait on their way until somebody says what becomes of them."""

from dataclasses import dataclass

import pytest

from labrpc import Network, Server, Service
from labrpc.conditions import Fate
from labrpc.events import DELIVER, DROP, DUPLICATE, REPLY, DropReason
from labsim import Simulation, time
from labsim.choices import SeededSource


@dataclass
class Say:
    text: str


@dataclass
class Said:
    text: str


class Echo:
    def __init__(self) -> None:
        self.heard = []

    def say(self, args: Say) -> Said:
        self.heard.append(args.text)
        return Said(f"{args.text}, indeed")


class Holding(SeededSource):
    """Every message is held."""

    def choose(self, point, ordinal, distribution):
        held = point[0] in ("request", "reply", "reply to duplicate")
        return Fate(held=True) if held else super().choose(point, ordinal, distribution)


def run(script):
    """script(network, echo, got): `got` has what the call returned, once it has."""
    simulation = Simulation(1, choice_source=Holding(1))

    def main():
        network, echo, server, got = Network(), Echo(), Server(), []
        server.add_service(Service(echo))
        network.add_server("server", server)
        end = network.make_end("end", "client")
        network.connect("end", "server")
        network.enable("end", True)
        simulation.spawn(lambda: got.append(end.call("Echo.say", Say("yes"))))
        time.sleep(0.001)
        return script(network, echo, got)

    result = simulation.run(main)
    return result, simulation.trace


def settle():
    time.sleep(0.001)


def test_a_request_waits_and_its_reply_too():
    def script(network, echo, got):
        (request,) = network.held
        assert (request.is_reply, echo.heard) == (False, [])
        time.sleep(3600)
        assert (echo.heard, got) == ([], [])
        network.deliver_held(request)
        settle()
        (reply,) = network.held
        assert (reply.is_reply, reply.message, echo.heard, got) == (True, request.message, ["yes"], [])
        network.deliver_held(reply)
        settle()
        assert got == [Said("yes, indeed")]
        assert network.held == []

    run(script)


@pytest.mark.parametrize("of_reply", [False, True])
def test_what_is_lost_is_told_to_the_caller_at_once(of_reply):
    def script(network, echo, got):
        if of_reply:
            network.deliver_held(network.held[0])
            settle()
        network.lose_held(network.held[0])
        time.sleep(0.000_001)
        assert got == [None]
        assert network.held == []

    _, trace = run(script)
    why = DropReason.LOST_REPLY if of_reply else DropReason.LOST_REQUEST
    assert [event.note for event in trace if event.kind == DROP] == [why]


def test_a_copy_leaves_the_request_where_it_is_and_each_has_an_answer():
    def script(network, echo, got):
        (request,) = network.held
        network.deliver_copy(request.message)
        settle()
        assert echo.heard == ["yes"]
        assert [held.is_reply for held in network.held] == [False, True]
        # The answer to the copy is lost; the request may still be answered.
        network.lose_held(network.held[1])
        settle()
        assert got == []
        network.deliver_held(request)
        settle()
        network.deliver_held(network.held[0])
        settle()
        assert got == [Said("yes, indeed")]

    _, trace = run(script)
    assert [event.kind for event in trace if event.kind in (DUPLICATE, DELIVER, REPLY)] == [
        *(DUPLICATE, DELIVER, DELIVER, REPLY)
    ]


def test_a_message_that_has_arrived_can_arrive_again_when_nobody_waits():
    def script(network, echo, got):
        (request,) = network.held
        network.deliver_held(request)
        settle()
        network.deliver_held(network.held[0])
        settle()
        network.deliver_copy(request.message)
        settle()
        assert echo.heard == ["yes", "yes"]
        assert network.held == []

    _, trace = run(script)
    assert trace[-1].note == DropReason.NOBODY_WAITS


def test_what_can_arrive_nowhere_any_more_is_not_held():
    def script(network, echo, got):
        network.delete_server("server")
        assert network.held == []
        time.sleep(0.2)
        assert got == [None]

    run(script)


def test_a_reply_is_gone_with_its_server():
    def script(network, echo, got):
        (request,) = network.held
        network.deliver_held(request)
        settle()
        network.delete_server("server")
        assert network.held == []
        with pytest.raises(ValueError, match="there is no server 'server'"):
            network.deliver_copy(request.message)

    run(script)
