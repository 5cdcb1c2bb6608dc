"""Checks the objects of the image, in a child process of the image builder, before the dump.

One rule: state that belongs to the building process (descriptors, threads, held locks, suspended code) must not be in
the image, since a start would take it for its own.

The image has no copy of this module: only the child imports it, as `_live_objects`.
"""

from __future__ import annotations

import _io
import _thread
import gc
import os
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator

_STREAMS = 3  # descriptors 0 to 2
_LOCKS = (_thread.LockType, _thread.RLock)
_FILES = (_io.FileIO, _io.BufferedReader, _io.BufferedWriter, _io.BufferedRandom, _io.TextIOWrapper)
# The attribute with the frame of suspended code, None after its end.
_SUSPENDED = {
    types.GeneratorType: "gi_frame",
    types.CoroutineType: "cr_frame",
    types.AsyncGeneratorType: "ag_frame",
}
_MOST_SHOWN = 40


def check(tracked: list[object], threads: int, output: int, *descriptors: int) -> str:
    """Writes the number and size of the objects by type to the descriptor `output`; returns the problems, "" for none.

    `tracked`: the objects that the garbage collector knows; `threads`: the number of threads of the image builder;
    `descriptors`: its other open descriptors.
    """
    objects = _reachable(tracked)
    problems = [
        *_open_descriptors({output, *descriptors}),
        *([f"threads: {threads}"] if threads > 1 else []),
        *(f"{text}: {_describe(each)}" for each in objects for text in _problems(each)),
    ]
    os.write(output, _table(objects).encode())
    if not problems:
        return ""
    return "\n".join([f"the image would contain state of this process, {len(problems)}:", *problems[:_MOST_SHOWN]])


def _reachable(tracked: list[object]) -> list[object]:
    """Returns the objects and all that they refer to, which includes those that the garbage collector does not know."""
    seen = {id(each) for each in tracked}
    for name in [name for name, module in sys.modules.items() if id(module) not in seen]:
        del sys.modules[name]  # imported by this check: the image does not have them
    objects = list(tracked)
    for each in objects:  # grows meanwhile
        for referent in gc.get_referents(each):
            if id(referent) not in seen:
                seen.add(id(referent))
                objects.append(referent)
    return objects


def _open_descriptors(known: set[int]) -> Iterator[str]:
    listing = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
    for number in sorted(set(map(int, os.listdir(listing))) - known - {*range(_STREAMS), listing}):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # of listdir() itself
            continue
        yield f"open descriptor {number}: {target}"
    os.close(listing)


def _problems(each: object) -> Iterator[str]:
    """Yields why the object must not be in the image."""
    kind = type(each)
    if kind in _LOCKS:
        if repr(each).startswith("<locked") and each is not _main_threads_lock():
            yield "held lock"
    elif issubclass(kind, (types.FrameType, types.TracebackType)):
        yield "frame"
    elif kind in _SUSPENDED:
        if getattr(each, _SUSPENDED[kind]) is not None:
            yield "suspended code"
    elif kind.__name__ == "ScandirIterator" or (_has_descriptor(kind) and _is_open(each) and not _is_stream(each)):
        yield "open file or socket"


def _main_threads_lock() -> object:
    """Returns the lock that the main thread holds until its end, before Python 3.13."""
    threading = sys.modules.get("threading")
    return threading and getattr(threading.main_thread(), "_tstate_lock", None)


def _has_descriptor(kind: type) -> bool:
    names = (("_socket", "socket"), ("select", "epoll"))
    others = (getattr(sys.modules.get(module), name, None) for module, name in names)
    return issubclass(kind, (*_FILES, *(other for other in others if other)))


def _is_open(file: object) -> bool:
    """Returns whether the file or socket has a descriptor: one that is closed or uninitialised has none."""
    fileno: Callable[[], int] = getattr(file, "fileno")  # noqa: B009 - for the type checker
    try:
        return fileno() >= 0
    except (ValueError, OSError):
        return False


def _is_stream(file: object) -> bool:
    """Returns whether the file is one of the three objects of a standard stream, Python's or its replacement."""
    streams = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    files = [each for each in streams if each]
    return any(file is part for each in files for part in (each, each.buffer, getattr(each.buffer, "raw", None)))


def _describe(each: object) -> str:
    code = getattr(each, "f_code", None) or getattr(each, "gi_code", None) or getattr(each, "cr_code", None)
    return repr(code if code else each)[:200]


def _table(objects: list[object]) -> str:
    """Returns a line for each type, the largest first: how many, bytes, name."""
    counts: Counter[type] = Counter(map(type, objects))
    sizes: Counter[type] = Counter()
    for each in objects:
        sizes[type(each)] += sys.getsizeof(each, 0)
    lines = [f"{'objects':>9} {'bytes':>10}  type", f"{len(objects):9} {sizes.total():10}  all"]
    rows = sorted((-size, f"{kind.__module__}.{kind.__qualname__}", counts[kind]) for kind, size in sizes.items())
    return "\n".join([*lines, *(f"{count:9} {-size:10}  {name}" for size, name, count in rows), ""])
