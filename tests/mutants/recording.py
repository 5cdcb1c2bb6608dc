"""The lines that a process of a test executes, written to a file for each process.

One rule: it records only if the file CURRENT exists in the private copy of the project; it contains the test's ID.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("process", "cni", "kernel", "attachment", "ipam", "plugins", "podwire", "agent")
DIRECTORY = ROOT / "build" / "mutants" / "recording"
CURRENT = DIRECTORY / "current"
_leave = os._exit


def start() -> Callable[[], None]:
    """Starts to record for the current test, if a recording runs; the result and os._exit write the lines."""
    try:
        test = CURRENT.read_text()
    except OSError:
        return _nothing
    from coverage import Coverage  # noqa: PLC0415 - expensive, and not needed without a recording

    process = Coverage(
        data_file=None, config_file=False, include=[f"{ROOT}/{room}/*" for room in PACKAGES], messages=False
    )
    process.start()

    def stop() -> None:
        process.stop()
        data = process.get_data()
        with suppress(OSError), open(DIRECTORY / f"{os.getpid()}-{time.monotonic_ns()}.lines", "x") as file:
            for path in data.measured_files():
                print(test, os.path.relpath(path, ROOT), *(data.lines(path) or []), sep="\t", file=file)

    def stop_and_leave(status: int) -> None:
        stop()
        _leave(status)

    vars(os)["_exit"] = stop_and_leave
    return stop


def start_interpreter() -> None:
    """Records an ordinary Python process from its start to its end; called by a .pth file."""
    if (stop := start()) is not _nothing:
        import atexit  # noqa: PLC0415 - only for a recording

        atexit.register(stop)


def _nothing() -> None:
    pass
