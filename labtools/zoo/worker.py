"""What runs inside a worker process of `lab zoo`: load the zoo and the tests, then hunt what it is told to.

Start at `begin()`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict

from labtools.selecting import select
from labtools.workers.serving import serve, show_stack_when_lost
from labtools.zoo.hunting import hunt
from labtools.zoo.mutants import load_zoo


def begin(greeting: bytes, _: int) -> Callable[[bytes], Iterator[bytes]]:
    show_stack_when_lost()
    tests = select(json.loads(greeting)["tests"])
    zoo = {mutant.id: mutant for mutant in load_zoo()}

    def answers_to(line: bytes) -> Iterator[bytes]:
        """A line has the id of a mutant and the limits of its hunt, as hunt() takes them."""
        request = json.loads(line)
        result = hunt(zoo[request.pop("id")], tests, **request)
        yield json.dumps(asdict(result)).encode()

    return answers_to


if __name__ == "__main__":
    # Not sys.exit(): a peer's atexit functions and threads have no say in how this ends.
    os._exit(serve(begin))
