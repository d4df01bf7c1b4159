"""One request type for all operations, and objects in the log."""

from dataclasses import dataclass

import labgob


@labgob.register
@dataclass
class Command:
    verb: str
    key: str
    value: str
    who: str
    number: int


@dataclass
class Answer:
    done: bool
    value: str = ""
