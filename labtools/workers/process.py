"""One worker process, seen from outside: give it seeds, get a line for each, whatever becomes of the process.

Promise: every seed gets exactly one line. A worker that dies, or runs longer than its limit, costs the run it was at;
a new one goes on with the next. Only the standard library is used here, because this module is also sent by value
to machines that have nothing of the lab (stress/dask.py).

Not promised: isolation from hostile code; that is the grader's business. Start at `WorkerProcess.run()`.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_START_LIMIT_S = 60.0
_STACK_WAIT_S = 0.3
_STACK_LINES_MAX = 12
_STACK_BYTES_MAX = 20_000
_IDLE_DEATHS_MAX = 3


class CannotStart(Exception):
    """No worker can be started with this peer and these tests; the text says why."""


class Closed(Exception):
    """close() was called."""


class WorkerProcess:
    """A process that runs one seed after another, replaced whenever it is gone. Used by one thread at a time."""

    def __init__(self, setup: dict[str, Any], folder: Path, lab: Path, run_limit_s: float) -> None:
        """`setup` is the first line the worker gets, `folder` its working directory, `lab` where labtools lies."""
        self._setup = setup
        self._folder = folder
        self._lab = lab
        self._run_limit_s = run_limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._crash_file: Any = None
        self._closed = False

    def run(self, test: str, seeds: list[int]) -> list[bytes]:
        """One line of JSON, an Outcome, for each seed, in order."""
        left = list(seeds)
        lines: list[bytes] = []
        idle_deaths = 0
        while left:
            self.start()
            if not self._send({"test": test, "seeds": left}):
                # It died while it had nothing to do (the kernel took its memory, say): nobody's run.
                idle_deaths += 1
                self._end()
                if idle_deaths > _IDLE_DEATHS_MAX:
                    raise CannotStart("workers die before they begin to run")
                continue
            while left:
                line = self._read_line(self._run_limit_s)
                if line == b"retire":
                    self._end()  # it asks for a fresh process for the seed it is at
                    break
                if not line:
                    lines.append(self._obituary(test, left.pop(0), late=line is None))
                    break
                lines.append(line)
                left.pop(0)
        return lines

    def start(self) -> None:
        """Have a process that is ready; CannotStart if the peer or a test cannot be loaded."""
        if self._closed:
            raise Closed
        if self._process is not None:
            return
        # What C code and the fault handler say at the end. A file, because nobody reads along.
        self._crash_file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by _end()
        path = os.pathsep.join(p for p in (str(self._lab), os.environ.get("PYTHONPATH", "")) if p)
        self._buffer = b""
        self._process = subprocess.Popen(
            # -P: the working directory holds the student's files, which must not be taken for modules.
            [sys.executable, "-P", "-m", "labtools.stress.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._crash_file,
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": path},
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for whoever started it
        )
        assert self._process.stdout is not None
        self._poll = select.poll()
        self._poll.register(self._process.stdout, select.POLLIN | select.POLLHUP)
        if self._closed:  # while it was starting, by another thread
            self._end()
            raise Closed
        self._send(self._setup)
        line = self._read_line(_START_LIMIT_S)
        if line != b"ready":
            if line:
                text = str(json.loads(line)["error"])
            elif line is None:
                text = f"importing it took longer than {_START_LIMIT_S:.0f} s"
            else:
                code = self._process.wait()
                text = f"the worker {_describe_exit(code)} while loading it\n{self._crash_text()}".rstrip()
            self._end()
            if self._closed:
                raise Closed
            raise CannotStart(text)

    def fresh(self) -> None:
        """Let the next run have a process that has run nothing before."""
        self._end()

    def close(self) -> None:
        """End the process, now, from any thread; a run() under way raises Closed."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            self._crash_file.close()

    def _send(self, message: dict[str, Any]) -> bool:
        assert self._process is not None and self._process.stdin is not None
        data = json.dumps(message).encode() + b"\n"
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

    def _obituary(self, test: str, seed: int, *, late: bool) -> bytes:
        """An Outcome for the run that took its process along."""
        process = self._process
        assert process is not None
        if late:
            # The worker's fault handler writes its stack, even if it sits in C.
            process.send_signal(signal.SIGUSR1)
            time.sleep(_STACK_WAIT_S)
            cause = f"The run took longer than {self._run_limit_s:g} s of real time and was ended."
        else:
            cause = f"The worker process {_describe_exit(process.wait())} during the run."
        stack = self._crash_text()
        self._end()
        own = re.search(r'File "(?!/)(.+?)", line (\d+)( in \w+)', stack)
        told = "".join(f"\n  {line}" for line in stack.splitlines()[:_STACK_LINES_MAX])
        outcome = {
            "test": test,
            "seed": seed,
            "kind": "late" if late else "died",
            "cause": cause,
            "where": self._really("{}:{}{}".format(*own.groups())) if own else "",
            "real_s": self._run_limit_s if late else 0.0,
            "report": self._really(f"{test}  seed {seed}\n  {cause}{told}"),
        }
        return json.dumps(outcome).encode()

    def _crash_text(self) -> str:
        """With paths relative to the worker's folder: those are the reader's own files."""
        self._crash_file.seek(0)
        text: str = self._crash_file.read(_STACK_BYTES_MAX).decode(errors="replace").strip()
        return text.replace(f"{self._folder.resolve()}/", "")

    def _really(self, text: str) -> str:
        for here, there in self._setup.get("shown_as", {}).items():
            text = re.sub(rf"(?<![\w/.]){re.escape(here)}", there, text)
        return text


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended itself with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"
