"""Why a sandboxed peer has ended, as reported to its supervisor. Start at `exit_report()`."""

from __future__ import annotations

from types import TracebackType

from labsim import NoProgress, SimulationError, TaskFailed
from labsim.stacks import CodeLocation, is_user_code, location_of
from raftlab.check.task_errors import describe_error, first_line
from raftlab.guest import protocol
from raftlab.guest.compiled_peer import PeerCodeError
from raftlab.guest.protocol import ExitReport, RaceFound
from raftlab.races.data_race import DataRace


def exit_report(error: BaseException) -> ExitReport | RaceFound:
    return _race_found(error) or _error_report(error)


def encodable(text: str) -> str:
    """The text without lone surrogates, which cannot be encoded."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _race_found(error: BaseException) -> RaceFound | None:
    race = getattr(error, "race", None)
    if not isinstance(race, DataRace):
        return None
    from raftlab.guest.race_client import race_found  # only with --race

    return race_found(race)


def _error_report(error: BaseException) -> ExitReport:
    origin = error.__cause__ if isinstance(error, TaskFailed) and error.__cause__ is not None else error
    returned = getattr(origin, "returned", None)
    return ExitReport(
        kind=type(error).__name__,
        name=encodable(type(origin).__name__[: protocol.NAME_MAX]),
        text=encodable(_text(error, origin)[: protocol.TEXT_MAX]),
        lines=[encodable(line[: protocol.NAME_MAX * 4]) for line in describe_error(error)[:200]],
        where=_peer_locations(error, origin)[:20],
        task=getattr(error, "task", "")[: protocol.NAME_MAX],
        entry_point=getattr(error, "entry_point", "")[: protocol.NAME_MAX],
        returned=returned.__name__[: protocol.NAME_MAX] if isinstance(returned, type) else "",
        in_snapshot=any(place.function == "snapshot" for place in _traceback_locations(origin.__traceback__)),
    )


def _text(error: BaseException, origin: BaseException) -> str:
    if isinstance(error, PeerCodeError):
        return str(error)
    if isinstance(error, SimulationError) and not isinstance(error, TaskFailed):
        return str(error).partition("\n")[0]
    return first_line(origin)


def _peer_locations(error: BaseException, origin: BaseException) -> list[CodeLocation]:
    """The peer's own lines, innermost first."""
    named: list[CodeLocation] = []
    if isinstance(error, NoProgress):
        named = [wait.where for wait in error.waits if wait.where is not None]
    elif isinstance(error, SimulationError) and (where := getattr(error, "where", None)) is not None:
        named = [where]
    return [place for place in (*_traceback_locations(origin.__traceback__), *named) if is_user_code(place.file)]


def _traceback_locations(tb: TracebackType | None) -> list[CodeLocation]:
    places = []
    while tb is not None:
        places.append(location_of(tb.tb_frame, tb.tb_lineno))
        tb = tb.tb_next
    return places[::-1]
