"""Queued messages, which wait in flight until they are delivered or dropped."""

from dataclasses import dataclass

import pytest

from labrpc import Network, Server, Service
from labrpc.conditions import Transit
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
    """Every message is queued."""

    def choose(self, point, ordinal, distribution):
        queued = point[0] in ("request", "reply", "reply to duplicate")
        return Transit(queued=True) if queued else super().choose(point, ordinal, distribution)


def run(script):
    """script(network, echo, got): `got` has the result of the call after it returns."""
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


def test_requests_and_replies_can_be_queued():
    def script(network, echo, got):
        (request,) = network.queued
        assert (request.is_reply, echo.heard) == (False, [])
        time.sleep(3600)
        assert (echo.heard, got) == ([], [])
        network.deliver_queued(request)
        settle()
        (reply,) = network.queued
        assert (reply.is_reply, reply.message, echo.heard, got) == (True, request.message, ["yes"], [])
        network.deliver_queued(reply)
        settle()
        assert got == [Said("yes, indeed")]
        assert network.queued == []

    run(script)


@pytest.mark.parametrize("of_reply", [False, True])
def test_caller_of_a_dropped_message_returns_at_once(of_reply):
    def script(network, echo, got):
        if of_reply:
            network.deliver_queued(network.queued[0])
            settle()
        network.drop_queued(network.queued[0])
        time.sleep(0.000_001)
        assert got == [None]
        assert network.queued == []

    _, trace = run(script)
    why = DropReason.LOST_REPLY if of_reply else DropReason.LOST_REQUEST
    assert [event.note for event in trace if event.kind == DROP] == [why]


def test_copy_of_a_queued_request_gets_its_own_answer():
    def script(network, echo, got):
        (request,) = network.queued
        network.deliver_copy(request.message)
        settle()
        assert echo.heard == ["yes"]
        assert [queued.is_reply for queued in network.queued] == [False, True]
        # The answer to the copy is lost; the request may still be answered.
        network.drop_queued(network.queued[1])
        settle()
        assert got == []
        network.deliver_queued(request)
        settle()
        network.deliver_queued(network.queued[0])
        settle()
        assert got == [Said("yes, indeed")]

    _, trace = run(script)
    assert [event.kind for event in trace if event.kind in (DUPLICATE, DELIVER, REPLY)] == [
        *(DUPLICATE, DELIVER, DELIVER, REPLY)
    ]


def test_delivered_message_can_be_delivered_again():
    def script(network, echo, got):
        (request,) = network.queued
        network.deliver_queued(request)
        settle()
        network.deliver_queued(network.queued[0])
        settle()
        network.deliver_copy(request.message)
        settle()
        assert echo.heard == ["yes", "yes"]
        assert network.queued == []

    _, trace = run(script)
    assert trace[-1].note == DropReason.NOBODY_WAITS


def test_undeliverable_messages_are_not_queued():
    def script(network, echo, got):
        network.delete_server("server")
        assert network.queued == []
        time.sleep(0.2)
        assert got == [None]

    run(script)


def test_queued_reply_is_lost_with_its_server():
    def script(network, echo, got):
        (request,) = network.queued
        network.deliver_queued(request)
        settle()
        network.delete_server("server")
        assert network.queued == []
        with pytest.raises(ValueError, match="no server is called 'server'"):
            network.deliver_copy(request.message)

    run(script)
