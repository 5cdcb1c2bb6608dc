"""The lines that a process of a test executes, written to a file for each process.

One rule: it records only where a recording runs: the file CURRENT, which names the test, exists in the private copy of
the project that the recording uses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ROOMS = ("process", "cni", "kernel", "attachment", "ipam", "plugins", "podwire", "agent")
DIRECTORY = ROOT / "build" / "mutants" / "recording"
CURRENT = DIRECTORY / "current"
PATTERNS = tuple(f"{ROOT}/{room}/*" for room in ROOMS)


def start() -> Callable[[], None]:
    """Starts to record for the current test, if a recording runs; returns the function that writes the lines."""
    try:
        test = CURRENT.read_text()
    except OSError:
        return _nothing
    from coverage import Coverage  # noqa: PLC0415 - expensive, and not needed without a recording

    process = Coverage(data_file=None, include=PATTERNS, messages=False)
    process.start()
    owner = os.getpid()

    def stop() -> None:
        process.stop()
        data = process.get_data()
        lines = {file: data.lines(file) or [] for file in data.measured_files()}
        write(test, lines, f"{owner}-{os.getpid()}-{id(lines)}")

    return stop


def start_interpreter() -> None:
    """Records an ordinary Python process, from its start to its end, also to os._exit; called by a .pth file."""
    stop, leave = start(), os._exit
    if stop is _nothing:
        return
    import atexit  # noqa: PLC0415 - only for a recording

    def stop_and_leave(status: int) -> None:
        stop()
        leave(status)

    atexit.register(stop)
    vars(os)["_exit"] = stop_and_leave


def write(test: str, lines: dict[str, list[int]], name: str) -> None:
    """Writes the lines of a test's process to a new file; a process that may not write loses them."""
    with suppress(OSError), open(DIRECTORY / f"{name}.lines", "a", encoding="utf-8") as file:
        for path, numbers in lines.items():
            print(test, os.path.relpath(path, ROOT), *numbers, sep="\t", file=file)


def _nothing() -> None:
    pass
