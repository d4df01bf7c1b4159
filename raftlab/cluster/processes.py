"""The processes of a cluster on this machine: start, kill, pause and resume them by number.

Promise: no process survives close(), nor the end of this process in any other way. Start at `ClusterProcesses`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from raftlab.cluster.client import StatusClient
from raftlab.cluster.options import UsageError, join_addresses
from raftlab.cluster.status import StatusReply
from raftlab.cluster.tcp import Address, Credentials

READY_S = 15.0
_STOP_S = 3.0
_POLL_S = 0.02


class ProcessState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    KILLED = "killed"  # by kill()
    ENDED = "ended"  # it exited


class ClusterProcesses:
    """Runs `lab cluster serve` for each address. Start and close it in the main thread."""

    def __init__(
        self, folder: Path, addresses: list[Address], credentials: Credentials, server_options: Sequence[str]
    ) -> None:
        """`server_options`: command-line options for each process."""
        self.addresses = addresses
        self.folder = folder
        self._server_options = list(server_options)
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * len(addresses)
        self._states = [ProcessState.KILLED] * len(addresses)
        self._statuses = StatusClient(addresses, credentials)
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> ClusterProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log(self, peer: int) -> Path:
        return self.folder / f"peer-{peer}.log"

    def pid(self, peer: int) -> int:
        process = self._processes[peer]
        assert process is not None
        return process.pid

    def state(self, peer: int) -> ProcessState:
        process = self._processes[peer]
        if process is not None and process.poll() is not None and self._states[peer] is not ProcessState.KILLED:
            self._states[peer] = ProcessState.ENDED
        return self._states[peer]

    def is_alive(self, peer: int) -> bool:
        return self.state(peer) in (ProcessState.RUNNING, ProcessState.PAUSED)

    def log_tail(self, peer: int, lines: int = 1) -> str:
        """The end of its log."""
        text = self.log(peer).read_text(encoding="utf-8", errors="replace") if self.log(peer).exists() else ""
        return "\n".join(text.rstrip().splitlines()[-lines:])

    # ---- One process -----------------------------------------------------------------------------------------

    def start(self, peer: int) -> None:
        """Start the process. It answers a little later: see wait_for()."""
        command = [sys.executable, "-m", "raftlab", "cluster", "serve", "--me", str(peer)]
        command += ["--peers", join_addresses(self.addresses), "--data", str(self.folder / f"peer-{peer}")]
        command += ["--parent", str(os.getpid()), *self._server_options]
        with self.log(peer).open("ab") as log:
            # A new session, so that Ctrl-C reaches only the prompt.
            self._processes[peer] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._states[peer] = ProcessState.RUNNING

    def kill(self, peer: int) -> None:
        """Send SIGKILL, and wait for its end."""
        process = self._processes[peer]
        assert process is not None
        process.kill()
        process.wait()
        self._states[peer] = ProcessState.KILLED

    def pause(self, peer: int) -> None:
        """Send SIGSTOP."""
        os.kill(self.pid(peer), signal.SIGSTOP)
        self._states[peer] = ProcessState.PAUSED

    def resume(self, peer: int) -> None:
        """Send SIGCONT."""
        os.kill(self.pid(peer), signal.SIGCONT)
        self._states[peer] = ProcessState.RUNNING

    def status(self, peer: int) -> StatusReply | None:
        return self._statuses.query(peer) if self.state(peer) is ProcessState.RUNNING else None

    # ---- All processes ---------------------------------------------------------------------------------------

    def start_all(self) -> StatusReply:
        """Start all. Returns the status of the leader once all answer."""
        for peer in range(len(self.addresses)):
            self.start(peer)
        return self.wait_for(range(len(self.addresses)))

    def wait_for(self, peers: Sequence[int], *, leader: bool = True) -> StatusReply:
        """Wait until these answer and know a leader. Raises UsageError if one exits."""
        until_s = time.monotonic() + READY_S
        while True:
            replies = {peer: self.status(peer) for peer in peers}
            for peer in peers:
                if self.state(peer) is ProcessState.ENDED:
                    text = self.log_tail(peer).removeprefix("lab cluster serve: ")
                    raise UsageError(f"peer {peer} did not start: {text or f'see {self.log(peer)}'}")
            known = [reply for reply in replies.values() if reply is not None]
            if len(known) == len(peers) and known and (not leader or all(reply.leader >= 0 for reply in known)):
                return next((reply for reply in known if reply.leads), known[0])
            if time.monotonic() > until_s:
                silent = [str(peer) for peer, reply in replies.items() if reply is None]
                what = f"no answer from peer {', '.join(silent)}" if silent else "no leader"
                raise UsageError(f"{what} within {READY_S:.0f} s; the logs are in {self.folder}")
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Stop all: SIGTERM, then SIGKILL."""
        running = [process for process in self._processes if process is not None and process.poll() is None]
        for process in running:
            with suppress(ProcessLookupError):
                process.terminate()
                process.send_signal(signal.SIGCONT)
        until_s = time.monotonic() + _STOP_S
        for process in running:
            try:
                process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._statuses.close()
