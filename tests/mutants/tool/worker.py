"""A worker process of `lab mutants`: loads the mutants and the tests, and judges mutants on request.

`JUDGES` are the ways to judge, functions that take what judge_by_tests() takes. `lab mutants random` tries one after
another until one catches the mutant.

Start at `begin()`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict

from raftlab.tools.selection import select
from raftlab.tools.workers.server import dump_stack_on_crash, serve
from tests.mutants.tool.measurement import MutantResult, judge_by_fuzzing, judge_by_tests
from tests.mutants.tool.mutants import load_mutants
from tests.mutants.tool.random_mutants import drawn_by_id, is_drawn

TESTS, FUZZ = "tests", "fuzz"
JUDGES: dict[str, Callable[..., MutantResult]] = {TESTS: judge_by_tests, FUZZ: judge_by_fuzzing}


def begin(greeting: bytes, _: int) -> Callable[[bytes], Iterator[bytes]]:
    dump_stack_on_crash()
    tests = select(json.loads(greeting)["tests"] or ["*"])  # scenarios, too
    mutants = {mutant.id: mutant for mutant in load_mutants()}

    def answers_to(line: bytes) -> Iterator[bytes]:
        """A line has the id of a mutant, the judge, and the arguments of judge_by_tests()."""
        request = json.loads(line)
        id_ = request.pop("id")
        mutant = drawn_by_id(id_) if is_drawn(id_) else mutants[id_]
        result = JUDGES[request.pop("judge")](mutant, tests, **request)
        yield json.dumps(asdict(result)).encode()

    return answers_to


if __name__ == "__main__":
    # Not sys.exit(), which would run a peer's atexit functions and wait for its threads.
    os._exit(serve(begin))
