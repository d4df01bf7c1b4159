"""The lint for words (`make lint`): retired names and phrases do not come back.

A name is a module, class or function, in the product or in tests, compared as a whole: `Story` is refused, `history`
is not. Phrases are looked for in the product's strings and in the documents.
"""

import ast
import re

from raftlab.layout import FOLDERS
from unit.students import ROOT

# Retired words, and what to use instead.
RETIRED = {
    "room": "package",
    "hunt hunter hunting": "fuzz, fuzzer",
    "zoo": "mutants",
    "stranger": "correct peer: a variant or an independent implementation",
    "accuse accused accusation": "report a violation; false positive",
    "decider": "choice source",
    "chance": "distribution, random",
    "fate": "transit",
    "nursery walls": "fork server, sandbox",
    "deed": "peer effect",
    "ties": "bindings",
    "obituary last_words": "exit report",
    "seat": "server slot, peer facts",
    "office": "leadership",
    "saved_floor": "durable lower bound",
    "tell teller told telling": "report, describe, render",
    "say said saying words wordings": "text, label, message",
    "look looker lookers see seen": "check, handler, observe, observations",
    "slack": "grace period",
    "handful": "chunk",
    "unread": "undecodable",
    "kept kept_rule": "results store, harness rule",
    "story": "trace analysis, timeline model, trace builder",
    "calm": "since the last fault",
    "tap": "interceptor",
    "turn turns": "time slice, preemption",
    "twin": "same class in another incarnation",
    "stand_in": "module proxy",
    "world": "runtime",
    "hub": "main greenlet",
    "kit": "job bundle",
    "lane": "RPC stream, sequence, swimlane",
    "move moves": "fuzz step",
    "recipe": "reproduction steps",
    "exam proof intake desk judging showing shown": "assignment, validation, submission, artifacts",
    "stretch": "range",
    "struck folded softer punctual aside taken": "affected, collapsed, simplification, no delays, parked, lost time",
    "really alone_in ended_politely held_back": "restore, exclusive_lock, sigterm_as_interrupt, defer_interrupts",
}
# Deliberate uses, each with its reason.
ALLOWED = {
    "tests/peers/gossip/raft.py": ["_tell"],  # the name of a thread, which is in recorded digests
    "tests/unit/cluster/test_tcp.py": ["Words", "say"],  # an RPC that echoes a text; its frames are bytes in the tests
    "tests/unit/labrpc/test_network.py": ["say"],  # likewise
    "tests/unit/labrpc/test_queued.py": ["Say", "Said", "say"],  # likewise
}
INSTEAD = {word: instead for words, instead in RETIRED.items() for word in words.split()}

PHRASES = re.compile(
    r"\b(cannot be had|los(?:e|es|ing|t) (?:its|their|the|a) turns?|whoever|somebody|for want of|mend(?:s|ed)?|"
    r"(?:right|wrong) (?:peer|raft)s?|behind walls|no peer tells|takes? its process along|as things stand)\b",
    re.IGNORECASE,
)


def python_files():
    folders = [*FOLDERS, "tests", "bench", "handout"]
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def names_in(tree):
    return [
        (node.lineno, node.name)
        for node in ast.walk(tree)
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def is_retired(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_") in INSTEAD


def strings_in(tree):
    """(line, text), without docstrings: these are for readers of the code."""
    expressions = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in expressions
    ]


def test_no_retired_name():
    found = []
    for path in python_files():
        file = path.relative_to(ROOT).as_posix()
        names = [(1, path.stem), (1, path.parent.name), *names_in(ast.parse(path.read_text(encoding="utf-8")))]
        found += [
            f"{file}:{line} {name}" for line, name in names if is_retired(name) and name not in ALLOWED.get(file, ())
        ]
    assert found == []


def test_no_retired_phrase():
    product = [path for path in python_files() if "tests" not in path.relative_to(ROOT).parts]
    lines = [(path, *found) for path in product for found in strings_in(ast.parse(path.read_text(encoding="utf-8")))]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "handout").rglob("*.md"), ROOT / "Makefile"]
    lines += [(p, n, t) for p in pages for n, t in enumerate(p.read_text(encoding="utf-8").splitlines(), 1)]
    found = [f"{path.relative_to(ROOT)}:{n} {m[0]}" for path, n, text in lines if (m := PHRASES.search(text))]
    assert found == []


def test_whole_names_are_compared():
    assert [name for name in ("Story", "_tell", "told", "history", "TimelineModel", "retell") if is_retired(name)] == [
        "Story",
        "_tell",
        "told",
    ]
    assert PHRASES.search("its thread loses its turn")
    assert not PHRASES.search("its turn")
