"""What runs inside a worker process of `lab zoo`: load the zoo and the tests, then hunt what it is told to.

`JUDGES` are the ways to hunt, functions that take what hunt() takes. `lab zoo random` shows a mutant to one after
another until one catches it.

Start at `begin()`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict

from raftlab.tools.selection import select
from raftlab.tools.workers.server import serve, show_stack_when_lost
from tests.mutants.tool.measurement import Result, hunt, hunt_unwritten
from tests.mutants.tool.mutants import load_zoo
from tests.mutants.tool.random_mutants import drawn_by_id, is_drawn

TESTS, HUNT = "tests", "hunt"
JUDGES: dict[str, Callable[..., Result]] = {TESTS: hunt, HUNT: hunt_unwritten}


def begin(greeting: bytes, _: int) -> Callable[[bytes], Iterator[bytes]]:
    show_stack_when_lost()
    tests = select(json.loads(greeting)["tests"] or ["*"])  # scenarios, too
    zoo = {mutant.id: mutant for mutant in load_zoo()}

    def answers_to(line: bytes) -> Iterator[bytes]:
        """A line has the id of a mutant, who judges it, and the limits of its hunt, as hunt() takes them."""
        request = json.loads(line)
        id_ = request.pop("id")
        mutant = drawn_by_id(id_) if is_drawn(id_) else zoo[id_]
        result = JUDGES[request.pop("judge")](mutant, tests, **request)
        yield json.dumps(asdict(result)).encode()

    return answers_to


if __name__ == "__main__":
    # Not sys.exit(): a peer's atexit functions and threads have no say in how this ends.
    os._exit(serve(begin))
