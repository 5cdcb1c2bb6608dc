"""Reads the records of this node's pods, which plugins write, and follows changes of their directory.

One rule: the agent adds a record's addresses to the packet filter only while it holds the record's lock, and after it
has checked that the file still exists. DEL holds the lock until it has removed the addresses and deleted the record;
then another pod may get them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import LOCK_NB, LOCK_SH, flock
from functools import partial

from attachment.policy import records, table
from attachment.policy.records import PodRecord
from kernel import inotify
from process import directories
from process.loop import Loop, now

_MAX_BYTES = 1 << 16
_RETRY_S = 5.0


class LocalPods:
    """The records of Kubernetes' pods by file name. `on_change` is called when the directory changes."""

    def __init__(self, loop: Loop, on_change: Callable[[], None]) -> None:
        self.by_name: dict[str, PodRecord] = {}
        self._inodes: dict[str, int] = {}  # by file name: a file with another inode is a new record
        self.damaged: set[str] = set()  # the names of files that are no records
        self._changed: set[str] = set()
        self._loop, self._on_change = loop, on_change
        self._watch = -1

    def start(self) -> None:
        """Creates the directory if it is missing, follows it, and reads all records; raises OSError.

        `read_changes` calls it again after the directory was deleted.
        """
        if self._watch >= 0:
            self._loop.unwatch(self._watch)
            os.close(self._watch)
            self._watch = -1
        directories.create(table.PODS_DIRECTORY)
        self._watch = inotify.open_watch(table.PODS_DIRECTORY, inotify.MOVED_TO | inotify.DELETED)
        self._loop.watch(self._watch, self._on_event)
        self.read_all()

    def _on_event(self) -> None:
        self.read_changes()
        self._on_change()

    def read_changes(self) -> None:
        """Reads the changed records at once: the loop may not have reported the event yet. Raises OSError."""
        if self._watch < 0:
            self.start()
        while events := inotify.read(self._watch):
            if any(event.mask & inotify.OVERFLOW for event in events):
                self.read_all()
            if any(event.mask & inotify.IGNORED for event in events):
                self.start()
                return
            for name in dict.fromkeys(event.name for event in events if event.name[:1] not in ("", ".")):
                self.read(name)

    def read_all(self) -> None:
        """Reads all records again."""
        for name in {*self.by_name, *self.damaged, *records.list_file_names()}:
            self.read(name)

    def read(self, name: str) -> None:
        """Reads a record again; the pod of a damaged one keeps its policies until the agent restarts."""
        self.damaged.discard(name)
        try:
            with open(records.path_of(name), "rb") as file:
                data, inode = file.read(_MAX_BYTES), os.fstat(file.fileno()).st_ino
        except FileNotFoundError:
            self._forget(name)
            return
        except OSError:  # too many open files: the pod keeps its policies
            self._loop.call_at(now() + _RETRY_S, partial(self._reread, [name]))
            return
        try:
            pod = records.parse(data, name)
        except ValueError:
            self.damaged.add(name)
            if name in self._inodes:
                self._inodes[name] = inode
            return
        if not (pod.namespace and pod.pod):
            self._forget(name)
        elif (pod, inode) != (self.by_name.get(name), self._inodes.get(name)):
            self.by_name[name], self._inodes[name] = pod, inode
            self._changed.add(name)

    def take_changes(self) -> Iterator[tuple[str, PodRecord | None]]:
        """Yields the names of the records that were written or deleted since the last call; deleted ones with None."""
        changed, self._changed = self._changed, set()
        for name in changed:
            yield name, self.by_name.get(name)

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Holds the locks of all records while the context is active; yields False if some could not be locked.

        Those have been deleted, or DEL holds their lock: they are no longer in `by_name`.
        """
        descriptors: list[int] = []
        try:
            lost_names = [name for name, inode in self._inodes.items() if not _lock(name, inode, descriptors)]
            for name in lost_names:
                self._forget(name)
            if lost_names:  # a DEL that fails keeps the record, and inotify reports nothing
                self._loop.call_at(now() + _RETRY_S, partial(self._reread, lost_names))
            yield not lost_names
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _reread(self, names: list[str]) -> None:
        for name in names:
            self.read(name)
        if self._changed:
            self._on_change()

    def _forget(self, name: str) -> None:
        self._inodes.pop(name, None)
        if self.by_name.pop(name, None):
            self._changed.add(name)


def _lock(name: str, inode: int, descriptors: list[int]) -> bool:
    """Locks a record, and appends the descriptor that holds the lock; returns False if DEL has locked or deleted it.

    Raises OSError for anything else, such as too many open files: then the pod keeps its policies.
    """
    try:
        descriptors.append(os.open(records.path_of(name), os.O_RDONLY | os.O_CLOEXEC))
        flock(descriptors[-1], LOCK_SH | LOCK_NB)
    except (FileNotFoundError, BlockingIOError):
        return False
    status = os.fstat(descriptors[-1])
    return status.st_nlink > 0 and status.st_ino == inode
