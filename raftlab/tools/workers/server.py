"""What a worker process does with the pipes it was started with: greet, then a line for each line.

Promise: other code in this process, such as a peer that prints, cannot write to these pipes by accident. This module
uses only the standard library: it and process.py may be sent to machines without the lab.

Start at `serve()`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from collections.abc import Callable, Iterable
from typing import IO

READY = b"ready"
RETIRE = b"retire"  # instead of an answer, or after it: a fresh process shall have what is left
STACK_SIGNAL = signal.SIGUSR1


class Refusal(Exception):
    """This worker cannot do what it is started for; the process that started it gets the text."""


def serve(begin: Callable[[bytes, int], Callable[[bytes], Iterable[bytes]]]) -> int:
    """Serve requests until the pipe closes, and return the exit status of the process.

    `begin` gets the first line, and the file descriptor of the pipe, which closes when the parent ends. The function
    that it returns is called with each request.
    """
    requests, answers = _take_the_pipes()
    try:
        answers_to = begin(requests.readline(), requests.fileno())
    except Refusal as refusal:
        answers.write(json.dumps({"error": str(refusal)}).encode() + b"\n")
        return 1
    try:
        answers.write(READY + b"\n")
        for request in requests:
            for line in answers_to(request):
                answers.write(line + b"\n")
                if line == RETIRE:
                    return 0
    except BrokenPipeError:
        pass  # the process that started it is gone
    return 0


def _take_the_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Move the pipes to other descriptors: what other code prints is lost, and it reads nothing."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    return requests, answers


def dump_stack_on_crash() -> None:
    """Write the stack to stderr at a crash in C, and when the parent asks for it because it waited too long."""
    faulthandler.enable(file=2, all_threads=False)
    faulthandler.register(STACK_SIGNAL, file=2, all_threads=False)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
