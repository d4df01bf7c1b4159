"""What a worker process does with the pipes it was started with: greet, then a line for each line.

Promise: whoever else is in this process, a peer that prints above all, cannot speak on these pipes by accident. Only
the standard library is used here, and process.py with it may be sent to machines that have nothing of the lab.

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
    """This worker cannot do what it is started for; whoever started it gets the text."""


def serve(begin: Callable[[bytes, int], Callable[[bytes], Iterable[bytes]]]) -> int:
    """Until nobody asks any more. `begin` gets the first line, and the pipe that ends with whoever asks; what it
    returns gets a request at a time. The exit status of the process."""
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
        pass  # whoever started it is gone
    return 0


def _take_the_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Away from everybody else: what others print or read goes nowhere."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    return requests, answers


def dump_stack_on_crash() -> None:
    """At a crash in C, and when whoever waits loses patience: to where the last words go."""
    faulthandler.enable(file=2, all_threads=False)
    faulthandler.register(STACK_SIGNAL, file=2, all_threads=False)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
