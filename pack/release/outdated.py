"""Compares the bills of materials of a release with the versions in Debian's package lists.

A security update of CPython, glibc, zlib or GCC's library reaches a node only by a new release, because the executable
contains them: this command says when one is due.

One rule: this machine's apt is not changed: lists and state are in a directory of their own.

    python -m pack.release.outdated [--release DIR] [--sources FILE]

Exit status: 0 nothing is outdated, 1 a package is outdated, 3 the comparison failed (no release, no network).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from pack.build import ROOT
from podwire.output import plural

_SUITES = ("bookworm", "bookworm-updates", "bookworm-security")
_PURL = re.compile(r"pkg:deb/debian/([^@]+)@([^?]+)\?arch=(\w+)")
_UNCHANGED, _OUTDATED, _FAILED = 0, 1, 3


class ComparisonError(Exception):
    """A reason why nothing can be compared."""


@dataclass(frozen=True, order=True)
class Package:
    """A Debian package of a bill of materials, in the version that the release contains."""

    name: str
    architecture: str
    version: str


def main() -> int:
    """Prints the outdated packages; returns the exit status."""
    parser = argparse.ArgumentParser(description="Compares the bills of materials of a release with Debian's lists.")
    parser.add_argument("--release", type=Path, default=ROOT / "dist" / "release", help="the release (dist/release)")
    parser.add_argument("--sources", type=Path, help="a sources.list (this machine's, for Debian 12)")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "outdated", help="for apt (build/outdated)")
    options = parser.parse_args()
    try:
        bills = read_bills(options.release)
        apt = Apt(options.state, options.sources.read_text() if options.sources else _read_sources())
        apt.update({package.architecture for packages in bills.values() for package in packages} - {"all"})
        newest = apt.newest_versions({package for packages in bills.values() for package in packages})
    except (ComparisonError, OSError) as error:
        print(f"outdated: nothing was compared: {error}", file=sys.stderr)
        return _FAILED
    lines = list(_report(bills, newest))
    print("\n".join(lines) or f"{plural(len(newest), 'package')}, none of them outdated")
    return _OUTDATED if lines else _UNCHANGED


def read_bills(directory: Path) -> dict[str, list[Package]]:
    """Returns the Debian packages of each bill of materials by its file name; raises ComparisonError."""
    bills = {}
    for path in sorted(directory.glob("*.cdx.json")):
        purls = (component["purl"] for component in json.loads(path.read_text())["components"])
        matches = filter(None, map(_PURL.fullmatch, purls))
        bills[path.name] = [
            Package(unquote(name), arch, unquote(version)) for name, version, arch in map(_groups, matches)
        ]
    if not any(bills.values()):
        raise ComparisonError(f"{directory} has no bill of materials with a Debian package: run `make release`")
    return bills


class Apt:
    """apt with lists and state in `directory`, and the given sources."""

    def __init__(self, directory: Path, sources: str) -> None:
        self._directory = directory
        for name in ("lists/partial", "cache", "empty"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / "sources.list").write_text(sources)
        self._options = [
            *(
                "-o",
                f"Dir::State={directory}",
                "-o",
                "Dir::State::status=/dev/null",
                "-o",
                f"Dir::Cache={directory}/cache",
            ),
            *("-o", f"Dir::Etc::sourcelist={directory}/sources.list", "-o", f"Dir::Etc::sourceparts={directory}/empty"),
            *("-o", "APT::Sandbox::User=root", "-o", "APT::Update::Error-Mode=any", "-o", "Acquire::Languages=none"),
        ]

    def update(self, architectures: Iterable[str]) -> None:
        """Fetches the package lists; raises ComparisonError if one of them cannot be fetched."""
        for architecture in sorted(architectures):
            self._options += ["-o", f"APT::Architectures::={architecture}"]
        done = self._run("apt-get", "-q", "update")
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))] or ["apt-get failed"]
            raise ComparisonError(f"Debian's package lists cannot be fetched (no network?): {lines[0]}")

    def newest_versions(self, packages: Iterable[Package]) -> dict[Package, str]:
        """Returns the newest version of each package in the lists; raises ComparisonError for an unknown package."""
        newest: dict[Package, str] = {}
        for package in sorted(packages):
            architecture = "" if package.architecture == "all" else f":{package.architecture}"
            lines = self._run("apt-cache", "madison", package.name + architecture).stdout.splitlines()
            versions = [line.split("|")[1].strip() for line in lines if line.count("|") == 2]
            if not versions:
                raise ComparisonError(f"the package lists have no {package.name} for {package.architecture}")
            for version in versions:
                if package not in newest or is_older(newest[package], version):
                    newest[package] = version
        return newest

    def _run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *self._options, *words], capture_output=True, text=True, check=False)


def is_older(one: str, other: str) -> bool:
    """Returns whether a version is older than another by Debian's rules."""
    return subprocess.run(["dpkg", "--compare-versions", one, "lt", other], check=False).returncode == 0


def _read_sources() -> str:
    """Returns a sources.list of Debian 12 and its updates from the archives of this machine's apt."""
    done = subprocess.run([ROOT / "pack" / "apt_sources.sh", *_SUITES], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ComparisonError(done.stderr.strip())
    return done.stdout


def _report(bills: Mapping[str, list[Package]], newest: Mapping[Package, str]) -> Iterator[str]:
    for name, packages in bills.items():
        for package in packages:
            if is_older(package.version, newest[package]):
                yield f"{name}: {package.name} {package.version} is outdated: Debian has {newest[package]}"


def _groups(match: re.Match[str]) -> tuple[str, str, str]:
    name, version, architecture = match.groups()
    return name, version, architecture


if __name__ == "__main__":
    sys.exit(main())
