"""The race detector: finds unordered accesses of two threads to one field, at least one of them a write.

For each field of each object, and each container in a field, it keeps the latest write and the reads since then
(FastTrack: Flanagan and Freund, 2009). An access that is not ordered after these by happens-before (labsim/clocks.py)
is a race, even if it had no effect in this run. Elements with different keys are different variables.

Not reported: writes before threads start or in the object's own __init__, and reads of a field that only ever has
tuples, frozensets or frozen dataclasses. Benign: a flag that changes once between constants, and a line with
`# race: ok`. docs/student/races.md has the full list. Start at `RaceDetector`, then `_record_read()`.
"""

from __future__ import annotations

import enum
from collections import Counter as _Counter
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from inspect import getattr_static
from types import MemberDescriptorType
from typing import Any, NoReturn
from weakref import ref

from labsim import Node, Simulation
from labsim.clocks import TaskClock
from labsim.drop_in import DropIn
from labsim.threading import local
from raftlab.races.data_race import BenignRace
from raftlab.races.report import DetectedAccess, RaceFailure, make_data_race
from raftlab.races.sites import AccessSite, SiteTable

_CONTAINERS = frozenset((list, dict, set, deque, bytearray, defaultdict, OrderedDict, _Counter))
_CONTAINERS_MAX = 1024  # of one node; the oldest are dropped
_STRONG_REFERENCES_MAX = 4096  # objects without weak references, which are kept alive
_IMMUTABLE = (tuple, frozenset)
_NOT_A_FLAG: Any = object()  # it has had more than two constants, or other values
_UNSET: Any = object()


def _is_immutable(value: Any) -> bool:
    """Whether a reader of a field with this value gets a consistent value without a lock."""
    if value is None or isinstance(value, _IMMUTABLE):
        return True
    how = getattr_static(type(value), "__dataclass_params__", None)
    return how is not None and bool(how.frozen)


class _VariableState:
    """The latest accesses of one field or container."""

    __slots__ = (
        *("key_read", "key_written", "locks_read", "locks_written", "concurrent_reads", "owner", "read", "read_slot"),
        *("site_read", "site_written", "order_read", "order_written", "container", "written", "written_slot"),
        *("flag", "is_field", "immutable_values", "pending_race"),
    )

    def __init__(self, owner: Any, container: Any = None) -> None:
        self.owner = owner  # a weak reference to the object with the field, if possible
        self.container = container  # keeps the container alive, so that its id is not reused
        # Clocks start at 1; slot 0 at 0 precedes everything.
        self.written = self.written_slot = self.read = self.read_slot = 0
        self.site_written = self.site_read = 0
        self.locks_written: tuple[Any, ...] = ()
        self.locks_read: tuple[Any, ...] = ()
        self.key_written: Any = None
        self.key_read: Any = None
        self.order_written: Any = None
        self.order_read: Any = None
        # By slot: reads that are concurrent with the latest read.
        self.concurrent_reads: dict[int, tuple[Any, ...]] | None = None
        self.flag: Any = _UNSET  # the constants that it has had
        self.immutable_values = True  # all values so far were immutable
        self.is_field = True  # not a property: accesses in its own code are checked
        self.pending_race: Any = None  # a race that is benign as long as the field is a flag


class _ObjectState(dict[str, _VariableState]):
    """The fields of one object, and the time of its first access."""

    __slots__ = ("clock", "owner", "slot")

    clock: int
    owner: Any  # a weak reference, if possible
    slot: int


class RaceDetector:
    """Detects races in one incarnation. `helpers()` are the functions that its modules call."""

    def __init__(self, simulation: Simulation, node: Node, sites: SiteTable, modules: frozenset[str]) -> None:
        self._simulation = simulation
        self._node = node
        self._sites = sites
        self._modules = modules  # whose classes are checked
        self._objects: dict[int, _ObjectState] = {}
        self._containers: dict[int, _VariableState] = {}
        self._is_watched_class: dict[type, bool] = {}
        self._strong_references: OrderedDict[int, Any] = OrderedDict()
        self.benign_races: dict[tuple[AccessSite, AccessSite], BenignRace] = {}

    # ---- objects and fields ------------------------------------------------------------------------------------------

    def _is_watched(self, cls: type) -> bool:
        watched = self._is_watched_class[cls] = cls.__module__ in self._modules and not (
            isinstance(cls, (DropIn, enum.EnumMeta)) or issubclass(cls, (BaseException, local, type, tuple))
        )
        return watched

    def _new_object(self, obj: Any, order: TaskClock) -> _ObjectState:
        fields = _ObjectState()
        fields.clock, fields.slot = order.clock, order.slot
        key = id(obj)
        objects = self._objects
        try:
            fields.owner = ref(obj, lambda _: objects.pop(key, None))
        except TypeError:
            fields.owner = None
            self._strong_references[key] = obj
            if len(self._strong_references) > _STRONG_REFERENCES_MAX:
                oldest, _ = self._strong_references.popitem(last=False)
                objects.pop(oldest, None)
        objects[key] = fields
        return fields

    def _new_field(self, fields: _ObjectState, obj: Any, name: str) -> _VariableState:
        state = fields[name] = _VariableState(fields.owner)
        found = getattr_static(type(obj), name, None)
        # A member of __slots__ is a field, too.
        state.is_field = not hasattr(type(found), "__set__") or isinstance(found, MemberDescriptorType)
        return state

    def _new_container(self, container: Any) -> _VariableState:
        if len(self._containers) >= _CONTAINERS_MAX:
            del self._containers[next(iter(self._containers))]
        state = self._containers[id(container)] = _VariableState(None, container)
        state.flag, state.immutable_values = _NOT_A_FLAG, False
        return state

    # ---- functions for rewritten code --------------------------------------------------------------------------------

    def helpers(self) -> dict[str, Callable[..., Any]]:
        """Closures, for speed: they are called for every access."""
        simulation = self._simulation
        objects, containers, watched = self._objects, self._containers, self._is_watched_class
        is_watched, new_object, new_container = self._is_watched, self._new_object, self._new_container
        new_field = self._new_field
        record_read_slow, record_write_slow, note_value = self._record_read, self._record_write, self._note_value
        sites = self._sites
        get_object, get_container, get_watched = objects.get, containers.get, watched.get

        def read_field(obj: Any, name: str, site: int) -> Any:
            cls = obj.__class__
            is_watched_class = get_watched(cls)
            if is_watched_class or (is_watched_class is None and is_watched(cls)):
                order = simulation.current.order
                if order is not None:
                    fields = get_object(id(obj))
                    if fields is None:
                        fields = new_object(obj, order)
                    state = fields.get(name)
                    if state is None:
                        state = new_field(fields, obj, name)
                    if state.read != order.clock or state.read_slot != order.slot:
                        record_read_slow(state, order, site, None)
            return getattr(obj, name)

        def write_target(obj: Any, name: str, site: int) -> Any:
            cls = obj.__class__
            if get_watched(cls) or (cls not in watched and is_watched(cls)):
                order = simulation.current.order
                if order is not None:
                    fields = get_object(id(obj))
                    if fields is None:
                        fields = new_object(obj, order)
                    state = fields.get(name)
                    if state is None:
                        state = new_field(fields, obj, name)
                    if state.flag is not _NOT_A_FLAG or state.immutable_values:
                        note_value(state, _UNSET, site)
                    record_write(fields, state, order, site)
            return obj

        def record_write(fields: _ObjectState, state: _VariableState, order: TaskClock, site: int) -> None:
            if state.written != order.clock or state.written_slot != order.slot:
                if sites[site].in_own_init and fields.clock == order.clock and fields.slot == order.slot:
                    return  # no other thread can know the object yet
                record_write_slow(state, order, site, None)
            elif state.read_slot != order.slot or state.concurrent_reads:
                record_write_slow(state, order, site, None)

        def write_field(value: Any, obj: Any, name: str, site: int) -> None:
            cls = obj.__class__
            if get_watched(cls) or (cls not in watched and is_watched(cls)):
                order = simulation.current.order
                if order is not None:
                    fields = get_object(id(obj))
                    if fields is None:
                        fields = new_object(obj, order)
                    state = fields.get(name)
                    if state is None:
                        state = new_field(fields, obj, name)
                    if state.flag is not _NOT_A_FLAG or state.immutable_values:
                        note_value(state, value, site)
                    record_write(fields, state, order, site)
                    if value.__class__ in _CONTAINERS:
                        state_of_value = get_container(id(value))
                        if state_of_value is not None and getattr(obj, name, None) is value:
                            record_write_slow(state_of_value, order, site, None)  # self.log += ...
            setattr(obj, name, value)

        def read_container(container: Any, key: Any, site: int) -> Any:
            if container.__class__ in _CONTAINERS:
                order = simulation.current.order
                if order is not None:
                    state = get_container(id(container))
                    if state is None:
                        state = new_container(container)
                    if state.read != order.clock or state.read_slot != order.slot or state.key_read != key:
                        record_read_slow(state, order, site, key)
            return container

        def write_container(container: Any, key: Any, site: int) -> Any:
            if container.__class__ in _CONTAINERS:
                order = simulation.current.order
                if order is not None:
                    state = get_container(id(container))
                    if state is None:
                        state = new_container(container)
                    record_write_slow(state, order, site, key)
            return container

        def read_item(container: Any, key: Any, site: int) -> Any:
            return read_container(container, key, site)[key]

        return {
            "__read_field__": read_field,
            "__write_field__": write_field,
            "__write_target__": write_target,
            "__read_container__": read_container,
            "__write_container__": write_container,
            "__read_item__": read_item,
        }

    # ---- accesses ----------------------------------------------------------------------------------------------------

    def _record_read(self, state: _VariableState, order: TaskClock, site: int, key: Any) -> None:
        if not state.is_field:
            return
        seen, slot = order.seen, order.slot
        written_slot = state.written_slot
        is_unordered = seen[written_slot] < state.written and written_slot != slot
        if is_unordered and not state.immutable_values and _same_key(key, state.key_written):
            self._race(state, self._latest_write(state), self._access(order, site, writes=False))
        if seen[state.read_slot] < state.read and state.read_slot != slot:
            if state.concurrent_reads is None:
                state.concurrent_reads = {}
            state.concurrent_reads[state.read_slot] = self._latest_read(state)
        state.read, state.read_slot, state.site_read = order.clock, slot, site
        state.locks_read, state.key_read = order.locks, key
        state.order_read = order

    def _record_write(self, state: _VariableState, order: TaskClock, site: int, key: Any) -> None:
        if not state.is_field:
            return
        seen, slot = order.seen, order.slot
        is_unordered = seen[state.written_slot] < state.written and state.written_slot != slot
        if is_unordered and _same_key(key, state.key_written):
            self._race(state, self._latest_write(state), self._access(order, site, writes=True))
        if not state.immutable_values:
            if seen[state.read_slot] < state.read and state.read_slot != slot and _same_key(key, state.key_read):
                read_access = self._read_access(self._latest_read(state))
                self._race(state, read_access, self._access(order, site, writes=True))
            if state.concurrent_reads is not None:
                for other_slot, read in state.concurrent_reads.items():
                    if seen[other_slot] < read[0] and other_slot != slot and _same_key(key, read[3]):
                        self._race(state, self._read_access(read), self._access(order, site, writes=True))
        state.concurrent_reads = None
        state.written, state.written_slot, state.site_written = order.clock, slot, site
        state.locks_written, state.key_written = order.locks, key
        state.order_written = order

    def _note_value(self, state: _VariableState, value: Any, site: int) -> None:
        """Update whether the field is still a flag, and whether all its values are immutable."""
        if state.immutable_values and not _is_immutable(value):
            state.immutable_values = False
        if state.flag is _NOT_A_FLAG:
            return
        if not self._sites[site].is_constant:
            flag = _NOT_A_FLAG
        elif state.flag is _UNSET:
            flag = (value,)
        elif value == state.flag[-1]:
            flag = state.flag
        else:
            flag = (*state.flag, value) if len(state.flag) == 1 else _NOT_A_FLAG
        state.flag = flag
        if flag is _NOT_A_FLAG and state.pending_race is not None:
            self._fail(state, *state.pending_race)

    def _access(self, order: TaskClock, site: int, *, writes: bool) -> DetectedAccess:
        return DetectedAccess(writes, self._sites[site], order.locks, order.begins)

    def _latest_write(self, state: _VariableState) -> DetectedAccess:
        return DetectedAccess(True, self._sites[state.site_written], state.locks_written, state.order_written.begins)

    @staticmethod
    def _latest_read(state: _VariableState) -> tuple[Any, ...]:
        return state.read, state.site_read, state.locks_read, state.key_read, state.order_read

    def _read_access(self, read: tuple[Any, ...]) -> DetectedAccess:
        _, site, locks, _, order = read
        return DetectedAccess(False, self._sites[site], locks, order.begins)

    def _race(self, state: _VariableState, earlier: DetectedAccess, later: DetectedAccess) -> None:
        comment = _comment(earlier.site, later.site)
        if comment is None and not _is_flag(state.flag, earlier, later):
            self._fail(state, earlier, later)
        if comment is None:
            state.pending_race = earlier, later
        sites = earlier.site, later.site
        if sites not in self.benign_races:
            self.benign_races[sites] = BenignRace(make_data_race(earlier, later, _owner(state)), comment)

    def _fail(self, state: _VariableState, earlier: DetectedAccess, later: DetectedAccess) -> NoReturn:
        self._simulation.fail(RaceFailure(make_data_race(earlier, later, _owner(state)), self._node.name))


def _owner(state: _VariableState) -> Any:
    return None if state.owner is None else state.owner()


def _is_flag(flag: Any, earlier: DetectedAccess, later: DetectedAccess) -> bool:
    """Whether it has had at most two constants. A field that is first set after threads started is not a flag."""
    return flag is not _NOT_A_FLAG and flag is not _UNSET and not (earlier.site.in_own_init or later.site.in_own_init)


def _comment(*sites: AccessSite) -> str | None:
    return next((site.comment for site in sites if site.comment is not None), None)


def _same_key(key: Any, other: Any) -> bool:
    """None is the whole container, ... an unknown element."""
    if key is None or other is None:
        return True
    try:
        return key is not ... and other is not ... and bool(key == other)
    except Exception:
        return False
