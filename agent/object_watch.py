"""Follows the objects of one kind, such as Nodes: a list, then watches that continue where the last one ended.

One rule: the consumer sees every state that stays, in order, and no heartbeat. An object whose parsed value is
unchanged is not reported, so kubelets' status updates end here.

A watch continues by resourceVersion after a cut. Three things cause a new list: 410, a server whose resourceVersion is
lower than the last one (it was restored from a backup: a watch would stay silent), and an event that cannot be parsed.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

from agent.api_errors import ApiError, Expired, InvalidAnswer, OutcomeUnknown
from agent.object_source import ItemChange, ItemChanges, ObjectSource

T = TypeVar("T")

_FIRST_DELAY_S, _MAX_DELAY_S = 1.0, 60.0
_WATCH_S = 300  # at least; up to twice that, so that the agents' watches do not end together
_LASTING_S = 5.0  # a watch that ends sooner, and without an event, is a failure
# After an API server's restart every agent lists again: 5,000 of them within so many seconds a node.
_LIST_SPREAD_S = 1 / 500


class Synced(NamedTuple, Generic[T]):
    """All objects by key: after the first list, and after each list that replaces a watch.

    `is_older` is True if the server's data are older than those of an earlier list: it was restored from a backup, and
    objects that are missing may exist.
    """

    items: Mapping[str, T]
    is_older: bool = False


class Changed(NamedTuple, Generic[T]):
    """A new object, or an object whose value differs from the last one."""

    item: T


class Deleted(NamedTuple):
    """An object that was deleted. An object of the same key and another UID is Changed, without Deleted before it."""

    key: str


class Failed(NamedTuple):
    """A request that failed."""

    error: ApiError


class Recovered(NamedTuple):
    """A watch is open again after failures; the objects are up to date."""


ObjectEvent = Synced[T] | Changed[T] | Deleted | Failed | Recovered


class ObjectWatch(Generic[T]):
    """Reports the objects of a source to `put`, from a thread of its own after start(), or step by step from a test.

    `on_contact` is called in the thread for each answer and event of the server, also for those that change no object.
    """

    def __init__(
        self,
        source: ObjectSource[T],
        put: Callable[[ObjectEvent[T]], None],
        *,
        on_contact: Callable[[], None] = lambda: None,
        randomness: Callable[[], float] = random.random,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._put, self._on_contact = source, put, on_contact
        self._randomness, self._monotonic = randomness, monotonic
        self._items: dict[str, T] = {}
        self._resource_version = ""  # "": list
        self._highest_version = 0
        self._is_listed = False  # and not watched yet
        self._failures = 0  # steps without an event and without a lasting watch
        self._is_failing = False
        self._stopped = threading.Event()
        self._watch_lock = threading.Lock()
        self._open_watch: ItemChanges[T] | None = None
        self._thread = threading.Thread(target=self._run, name=source.name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Returns whether the thread runs."""
        return self._thread.is_alive()

    @property
    def revision(self) -> int:
        """The revision of the last event that was put, 0 if it is not known; from any thread."""
        version = self._resource_version
        return int(version) if version.isdecimal() else 0

    def stop(self, timeout_s: float = 1.0) -> None:
        """Ends the thread: at once during a watch or a delay, else after the present request or with the process."""
        self._stopped.set()
        with self._watch_lock:
            if self._open_watch:
                self._open_watch.close()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def reconnect(self) -> None:
        """Opens the watch again: answers may not arrive since this node's addresses changed, or the server is gone."""
        with self._watch_lock:
            if self._open_watch:
                self._open_watch.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                delay_s = self.step()
            except Exception as error:  # a mistake in the work for one answer must not end the thread
                self._resource_version = ""
                text = f"internal error, please report it: {type(error).__name__}: {error}"
                delay_s = self._failed(InvalidAnswer(self._source.name, text))
            self._stopped.wait(delay_s)

    def step(self) -> float:
        """Lists, or watches until the watch ends; returns the seconds to wait before the next step."""
        try:
            if self._resource_version:
                return self._watch_once()
            self._list()
        except Expired:
            return self._list_again()
        except InvalidAnswer as error:
            self._resource_version = ""
            return self._failed(error)
        except ApiError as error:
            return self._failed(error)
        return 0.0

    def _list(self) -> None:
        try:
            listing = self._source.list_all()
        except Expired as error:  # its pages, again and again: the server is too slow
            raise OutcomeUnknown(error.request, error.cause) from error
        self._items = {self._source.key_of(item): item for item in listing.items}
        self._is_listed, self._is_failing = True, False
        self._on_contact()
        version = int(listing.resource_version) if listing.resource_version.isdecimal() else 0
        is_older, self._highest_version = version < self._highest_version, version
        self._put(Synced(dict(self._items), is_older))
        self._resource_version = listing.resource_version

    def _list_again(self) -> float:
        self._resource_version = ""
        self._failures += 1
        spread_s = self._randomness() * _LIST_SPREAD_S * len(self._items)
        return spread_s if self._failures == 1 else max(spread_s, self._backoff_s())

    def _watch_once(self) -> float:
        """Watches until the end; a cut is a failure only if the watch did not last. Returns the delay after it."""
        if not self._is_listed:
            self._refuse_older(self._source.read_revision())
        self._is_listed = False
        timeout_s = int(_WATCH_S * (1 + self._randomness()))
        watch = self._source.watch(self._resource_version, timeout_s=timeout_s)
        started = self._monotonic()
        self._on_contact()
        if self._is_failing:
            self._is_failing = False
            self._put(Recovered())
        error: ApiError | None = None
        has_events = False
        try:
            with self._opened(watch):
                for change in watch:
                    self._apply(change)
                    has_events, self._failures = True, 0
        except (Expired, InvalidAnswer):
            raise
        except ApiError as cut:
            error = cut
        if has_events or self._monotonic() - started >= _LASTING_S:
            self._failures = 0
            return self._randomness() * _FIRST_DELAY_S  # the agents do not come back together
        return self._failed(error or OutcomeUnknown(self._source.name, "the server ended it at once"))

    @contextmanager
    def _opened(self, watch: ItemChanges[T]) -> Iterator[None]:
        """Lets stop() end the watch inside the block."""
        with self._watch_lock:
            self._open_watch = watch
            if self._stopped.is_set():
                watch.close()
        try:
            yield
        finally:
            with self._watch_lock:
                self._open_watch = None

    def _apply(self, change: ItemChange[T]) -> None:
        """Reports a change, and continues after it."""
        self._on_contact()
        self._refuse_older(change.revision)
        if change.key:
            self._report(change)
        self._resource_version = change.revision or self._resource_version
        if change.revision.isdecimal():
            self._highest_version = int(change.revision)

    def _report(self, change: ItemChange[T]) -> None:
        if change.item is None:
            if self._items.pop(change.key, None) is not None:
                self._put(Deleted(change.key))
        elif self._items.get(change.key) != change.item:
            self._items[change.key] = change.item
            self._put(Changed(change.item))

    def _refuse_older(self, version: str) -> None:
        """Raises Expired for a resourceVersion below the last one: the store is an older copy. They are numbers."""
        last = self._resource_version
        if version.isdecimal() and last.isdecimal() and int(version) < int(last):
            raise Expired(self._source.name, f"resourceVersion {version} after {last}", status=410)

    def _failed(self, error: ApiError) -> float:
        """Reports a failure; returns the delay before the next try."""
        self._failures += 1
        if self._stopped.is_set():
            return 0.0
        self._is_failing = True
        self._put(Failed(error))
        return max(error.retry_after_s, self._backoff_s())

    def _backoff_s(self) -> float:
        """Returns a delay that doubles with each failure, half of it random."""
        limit_s = min(_MAX_DELAY_S, _FIRST_DELAY_S * float(1 << min(self._failures - 1, 10)))
        return limit_s * (1 + self._randomness()) / 2
