"""The Python half of launcher.c: imports the program, runs it, and returns its exit status, as pack/boot.py does.

One rule: it imports as little as possible, because each program of a test pays for it.
"""

import gc
import importlib.util
import sys

# Loaded when first used: half of all modules are imported only through these three, and no plugin uses them.
_LATE = ("podwire.cli", "podwire.kubectl", "ipam.dhcp.daemon.program")


def start() -> int:
    """Runs the program that argv[0] names; returns the exit status."""
    gc.set_threshold(50_000)  # as in the built file
    sys.executable = ""
    from tests.mutants import recording  # noqa: PLC0415 - after the threshold

    stop = recording.start()
    status = _run()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        status = status or 1
    stop()
    return status


def _run() -> int:
    try:
        _import_late()
        from podwire import main  # noqa: PLC0415 - after the recording has started

        return main.entry()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    return 1


def _import_late() -> None:
    for name in _LATE:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        spec.loader = importlib.util.LazyLoader(spec.loader)
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
