"""RPCs over TCP: as in a simulation, across restarts, concurrently, and with invalid connections."""

import random
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

import pytest
import trustme

from labrpc import RpcError, Server, Service
from raftlab.cluster import streams, tcp, tcp_server
from raftlab.cluster.streams import Rejection, Tls
from raftlab.cluster.tcp import MAGIC, Address, Credentials, Hello, TcpClient, TcpEnd
from raftlab.cluster.tcp_server import TcpServer
from unit.soak import SOAK
from unit.tools.processes import wait_until

ANY_PORT = Address("127.0.0.1", 0)
PEER = Credentials(Hello("ours", 1))
CLIENT = Credentials()


@dataclass
class Words:
    text: str


class Echo:
    """Returns its argument; "wait" blocks until a call of "go on"."""

    def __init__(self):
        self.go_on = threading.Event()
        self.waiting = threading.Semaphore(0)

    def say(self, args: Words) -> Words:
        if args.text == "wait":
            self.waiting.release()
            assert self.go_on.wait(20)
        if args.text == "go on":
            self.go_on.set()
        if args.text == "fail":
            raise ValueError("a mistake in the handler")
        return Words(args.text)


class Raft:
    def vote(self, args: Words) -> Words:
        return args


class Place:
    """A server, and clients for it."""

    def __init__(self, credentials=PEER, address=ANY_PORT):
        self.echo, self.said, self.failed = Echo(), [], []
        self.server = Server()
        self.server.add_service(Service(self.echo))
        self.server.add_service(Service(Raft()))
        self._credentials = credentials
        self._clients = []
        self.open(address)

    def open(self, address):
        self.tcp = TcpServer(self.server, address, self._credentials, log=self.said.append, failed=self.failed.append)
        self.tcp.start()

    def line(self, credentials=PEER, **more):
        line = TcpClient(self.tcp.address, credentials, **more)
        self._clients.append(line)
        return line

    def end(self, credentials=PEER, **more):
        return TcpEnd(self.line(credentials, **more), self.server)

    def raw(self, data=b""):
        """A raw connection."""
        sock = socket.create_connection(self.tcp.address)
        sock.settimeout(20)
        sock.sendall(data)
        return sock

    def close(self):
        self.echo.go_on.set()
        for line in self._clients:
            line.close()
        self.tcp.close()


@pytest.fixture
def place():
    made = Place()
    yield made
    made.close()


def closed(sock):
    """Read until the other side closes."""
    with sock:
        try:
            while sock.recv(1000):
                pass
        except ConnectionError:
            pass
    return True


def frame(body):
    return struct.pack(">I", len(body)) + body


GREETING = frame(MAGIC) + frame(tcp.pack(Hello()))


# ---- Calls ---------------------------------------------------------------------------------------------------


def test_call_returns_the_reply(place):
    assert place.end().call("Echo.say", Words("hello")) == Words("hello")
    assert place.end(CLIENT).call("Echo.say", Words("x" * 500_000)) == Words("x" * 500_000)


def test_calls_share_one_connection_concurrently(place):
    end = place.end()
    replies = []
    threads = [threading.Thread(target=lambda: replies.append(end.call("Echo.say", Words("wait")))) for _ in range(50)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert place.echo.waiting.acquire(timeout=20)  # all calls run concurrently
    assert len(place.tcp._streams) == 1
    end.call("Echo.say", Words("go on"))
    for thread in threads:
        thread.join()
    assert replies == [Words("wait")] * 50


def test_call_without_reply_returns_none(place):
    assert place.end(timeout_s=0.01).call("Echo.say", Words("wait")) is None


def test_lost_connection_returns_none_and_is_retried(place):
    said = []
    end = place.end(log=said.append, name="peer 1")
    answers = []
    waits = threading.Thread(target=lambda: answers.append(end.call("Echo.say", Words("wait"))))
    waits.start()
    assert place.echo.waiting.acquire(timeout=20)
    place.tcp.close()
    waits.join(20)
    assert answers == [None]
    for _ in range(100):
        assert end.call("Echo.say", Words("nobody")) is None
    place.open(place.tcp.address)
    end._client.retry_now()
    assert end.call("Echo.say", Words("again")) == Words("again")
    # Hundreds of attempts, logged once.
    assert [line.partition(":")[0] for line in said] == ["peer 1 cannot be reached", "peer 1 is back"]


def test_pauses_between_retries_grow(place, monkeypatch):
    place.tcp.close()
    line, now_s = place.line(), [0.0]
    monkeypatch.setattr(tcp, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    tried_s = []
    opens = line._open
    monkeypatch.setattr(line, "_open", lambda: (tried_s.append(now_s[0]), opens())[1])
    while now_s[0] < 30:
        assert line.call("Echo.say", b"") is None
        now_s[0] += 1 / 64
    pauses_s = [later - earlier for earlier, later in pairwise(tried_s)]
    assert len(tried_s) < 15
    assert pauses_s == sorted(pauses_s)
    assert pauses_s[0] < 0.1
    assert pauses_s[-1] == pytest.approx(tcp.PAUSE_S[1], abs=0.02)


def test_exception_in_a_handler_is_passed_to_the_owner(place):
    assert place.end(timeout_s=0.2).call("Echo.say", Words("fail")) is None
    (error,) = place.failed
    assert str(error) == "a mistake in the handler"


# ---- Authorization -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("credentials", "method", "text"),
    [
        (CLIENT, "Raft.vote", "only peers may call Raft.vote"),
        (PEER, "Raft.no_such", "Raft has no method 'no_such'; its methods: vote"),
        (PEER, "Nobody.vote", "no service 'Nobody' for 'Nobody.vote'; its services: Echo, Raft"),
    ],
)
def test_invalid_call_raises_an_error(place, credentials, method, text):
    with pytest.raises(RpcError, match=text):
        place.end(credentials).call(method, Words("x"))


def test_peer_with_another_peer_list_is_refused(place):
    said = []
    line = place.line(Credentials(Hello("others", 2)), log=said.append, name="peer 1")
    assert not line.connect()
    why = "peer 2 there was started with different --peers than this one: others, not ours"
    assert said == [f"peer 1 cannot be reached: {why} (retrying until it is back)"]
    assert place.tcp.refused == {Rejection.OTHER_CLUSTER: 1}


@pytest.mark.parametrize("address", [Address("0.0.0.0", 0), Address("192.0.2.1", 7000), Address("example.org", 7000)])
def test_non_loopback_addresses_need_tls(address):
    for make in (lambda: TcpClient(address, PEER), lambda: TcpServer(Server(), address, PEER, failed=print)):
        with pytest.raises(RpcError, match="can be reached from other machines"):
            make()


# ---- Invalid connections -------------------------------------------------------------------------------------


def test_garbage_closes_the_connection_and_is_logged_once(place):
    end = place.end(CLIENT)
    assert end.call("Echo.say", Words("before")) == Words("before")
    chance = random.Random(7)
    count = 10_000 if SOAK else 150
    for _ in range(count):
        garbage = chance.randbytes(chance.randint(4, 200))
        greeted = chance.random() < 0.5
        sock = place.raw(GREETING if greeted else b"")
        try:
            # A frame of garbage; or data that is longer than its length prefix.
            sock.sendall(frame(garbage) if chance.random() < 0.7 else b"\xff" + garbage)
            sock.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass  # closed already
        assert closed(sock)
    assert end.call("Echo.say", Words("after")) == Words("after")
    assert sum(place.tcp.refused.values()) == count
    assert place.failed == []
    assert len(place.said) == len(place.tcp.refused) <= len(Rejection)


@pytest.mark.parametrize(
    "body",
    [
        b"\x93\x01\xa2\xff\xa0\xc4\x00",  # a name that is not UTF-8
        b"\x91" * 100_000,  # deeply nested lists
        b"\x93\x01\xa8Echo.say\xc4\x02\xff\xff",  # a valid request with invalid arguments
        b"\x93\x01\xa8Echo.say\xc4\x08\x81\xa4text\xa1\xff",  # a text that is not UTF-8
        tcp.pack(tcp.TcpRequest(1, "Echo.__init__", b"")),
        tcp.pack(tcp.TcpRequest(1, "", b"")),
    ],
)
def test_malicious_frames_are_rejected(place, body):
    assert closed(place.raw(GREETING + frame(body)))
    assert place.tcp.refused == {Rejection.GARBAGE: 1}
    assert place.failed == []
    assert place.end().call("Echo.say", Words("still")) == Words("still")


def test_too_large_length_allocates_no_memory(place):
    for data in (b"\xff\xff\xff\xff", GREETING + struct.pack(">I", tcp_server.CLIENT_FRAME_MAX + 1)):
        assert closed(place.raw(data))
    assert place.tcp.refused == {Rejection.TOO_LARGE: 2}
    assert place.said == [
        "closed a connection from 127.0.0.1: a frame of 4,294,967,295 bytes; at most 18 are allowed "
        "(further cases are counted, but not reported)"
    ]


def test_partial_frame_is_detected(place):
    for data in (b"\0\0", GREETING[:10], GREETING + frame(b"x" * 100)[:50]):
        sock = place.raw(data)
        sock.shutdown(socket.SHUT_WR)
        assert closed(sock)
    assert place.tcp.refused == {Rejection.PARTIAL_FRAME: 3}


def test_slow_sender_is_disconnected(place, monkeypatch):
    monkeypatch.setattr(streams, "FRAME_S", 0.1)
    monkeypatch.setattr(tcp_server, "HELLO_S", 0.1)
    for data in (b"", frame(MAGIC), GREETING + b"\0", GREETING + frame(b"x" * 100)[:50]):
        assert closed(place.raw(data))
    assert place.tcp.refused == {Rejection.TOO_SLOW: 4}


def test_idle_connection_stays_open(place, monkeypatch):
    monkeypatch.setattr(streams, "FRAME_S", 0.05)
    monkeypatch.setattr(tcp_server, "HELLO_S", 0.05)
    line = place.line()
    assert line.connect()
    time.sleep(0.2)
    assert line.is_up


def test_receiver_that_stops_reading_is_disconnected(place, monkeypatch):
    """A client that sends requests and never reads: its connection is closed, and the server's threads end."""
    monkeypatch.setattr(streams, "SEND_S", 0.1)
    request = frame(tcp.pack(tcp.TcpRequest(1, "Echo.say", tcp.encode(Words("x" * 900_000)))))
    sock = place.raw(GREETING)
    with sock, suppress(ConnectionError):
        while True:
            sock.sendall(request)
    wait_until(lambda: place.tcp.refused)  # wait until it is closed
    assert set(place.tcp.refused) == {Rejection.TOO_SLOW}


def test_number_of_connections_is_limited(place, monkeypatch):
    monkeypatch.setattr(tcp_server, "CONNECTIONS_MAX", 3)
    held = [place.line() for _ in range(3)]
    assert all(line.connect() for line in held)
    assert closed(place.raw(GREETING))
    assert place.tcp.refused == {Rejection.TOO_MANY: 1}
    assert all(line.is_up for line in held)


# ---- TLS -----------------------------------------------------------------------------------------------------


class Authority:
    def __init__(self, folder, name):
        self._folder, self._name = folder, name
        self._ca = trustme.CA()
        self._file(self._ca.cert_pem, "ca")

    def _file(self, blob, what):
        path = str(self._folder / f"{self._name}-{what}.pem")
        blob.write_to_path(path)
        return path

    def credentials(self, who, hello=PEER.hello, authority=None):
        certificate = self._ca.issue_cert(*who)
        name = "-".join(who)
        tls = Tls(
            self._file(certificate.cert_chain_pems[0], name),
            self._file(certificate.private_key_pem, f"{name}-key"),
            str(self._folder / f"{(authority or self)._name}-ca.pem"),
        )
        return Credentials(hello, tls)


def test_tls_authenticates_both_sides(tmp_path):
    ours, others = Authority(tmp_path, "ours"), Authority(tmp_path, "others")
    place = Place(ours.credentials(["127.0.0.1"]))
    try:
        end = place.end(ours.credentials(["client"]))
        assert end.call("Echo.say", Words("hello" * 50_000)) == Words("hello" * 50_000)
        # Many threads, large and small messages, in both directions.
        texts = [f"{number}" * (1 + number % 7 * 3000) for number in range(100)]
        replies = {}
        threads = [
            threading.Thread(target=lambda t=text: replies.update({t: end.call("Echo.say", Words(t))}))
            for text in texts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert replies == {text: Words(text) for text in texts}

        assert place.end(CLIENT).call("Echo.say", Words("without any")) is None
        assert place.end(others.credentials(["client"], authority=ours)).call("Echo.say", Words("another's")) is None
        assert place.end(ours.credentials(["client"], authority=others)).call("Echo.say", Words("not trusted")) is None
        assert closed(place.raw(GREETING))
        assert end.call("Echo.say", Words("still")) == Words("still")
        assert set(place.tcp.refused) <= {Rejection.NO_CERTIFICATE, Rejection.PARTIAL_FRAME}
        assert place.tcp.refused[Rejection.NO_CERTIFICATE] >= 3
        assert place.failed == []
    finally:
        place.close()


def test_server_certificate_must_match_the_address(tmp_path):
    ours = Authority(tmp_path, "ours")
    place = Place(ours.credentials(["elsewhere.example"]))
    said = []
    try:
        assert not place.line(ours.credentials(["client"]), log=said.append, name="peer 1").connect()
        assert "IP address mismatch" in said[0]
    finally:
        place.close()


def test_non_loopback_addresses_work_with_tls(tmp_path):
    TcpClient(Address("192.0.2.1", 7000), Authority(tmp_path, "ours").credentials(["client"]))
