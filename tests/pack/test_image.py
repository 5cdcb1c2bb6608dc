"""The start-up image: what differs between two processes of one image, and what works in it as in any Python.

One rule: a probe of our own is the application, packed by the same steps as the plugins.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.binaries import ROOT

# Sizes about a block's, input in two pieces, and a look in between.
DIGESTS = """
import hashlib

def digests():
    found = []
    for name in ("sha224", "sha256", "sha384", "sha512"):
        for size in (0, 55, 56, 64, 111, 112, 128, 1000):
            made = hashlib.new(name, b"a" * (size // 2))
            copy = made.copy()
            made.hexdigest()
            made.update(b"b" * (size - size // 2))
            found += [copy.hexdigest(), made.hexdigest()]
    return found
"""
PROBE = """
import json, os, random, signal, sys, tempfile, threading, uuid

def entry():
    child = os.fork()
    if not child:
        main = threading.main_thread()
        own = threading.current_thread() is main and main.is_alive()
        os._exit(0 if own and main.ident == threading.get_ident() else 1)
    threads = []
    thread = threading.Thread(target=lambda: threads.append(threading.current_thread().name))
    thread.start()
    thread.join()
    if "fail" in sys.argv:
        raise ValueError("as told")
    if "exit" in sys.argv:
        sys.exit("stopped")
    json.dump({
        "random": random.random(),
        "name": os.path.basename(tempfile.mktemp()),
        "uuid": str(uuid.uuid4()),
        "argv": sys.argv,
        "environ": {key: os.environ[key] for key in os.environ},
        "main": threading.current_thread() is threading.main_thread(),
        "forked": os.waitpid(child, 0)[1],
        "threads": len(threads),
        "sigpipe": signal.getsignal(signal.SIGPIPE).name,
        "large": len(bytearray(100 << 20)),
        "stdin": sys.stdin.read(),
        "digests": digests(),
    }, sys.stdout)
    return 0
"""

BUILD = """
import sys
from pathlib import Path
from pack.build import boot_modules, build
from pack.freeze import Module
from pack.target import native
work, probe = map(Path, sys.argv[1:])
modules = [Module("probe", probe.read_bytes(), "probe.py", False), *boot_modules("probe", [])]
build(native(), work, modules, "-DMORE_MODULES")
"""


@pytest.fixture(scope="module")
def probe(tmp_path_factory) -> Path:
    """An image of which the application is PROBE."""
    work = tmp_path_factory.mktemp("probe")
    (work / "probe.py").write_text(DIGESTS + PROBE)
    command = [sys.executable, "-c", BUILD, work, work / "probe.py"]
    env = os.environ | {"PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return work / "program"


def answer(probe: Path, *arguments: str, env: dict[str, str] | None = None) -> dict:
    done = subprocess.run([probe, *arguments], env=env or {}, input=b"text", capture_output=True, check=True)
    return json.loads(done.stdout)


def test_no_two_processes_share_what_is_random(probe):
    """Random numbers, temporary names and identifiers differ between two starts."""
    first, second = answer(probe), answer(probe)
    for what in ("random", "name", "uuid"):
        assert first[what] != second[what]


def test_arguments_and_environment_are_the_process_s_own(probe):
    """Arguments and environment are the caller's, to the last, and the building machine's are gone."""
    found = answer(probe, "a", "", "ü", env={"X": "1", "EMPTY": ""})
    assert found["argv"] == [str(probe), "a", "", "ü"]
    assert found["environ"] == {"X": "1", "EMPTY": ""}


def test_python_works_as_in_any_process(probe):
    """Threads, fork with its hooks, ignored SIGPIPE, standard input and more memory than the heap work."""
    found = answer(probe)
    assert (found["main"], found["forked"], found["threads"]) == (True, 0, 1)
    assert (found["sigpipe"], found["large"], found["stdin"]) == ("SIG_IGN", 100 << 20, "text")


def test_digests_are_what_others_compute(probe):
    """SHA-2 in all its sizes is OpenSSL's, also of a copy and after a look in between."""
    here: dict = {}
    exec(DIGESTS, here)
    assert answer(probe)["digests"] == here["digests"]()


def test_an_exception_is_a_traceback_and_status_1(probe):
    """An exception the application lets through is told on stderr."""
    done = subprocess.run([probe, "fail"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ValueError: as told\n")


def test_sys_exit_is_a_status(probe):
    """SystemExit with a text is that text on stderr and status 1."""
    done = subprocess.run([probe, "exit"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "stopped\n")


def test_what_was_not_imported_is_not_there(tmp_path):
    """A module that cannot be imported fails the build."""
    (tmp_path / "probe.py").write_text("import no_such_module\n")
    command = [sys.executable, "-c", BUILD, tmp_path, tmp_path / "probe.py"]
    env = os.environ | {"PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No module named 'no_such_module'" in done.stderr


@pytest.mark.timeout(600)
def test_builds_are_reproducible():
    """Builds in two directories, of different length and under other variables, give the same bytes."""
    done = subprocess.run(
        [sys.executable, "-m", "pack.reproducible"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
