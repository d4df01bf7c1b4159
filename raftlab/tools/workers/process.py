"""One worker process, seen from outside: give it requests, get an answer for each, whatever becomes of the process.

Promise: every request gets exactly one answer, or a `Lost` that says how its process ended. A worker that dies, or
takes longer than its limit, costs the request it was at; a new one goes on with the next. Only the standard library
is used here, because this module is also sent by value to machines that have nothing of the lab (dask.py).

Not promised: isolation from hostile code; that is the grader's task, which uses a sandbox around the
process. Start at `WorkerProcess.ask()`.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from raftlab.tools.workers.server import READY, RETIRE, STACK_SIGNAL, signal_name

_START_LIMIT_S = 60.0
_STACK_WAIT_S = 0.3
_OUTPUT_BYTES_MAX = 20_000
_FRUITLESS_MAX = 3
# Tells a worker which of this process's workers it is, from 0: some keep to a processor of their own.
_NUMBER = "RAFTLAB_WORKER"
_numbers: set[int] = set()


class CannotStart(Exception):
    """No worker can be started like this; the text says why, `said` is what the process said itself."""

    def __init__(self, text: str, *, output: str = "", refused: bool = False) -> None:
        super().__init__(text)
        self.output = output
        self.refused = refused  # by itself, in words


class Closed(Exception):
    """close() was called."""


# Plain classes and no dataclasses: they travel by value.
class Lost:
    """In place of an answer: the process went, or had to go, while it was at the request."""

    def __init__(self, how: str, output: str, *, late: bool) -> None:
        self.how = how  # a predicate: "was ended by SIGSEGV"
        self.output = output  # by C code, the fault handler or Python, at the end
        self.late = late


class Launch:
    """How a worker is started, and what it is told first."""

    def __init__(
        self,
        command: list[str],
        *,
        folder: Path,
        environment: dict[str, str],
        greeting: bytes,
        shows_stack: bool = False,
        kill: Callable[[subprocess.Popen[bytes]], None] = subprocess.Popen.kill,
        after: Callable[[], None] | None = None,
    ) -> None:
        self.command = command
        self.folder = folder
        self.environment = environment
        self.greeting = greeting
        self.shows_stack = shows_stack  # if it is sent STACK_SIGNAL
        self.kill = kill
        self.after = after  # it has ended


def python_worker(module: str, greeting: Any, *, folder: Path, lab: Path) -> Launch:
    """A module of ours with serve() in it, in a process of its own; `lab` is where the lab lies."""
    path = os.pathsep.join(p for p in (str(lab), os.environ.get("PYTHONPATH", "")) if p)
    return Launch(
        # -P: the working directory may hold a student's files, which must not be taken for modules.
        [sys.executable, "-P", "-m", module],
        folder=folder,
        environment={**os.environ, "PYTHONPATH": path},
        greeting=json.dumps(greeting).encode(),
        shows_stack=True,
    )


class WorkerProcess:
    """A process that answers one request after another, replaced whenever it is gone. Used by one thread at a time."""

    def __init__(self, launch: Callable[[], Launch]) -> None:
        """`launch` is asked anew for every process."""
        self._new_launch = launch
        self._launch: Launch | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._output_file: Any = None
        self._closed = False
        self._number = -1

    def ask(self, requests: Sequence[bytes], limit_s: float) -> list[bytes | Lost]:
        """A line for each of these lines, in order; `limit_s` is for each. All are sent at once: a pipe holds them."""
        left = list(requests)
        answers: list[bytes | Lost] = []
        fruitless = 0
        while left:
            self.start()
            # What cannot be sent died while it had nothing to do (the kernel took its memory, say): nobody's request.
            line = self._read_line(limit_s) if self._send(b"\n".join(left)) else RETIRE
            while line and line != RETIRE:
                answers.append(line)
                fruitless = 0
                if len(answers) == len(requests):
                    return answers
                left.pop(0)
                line = self._read_line(limit_s)
            if line == RETIRE:
                fruitless += 1
                self._end()
                if fruitless > _FRUITLESS_MAX:
                    raise CannotStart("worker processes die before they can run anything")
            else:
                answers.append(self._loss(late=line is None))
                fruitless = 0
                left.pop(0)
        return answers

    def start(self) -> None:
        """Have a process that is ready; CannotStart if it cannot be, or will not."""
        if self._closed:
            raise Closed
        if self._process is not None:
            return
        launch = self._launch = self._new_launch()
        # What C code and the fault handler say at the end. A file, because nobody reads along.
        self._output_file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by _end()
        self._buffer = b""
        self._number = next(number for number in range(len(_numbers) + 1) if number not in _numbers)
        _numbers.add(self._number)
        self._process = subprocess.Popen(
            launch.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output_file,
            cwd=launch.folder,
            env={**launch.environment, _NUMBER: str(self._number)},
            bufsize=0,
            start_new_session=True,  # Ctrl-C goes to the process that started it
        )
        assert self._process.stdout is not None
        self._poll = select.poll()
        self._poll.register(self._process.stdout, select.POLLIN | select.POLLHUP)
        if self._closed:  # while it was starting, by another thread
            self._end()
            raise Closed
        self._send(launch.greeting)
        line = self._read_line(_START_LIMIT_S)
        if line != READY:
            error = self._why_not(line)
            self._end()
            if self._closed:
                raise Closed
            raise error

    def _why_not(self, line: bytes | None) -> CannotStart:
        if line:
            return CannotStart(str(json.loads(line)["error"]), refused=True)
        if line is None:
            return CannotStart(f"importing it took longer than {_START_LIMIT_S:.0f} s", output=self._output())
        assert self._process is not None
        how = describe_exit(self._process.wait())
        output = self._output()
        return CannotStart(f"the worker {how} while loading it\n{output}".rstrip(), output=output)

    def fresh(self) -> None:
        """Let the next request have a process that has done nothing before."""
        self._end()

    def close(self) -> None:
        """End the process, now, from any thread; an ask() under way raises Closed."""
        self._closed = True
        process, launch = self._process, self._launch
        if process is not None and launch is not None:
            launch.kill(process)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert self._launch is not None
            _numbers.discard(self._number)
            self._launch.kill(process)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            self._output_file.close()
            if self._launch.after is not None:
                self._launch.after()

    def _send(self, lines: bytes) -> bool:
        assert self._process is not None and self._process.stdin is not None
        data = lines + b"\n"
        try:
            while data:
                data = data[self._process.stdin.write(data) or 0 :]
        except OSError:
            return False
        return True

    def _read_line(self, limit_s: float) -> bytes | None:
        """The next line, b"" if the process is gone, None if the time was up."""
        assert self._process is not None and self._process.stdout is not None
        until_s = time.monotonic() + limit_s
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not self._poll.poll(left_s * 1000):
                return None
            data = os.read(pipe, 1 << 16)
            if not data:
                if self._closed:
                    self._end()
                    raise Closed
                return b""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _loss(self, *, late: bool) -> Lost:
        process, launch = self._process, self._launch
        assert process is not None and launch is not None
        if late and launch.shows_stack:
            # The worker's fault handler writes its stack, even if it sits in C.
            process.send_signal(STACK_SIGNAL)
            time.sleep(_STACK_WAIT_S)
        how = "took too long and was ended" if late else describe_exit(process.wait())
        output = self._output()
        self._end()
        return Lost(how, output, late=late)

    def _output(self) -> str:
        """With paths relative to the worker's folder: those are the reader's own files."""
        assert self._launch is not None
        self._output_file.seek(0)
        text: str = self._output_file.read(_OUTPUT_BYTES_MAX).decode(errors="replace").strip()
        return text.replace(f"{self._launch.folder.resolve()}/", "")


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended itself with exit status {code}"
    name = signal_name(-code)
    return f"was ended by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"


def restore_paths(text: str, shown_as: dict[str, str]) -> str:
    """With the paths of the worker's folder as those where the files really lie."""
    for here, there in shown_as.items():
        # Not where it is part of a longer path, as in the replay line.
        text = re.sub(rf"(?<![\w/.]){re.escape(here)}", there.replace("\\", r"\\"), text)
    return text
