"""Passes events from other threads to the main thread, whose event loop handles them one by one."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from process.loop import Loop, now

Event = TypeVar("Event")


class Inbox(Generic[Event]):
    """Calls `handle` in the loop's thread with each event that any thread puts here, in their order."""

    def __init__(self, loop: Loop, handle: Callable[[Event], None]) -> None:
        self._loop = loop
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._handle = handle
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.watch(self._wake, self._drain)

    def put(self, event: Event) -> None:
        """Adds an event, from any thread."""
        self._events.put(event)
        os.eventfd_write(self._wake, 1)

    def _drain(self) -> None:
        os.eventfd_read(self._wake)
        for _ in range(self._events.qsize()):
            # As a call of its own: an exception about one event must not lose the others. The loop would no longer
            # watch a descriptor whose callback failed.
            self._loop.call_at(now(), partial(self._handle, self._events.get_nowait()))
