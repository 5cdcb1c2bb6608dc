"""The start-up image: the state that differs between two processes of an image, and Python's functions in it.

One rule: the application is a probe, packed by the same steps as the plugins.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.binaries import ROOT

# Sizes around that of a block, input in two parts, and a digest computed between them.
DIGESTS = """
import hashlib

def digests():
    results = []
    for name in ("sha224", "sha256", "sha384", "sha512"):
        for size in (0, 55, 56, 64, 111, 112, 128, 1000):
            digest = hashlib.new(name, b"a" * (size // 2))
            copy = digest.copy()
            digest.hexdigest()
            digest.update(b"b" * (size - size // 2))
            results += [copy.hexdigest(), digest.hexdigest()]
    return results
"""
PROBE = """
import json, os, platform, random, signal, sys, tempfile, threading, uuid

def entry():
    child = os.fork()
    if not child:
        main = threading.main_thread()
        is_main = threading.current_thread() is main and main.is_alive()
        os._exit(0 if is_main and main.ident == threading.get_ident() else 1)
    threads = []
    thread = threading.Thread(target=lambda: threads.append(threading.current_thread().name))
    thread.start()
    thread.join()
    if "fail" in sys.argv:
        raise ValueError("as requested")
    if "exit" in sys.argv:
        sys.exit("stopped")
    json.dump({
        "random": random.random(),
        "name": os.path.basename(tempfile.mktemp()),
        "uuid": str(uuid.uuid4()),
        "node": platform.node(),
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

# State of the building process, each with the report of it.
LEFTOVERS = {
    "open descriptor [0-9]+: /proc/[0-9]+/status": "import os; a = os.open('/proc/self/status', os.O_RDONLY)",
    "open file or socket: <_io.FileIO name='/proc/self/stat'": "b = open('/proc/self/stat', 'rb', buffering=0)",
    "open file or socket: <_io.FileIO name=1": "j = open(1, 'wb', buffering=0, closefd=False)",
    "open file or socket: <socket.socket fd=": "import socket; c = socket.socket()",
    "open file or socket: <select.epoll": "import select; d = select.epoll()",
    "open file or socket: <posix.ScandirIterator": "import os; e = os.scandir('/proc/self')",
    "suspended code: <code object numbers": "def numbers():\n    yield 1\nf = numbers()\nnext(f)",
    "frame: <code object <module>": "import sys; g = sys._getframe()",
    "held lock: <locked _thread.lock": "import _thread; h = _thread.allocate_lock(); h.acquire()",
    "held lock: <locked _thread.RLock": "import _thread; i = _thread.RLock(); i.acquire()",
    "threads: 2$": "import _thread, time; _thread.start_new_thread(time.sleep, (60,))",
}


def build_probe(work: Path, source: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Builds an image of that module, which has a function entry()."""
    (work / "probe.py").write_text(source)
    command: list[str | Path] = [sys.executable, "-c", BUILD, work, work / "probe.py"]
    env = os.environ | {"PYTHONHASHSEED": "0"} | env
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def probe(tmp_path_factory) -> Path:
    """An image whose application is PROBE."""
    work: Path = tmp_path_factory.mktemp("probe")
    done = build_probe(work, DIGESTS + PROBE)
    assert done.returncode == 0, done.stderr
    return work / "program"


@pytest.fixture
def work(probe, tmp_path) -> Path:
    """A copy of the probe's work directory, in which only the module is built again."""
    return Path(shutil.copytree(probe.parent, tmp_path / "work"))


def answer(probe: Path, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    done = subprocess.run([probe, *arguments], env=env or {}, input=b"text", capture_output=True, check=True)
    body: dict[str, Any] = json.loads(done.stdout)
    return body


@pytest.mark.long
def test_random_values_differ_between_processes(probe):
    """Random numbers, temporary names and identifiers differ between two starts."""
    first, second = answer(probe), answer(probe)
    for key in ("random", "name", "uuid"):
        assert first[key] != second[key]


def test_the_machine_is_that_of_the_process(probe):
    """The name of the machine is that of each process, although uuid asks for it at its import."""
    assert answer(probe)["node"] == os.uname().nodename


def test_arguments_and_environment_are_the_callers(probe):
    """Arguments and environment are exactly the caller's, without those of the build."""
    values = answer(probe, "a", "", "ü", env={"X": "1", "EMPTY": ""})
    assert values["argv"] == [str(probe), "a", "", "ü"]
    assert values["environ"] == {"X": "1", "EMPTY": ""}


def test_python_works_as_in_any_process(probe):
    """Threads, fork with its hooks, the ignored SIGPIPE, stdin and more memory than the heap work."""
    values = answer(probe)
    assert (values["main"], values["forked"], values["threads"]) == (True, 0, 1)
    assert (values["sigpipe"], values["large"], values["stdin"]) == ("SIG_IGN", 100 << 20, "text")


def test_digests_equal_those_of_openssl(probe):
    """SHA-2 digests of all sizes equal OpenSSL's, also those of a copy and after an intermediate digest."""
    here: dict[str, Any] = {}
    exec(DIGESTS, here)
    assert answer(probe)["digests"] == here["digests"]()


@pytest.mark.parametrize(
    ("argument", "first", "last"),
    [("fail", "Traceback", "ValueError: as requested\n"), ("exit", "stopped", "stopped\n")],
    ids=["exception", "exit"],
)
def test_an_exception_is_status_1(probe, argument, first, last):
    """An exception that the application does not catch is a traceback, SystemExit with a text is that text."""
    done = subprocess.run([probe, argument], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(first)
    assert done.stderr.endswith(last)


def readelf(*arguments: str | Path) -> str:
    return subprocess.run(["readelf", *arguments], capture_output=True, text=True, check=True).stdout


def symbols(probe: Path) -> dict[str, range]:
    """Returns the addresses of the symbols of the probe."""
    lines = readelf("-sW", probe.with_name("podwire.debug")).splitlines()
    fields = [line.split() for line in lines if re.match(r" *\d+: [0-9a-f]{16}", line)]
    return {words[7]: range(int(words[1], 16), int(words[1], 16) + int(words[2], 0)) for words in fields if words[7:]}


def test_a_debugger_finds_symbols_and_unwinding_tables(probe):
    """The file podwire.debug has the program's build ID and symbols, and unwinding tables of Python's functions."""
    twin = probe.with_name("podwire.debug")
    first, second = (re.findall(r"Build ID: ([0-9a-f]{40})", readelf("-nW", file)) for file in (probe, twin))
    assert first == second != []
    frames = readelf("--debug-dump=frames", twin).partition(".debug_frame")[2]
    unwound = {range(int(start, 16), int(end, 16)) for start, end in re.findall(r"pc=(\w+)\.\.(\w+)", frames)}
    assert {symbols(probe)[name] for name in ("main", "PyObject_CallNoArgs", "_PyEval_EvalFrameDefault")} <= unwound


def test_tables_of_libc_are_read_only_after_the_start(probe):
    """Libc's tables of stdio functions are in the part of the memory that is read-only after the start."""
    [relro] = [line.split() for line in readelf("-lW", probe).splitlines() if "GNU_RELRO" in line]
    protected = range(int(relro[2], 16), int(relro[2], 16) + int(relro[5], 16))
    assert symbols(probe)["_IO_file_jumps"].start in protected


def test_the_build_counts_the_objects_of_the_image(probe):
    """The file objects.txt has the number and the bytes of all objects and of those of each type."""
    lines = probe.with_name("objects.txt").read_text().splitlines()
    rows = {name: (int(count), int(size)) for count, size, name in (line.split() for line in lines[1:])}
    every = rows.pop("all")
    assert every == tuple(map(sum, zip(*rows.values(), strict=True)))
    assert rows["builtins.code"][0] > 1000
    assert rows["_io.TextIOWrapper"][0] == 3


def test_state_of_the_building_process_fails_the_build(work):
    """Descriptors, files, sockets, threads, held locks, frames and suspended code in the image fail the build."""
    done = build_probe(work, "\n".join([*LEFTOVERS.values(), "def entry():\n    return 0"]))
    assert done.returncode == 1
    assert [report for report in LEFTOVERS if not re.search(f"^{report}", done.stderr, re.MULTILINE)] == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("the path '", "__import__('os').readlink('/proc/self/exe')"),
        ("the kernel's release '", "__import__('os').uname().release"),
        ("the value of the variable PROBE_SECRET of", "'-'.join(('secret', 'of', 'the', 'build'))"),
    ],
)
def test_text_of_the_building_machine_fails_the_build(work, kind, value):
    """A path or a variable of the building machine in the image fails the build."""
    done = build_probe(work, f"text = {value}\ndef entry():\n    return 0\n", PROBE_SECRET="secret-of-the-build")
    assert done.returncode == 1
    assert done.stderr.startswith(f"check: the image contains {kind}")


def test_a_failed_import_fails_the_build(work):
    """A module that cannot be imported fails the build."""
    done = build_probe(work, "import no_such_module\n")
    assert done.returncode == 1
    assert "No module named 'no_such_module'" in done.stderr


# Makes the project's directory inaccessible for other users, like one in root's home: $1, whose parent is $2.
HIDE = """\
mount --make-rprivate / && mount --bind "$1" "$0" && mount -t tmpfs -o mode=700 podwire "$2" && mkdir "$1"
mount --bind "$0" "$1" && cd "$1" && shift 2 && exec "$@"
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_builds_are_reproducible():
    """Builds in two directories, with other variables, and for root as another user, give the same bytes."""
    hidden = ("unshare", "--mount", "sh", "-ec", HIDE, "/mnt", ROOT, ROOT.parent)
    launcher = hidden if os.geteuid() == 0 and ROOT.parent != Path("/") else ()
    done = subprocess.run(
        [*launcher, sys.executable, "-m", "pack.reproducible"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
