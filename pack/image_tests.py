"""Runs CPython's own tests inside a start-up image, built by the same steps as the executable.

One rule: EXCLUDED lists the skipped tests with reasons; any other failure, and any crash, fails the run.

    PYTHONHASHSEED=0 python -m pack.image_tests [MODULE...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from pack.build import ROOT, boot_modules, build
from pack.freeze import Module
from pack.target import native

WORK = ROOT / "build" / "image-tests"
# Tests of large values need a larger heap than plugins, and other modules.
DEFINES = ("-DHEAP_SIZE=(1ul<<30)", "-DMORE_MODULES")
TIMEOUT_S = 180

# The test modules: of the language, and of the parts of the standard library that plugins use.
TESTED = """\
test_abc test_array test_augassign test_bisect test_bool test_buffer test_builtin test_bytes test_call test_class
test_codecs test_collections test_compile test_complex test_contextlib test_copy test_coroutines test_dataclasses
test_decorators test_descr test_dict test_dictviews test_enum test_enumerate test_errno test_except_star
test_exceptions test_fcntl test_fileio test_float test_fork1 test_format test_frame test_fstring test_functools test_gc
test_generators test_genericpath test_glob test_grammar test_hash test_hashlib test_heapq test_index test_int
test_io test_ipaddress test_isinstance test_iter test_itertools test_json test_keyword test_list test_listcomps
test_long test_marshal test_math test_memoryio test_memoryview test_operator test_ordered_dict test_os test_patma
test_pathlib test_poll test_posix test_posixpath test_property test_random test_range test_re test_scope test_select
test_selectors test_set test_signal test_slice test_socket test_sort test_stat test_string test_struct test_structseq
test_super test_tempfile test_textwrap test_threading test_time test_traceback test_tuple test_types test_typing
test_unicode test_uuid test_weakref test_with test_zlib"""

# Pattern of test IDs: why these tests are skipped.
_DOCSTRINGS = "needs docstrings, which the image lacks (optimization level 2)"
_CODECS = "uses an East Asian encoding, which is a shared library"
_C_JSON = "needs all of CPython's C code for json, a shared library: json.c has a part"
EXCLUDED = {
    "test.test_codecs.BasicUnicodeTest.*": _CODECS,
    "test.test_io.*.test_multibyte_seek_and_tell": _CODECS,
    "test.test_io.*.test_seek_with_encoder_state": _CODECS,
    "test.test_dataclasses.TestDocString.test_existing_docstring_not_overridden": _DOCSTRINGS,
    "test.test_descr.ClassPropertiesAndMethods.test_classmethods": _DOCSTRINGS,
    "test.test_enum.TestStdLib.test_pydoc": _DOCSTRINGS,
    "test.test_functools.TestCachedProperty.test_doc": _DOCSTRINGS,
    "test.test_functools.TestSingleDispatch.test_double_wrapped_methods": _DOCSTRINGS,
    "test.test_functools.TestSingleDispatch.test_method_wrapping_attributes": _DOCSTRINGS,
    "test.test_fstring.TestCase.test_global": "expects the module unittest to come from a file",
    "test.test_socket.ThreadedVSOCKSocketStreamTest.*": "waits forever in some virtual machines, in any Python",
    "test.test_posix.PosixGroupsTester.test_initgroups": "needs pwd, which image_builder.c leaves out",
    "test.test_json.TestCTest.test_cjson": _C_JSON,
    "test.test_json.test_speedups.*": _C_JSON,
}


class Outcome(NamedTuple):
    """The outcome of one test module's process; `report` is its output if it failed."""

    module: str
    ran: int
    skipped: int
    excluded: int
    failed: int
    report: str


def main() -> int:
    """Builds the image and runs each test module in a process of it; returns the exit status."""
    parser = argparse.ArgumentParser(description="Runs CPython's tests inside a start-up image.")
    parser.add_argument("modules", nargs="*", default=TESTED.split())
    modules = parser.parse_args().modules
    entry = Module("_test_entry", (ROOT / "pack" / "test_entry.py").read_bytes(), "pack/test_entry.py", False)
    program = build(native(), WORK, [entry, *boot_modules("_test_entry", [])], *DEFINES)
    outcomes = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for outcome in pool.map(lambda module: run_module(program, module), modules):
            state = f"{outcome.failed} FAILED" if outcome.failed else "ok"
            print(f"{outcome.module:20} {outcome.ran:5} run {outcome.skipped:4} skipped  {state}", flush=True)
            print(outcome.report, end="", flush=True)
            outcomes.append(outcome)
    ran, skipped, excluded, failed = (sum(column) for column in list(zip(*outcomes, strict=True))[1:5])
    counts = f"{ran} run, {skipped} skipped, {excluded} excluded, {failed} failed"
    print(f"{len(modules)} modules of CPython's test suite: {counts}")
    return 1 if failed else 0


def run_module(program: Path, module: str) -> Outcome:
    """Runs one test module in the image; a crash or a time-out counts as one failure."""
    with tempfile.TemporaryDirectory() as directory:
        summary = Path(directory) / "summary.json"
        command = ["image-tests", f"test.{module}", str(summary), *EXCLUDED]
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": directory, "TMPDIR": directory}
        try:
            done = subprocess.run(
                command,
                executable=program,
                cwd=directory,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
                check=False,
            )
            report, status = done.stdout.decode(errors="replace"), done.returncode
        except subprocess.TimeoutExpired as expired:
            report, status = (expired.stdout or b"").decode(errors="replace") + "timed out\n", -1
        if not summary.exists():
            return Outcome(module, 0, 0, 0, 1, f"{report}status {status}\n")
        counts = json.loads(summary.read_text())
        failed = counts["failed"] or int(status != 0)
        return Outcome(module, counts["ran"], counts["skipped"], counts["excluded"], failed, report if failed else "")


if __name__ == "__main__":
    sys.exit(main())
