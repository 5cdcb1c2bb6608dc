"""The static executable as a file and as a process, independent of the plugin and of the file's directory.

One rule: the tests run the executable with VERSION or as the operator's tool; they do not use its internals.
"""

import contextlib
import ctypes
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.binaries import ROOT
from tests.support.machine import eventually

VERSION = {"CNI_COMMAND": "VERSION"}
ADD = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/proc/1/ns/net",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": "/nowhere",
}
PRIVATE_KIB = 2 << 10


def run(*command: object, env: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[Any]:
    words = [str(word) for word in command]
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": 60} | options
    return subprocess.run(words, env=env or {}, check=False, **options)


def assert_version(done: subprocess.CompletedProcess[bytes]) -> None:
    assert (done.returncode, done.stderr) == (0, b"")
    assert "1.0.0" in json.loads(done.stdout)["supportedVersions"]


def in_shell(script: str, program: Path) -> subprocess.CompletedProcess[bytes]:
    return run("/bin/sh", "-c", script, "sh", program, env=VERSION | {"PATH": "/usr/bin:/bin"})


def exec_raw(program: Path, argv: list[bytes], environ: list[bytes]) -> bytes:
    """Runs the program with these argument and environment strings, such as duplicates, which no dict could contain."""
    readable, writable = os.pipe()
    arrays = [(ctypes.c_char_p * (len(strings) + 1))(*strings, None) for strings in (argv, environ)]
    pid = os.fork()
    if not pid:
        os.dup2(writable, 1)
        ctypes.CDLL(None).execve(bytes(program), *arrays)
        os._exit(127)
    os.close(writable)
    with open(readable, "rb") as pipe:
        output = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return output


def test_every_name_is_the_same_file(podwire, bin_dir):
    """All names in the directory are hard links to one file of at most 27 MB."""
    files = [path.stat() for path in bin_dir.iterdir()]
    assert len({info.st_ino for info in files}) == 1
    assert files[0].st_nlink >= len(files)  # other tests link them, too
    assert files[0].st_size <= 27_000_000


def test_it_runs_in_an_empty_root_directory(program, root, tmp_path):
    """VERSION succeeds in a root directory without other files, with and without stdin."""
    shutil.copy(program, tmp_path)
    assert_version(run("/usr/sbin/chroot", tmp_path, "/loopback", env=VERSION))
    script = f"exec /usr/sbin/chroot {tmp_path} /loopback <&-"
    assert_version(in_shell(script, program))


def test_it_runs_from_a_readonly_file_and_leaves_no_trace(program, tmp_path):
    """VERSION opens no file for writing, creates no file, and does not change the executable."""
    before = program.read_bytes()
    trace = tmp_path / "trace"
    assert_version(run("/usr/bin/strace", "-f", "-o", trace, program, env=VERSION))
    calls = trace.read_text()
    assert not re.search(r"O_WRONLY|O_RDWR|O_CREAT|mkdir|memfd_create", calls)
    assert not re.search(r"\b(clone3?|v?fork)\(", calls)
    assert program.read_bytes() == before


def test_closed_standard_streams_are_occupied(program, tmp_path):
    """With descriptors 0 to 2 closed, the executable opens /dev/null for them first, for descriptor 1 read-only."""
    trace = tmp_path / "trace"
    done = in_shell(f'/usr/bin/strace -o {trace} -e trace=openat sh -c \'exec "$0" <&- >&- 2>&-\' "$1"', program)
    assert done.returncode == 1
    opened = re.findall(r'openat\(AT_FDCWD, "/dev/null", (O_\w+)\)\s+= (\d)', trace.read_text())
    assert opened == [("O_RDWR", "0"), ("O_RDONLY", "1"), ("O_RDWR", "2")]


def test_duplicate_and_malformed_variables(program):
    """The first of two equal variables counts, and an entry without "=" is ignored."""
    output = exec_raw(program, [b"loopback"], [b"malformed", b"=x", b"CNI_COMMAND=VERSION", b"CNI_COMMAND=ADD"])
    assert "supportedVersions" in json.loads(output)


def test_arguments_are_passed_on(podwire):
    """Arguments arrive in order and to the byte, even if they are not UTF-8."""
    assert exec_raw(podwire, [b"podwire", b"--version"], []).startswith(b"podwire ")
    done = run(podwire, "no-such-command")
    assert (done.returncode, done.stdout) == (2, b"")
    env = {"CNI_COMMAND": "ADD"}
    odd = subprocess.run([b"\xff\xfe"], executable=podwire, capture_output=True, check=False, env=env)
    assert odd.returncode == 1
    assert r"'\udcff\udcfe'" in json.loads(odd.stdout)["msg"]


def test_a_large_environment(program):
    """VERSION succeeds with an environment of some 100 KB."""
    assert_version(run(program, env=VERSION | {f"V{number}": "x" * 100 for number in range(1000)}))


def test_small_limits(program):
    """A stack of 64 KiB, and an address space of 128 MiB, are enough."""
    assert_version(in_shell('ulimit -s 64; exec "$1"', program))
    assert_version(in_shell('ulimit -v 131072; exec "$1"', program))


@contextlib.contextmanager
def waiting(program: Path) -> Iterator[Path]:
    """Yields the directory in /proc of a plugin that waits for its stdin."""
    with subprocess.Popen([program], env=ADD, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        directory = Path(f"/proc/{process.pid}")
        assert eventually(lambda: "S (sleeping)" in (directory / "status").read_text())
        yield directory
        process.communicate(b"", timeout=60)


def test_private_memory(program):
    """Until it reads stdin, a plugin has at most 2 MiB of memory of its own.

    The pages of its file are in the page cache once for all processes; the kernel maps 5 to 11 MiB of them.
    """
    with waiting(program) as directory:
        private = re.search(r"RssAnon:\s+(\d+) kB", (directory / "status").read_text())
    assert private
    assert int(private[1]) <= PRIVATE_KIB


def test_memory_protection(program):
    """No memory is writable and executable, the stack is not executable, and pointers that libc sets are read-only."""
    lines = run("/usr/bin/readelf", "-lW", program).stdout.decode().splitlines()
    assert not [line for line in lines if " RWE " in line]
    assert [line for line in lines if "GNU_STACK" in line and " RW " in line]
    [relro] = [line.split() for line in lines if "GNU_RELRO" in line]
    # The pointers to libc's functions that each process chooses by its processor.
    kind = {"x86_64": 37, "aarch64": 1032}[os.uname().machine]  # elf.h: R_*_IRELATIVE
    pattern = b"(.{8})" + re.escape(kind.to_bytes(8, "little")) + b".{8}"
    entries = re.findall(pattern, program.read_bytes()[:4096], re.DOTALL)  # they follow the program headers
    slots = [int.from_bytes(entry, "little") for entry in entries]
    assert len(slots) > 20
    assert all(0 <= slot - int(relro[2], 16) < int(relro[5], 16) for slot in slots)
    processes = [memory(program) for _ in range(3)]
    for maps in processes:
        assert not [line for line in maps if re.search(r" rwx. | -wx. ", line)]
        fixed = [range(*(int(end, 16) for end in line.split()[0].split("-"))) for line in maps if " r--p " in line]
        assert not [hex(slot) for slot in slots if not any(slot in addresses for addresses in fixed)]
    for area in ("[stack]", "[heap]", "[vdso]"):
        assert len({line.split()[0] for maps in processes for line in maps if line.endswith(area)}) > 1, area


def memory(program: Path) -> list[str]:
    """Returns the lines of /proc/<pid>/maps of a plugin that waits for its stdin."""
    with waiting(program) as directory:
        return (directory / "maps").read_text().splitlines()


def test_no_path_of_the_building_machine_is_in_the_file(program):
    """The executable contains neither the directory of the sources nor a home directory."""
    data = program.read_bytes()
    for text in (f"{ROOT}/build/", f"{ROOT}/kernel/", f"{ROOT}/podwire/", f"{Path.home()}/", "/home/"):
        assert text.encode() not in data, text


def test_setuid_is_refused(program, root):
    """A setuid or setgid copy fails for another user, who could choose the programs that it runs."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="podwire-") as directory:
        if os.statvfs(directory).f_flag & os.ST_NOSUID:
            pytest.skip("this file system ignores setuid")
        os.chmod(directory, 0o755)
        copy = shutil.copy(program, directory)
        user = ("/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        assert_version(run(*user, copy, env=VERSION))
        for mode in (0o4755, 0o2755):
            os.chmod(copy, mode)
            done = run(*user, copy, env=VERSION)
            assert (done.returncode, done.stdout) == (1, b"")
            assert b"not supported" in done.stderr
