"""Fields that two threads touch without order, one of them writing: what the rewritten code calls, and what it finds.

For each field of each object the latest write is kept, and the latest reads since (FastTrack: Flanagan and Freund,
2009); the same for each container that is held in a field. An access that comes after none of them by labsim's
order (labsim/clocks.py) is a race, whether or not it hurt in this run. Elements with different keys are different.

Not reported: what is written before the threads start; an object's own __init__; reading a field that
only ever holds tuples, frozensets or frozen dataclasses; and, told as a remark, a flag that goes from one constant to
another once, and what a `# race: ok` excuses. docs/student/race.md has the whole list.

Start at `Watch`, then `_touch_read()` and `_touch_write()`.
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
_CONTAINERS_MAX = 1024  # of one node; the oldest are forgotten
_STRONG_REFERENCES_MAX = 4096  # objects that cannot be referred to weakly, and are kept alive
_IMMUTABLE = (tuple, frozenset)
_NOT_A_FLAG: Any = object()  # it has held more than two constants, or something else
_UNSET: Any = object()


def _is_immutable(value: Any) -> bool:
    """Whether whoever reads a field that holds it has the old one or the new one."""
    if value is None or isinstance(value, _IMMUTABLE):
        return True
    how = getattr_static(type(value), "__dataclass_params__", None)
    return how is not None and bool(how.frozen)


class _VariableState:
    """What is known of one field, or of one container."""

    __slots__ = (
        *("key_read", "key_written", "locks_read", "locks_written", "others", "owner", "read", "read_slot"),
        *("site_read", "site_written", "order_read", "order_written", "thing", "written", "written_slot"),
        *("flag", "is_field", "published", "suspect"),
    )

    def __init__(self, owner: Any, thing: Any = None) -> None:
        self.owner = owner  # a weak reference to the object that has the field; None if it cannot be had
        self.thing = thing  # the container, kept so that its id stays its own
        # Clocks from 1 on. Slot 0 at 0 comes before everything.
        self.written = self.written_slot = self.read = self.read_slot = 0
        self.site_written = self.site_read = 0
        self.locks_written: tuple[Any, ...] = ()
        self.locks_read: tuple[Any, ...] = ()
        self.key_written: Any = None
        self.key_read: Any = None
        self.order_written: Any = None
        self.order_read: Any = None
        self.others: dict[int, tuple[Any, ...]] | None = None  # reads that the latest read does not come after
        self.flag: Any = _UNSET  # the constant that it holds, a pair once that has changed
        self.published = True  # nothing but what never changes
        self.is_field = True  # and no property, whose own lines are looked at
        self.suspect: Any = None  # a race that is none as long as it is a flag


class _ObjectState(dict[str, _VariableState]):
    """Of one object: its fields, and when it was first seen."""

    __slots__ = ("clock", "owner", "slot")

    clock: int
    owner: Any  # a weak reference, where there can be one
    slot: int


class RaceDetector:
    """Of one incarnation of a node. `helpers()` is what its modules get."""

    def __init__(self, simulation: Simulation, node: Node, sites: SiteTable, modules: frozenset[str]) -> None:
        self._simulation = simulation
        self._node = node
        self._sites = sites
        self._modules = modules  # whose classes are watched
        self._objects: dict[int, _ObjectState] = {}
        self._containers: dict[int, _VariableState] = {}
        self._kinds: dict[type, bool] = {}
        self._unweak: OrderedDict[int, Any] = OrderedDict()
        self.remarks: dict[tuple[AccessSite, AccessSite], BenignRace] = {}

    # ---- what is watched -----------------------------------------------------------------------------------------

    def _is_watched(self, cls: type) -> bool:
        watched = self._kinds[cls] = cls.__module__ in self._modules and not (
            isinstance(cls, (DropIn, enum.EnumMeta)) or issubclass(cls, (BaseException, local, type, tuple))
        )
        return watched

    def _first_sight(self, obj: Any, order: TaskClock) -> _ObjectState:
        fields = _ObjectState()
        fields.clock, fields.slot = order.clock, order.slot
        key = id(obj)
        objects = self._objects
        try:
            fields.owner = ref(obj, lambda _: objects.pop(key, None))
        except TypeError:
            fields.owner = None
            self._unweak[key] = obj
            if len(self._unweak) > _STRONG_REFERENCES_MAX:
                oldest, _ = self._unweak.popitem(last=False)
                objects.pop(oldest, None)
        objects[key] = fields
        return fields

    def _new_field(self, fields: _ObjectState, obj: Any, name: str) -> _VariableState:
        shadow = fields[name] = _VariableState(fields.owner)
        found = getattr_static(type(obj), name, None)
        # What __slots__ makes is a field all the same.
        shadow.is_field = not hasattr(type(found), "__set__") or isinstance(found, MemberDescriptorType)
        return shadow

    def _new_container(self, thing: Any) -> _VariableState:
        if len(self._containers) >= _CONTAINERS_MAX:
            del self._containers[next(iter(self._containers))]
        shadow = self._containers[id(thing)] = _VariableState(None, thing)
        shadow.flag, shadow.published = _NOT_A_FLAG, False
        return shadow

    # ---- what the rewritten code calls ---------------------------------------------------------------------------

    def helpers(self) -> dict[str, Callable[..., Any]]:
        """Closures: what is called for every field should find what it needs at hand."""
        simulation = self._simulation
        objects, containers, kinds = self._objects, self._containers, self._kinds
        is_watched, first_sight, new_container = self._is_watched, self._first_sight, self._new_container
        new_field = self._new_field
        touch_read, touch_write, note_value = self._touch_read, self._touch_write, self._note_value
        sites = self._sites
        get_object, get_container, get_kind = objects.get, containers.get, kinds.get

        def see(obj: Any, name: str, site: int) -> Any:
            cls = obj.__class__
            kind = get_kind(cls)
            if kind or (kind is None and is_watched(cls)):
                order = simulation.current.order
                if order is not None:
                    fields = get_object(id(obj))
                    if fields is None:
                        fields = first_sight(obj, order)
                    shadow = fields.get(name)
                    if shadow is None:
                        shadow = new_field(fields, obj, name)
                    if shadow.read != order.clock or shadow.read_slot != order.slot:
                        touch_read(shadow, order, site, None)
            return getattr(obj, name)

        def target(obj: Any, name: str, site: int) -> Any:
            cls = obj.__class__
            if get_kind(cls) or (cls not in kinds and is_watched(cls)):
                order = simulation.current.order
                if order is not None:
                    fields = get_object(id(obj))
                    if fields is None:
                        fields = first_sight(obj, order)
                    shadow = fields.get(name)
                    if shadow is None:
                        shadow = new_field(fields, obj, name)
                    if shadow.flag is not _NOT_A_FLAG or shadow.published:
                        note_value(shadow, _UNSET, site)
                    write(fields, shadow, order, site)
            return obj

        def write(fields: _ObjectState, shadow: _VariableState, order: TaskClock, site: int) -> None:
            if shadow.written != order.clock or shadow.written_slot != order.slot:
                if sites[site].made and fields.clock == order.clock and fields.slot == order.slot:
                    return  # nobody else can know the object yet
                touch_write(shadow, order, site, None)
            elif shadow.read_slot != order.slot or shadow.others:
                touch_write(shadow, order, site, None)

        def put(value: Any, obj: Any, name: str, site: int) -> None:
            cls = obj.__class__
            if get_kind(cls) or (cls not in kinds and is_watched(cls)):
                order = simulation.current.order
                if order is not None:
                    fields = get_object(id(obj))
                    if fields is None:
                        fields = first_sight(obj, order)
                    shadow = fields.get(name)
                    if shadow is None:
                        shadow = new_field(fields, obj, name)
                    if shadow.flag is not _NOT_A_FLAG or shadow.published:
                        note_value(shadow, value, site)
                    write(fields, shadow, order, site)
                    if value.__class__ in _CONTAINERS:
                        held = get_container(id(value))
                        if held is not None and getattr(obj, name, None) is value:
                            touch_write(held, order, site, None)  # self.log += ...
            setattr(obj, name, value)

        def read_container(thing: Any, key: Any, site: int) -> Any:
            if thing.__class__ in _CONTAINERS:
                order = simulation.current.order
                if order is not None:
                    shadow = get_container(id(thing))
                    if shadow is None:
                        shadow = new_container(thing)
                    if shadow.read != order.clock or shadow.read_slot != order.slot or shadow.key_read != key:
                        touch_read(shadow, order, site, key)
            return thing

        def write_container(thing: Any, key: Any, site: int) -> Any:
            if thing.__class__ in _CONTAINERS:
                order = simulation.current.order
                if order is not None:
                    shadow = get_container(id(thing))
                    if shadow is None:
                        shadow = new_container(thing)
                    touch_write(shadow, order, site, key)
            return thing

        def item(thing: Any, key: Any, site: int) -> Any:
            return read_container(thing, key, site)[key]

        return {
            "__see__": see,
            "__put__": put,
            "__target__": target,
            "__read__": read_container,
            "__write__": write_container,
            "__item__": item,
        }

    # ---- what it means -------------------------------------------------------------------------------------------

    def _touch_read(self, shadow: _VariableState, order: TaskClock, site: int, key: Any) -> None:
        if not shadow.is_field:
            return
        seen, slot = order.seen, order.slot
        written_slot = shadow.written_slot
        is_unordered = seen[written_slot] < shadow.written and written_slot != slot
        if is_unordered and not shadow.published and _same_key(key, shadow.key_written):
            self._race(shadow, self._latest_write(shadow), self._access(order, site, writes=False))
        if seen[shadow.read_slot] < shadow.read and shadow.read_slot != slot:
            if shadow.others is None:
                shadow.others = {}
            shadow.others[shadow.read_slot] = self._latest_read(shadow)
        shadow.read, shadow.read_slot, shadow.site_read = order.clock, slot, site
        shadow.locks_read, shadow.key_read = order.locks, key
        shadow.order_read = order

    def _touch_write(self, shadow: _VariableState, order: TaskClock, site: int, key: Any) -> None:
        if not shadow.is_field:
            return
        seen, slot = order.seen, order.slot
        is_unordered = seen[shadow.written_slot] < shadow.written and shadow.written_slot != slot
        if is_unordered and _same_key(key, shadow.key_written):
            self._race(shadow, self._latest_write(shadow), self._access(order, site, writes=True))
        if not shadow.published:
            if seen[shadow.read_slot] < shadow.read and shadow.read_slot != slot and _same_key(key, shadow.key_read):
                told = self._read_access(self._latest_read(shadow))
                self._race(shadow, told, self._access(order, site, writes=True))
            if shadow.others is not None:
                for other_slot, read in shadow.others.items():
                    if seen[other_slot] < read[0] and other_slot != slot and _same_key(key, read[3]):
                        self._race(shadow, self._read_access(read), self._access(order, site, writes=True))
        shadow.others = None
        shadow.written, shadow.written_slot, shadow.site_written = order.clock, slot, site
        shadow.locks_written, shadow.key_written = order.locks, key
        shadow.order_written = order

    def _note_value(self, shadow: _VariableState, value: Any, site: int) -> None:
        """Is it still a flag, or still nothing but what is published whole?"""
        if shadow.published and not _is_immutable(value):
            shadow.published = False
        if shadow.flag is _NOT_A_FLAG:
            return
        if not self._sites[site].constant:
            flag = _NOT_A_FLAG
        elif shadow.flag is _UNSET:
            flag = (value,)
        elif value == shadow.flag[-1]:
            flag = shadow.flag
        else:
            flag = (*shadow.flag, value) if len(shadow.flag) == 1 else _NOT_A_FLAG
        shadow.flag = flag
        if flag is _NOT_A_FLAG and shadow.suspect is not None:
            self._accuse(shadow, *shadow.suspect)

    def _access(self, order: TaskClock, site: int, *, writes: bool) -> DetectedAccess:
        return DetectedAccess(writes, self._sites[site], order.locks, order.begins)

    def _latest_write(self, shadow: _VariableState) -> DetectedAccess:
        return DetectedAccess(True, self._sites[shadow.site_written], shadow.locks_written, shadow.order_written.begins)

    @staticmethod
    def _latest_read(shadow: _VariableState) -> tuple[Any, ...]:
        return shadow.read, shadow.site_read, shadow.locks_read, shadow.key_read, shadow.order_read

    def _read_access(self, read: tuple[Any, ...]) -> DetectedAccess:
        _, site, locks, _, order = read
        return DetectedAccess(False, self._sites[site], locks, order.begins)

    def _race(self, shadow: _VariableState, earlier: DetectedAccess, later: DetectedAccess) -> None:
        excuse = _excuse(earlier.site, later.site)
        if excuse is None and not _is_flag(shadow.flag, earlier, later):
            self._accuse(shadow, earlier, later)
        if excuse is None:
            shadow.suspect = earlier, later
        places = earlier.site, later.site
        if places not in self.remarks:
            self.remarks[places] = BenignRace(make_data_race(earlier, later, _owner(shadow)), excuse)

    def _accuse(self, shadow: _VariableState, earlier: DetectedAccess, later: DetectedAccess) -> NoReturn:
        self._simulation.fail(RaceFailure(make_data_race(earlier, later, _owner(shadow)), self._node.name))


def _owner(shadow: _VariableState) -> Any:
    return None if shadow.owner is None else shadow.owner()


def _is_flag(flag: Any, earlier: DetectedAccess, later: DetectedAccess) -> bool:
    """Whether it has only held constants, two at most. One that is first set when threads run is none."""
    return flag is not _NOT_A_FLAG and flag is not _UNSET and not (earlier.site.made or later.site.made)


def _excuse(*sites: AccessSite) -> str | None:
    return next((site.excuse for site in sites if site.excuse is not None), None)


def _same_key(key: Any, other: Any) -> bool:
    """None is the whole container, ... an element that nobody knows."""
    if key is None or other is None:
        return True
    try:
        return key is not ... and other is not ... and bool(key == other)
    except Exception:
        return False
