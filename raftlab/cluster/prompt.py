"""The prompt of `lab cluster`.

Each command is a method of `Prompt` named `do_...`; its docstring is its help. Start at `Prompt.run()`.
"""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from labrpc.errors import RpcError
from raftlab.cluster.client import NoAnswer, call_with_timeout, make_clerk, make_connections
from raftlab.cluster.load_generator import LoadGenerator
from raftlab.cluster.options import UsageError
from raftlab.cluster.processes import ClusterProcesses, ProcessState
from raftlab.cluster.status import status_table
from raftlab.cluster.tcp import Credentials

PROMPT = "cluster> "
TIMEOUT_S = 10.0
_CLIENTS_MAX = 512
_LOG_LINES = 15


class _CommandError(Exception):
    """The command is invalid or failed; the text has the reason."""


class Prompt:
    """One session. `interactive`: on a terminal; otherwise commands come from a file or a pipe."""

    def __init__(
        self, processes: ClusterProcesses, program: Any, credentials: Credentials, *, interactive: bool
    ) -> None:
        self._processes = processes
        self._program = program
        self._credentials = credentials
        self._interactive = interactive
        self._connections = make_connections(processes.addresses, credentials)
        self._clerk: Any = None
        self._reported = [ProcessState.RUNNING] * len(processes.addresses)
        self._load: threading.Thread | None = None
        self._failed = False

    def run(self) -> int:
        """Run until `quit`, Ctrl-D or Ctrl-C. Returns 1 if a command failed and it is not interactive."""
        with _history(self._interactive):
            while (line := self._read()) is not None:
                try:
                    if self.run_command(line):
                        break
                except KeyboardInterrupt:
                    self._print("canceled; a put or an append may still take effect")
        if self._load is not None and not self._interactive:
            self._load.join()
        return 1 if self._failed and not self._interactive else 0

    def _read(self) -> str | None:
        """The next line; None at the end."""
        self._report_ended()
        if not self._interactive:
            return sys.stdin.readline() or None
        try:
            return input(PROMPT)
        except (EOFError, OSError, KeyboardInterrupt):  # Ctrl-D, the terminal is gone, Ctrl-C
            self._print("")
            return None

    def _print(self, text: str) -> None:
        print(text, flush=True)

    def _report_ended(self) -> None:
        """Report peers that exited since the last call."""
        for peer, reported in enumerate(self._reported):
            state = self._processes.state(peer)
            if state is ProcessState.ENDED and reported is not ProcessState.ENDED:
                self._print(f"peer {peer} exited. The end of its log:\n{self._processes.log_tail(peer, 3)}")
            self._reported[peer] = state

    def run_command(self, line: str) -> bool:
        """Run one command. Returns True for quit."""
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            words = []
            self._fail(f"{error}; quote values as in a shell")
        if not words:
            return False
        if words[0] in ("quit", "exit"):
            return True
        command: Callable[..., None] | None = getattr(self, f"do_{words[0]}", None)
        try:
            if command is None:
                raise _CommandError(f"unknown command {words[0]!r}; commands: {', '.join(_commands())}, quit")
            command(*self._check_arguments(words))
        except (_CommandError, NoAnswer, UsageError, RpcError) as error:
            self._fail(str(error))
        return False

    def _fail(self, text: str) -> None:
        self._failed = True
        self._print(text)

    def _check_arguments(self, words: list[str]) -> list[str]:
        usage = _commands()[words[0]]
        parameters = usage.split()[1:]
        required = sum(not word.startswith("[") for word in parameters)
        if not required <= len(words) - 1 <= len(parameters):
            raise _CommandError(f"usage: {usage}")
        return words[1:]

    def _peer(self, text: str, *states: ProcessState) -> int:
        count = len(self._reported)
        if not (text.isascii() and text.isdigit()) or int(text) >= count:
            raise _CommandError(f"peer must be 0..{count - 1}, got {text}")
        state = self._processes.state(int(text))
        if state not in states:
            raise _CommandError(f"peer {text} is {state}; it must be {' or '.join(states)}")
        return int(text)

    def _call_clerk(self, method: str, *args: str) -> tuple[Any, str]:
        # A clerk allows one call at a time. A call that timed out may still run, and keeps its clerk.
        clerk, self._clerk = self._clerk or make_clerk(self._program, self._connections), None
        started_s = time.monotonic()
        answer = call_with_timeout(TIMEOUT_S, self._processes.addresses, getattr(clerk, method), *args)
        self._clerk = clerk
        return answer, f"{1000 * (time.monotonic() - started_s):.1f} ms"

    # ---- The commands ----------------------------------------------------------------------------------------

    def do_put(self, key: str, value: str) -> None:
        """put KEY VALUE: set the value of a key"""
        self._print(f"ok ({self._call_clerk('put', key, value)[1]})")

    def do_append(self, key: str, value: str) -> None:
        """append KEY VALUE: append to the value of a key"""
        self._print(f"ok ({self._call_clerk('append', key, value)[1]})")

    def do_get(self, key: str) -> None:
        """get KEY: print the value of a key"""
        self._print(self._call_clerk("get", key)[0])

    def do_status(self) -> None:
        """status: print leader, progress and save time of each peer"""
        peers = range(len(self._reported))
        self._print(
            "\n".join(status_table([(peer, self._process_text(peer), self._processes.status(peer)) for peer in peers]))
        )

    def _process_text(self, peer: int) -> str:
        state = self._processes.state(peer)
        return f"{state} {self._processes.pid(peer)}" if self._processes.is_alive(peer) else str(state)

    def do_kill(self, peer: str) -> None:
        """kill N: send SIGKILL; saved data stays"""
        number = self._peer(peer, ProcessState.RUNNING, ProcessState.PAUSED)
        self._processes.kill(number)
        self._print(f"peer {number} killed")

    def do_start(self, peer: str) -> None:
        """start N: restart from saved data"""
        number = self._peer(peer, ProcessState.KILLED, ProcessState.ENDED)
        started_s = time.monotonic()
        self._processes.start(number)
        self._processes.wait_for([number], leader=False)
        self._print(f"peer {number} restarted in {time.monotonic() - started_s:.1f} s")

    def do_pause(self, peer: str) -> None:
        """pause N: send SIGSTOP"""
        number = self._peer(peer, ProcessState.RUNNING)
        self._processes.pause(number)
        self._print(f"peer {number} paused")

    def do_resume(self, peer: str) -> None:
        """resume N: send SIGCONT"""
        number = self._peer(peer, ProcessState.PAUSED)
        self._processes.resume(number)
        self._print(f"peer {number} resumed")

    def do_load(self, clients: str = "64", seconds: str = "5") -> None:
        """load [CLIENTS] [SECONDS]: run clients that put, in the background (64, 5 s)"""
        if not clients.isdigit() or not 1 <= int(clients) <= _CLIENTS_MAX:
            raise _CommandError(f"CLIENTS must be 1..{_CLIENTS_MAX}, got {clients}")
        if not seconds.isdigit() or not 1 <= int(seconds) <= 3600:
            raise _CommandError(f"SECONDS must be 1..3600, got {seconds}")
        if self._load is not None and self._load.is_alive():
            raise _CommandError("a load is already running; wait for its result")
        load = LoadGenerator(
            self._program, self._processes.addresses, self._credentials, clients=int(clients), seconds=int(seconds)
        )

        def report_result() -> None:
            reported = load.wait()
            self._print(f"\r{reported}" if self._interactive else str(reported))
            if self._interactive:
                print(PROMPT, end="", flush=True)  # print the prompt again, after the result

        self._load = threading.Thread(target=report_result, daemon=True)
        self._load.start()

    def do_log(self, peer: str) -> None:
        """log N: print the end of the log"""
        number = self._peer(peer, *ProcessState)
        self._print(self._processes.log_tail(number, _LOG_LINES) or f"{self._processes.log(number)} is empty")

    def do_help(self) -> None:
        """help: print this list"""
        usages = [(usage, text) for usage, text in _helps().values()]
        width = max(len(usage) for usage, _ in usages)
        self._print(
            "\n".join(
                f"{usage:{width}}  {text}" for usage, text in [*usages, ("quit", "stop all peers; saved data stays")]
            )
        )


def _helps() -> dict[str, tuple[str, str]]:
    """Usage and description of each command."""
    methods = {name[3:]: method for name, method in vars(Prompt).items() if name.startswith("do_")}
    return {name: _split_help(str(method.__doc__)) for name, method in methods.items()}


def _split_help(doc: str) -> tuple[str, str]:
    usage, _, text = doc.partition(": ")
    return usage, text


def _commands() -> dict[str, str]:
    return {name: usage for name, (usage, _) in _helps().items()}


@contextmanager
def _history(interactive: bool) -> Iterator[None]:
    """Enable arrow keys and completion, if there is readline."""
    if interactive:
        try:
            import readline
        except ImportError:
            pass  # Windows
        else:
            names = [*_commands(), "quit"]

            def complete(text: str, number: int) -> str | None:
                matching = [] if readline.get_begidx() else [f"{name} " for name in names if name.startswith(text)]
                return matching[number] if number < len(matching) else None

            readline.set_completer(complete)
            readline.parse_and_bind("tab: complete")
    yield
