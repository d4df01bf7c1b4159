"""`lab cluster` and its sub-commands: sessions, errors, and no process left behind."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trustme

from raftlab.cluster.durable_store import DataOwner, DurableStore
from raftlab.cluster.prompt import _helps
from raftlab.cluster.status import StatusReply, status_table
from raftlab.tools import cli
from unit.cluster.running import free_ports
from unit.students import ROOT

LAB = (sys.executable, "-m", "raftlab")


def session(*arguments, commands, code):
    """The output of `lab cluster` for commands from a pipe."""
    command = [*LAB, "cluster", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, input="\n".join(commands), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_session_from_a_pipe(tmp_path):
    """Only results are printed, and the data stays."""
    data, port = tmp_path / "data", free_ports(3)
    addresses = ",".join(f"127.0.0.1:{port + peer}" for peer in range(3))
    commands = [
        *("put a 1", 'put b "two words"  # a comment', "", "kill 0", "append a 2", "get a", "get b", "get c"),
        *("start 0", "kill 0", "kill 0", "start 7", "jump", "put a", "put 'a", "resume 1", "status", "log 1"),
    ]
    out, err = session("--data", data, "--port", port, commands=commands, code=1)
    assert err == ""
    lines = re.sub(r"\d+\.\d ", "# ", out).splitlines()
    assert lines[:8] == ["ok (# ms)", "ok (# ms)", "peer 0 killed", "ok (# ms)", "12", "two words", "", lines[7]]
    assert lines[7:15] == [
        "peer 0 restarted in # s",
        "peer 0 killed",
        "peer 0 is killed; it must be running or paused",
        "peer must be 0..2, got 7",
        "unknown command 'jump'; commands: put, append, get, status, kill, start, pause, resume, load, log, help, quit",
        "usage: put KEY VALUE",
        "No closing quotation; quote values as in a shell",
        "peer 1 is running; it must be paused",
    ]
    assert [line.split()[:2] for line in lines[15:19]] == [
        ["peer", "process"],
        ["0", "killed"],
        ["1", "running"],
        ["2", "running"],
    ]
    assert any("peer 1: serving on 127.0.0.1" in line for line in lines[19:])
    assert running(data) == []

    # The folder of another peer is refused.
    refused = subprocess.run(
        [*LAB, "cluster", "serve", "--me", "1", "--peers", addresses, "--data", data / "peer-0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 2
    folder = data / "peer-0"
    assert refused.stderr == (
        f"lab cluster serve: {folder} has the data of peer 0 of 3, not of peer 1 of 3; choose the folder of that peer\n"
    )


def running(data):
    """Processes with that folder on their command line."""
    found = subprocess.run(["ps", "-ww", "-eo", "pid,stat,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if f"{data}/" in line and " Z" not in line]


def test_processes_end_when_the_prompt_is_killed(tmp_path):
    """Even a paused one."""
    data = tmp_path / "data"
    command = [*LAB, "cluster", "--data", str(data), "--port", str(free_ports(2)), "--servers", "2"]
    lab = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    lab.stdin.write("put a 1\npause 1\n")
    lab.stdin.flush()
    assert [lab.stdout.readline()[:2], lab.stdout.readline()] == ["ok", "peer 1 paused\n"]
    assert len(running(data)) == 2
    lab.send_signal(signal.SIGKILL)
    lab.wait()
    lab.stdin.close()
    lab.stdout.close()
    until_s = time.monotonic() + 20
    while running(data):
        assert time.monotonic() < until_s, running(data)
        time.sleep(0.05)


def test_cluster_works_under_tls(tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    tls = [word for name in ("cert", "key", "ca") for word in (f"--{name}", tmp_path / f"{name}.pem")]
    data = ("--data", tmp_path / "data", "--port", free_ports(1), "--servers", "1")
    out, _ = session(*data, *tls, commands=["put a 1", "get a"], code=0)
    assert out.splitlines()[1] == "1"


def test_peer_that_exits_at_start_is_reported(tmp_path):
    student = tmp_path / "mine"
    shutil.copytree(ROOT / "raft", student)
    source = (student / "raft.py").read_text()
    (student / "raft.py").write_text(
        source.replace("self.role = Role.LEADER\n", 'raise ValueError("a mistake of mine")\n')
    )
    data = ("--data", tmp_path / "data", "--port", free_ports(1), "--servers", "1", "--raft", student / "raft.py")
    _, err = session(*data, commands=["status"], code=2)
    assert err == "lab cluster: peer 0 did not start: ValueError: a mistake of mine\n"


# ---- Errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("cluster --servers 0", "lab cluster: --servers must be 1..9, got 0"),
        ("cluster --port 70000", "lab cluster: --port must be 1..65533, got 70000"),
        ("cluster --max-raft-state -1", "lab cluster: --max-raft-state must be 0 or more, got -1"),
        ("cluster --raft nowhere.py", "lab cluster: nowhere.py: no such file; RAFT must name a raft.py"),
        ("cluster --data README.md", "lab cluster: README.md exists and has no cluster data; choose another folder"),
        ("cluster --data docs", "lab cluster: docs exists and has no cluster data; choose another folder with"),
        ("cluster --data docs --new", "lab cluster: docs exists and has no cluster data; choose another folder with"),
        ("cluster --cert a.pem", "lab cluster: --cert, --key and --ca must be given together"),
        ("cluster serve --me 3 --peers a:1,b:2", "lab cluster serve: --me must be 0..1, because --peers names 2"),
        ("cluster serve --me 0 --peers here", "lab cluster serve: --peers must be HOST:PORT,HOST:PORT,..."),
        ("cluster serve --me 0 --peers a:1,a:1", "lab cluster serve: --peers names an address twice: a:1,a:1"),
        ("cluster serve --me 0 --peers 0.0.0.0:1", "lab cluster serve: 0.0.0.0:1 can be reached from other machines"),
        ("cluster --raft a.py put a 1", "lab cluster: options go after put, not before it"),
        ("cluster get a --within 0", "lab cluster get: --within must be more than 0 s, got 0"),
        ("cluster get a --peers 192.0.2.1:7", "lab cluster get: 192.0.2.1:7 can be reached from"),
    ],
)  # fmt: skip
def test_invalid_option_is_refused_in_one_line(words, text, capsys, monkeypatch, raft_package_restored):
    monkeypatch.chdir(ROOT)
    assert cli.main(words.split()) == 2
    out, err = capsys.readouterr()
    assert err.startswith(text)
    assert (out, err.count("\n")) == ("", 1)


def test_missing_cluster_is_reported(capsys, monkeypatch, raft_package_restored):
    monkeypatch.chdir(ROOT)
    address = f"127.0.0.1:{free_ports(1)}"
    assert cli.main(["cluster", "get", "a", "--peers", address, "--within", "0.2"]) == 1
    assert capsys.readouterr().err == (
        f"lab cluster get: no answer from {address} within 0.2 s: a majority of the peers must be running. "
        "A put or append may still take effect\n"
    )
    assert cli.main(["cluster", "status", "--peers", address]) == 1
    assert capsys.readouterr().out.splitlines()[1].split() == ["0", "no", "answer"]


def test_used_port_is_reported(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        _, err = session("--data", tmp_path / "data", "--port", port, "--servers", "1", commands=[], code=2)
    assert err == (
        f"lab cluster: peer 0 did not start: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "stop the process that uses it, or choose other ports\n"
    )


# ---- Texts ---------------------------------------------------------------------------------------------------


def test_each_prompt_command_has_help():
    assert all(usage.split()[0] == name and text for name, (usage, text) in _helps().items())


def test_status_table():
    leader = StatusReply(0, 3, True, 0, 1200, 1199, 8_000, 2_500_000, 77, 0.634, 812.6, 0, 1.0, {1: 0, 2: -1, 3: 40})
    follower = StatusReply(1, 3, False, 0, 1199, 1190, 12_345, 20_000_000, 70, 12.0, 0.0, 0, 1.0)
    lost = StatusReply(2, 4, False, -1, 0, 0, 0, 0, 1, 0.0, 0.0, 0, 1.0)
    rows = [(0, "running 10", leader), (1, "running 11", follower), (2, "running 12", lost), (3, "killed", None)]
    assert status_table(rows) == [
        "peer  process     role       term  commit  applied      lag     log  snapshot      save  puts/s",
        "0     running 10  leader        3    1200     1199           8000 B   2500 kB   0.63 ms     813",
        "1     running 11  follower      3    1199     1190        0   12 kB     20 MB  12.00 ms",
        "2     running 12  no leader     4       0        0  unknown     0 B       0 B   0.00 ms",
        "3     killed                                             40",
    ]


def test_torn_last_save_is_logged(tmp_path):
    """And the peer serves: that save was never acknowledged."""
    folder = tmp_path / "peer"
    disk = DurableStore(folder, DataOwner(0, 1))
    disk.write(b"", b"")
    disk.write(b"torn", b"")
    disk.close()
    torn = max(folder.glob("*.b"))
    torn.write_bytes(torn.read_bytes()[:-3])
    command = [*LAB, "cluster", "serve", "--me", "0", "--peers", f"127.0.0.1:{free_ports(1)}", "--data", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        lines = [process.stderr.readline() for _ in range(3)]
        os.kill(process.pid, signal.SIGTERM)
        lines += process.stderr.readlines()
    assert lines[1].endswith(
        f"peer 0: the last save in {torn} is incomplete and was never acknowledged; the save before it is used\n"
    )
    assert "serving on 127.0.0.1" in lines[2]
    assert lines[-1].endswith("peer 0: stopped\n")
    assert process.returncode == 0
    assert Path(folder).is_dir()
