"""The Debian root file system of the node agent's image for arm64, made from the configured one for amd64.

One rule: no package's script runs. What these scripts, dpkg and mmdebstrap wrote for amd64 (users, alternatives,
most compiled modules) is the same on every machine and is copied. All that names the machine is replaced.

    python -m pack.release.foreign_base BASE PACKAGES OUT      two archives, and a directory of packages for arm64
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from typing import NamedTuple

from pack.release.agent_files import compiled

_OLD, _NEW = ("amd64", "x86_64-linux-gnu"), ("arm64", "aarch64-linux-gnu")  # Debian's name of the machine, and GNU's
_FIELD = re.compile(r"^([A-Za-z-]+): (.*)$", re.MULTILINE)
_DPKG = "var/lib/dpkg"
_LDCONFIG, _LOADER_CACHE = "sbin/ldconfig", "etc/ld.so.cache"


class File(NamedTuple):
    """A member of an archive, with its content."""

    info: tarfile.TarInfo
    content: bytes


Files = dict[str, File]  # by path, such as "etc/passwd"; "" is the root


@dataclass(frozen=True)
class Package:
    """A package of Debian: its paragraph in dpkg's list, its other files for dpkg, and the files that it installs."""

    name: str
    status: str
    records: Files
    files: Files


def main() -> int:
    """Writes the archive; returns the exit status."""
    parser = argparse.ArgumentParser(description="Makes a root file system for arm64 from the one for amd64.")
    for name in ("base", "packages", "out"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    packages = [read_package(path) for path in sorted(options.packages.glob("*.deb"))]
    content = _write(convert(_read(options.base.read_bytes()), packages))
    new = options.out.with_suffix(".new")
    new.write_bytes(content)
    new.replace(options.out)
    return 0


def read_package(path: Path) -> Package:
    """Returns the content of a package file."""
    control = _read(_output("dpkg-deb", "--ctrl-tarfile", path))
    files = _read(_output("dpkg-deb", "--fsys-tarfile", path))
    text = control.pop("control").content.decode().strip()
    fields = dict(_FIELD.findall(text))
    name = fields["Package"]
    stem = f"{_DPKG}/info/{name}" + (f":{_NEW[0]}" if fields.get("Multi-Arch") == "same" else "")
    listed = "".join(f"/{file or '.'}\n" for file in files).encode()
    records = {f"{stem}.{kind}": file for kind, file in control.items() if kind}
    records[f"{stem}.list"] = File(tarfile.TarInfo(), listed)
    conffiles = control.get("conffiles", File(tarfile.TarInfo(), b"")).content.decode().splitlines()
    sums = [f" {file} {md5(files[file[1:]].content).hexdigest()}\n" for file in conffiles if file.startswith("/")]
    status = text.replace("\n", "\nStatus: install ok installed\n", 1) + "\n"
    return Package(name, status + ("Conffiles:\n" + "".join(sums) if sums else ""), records, files)


def convert(base: Files, packages: Iterable[Package]) -> Files:
    """Returns the root file system for arm64; exits if a package for it is missing."""
    new = {package.name: package for package in packages}
    status, replaced = _replace(base, new)
    omitted = {_translate(path) for path in replaced - base.keys()}
    old = {_translate(path): file for path, file in base.items()}
    files = {_translate(path): file for path, file in base.items() if path not in replaced}
    for package in new.values():
        files |= package.records
        for path, file in package.files.items():
            # Below /usr/share only documentation has other files on arm64, which mmdebstrap's options omit.
            if path not in omitted and (path in old or not path.startswith("usr/share/")):
                files[path] = _merged(old.get(path), file)
    for path, text in ((f"{_DPKG}/status", status), (f"{_DPKG}/arch", f"{_NEW[0]}\n")):
        files[path] = base[path]._replace(content=text.encode())
    _compile_modules(files)
    files[_LOADER_CACHE] = base[_LOADER_CACHE]._replace(content=_loader_cache(files))
    return files


def _replace(base: Files, new: Mapping[str, Package]) -> tuple[str, set[str]]:
    """Returns dpkg's list with the new packages, and the paths of the old ones' files and records."""
    status, kept, replaced = [], set[str](), set[str]()
    for paragraph in base[f"{_DPKG}/status"].content.decode().strip().split("\n\n"):
        fields = dict(_FIELD.findall(paragraph))
        name = fields["Package"]
        stems = (f"{_DPKG}/info/{name}", f"{_DPKG}/info/{name}:{_OLD[0]}")
        records = {path for path in base if path.rpartition(".")[0] in stems}
        (listed,) = (base[path].content.decode() for path in records if path.endswith(".list"))
        paths = {line[1:] for line in listed.splitlines()} - {"."}
        if fields["Architecture"] == "all":
            kept |= paths
            status.append(f"{paragraph}\n")
        elif name in new:
            replaced |= paths | records
            status.append(new[name].status)
        else:
            raise SystemExit(f"no package {name} for {_NEW[0]}")
    return "\n".join(status), replaced - kept


def _translate(path: str) -> str:
    return path.replace(_OLD[1], _NEW[1])


def _merged(old: File | None, new: File) -> File:
    """Returns a package's file, or amd64's if a script has replaced it by one of another type: /var/run is a link."""
    return old if old and old.info.type != new.info.type else new


def _compile_modules(files: Files) -> None:
    """Compiles the modules whose names contain the machine's: only these have another content than on amd64."""
    for path in [path for path in files if path.endswith(".pyc") and _NEW[1] in path]:
        directory, _, name = path.rpartition("/__pycache__/")
        source = f"{directory}/{name.removesuffix(f'.{sys.implementation.cache_tag}.pyc')}.py"
        target = files[source].info.linkname  # of one module, another name in the same directory
        content = compiled(files[f"{directory}/{target}" if target else source].content, f"/{source}", checked=True)
        files[path] = files[path]._replace(content=content)


def _loader_cache(files: Files) -> bytes:
    """Returns the loader's cache of libraries, written by arm64's ldconfig, emulated: amd64's ignores the libraries."""
    read = {path: file for path, file in files.items() if path.startswith(("etc/ld.so.conf", "lib/", "usr/lib/"))}
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory)
        with tarfile.open(fileobj=io.BytesIO(_write({**read, _LDCONFIG: files[_LDCONFIG]}))) as archive:
            archive.extractall(top)
        subprocess.run(["qemu-aarch64", top / _LDCONFIG, "-X", "-r", top], check=True)
        return (top / _LOADER_CACHE).read_bytes()


def _read(archive: bytes) -> Files:
    """Returns the members of an archive; hard links become copies."""
    files: Files = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        for member in opened:
            reader = opened.extractfile(member) if member.isreg() or member.islnk() else None
            if member.islnk():
                member.type = tarfile.REGTYPE
            files[member.name.removeprefix(".").strip("/")] = File(member, reader.read() if reader else b"")
    return files


def _write(files: Files) -> bytes:
    """Returns an archive; its directories come before their files."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, (info, content) in sorted(files.items()):
            info.name, info.size = f"./{path}", len(content)
            archive.addfile(info, io.BytesIO(content))
    return whole.getvalue()


def _output(*command: str | Path) -> bytes:
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
