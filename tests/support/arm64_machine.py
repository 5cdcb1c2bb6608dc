"""An emulated machine for 64-bit ARM: Debian's kernel, busybox and the executable, in memory.

One rule: its only input is the archive from which it boots, and its only output is the console; it shares nothing with
this machine and leaves no files.
"""

import subprocess
from pathlib import Path

from tests.support import initrd
from tests.support.binaries import ROOT

PROGRAM = "qemu-system-aarch64"
_DEBIAN = ROOT / "build" / "arm64" / "machine"  # make unpacks it there
_INIT = Path(__file__).with_suffix(".sh")
_MODULES = ("kernel/net", "kernel/drivers/net", "kernel/lib")
_OPTIONS = ["-machine", "virt", "-cpu", "cortex-a72", "-m", "1024", "-nographic", "-nic", "none", "-no-reboot"]
_APPEND = "console=ttyAMA0 quiet loglevel=1 panic=-1"
_TIMEOUT_S = 1400
_DIES_WITH_PARENT = ("setpriv", "--pdeathsig=KILL")  # the machine ends even if the tests are killed


def boot(directory: Path, script: str, files: dict[str, bytes]) -> str:
    """Boots with executable `files` by path, runs a script of busybox's shell; returns the console's output."""
    if not (_DEBIAN / "bin").is_dir():
        raise FileNotFoundError(f"no kernel in {_DEBIAN}: run `make arm64-machine`")
    (kernel,) = (_DEBIAN / "boot").glob("vmlinuz-*")
    programs = {"init": _INIT.read_bytes(), "bin/busybox": (_DEBIAN / "bin/busybox").read_bytes()}
    modules = initrd.read_modules(_DEBIAN, kernel.name.removeprefix("vmlinuz-"), _MODULES)
    archive = directory / "initrd"
    archive.write_bytes(initrd.build({**programs, **modules, **files, "script": script.encode()}))
    image = ["-kernel", str(kernel), "-initrd", str(archive)]
    command = [*_DIES_WITH_PARENT, PROGRAM, *_OPTIONS, *image, "-append", _APPEND]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=True)
    return done.stdout.decode(errors="replace").replace("\r\n", "\n")
