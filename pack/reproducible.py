"""Builds the executable twice, from copies of the sources in two directories, and compares the bytes.

One rule: the copies share only the machine and its installed packages, neither paths nor caches, nor this
directory and its .venv, which another user may be unable to read. For root, the second build runs as another user, in a
new PID namespace, whose process IDs are small, and with a tmpfs on /tmp.

    PYTHONHASHSEED=0 python -m pack.reproducible [--arm64 SYSROOT]
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pack.build import LIBRARY_PACKAGES, PACKAGES, ROOT

_OTHER_USER = "65534"  # without privileges
# A checkout below /tmp would be hidden.
_MOUNTED = ("sh", "-c", 'mount -t tmpfs tmpfs /tmp && exec "$@"', "sh") if not ROOT.is_relative_to("/tmp") else ()
_DIRECTORY = "/var/tmp"  # which other users can read, and no tmpfs hides
_BLOCK_BYTES = 64
_MOST_SHOWN = 40


def main() -> int:
    """Returns 0 if both builds gave the same file."""
    parser = argparse.ArgumentParser(description="Builds the executable twice and compares the bytes.")
    parser.add_argument("--arm64", type=Path, metavar="SYSROOT", help="as for pack.build")
    sysroot = parser.parse_args().arm64
    other = {"LANG": "C.UTF-8", "TZ": "Asia/Tokyo"}
    other_user = ["setpriv", f"--reuid={_OTHER_USER}", f"--regid={_OTHER_USER}", "--clear-groups"]
    launcher = ["unshare", "--pid", "--mount", "--fork", *_MOUNTED, *other_user] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory(dir=_DIRECTORY) as directory:
        os.chmod(directory, 0o755)
        options: list[str | Path] = []
        if sysroot:
            options = ["--arm64", shutil.copytree(sysroot, Path(directory) / "sysroot", symlinks=True)]
        roots = [_copy(Path(directory) / name) for name in ("a/podwire", "a-longer-name/podwire-copy")]
        first = _build(roots[0], [], options, {})
        second = _build(roots[1], launcher, options, other)
    for content in (first, second):
        print(f"sha256 {hashlib.sha256(content).hexdigest()}, {len(content)} bytes")
    if first == second:
        print("the same")
        return 0
    print("\n".join(["NOT REPRODUCIBLE", *_differences(first, second)]))
    return 1


def _differences(first: bytes, second: bytes) -> list[str]:
    """Returns the first blocks that differ, each as its offset in the file and both contents."""
    offsets = range(0, max(len(first), len(second)), _BLOCK_BYTES)
    differing = [at for at in offsets if first[at : at + _BLOCK_BYTES] != second[at : at + _BLOCK_BYTES]]
    shown = [
        f"{at:#x}: {first[at : at + _BLOCK_BYTES]!r}\n{' ' * len(f'{at:#x}')}  {second[at : at + _BLOCK_BYTES]!r}"
        for at in differing[:_MOST_SHOWN]
    ]
    return [f"{len(differing)} of {len(offsets)} blocks of {_BLOCK_BYTES} bytes differ:", *shown]


def _copy(root: Path) -> Path:
    """Copies the sources and PyPI's packages to `root` and returns it.

    Both copies are made before the first build, which takes minutes.
    """
    specs = [importlib.util.find_spec(name) for name in LIBRARY_PACKAGES]
    libraries = [Path(spec.origin).parent for spec in specs if spec and spec.origin]
    for source in (*(ROOT / name for name in (*PACKAGES, "pack")), *libraries):
        shutil.copytree(source, root / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def _build(root: Path, launcher: list[str], options: list[str | Path], env: dict[str, str]) -> bytes:
    if launcher:
        for path in (root, *root.rglob("*")):
            os.chown(path, int(_OTHER_USER), int(_OTHER_USER))
    python = os.path.realpath(sys.executable)  # the machine's
    build = [python, "-m", "pack.build", "--work", root / "work", "--out", root / "bin", *options]
    variables = {"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", **env}
    subprocess.run([*launcher, *build], cwd=root, env=variables, stdout=subprocess.DEVNULL, check=True)
    return (root / "bin" / "podwire").read_bytes()


if __name__ == "__main__":
    sys.exit(main())
