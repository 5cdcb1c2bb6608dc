"""A double of the store: all objects in memory, with a history, and faults at any request.

One rule: without a fault it answers as both real stores do; tests/cluster/test_store_contract.py runs over all of them.

    double = StoreDouble()
    double.fail_next(Fault.NO_ANSWER, "swap_block")  # executed, but the caller sees UNKNOWN
    double.fail_next(Fault.LATE, "swap_")            # UNKNOWN; executed by deliver_late()
    saved = double.snapshot(); ...; double.restore(saved)
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from agent.api_errors import Expired, OutcomeUnknown, Unreachable
from agent.api_object import Document
from agent.pools import documents
from agent.pools.block_protocol import BlockRecord, SwapOutcome
from agent.pools.space import Space, format_space
from agent.pools.store import (
    BlockNote,
    Entries,
    EntryChanged,
    NodeEntry,
    SpaceChanged,
    Stored,
    StorePosition,
    SwapReply,
)
from cni.address import Network

_SPACE, _BLOCKS, _NODES = "space", "blocks/", "nodes/"
_UNKNOWN = SwapReply(SwapOutcome.UNKNOWN, "no answer came in time")
_UNSENT = SwapReply(SwapOutcome.LOST, "no connection: refused")


class Fault(Enum):
    """A request that goes wrong. A read has UNREACHABLE, NOT_EXECUTED and the two crashes."""

    UNREACHABLE = auto()  # no connection: surely not executed
    NOT_EXECUTED = auto()  # no answer, and not executed
    NO_ANSWER = auto()  # executed, no answer
    LATE = auto()  # no answer; executed by deliver_late(), if the value is still the expected one then
    TWICE = auto()  # executed; the same request arrives again with deliver_late()
    CRASH_BEFORE = auto()  # Crash is raised, the request is not executed
    CRASH_AFTER = auto()  # Crash is raised, the request was executed


class Crash(Exception):  # noqa: N818 - what happens to the agent
    """The agent ends at this request."""


@dataclass
class _Planned:
    fault: Fault
    matching: str
    times: int


Snapshot = tuple[dict[str, bytes], int]  # objects and revision of a double


@dataclass
class StoreDouble:
    """A store of one space; see agent.pools.store.Store for its methods. The fields are for tests.

    With `reads_space` a change of a block has the space in its answer, as etcd's; Kubernetes has no such transaction.
    `requests` counts the requests by their method. `watch_ends` lets a watch end when no change is left, as if the
    server had ended it, so that tests without threads can iterate over it.
    """

    cluster: str = "double"
    objects: dict[str, bytes] = field(default_factory=dict)
    revision: int = 1
    requests: Counter[str] = field(default_factory=Counter)
    reads_space: bool = True
    watch_ends: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self._faults: list[_Planned] = []
        self._late: list[tuple[str, Callable[[], SwapReply]]] = []
        self._history: list[tuple[int, str, bytes]] = []  # revision, key, value or b""
        self._compacted = 0
        self._incarnation = 0  # raised by restore(): watches end
        self._position = StorePosition()

    # Hooks of tests.

    def fail_next(self, fault: Fault, matching: str = "", times: int = 1) -> None:
        """Lets the next `times` requests whose method's name contains `matching` go wrong."""
        self._faults.append(_Planned(fault, matching, times))

    def deliver_late(self, number: int = 0) -> SwapReply:
        """Executes a late request, in any order."""
        with self.changed:
            return self._late.pop(number)[1]()

    @property
    def late(self) -> list[str]:
        """The methods of the requests that are late."""
        return [request for request, _ in self._late]

    def drop_late(self) -> None:
        """Forgets the late requests: they never arrive."""
        self._late.clear()

    def snapshot(self) -> Snapshot:
        """Returns a backup."""
        with self.changed:
            return dict(self.objects), self.revision

    def restore(self, snapshot: Snapshot, cluster: str = "") -> None:
        """Goes back to a backup, with its revision; late requests stay late. A new member has another cluster ID."""
        with self.changed:
            self.objects, self.revision = dict(snapshot[0]), snapshot[1]
            self.cluster = cluster or self.cluster
            self._history.clear()
            self._compacted = 0
            self._incarnation += 1
            self.changed.notify_all()

    def compact(self) -> None:
        """Forgets the history: a watch of an older revision is Expired."""
        with self.changed:
            self._compacted = self.revision
            self._history.clear()

    def put_raw(self, key: str, raw: bytes) -> None:
        """Writes an object as a person would ("space", "blocks/0a160040-26", "nodes/ID"); b"" deletes it."""
        with self.changed:
            self._put(key, raw)

    # The store.

    @property
    def position(self) -> StorePosition:
        """The position in the latest answer of a list."""
        return self._position

    def read_space(self) -> Stored[Space | None]:
        """Returns the space."""
        with self._read("read_space"):
            return documents.stored_space("double", self.objects.get(_SPACE, b""))

    def swap_space(self, expected: Stored[Space | None], new: Space) -> SwapReply:
        """Changes the space."""
        return self._swap("swap_space", _SPACE, expected, format_space(new))

    def read_block(self, block: Network) -> Stored[BlockRecord]:
        """Returns a block."""
        with self._read("read_block"):
            return self._block(block)

    def list_blocks(self, owner: str = "") -> Mapping[Network, Stored[BlockRecord]]:
        """Returns all blocks, or those of an owner."""
        with self._read("list_blocks"):
            self._position = StorePosition(self.cluster, self.revision)
            return {
                block: self._block(block)
                for name in self._keys(_BLOCKS)
                if (block := documents.block_of_name(name))
                and (not owner or documents.names_owner(self.objects[_BLOCKS + name], owner))
            }

    def swap_block(self, block: Network, expected: Stored[BlockRecord], new: BlockRecord, note: BlockNote) -> SwapReply:
        """Changes a block."""
        key = _BLOCKS + documents.block_name(block)
        return self._swap("swap_block", key, expected, documents.format_block(block, new, note))

    def read_entry(self, node: str) -> Stored[NodeEntry | None]:
        """Returns an entry."""
        with self._read("read_entry"):
            return self._entry(node) if _NODES + node in self.objects else Stored(None)

    def list_entries(self) -> Entries:
        """Returns the entries of all nodes."""
        with self._read("list_entries"):
            nodes = [node for node in self._keys(_NODES) if documents.is_node(node)]
            self._position = StorePosition(self.cluster, self.revision)
            return Entries({node: self._entry(node) for node in nodes}, str(self.revision))

    def swap_entry(self, node: str, expected: Stored[NodeEntry | None], new: NodeEntry) -> SwapReply:
        """Changes an entry."""
        return self._swap("swap_entry", _NODES + documents.check_node(node), expected, documents.format_entry(new))

    def list_problems(self) -> list[str]:
        """Returns a text for each object that is not valid."""
        with self._read("list_problems"):
            return documents.problems_of(self.objects)

    def watch(self, revision: str) -> Watch:
        """Opens a watch."""
        with self._read("watch"):
            if not self._compacted <= int(revision) <= self.revision:
                raise Expired("watch", f"revision {revision} is compacted, or of another store", status=410)
            return Watch(self, int(revision), self._incarnation)

    # Below: how requests are executed.

    def _block(self, block: Network) -> Stored[BlockRecord]:
        return documents.stored_block(block, self.objects.get(_BLOCKS + documents.block_name(block), b""))

    def _space(self) -> Space | None:
        raw = self.objects.get(_SPACE, b"")
        try:
            return documents.stored_space("double", raw).value if raw and self.reads_space else None
        except ValueError:
            return None

    def _entry(self, node: str) -> Stored[NodeEntry]:
        return documents.stored_entry(node, self.objects[_NODES + node])

    def _keys(self, prefix: str) -> list[str]:
        return sorted(key.removeprefix(prefix) for key in self.objects if key.startswith(prefix))

    def _fault_of(self, request: str) -> Fault | None:
        """Returns the fault of a request, and counts both."""
        self.requests[request] += 1
        planned = next((one for one in self._faults if one.matching in request), None)
        if planned is None:
            return None
        planned.times -= 1
        if planned.times == 0:
            self._faults.remove(planned)
        return planned.fault

    def _read(self, request: str) -> threading.Condition:
        """Returns the lock to hold during a read; raises the fault that a test has planned."""
        match self._fault_of(request):
            case None:
                return self.changed
            case Fault.CRASH_BEFORE | Fault.CRASH_AFTER:
                raise Crash(request)
            case Fault.UNREACHABLE:
                raise Unreachable(request, "no connection: refused")
            case _:
                raise OutcomeUnknown(request, "no answer came in time")

    def _swap(self, request: str, key: str, expected: Stored[object], document: Document) -> SwapReply:
        """Executes a compare-and-swap, with the fault that a test has planned."""
        if expected.problem:
            return SwapReply(SwapOutcome.LOST, expected.problem)
        raw = documents.encode(document)

        def execute() -> SwapReply:
            if self.objects.get(key, b"") != expected.raw:
                return SwapReply(SwapOutcome.LOST, f"{key} has another value")
            self._put(key, raw)
            return SwapReply(SwapOutcome.SUCCEEDED, raw=raw, space=self._space() if request == "swap_block" else None)

        with self.changed:
            fault = self._fault_of(request)
            if fault is Fault.CRASH_BEFORE:
                raise Crash(request)
            if fault is Fault.UNREACHABLE:
                return _UNSENT
            if fault in (Fault.LATE, Fault.TWICE):
                self._late.append((request, execute))
            if fault in (Fault.LATE, Fault.NOT_EXECUTED):
                return _UNKNOWN
            change = execute()
            if fault is Fault.CRASH_AFTER:
                raise Crash(request)
            return _UNKNOWN if fault is Fault.NO_ANSWER else change

    def _put(self, key: str, raw: bytes) -> None:
        self.revision += 1
        if raw:
            self.objects[key] = raw
        else:
            self.objects.pop(key, None)
        self._history.append((self.revision, key, raw))
        self.changed.notify_all()


class Watch:
    """A watch of a double."""

    def __init__(self, double: StoreDouble, revision: int, incarnation: int) -> None:
        self._double, self._revision, self._incarnation = double, revision, incarnation
        self._is_closed = False

    def __iter__(self) -> Iterator[EntryChanged | SpaceChanged]:
        """Yields the changes of entries and of the space."""
        double = self._double
        while True:
            with double.changed:
                while not (changes := self._changes()) and self._is_open():
                    if double.watch_ends:
                        return
                    double.changed.wait()
            if not self._is_open():
                return
            for revision, key, raw in changes:
                self._revision = revision
                change = _change_of(revision, key, raw)
                if change:
                    yield change

    def close(self) -> None:
        """Ends the iteration."""
        with self._double.changed:
            self._is_closed = True
            self._double.changed.notify_all()

    def _changes(self) -> list[tuple[int, str, bytes]]:
        return [one for one in self._double._history if one[0] > self._revision]

    def _is_open(self) -> bool:
        return not self._is_closed and self._incarnation == self._double._incarnation


def _change_of(revision: int, key: str, raw: bytes) -> EntryChanged | SpaceChanged | None:
    node = key.removeprefix(_NODES)
    if key == _SPACE:
        return SpaceChanged(str(revision))
    if node == key or not documents.is_node(node):
        return None
    if not raw:
        return EntryChanged(node, None, str(revision))
    entry = documents.stored_entry(node, raw)
    return EntryChanged(node, entry.value, str(revision), entry.problem)
