"""flock(2) locks of other processes: finds the process that holds one, and reports a long wait on stderr.

This code runs only when a verb has already waited for a lock, or when an operator asks for its holder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress

from process import files
from process.stderr import one_line

NOTICE_S = 3.0  # a wait that takes longer is reported; a verb holds a lock for milliseconds

_MOST_BYTES = 64 << 20  # a line of /proc/locks has about 50 bytes


def get_holders(lock: os.stat_result) -> list[int]:
    """Returns the visible processes that hold the lock: they have the locked file open. Raises OSError.

    /proc/locks (proc_locks(5)) lists the process that acquired the lock. That process may have ended since, while a
    child process holds the lock through the inherited open file: then all processes are searched.
    """
    place = _place(lock)
    takers = _get_takers(files.read("/proc/locks", _MOST_BYTES).decode(), place)
    holders = [pid for pid in takers if pid and _holds(pid, place)]
    if takers and not holders:
        holders = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _holds(pid, place)]
    return holders


def is_held_by_other(path: str) -> bool:
    """Returns whether a process other than this one's child programs has locked the file at `path`.

    False without the file. A holder that is not visible is another process.
    """
    try:
        lock = os.stat(path)
        if not _get_takers(files.read("/proc/locks", _MOST_BYTES).decode(), _place(lock)):
            return False
        holders = get_holders(lock)
        return not holders or any(_get_parent(os.getpgid(pid)) != os.getpid() for pid in holders)
    except OSError:
        return False


def describe_holder(path: str, lock: os.stat_result | None = None) -> str:
    """Returns a sentence that names the holder of the lock file at `path`, or the command that shows it."""
    try:
        holders = get_holders(lock or os.stat(path))
    except OSError:
        holders = []
    if holders:
        return f"the lock {path} is held by process {holders[0]} ({get_command(holders[0])})"
    return f"the holder of the lock {path} is not visible here; run fuser -v {path}"


def get_command(pid: int) -> str:
    """Returns a process's command line, "" when it is not visible."""
    return one_line(_read(f"/proc/{pid}/cmdline").replace("\0", " ").strip())


def report_wait(awaited: str, path: str) -> None:
    """Writes one line to stderr: this process still waits for `awaited`, and which process holds the lock at `path`."""
    report(f"waiting for {awaited}: {describe_holder(path)}")


def report(text: str) -> None:
    """Writes one line to stderr about a step that takes long."""
    if sys.stderr is not None:
        with suppress(OSError):  # standard error may be a pipe without a reader
            print(one_line(f"podwire: {text}"), file=sys.stderr, flush=True)


def _place(lock: os.stat_result) -> str:
    """Returns a file as /proc/locks names it."""
    return f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"


def _get_parent(pid: int) -> int:
    """Returns the parent of a process, 0 if it has ended or is not visible."""
    words = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(words[1]) if len(words) > 1 else 0


def _get_takers(table: str, place: str) -> list[int]:
    """Returns the processes that acquired the lock; 0 is a process in a PID namespace that is not visible here."""
    lines = (line.split() for line in table.splitlines())
    # "1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF"; the lines of waiting processes have "->" before FLOCK
    return [int(words[4]) for words in lines if len(words) > 5 and words[1] == "FLOCK" and words[5] == place]


def _holds(pid: int, place: str) -> bool:
    return any(_get_takers(text, place) for text in _locks_of(pid))


def _locks_of(pid: int) -> Iterator[str]:
    """Yields the locks of each open file of a process, in the form of /proc/locks."""
    directory = f"/proc/{pid}/fdinfo"
    try:
        names = os.listdir(directory)
    except OSError:
        return  # it has ended, or may not be inspected
    for name in names:
        yield _read(f"{directory}/{name}").replace("lock:", "")


def _read(path: str) -> str:
    """Returns the content of a file in /proc, "" if it is missing or may not be read."""
    try:
        return files.read(path, _MOST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
