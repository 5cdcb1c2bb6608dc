"""The Python half of the executable: completes the image at build time, starts the application at run time.

One rule: state that differs between processes is listed in RENEWALS and renewed at every start.

The image has this file as the module `_boot`, and a module `_modules` with the names of the modules to import.
"""

from __future__ import annotations

import codecs
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import _modules  # type: ignore[import-not-found]  # build.py writes it

# Modules that the standard library imports only when it needs them: at run time they could not be imported.
LATE_IMPORTS = {
    "argparse": ("shutil", "textwrap"),
    "_datetime": ("_strptime",),  # only with the real datetime: the stand-in does not format dates
    "traceback": ("linecache",),
}
ENCODINGS = ("ascii", "latin-1", "utf-8")

# The garbage collector first runs after this many objects: never in a plugin's few milliseconds.
GC_THRESHOLD = 50_000

# Runs of VERSION before the dump. After a few calls CPython specialises a function's bytecode and caches lookups in it;
# with a warm image, a start neither spends that time nor copies those pages.
REPETITIONS = 20


# Python 3.13: C code uses the threads' handles to recognise the remaining thread after a fork.
_HANDLES = sys.version_info >= (3, 13)


class Renewal(NamedTuple):
    """Per-process state of a module: functions that make it equal in every build, and new at every start."""

    normalize: Callable[[Any], None]
    renew: Callable[[Any], None]


def _normalize_random(module: Any) -> None:
    module.seed(0)


def _renew_random(module: Any) -> None:
    module.seed()


def _normalize_threading(module: Any) -> None:
    main = module.main_thread()
    main._ident = main._native_id = 0
    module._active.clear()


def _renew_threading(module: Any) -> None:
    main = module.main_thread()
    main._set_ident()
    main._set_native_id()
    if _HANDLES:
        main._handle = module._make_thread_handle(main.ident)
    module._active[main.ident] = main


def _normalize_logging(module: Any) -> None:
    module._startTime = 0.0


def _renew_logging(module: Any) -> None:
    module._startTime = module.time.time()


def _forget_machine(platform: Any) -> None:
    platform._uname_cache = None  # the name and the kernel of the machine, which uuid asks for at its import


RENEWALS = {
    "random": Renewal(_normalize_random, _renew_random),
    "threading": Renewal(_normalize_threading, _renew_threading),
    "logging": Renewal(_normalize_logging, _renew_logging),
    "platform": Renewal(_forget_machine, _forget_machine),
}

_entries: list[Callable[[], int]] = []
_renewals: list[tuple[Renewal, Any]] = []


def prepare() -> None:
    """Imports all modules; image_builder.c calls it first."""
    application = importlib.import_module(_modules.ENTRY)
    _entries.append(application.entry)
    for name in _modules.NAMES:
        importlib.import_module(name)
    for name, later in LATE_IMPORTS.items():
        if name in sys.modules:
            for module in later:
                importlib.import_module(module)
    for encoding in ENCODINGS:
        codecs.lookup(encoding)
    _renewals[:] = [(renewal, sys.modules[name]) for name, renewal in RENEWALS.items() if name in sys.modules]


def complete() -> None:
    """Runs every verb several times, then removes the build's state; image_builder.c calls it after prepare()."""
    # A look-up that evicts an entry of this cache writes to it: keep only the entries that the verbs use.
    sys._clear_type_cache()
    application = sys.modules[_modules.ENTRY]
    for name in getattr(application, "PLUGINS", ()):
        _warm_up_version(name)
    if _modules.WARM_UP:
        _warm_up()
    _normalize()


def run_scenarios() -> Iterator[str]:
    """Runs VERSION and the scenarios once, each after yielding its name; layout.c records which blocks each uses."""
    application = sys.modules[_modules.ENTRY]
    scenarios = importlib.import_module(_modules.WARM_UP).scenarios(application.PLUGINS)
    os.environ["CNI_COMMAND"] = "VERSION"
    sys.argv = list(application.PLUGINS)[:1]
    name = next(scenarios)  # sets up the fake kernel
    yield "VERSION"
    start()
    yield name
    yield from scenarios


def start() -> int:
    """Runs the application and returns its exit status; launch.c calls it at every start."""
    try:
        for renewal, module in _renewals:
            renewal.renew(module)
        status = _entries[0]()
    except SystemExit as stop:
        status = _status_of(stop)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    return _flush(status)


def _status_of(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    print(stop.code, file=sys.stderr)
    return 1


def _flush(status: int) -> int:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return status or 1
    return status


def _warm_up_version(name: str) -> None:
    os.environ["CNI_COMMAND"] = "VERSION"
    sys.argv = [name]
    for _ in range(REPETITIONS):
        if start():
            raise SystemExit(f"{name} fails to answer VERSION")
    os.environ.clear()


def _warm_up() -> None:
    """Runs the verbs; raises SystemExit if they leave an object: its address would depend on times and process IDs."""
    gc.collect()
    gc.freeze()  # so that get_objects() lists only what the warm-up creates
    importlib.import_module(_modules.WARM_UP).warm_up(sys.modules[_modules.ENTRY].PLUGINS)
    for name in [name for name in sys.modules if name == _modules.WARM_UP or name.partition(".")[0] == "pack"]:
        del sys.modules[name]
    gc.collect()
    if remaining := gc.get_objects():
        raise SystemExit("the warm-up left objects, which podwire should create at import: " + repr(remaining)[:2000])


def _normalize() -> None:
    for renewal, module in _renewals:
        renewal.normalize(module)
    del sys.modules["_modules"]
    sys.argv = []
    sys.orig_argv = []
    sys.executable = ""  # the executable is not a Python interpreter
    sys.path.clear()
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
