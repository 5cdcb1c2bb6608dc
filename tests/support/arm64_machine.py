"""An emulated machine for 64-bit ARM: Debian's kernel, busybox and the executable, in memory.

One rule: its only input is the archive from which it boots, and its only output is the console; it shares nothing with
this machine and leaves no files.
"""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.binaries import ROOT

PROGRAM = "qemu-system-aarch64"
_DEBIAN = ROOT / "build" / "arm64" / "machine"  # make unpacks it there
_INIT = Path(__file__).with_suffix(".sh")
_MODULES = ("kernel/net", "kernel/drivers/net", "kernel/lib")
_OPTIONS = ["-machine", "virt", "-cpu", "cortex-a72", "-m", "512", "-nographic", "-nic", "none", "-no-reboot"]
_APPEND = "console=ttyAMA0 quiet loglevel=1 panic=-1"
_TIMEOUT_S = 600
_DIES_WITH_PARENT = ("setpriv", "--pdeathsig=KILL")  # the machine ends even if the tests are killed


def boot(directory: Path, script: str, files: dict[str, bytes]) -> str:
    """Boots, runs a script of busybox's shell and powers off; returns the console's output.

    `files` are the executable files of the machine, by path; `directory` is for the archive.
    """
    if not (_DEBIAN / "bin").is_dir():
        raise FileNotFoundError(f"no kernel in {_DEBIAN}: run `make arm64-machine`")
    (kernel,) = (_DEBIAN / "boot").glob("vmlinuz-*")
    modules = f"lib/modules/{kernel.name.removeprefix('vmlinuz-')}"
    contents = {"init": _INIT.read_bytes(), "bin/busybox": (_DEBIAN / "bin/busybox").read_bytes()}
    paths = [path for part in _MODULES for path in (_DEBIAN / modules / part).rglob("*.ko")]
    for path in (*paths, *(_DEBIAN / modules).glob("modules.*")):
        contents[str(path.relative_to(_DEBIAN))] = path.read_bytes()
    archive = directory / "initrd"
    archive.write_bytes(b"".join(_archive({**contents, **files, "script": script.encode()})))
    image = ["-kernel", str(kernel), "-initrd", str(archive)]
    command = [*_DIES_WITH_PARENT, PROGRAM, *_OPTIONS, *image, "-append", _APPEND]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=True)
    return done.stdout.decode(errors="replace").replace("\r\n", "\n")


def _archive(files: dict[str, bytes]) -> Iterator[bytes]:
    """Yields the parts of a cpio archive of the files and their directories, in the kernel's format for an initrd."""
    directories = {str(parent) for path in files for parent in Path(path).parents} - {"."}
    for number, path in enumerate(sorted(directories | {"proc", "sys", "dev", "run", "tmp"}), 1):
        yield _entry(number, path, stat.S_IFDIR | 0o755, b"")
    for number, (path, content) in enumerate(files.items(), 1000):
        yield _entry(number, path, stat.S_IFREG | 0o755, content)
    yield _entry(0, "TRAILER!!!", 0, b"")


def _entry(number: int, path: str, mode: int, content: bytes) -> bytes:
    name = path.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)  # "newc": cpio(5)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    return head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)
