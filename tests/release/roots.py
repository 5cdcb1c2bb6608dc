"""A root file system for dpkg: a private, writable copy of the test root's /usr, and an empty database.

One rule: there is nothing to clean up. The file system is in memory, in a mount namespace that ends with its process,
and that process ends with the test's process, even if that is killed.
"""

import contextlib
import hashlib
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support import binaries
from tests.support.binaries import ROOT
from tests.support.machine import Host
from tests.support.processes import PATH

# /usr/lib/cni contains the reference plugins, which no package owns: the database is empty.
_MAKE = """\
set -e
mount -t tmpfs podwire "$1" && cd "$1"
mkdir up work root && mount --bind root root && cd root
mkdir -p usr etc dev proc sys run tmp opt var/lib/dpkg/info var/lib/dpkg/updates var/lib/dpkg/triggers
mount -t overlay -o "lowerdir=$2/usr,upperdir=$1/up,workdir=$1/work" podwire usr
for name in bin lib lib64 sbin; do ln -s usr/$name $name; done
mount --rbind /dev dev && mount --rbind /proc proc
touch var/lib/dpkg/status var/lib/dpkg/available
echo ready
exec cat
"""
# An archive of a root file system, or the layers of an image, unpacked one over the other.
_UNPACK = """\
set -e
mount -t tmpfs podwire "$1" && mkdir "$1/root" && mount --bind "$1/root" "$1/root" && cd "$1/root"
shift
for archive in "$@"; do tar -xf "$archive"; done
mkdir -p dev proc && mount --rbind /dev dev && mount --rbind /proc proc
echo ready
exec cat
"""
_PLUGIN_DIRS = ("opt", "usr/lib/cni")
_TEST_ROOT = ROOT / "build" / "root"  # not this machine's /usr: dpkg removes empty directories of other packages


@dataclass(frozen=True)
class Root(Host):
    """A root file system; `pid` is the process that holds its mount namespace."""

    pid: int
    top: Path

    @property
    def path(self) -> Path:
        """The path of the root file system as seen from this process."""
        return Path(f"/proc/{self.pid}/root{self.top}/root")

    def nsenter(self, *argv: str) -> list[str]:
        """Returns the command line that runs a program in the root."""
        return ["nsenter", f"--mount=/proc/{self.pid}/ns/mnt", "chroot", str(self.top / "root"), *argv]

    def make_read_only(self) -> None:
        """Makes the root file system read-only, for all programs that run in it."""
        mount = ["nsenter", f"--mount=/proc/{self.pid}/ns/mnt", "mount", "-o", "remount,ro", str(self.top)]
        subprocess.run(mount, check=True)

    def put(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Writes a file in the root."""
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(mode)

    def install(self, *packages: Path) -> str:
        """Installs packages by dpkg; returns dpkg's output."""
        names = [f"tmp/{package.name}" for package in packages]
        for name, package in zip(names, packages, strict=True):
            self.put(name, package.read_bytes())
        try:
            return self.run("dpkg", "--install", *(f"/{name}" for name in names))
        finally:
            for name in names:
                (self.path / name).unlink()

    def add_apt_source(self, packages: Iterable[Path]) -> None:
        """Makes a directory with packages and their index the only source of apt."""
        for path in packages:
            self.put(f"srv/packages/{path.name}", path.read_bytes())
        self.put("etc/apt/sources.list", b"deb [trusted=yes] file:/srv/packages ./\n")
        for directory in ("lib/apt/lists/partial", "cache/apt/archives/partial", "log/apt", "lib/systemd"):
            (self.path / "var" / directory).mkdir(parents=True)
        for directory in ("apt.conf.d", "preferences.d"):
            (self.path / "etc/apt" / directory).mkdir()

    def state(self) -> dict[str, str]:
        """Returns mode and content of files and targets of links in the plugins' directories, and the diversions."""
        sums: dict[int, str] = {}
        return {
            str(path.relative_to(self.path)): _described(path, sums)
            for top in _PLUGIN_DIRS
            for path in (self.path / top).rglob("*")
            if path.is_symlink() or not path.is_dir()
        } | {"diversions": self.run("dpkg-divert", "--list")}

    def files(self, *, without: tuple[str, ...] = ()) -> set[str]:
        """Returns the paths of all files and directories but those below `without`, /proc and /dev."""
        shown = subprocess.run(
            ["find", self.path, "-xdev", "-printf", "%P\\n"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        return {path for path in shown if not path.startswith(("proc", "dev", *without))}

    def written(self) -> set[str]:
        """Returns the files of /usr that differ from the test root's: created, changed or deleted."""
        up = Path(f"/proc/{self.pid}/root{self.top}/up")
        return {str(path.relative_to(up)) for path in up.rglob("*") if path.is_symlink() or not path.is_dir()}


@contextlib.contextmanager
def temporary(top: Path) -> Iterator[Root]:
    """Creates a root in the new directory `top`, and deletes it."""
    if not (_TEST_ROOT / "usr").is_dir():
        binaries.skip_or_fail("no test root file system: make test-root")
    with _held(_MAKE, top, _TEST_ROOT) as root:
        yield root


@contextlib.contextmanager
def unpacked(top: Path, archives: Sequence[Path]) -> Iterator[Root]:
    """Unpacks archives of a root file system, the later ones over the earlier ones, and deletes it."""
    with _held(_UNPACK, top, *archives) as root:
        yield root


@contextlib.contextmanager
def _held(script: str, top: Path, *arguments: Path) -> Iterator[Root]:
    top.mkdir()
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", str(top)]
    command += map(str, arguments)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PATH": PATH}) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"ready\n"
        yield Root(holder.pid, top)


def build(directory: Path, name: str, version: str, files: dict[str, str], postinst: str = "") -> Path:
    """Builds a small package of programs, with a script that its installation runs; returns its file."""
    tree = directory / f"{name}-{version}"
    for path, content in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(content)
        (tree / path).chmod(0o755)
    (tree / "DEBIAN").mkdir()
    if postinst:
        (tree / "DEBIAN/postinst").write_text(postinst)
        (tree / "DEBIAN/postinst").chmod(0o755)
    control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: x <x@x.invalid>\nDescription: x\n"
    (tree / "DEBIAN/control").write_text(control)
    package = tree.with_suffix(".deb")
    subprocess.run(["dpkg-deb", "--build", "-Znone", tree, package], stdout=subprocess.DEVNULL, check=True)
    return package


def _described(path: Path, sums: dict[int, str]) -> str:
    """Returns the mode and checksum of a file, or the target of a link; each inode is read once."""
    if path.is_symlink():
        return f"-> {os.readlink(path)}"
    status = path.stat()
    if status.st_ino not in sums:
        sums[status.st_ino] = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{status.st_mode:o} {sums[status.st_ino]}"
