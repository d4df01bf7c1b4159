"""Who gets anything from the server of a live page, and when it ends."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

from raftlab.tools import cli
from raftlab.tools.live.run import Setup
from raftlab.tools.live.server import LiveServer
from raftlab.tools.live.session import Session
from unit.students import ROOT
from unit.tools.live.test_session import HEADER, REFERENCE


@pytest.fixture
def server():
    session = Session()
    session.open(Setup(REFERENCE, "live.scenario", HEADER))
    server = LiveServer(session, files=list, gone_s=1.0)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    yield server
    if thread.is_alive():
        with server._pages_lock:
            server._page_left_s = 0.0
        thread.join(20)


def ask(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, None if body is None else json.dumps(body), told)
    with closing(connection):
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def origin(server):
    return f"http://127.0.0.1:{server.server_port}"


def test_the_page_is_served_under_its_token_only(server):
    status, headers, body = ask(server, "GET", f"/{server.token}/")
    assert status == 200 and b"<title>Live</title>" in body
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'sha256-")
    assert headers["Referrer-Policy"] == "no-referrer" and headers["X-Frame-Options"] == "DENY"
    for path in ("/", "/x/", f"/{server.token[:-1]}x/", f"/{server.token}", "/events"):
        status, _, body = ask(server, "GET", path)
        assert status == 403 and b"403" in body and server.token.encode() not in body
    assert ask(server, "GET", f"/{server.token}/raft.py")[0] == 404
    assert ask(server, "GET", f"/{server.token}/../../etc/passwd")[0] == 404


def test_another_web_page_can_drive_nothing(server):
    path, body = f"/{server.token}/act", {"branch": 1, "at": 0, "step": "campaign 0"}
    for headers in (
        {},  # no page of a browser posts without its origin
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"{origin(server)}.evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": origin(server), "Host": "evil.example"},
        {"Origin": origin(server), "Host": f"evil.example:{server.server_port}"},
    ):
        assert ask(server, "POST", path, body, **headers)[0] == 403, headers
    assert ask(server, "GET", f"/{server.token}/", Host="evil.example")[0] == 403
    assert ask(server, "GET", f"/{server.token}/", Origin="http://evil.example")[0] == 403
    assert server.session.branch(1).steps == []
    status, _, answer = ask(server, "POST", path, body, Origin=origin(server))
    assert status == 200 and json.loads(answer)["rest"]["moments"][0]["step"] == "campaign 0"


@pytest.mark.parametrize(
    ("body", "status"), [(b"", 400), (b"{", 400), (b'{"branch":"x"}', 400), (b"[]", 400), (b" " * 200_000, 413)]
)
def test_a_broken_request_is_an_error_and_no_more(server, body, status):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request("POST", f"/{server.token}/act", body, {"Origin": origin(server)})
    with closing(connection), connection.getresponse() as answer:
        assert answer.status == status
    assert ask(server, "POST", f"/{server.token}/frob", {}, Origin=origin(server))[0] == 404
    _, _, answer = ask(server, "POST", f"/{server.token}/look", {"branch": 99}, Origin=origin(server))
    assert json.loads(answer)["rest"]["error"] == "there is no branch 99"


def test_the_server_ends_when_the_page_has_been_gone_for_a_while(server):
    page = socket.create_connection(("127.0.0.1", server.server_port))
    page.sendall(f"GET /{server.token}/events HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
    assert b"text/event-stream" in page.recv(1000)
    time.sleep(2.5)
    assert ask(server, "GET", f"/{server.token}/")[0] == 200
    page.close()
    deadline_s = time.monotonic() + 20
    while not server._is_left() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    time.sleep(1.0)
    with pytest.raises(ConnectionError):
        ask(server, "GET", f"/{server.token}/")


def started(*arguments):
    command = [sys.executable, "-m", "raftlab", "live", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline()


def test_ctrl_c_ends_the_command_and_its_processes():
    process, line = started("tests/scenarios/2a/split_vote.scenario")
    assert re.search(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/$", line)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=20)
    assert process.returncode == 0 and said.endswith("ended\n")


def test_a_port_in_use_is_named_with_the_fix(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert cli.main(["live", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"port {port}: " in said and f"make live PORT={port + 1}" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--isolated"], "--isolated is not supported: the page shows fields of peers"),
        (["--peers", "10"], "--peers must be 1..9, got 10"),
        (["--raft", "no/raft.py"], "no/raft.py: no such file"),
        (["no.scenario"], "no.scenario:1: cannot be read"),
    ],
)
def test_what_cannot_be_started_is_said(arguments, said, capsys):
    assert cli.main(["live", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"lab live: {said}")
