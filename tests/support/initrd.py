"""The archive from which an emulated machine boots: the first process, busybox, and modules of the kernel."""

import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


def build(files: Mapping[str, bytes]) -> bytes:
    """Returns a cpio archive (newc) of executable files, by path, their directories, and mount points."""
    return b"".join(_parts(files))


def read_modules(root: Path, release: str, directories: Sequence[str]) -> dict[str, bytes]:
    """Returns the modules of a kernel below these directories, and modprobe's indexes, by path in `root`."""
    modules = root / "lib" / "modules" / release
    paths = [path for directory in directories for path in (modules / directory).rglob("*.ko")]
    return {str(path.relative_to(root)): path.read_bytes() for path in (*paths, *modules.glob("modules.*"))}


def _parts(files: Mapping[str, bytes]) -> Iterator[bytes]:
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
