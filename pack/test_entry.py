"""The application of the image that runs CPython's tests (image_tests.py): argv is MODULE SUMMARY [PATTERN...].

One rule: the image contains the modules that plugins use (IN_IMAGE); tests and their helpers are read from disk.
"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.abc
import json
import signal
import sys
import unittest
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NoReturn

IN_IMAGE = """\
abc array bisect codecs collections contextlib copy dataclasses enum errno fcntl functools hashlib heapq io ipaddress
itertools json logging math operator os pathlib random re select selectors shutil signal socket stat string struct
subprocess tempfile textwrap threading time traceback types typing uuid weakref zlib"""

# Constants of _testcapi: the limits of C's types.
BITS = {"CHAR": 8, "SHRT": 16, "INT": 32, "LONG": 64, "LLONG": 64, "PY_SSIZE_T": 64}
LIMITS = (
    {f"{name}_MAX": 2 ** (bits - 1) - 1 for name, bits in BITS.items()}
    | {f"{name}_MIN": -(2 ** (bits - 1)) for name, bits in BITS.items()}
    | {f"U{name}_MAX": 2**bits - 1 for name, bits in BITS.items()}
)

for _name in IN_IMAGE.split():
    importlib.import_module(_name)


def entry() -> int:
    """Runs one test module, writes its counts to the summary file and returns 0 if nothing failed."""
    module, summary, *patterns = sys.argv[1:]
    sys.argv[1:] = []
    _open_disk(Path("/usr/lib/python{}.{}".format(*sys.version_info)))
    sys.executable = "/usr/bin/python3"  # for the tests that start another interpreter
    sys.meta_path.append(_StandIns())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in an ordinary interpreter
    doctest = importlib.import_module("doctest")
    vars(doctest)["DocTestSuite"] = lambda *_, **__: unittest.TestSuite()  # doctests need docstrings
    try:
        every = list(_flat(unittest.defaultTestLoader.loadTestsFromName(module)))
    except unittest.SkipTest as skip:
        print(f"{module}: {skip}")
        every = []
    suite = unittest.TestSuite(
        test for test in every if not any(fnmatch.fnmatchcase(test.id(), pattern) for pattern in patterns)
    )
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=0).run(suite)
    counts = {
        "ran": result.testsRun - len(result.skipped),
        "skipped": len(result.skipped),
        "excluded": len(every) - suite.countTestCases(),
        "failed": len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses),
    }
    with open(summary, "w") as file:
        json.dump(counts, file)
    return 0 if result.wasSuccessful() else 1


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Replaces modules that exist only as shared libraries; a test that needs more than their constants is skipped."""

    NAMES: ClassVar = {"_testcapi": {**LIMITS, "unicode_legacy_string": None}, "_testinternalcapi": {}}

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Returns the spec of the stand-in with that name."""
        return ModuleSpec(fullname, self) if fullname in self.NAMES else None

    def exec_module(self, module: ModuleType) -> None:
        """Sets the module's constants; any other attribute skips the test."""
        vars(module).update(self.NAMES[module.__name__])
        module.__getattr__ = _skip  # type: ignore[method-assign]


def _skip(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise unittest.SkipTest(f"needs {name} of a shared library")


def _open_disk(stdlib: Path) -> None:
    """Makes modules that are not in the image importable from disk, also in packages that are in it."""
    sys.path.append(str(stdlib))
    for name, module in sys.modules.items():
        place = stdlib.joinpath(*name.split("."))
        if hasattr(module, "__path__"):
            module.__path__ = [str(place)]
            place /= "__init__"
        source = place.with_suffix(".py")
        if not hasattr(module, "__file__") and source.exists():
            module.__file__ = str(source)


def _flat(suite: Any) -> Iterator[Any]:
    """Yields the single tests of a nested suite."""
    try:
        tests = iter(suite)
    except TypeError:
        yield suite
    else:
        for test in tests:
            yield from _flat(test)
