"""The provenance of a release: the commit, the settings and the packages of the machine that built it.

One rule: it names the inputs only, neither machine nor time, so that two builds with equal inputs give equal files. The
format is an in-toto statement with the predicate of SLSA 1.0.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pack.build import LIBRARY_PACKAGES
from pack.release.deb import maintainer
from pack.release.product import TOOL, git

# Debian's packages whose programs and libraries determine the bytes; those that are not installed are left out.
_BUILDERS = (
    *("binutils", "dpkg", "gcc", "gcc-12", "git", "make", "python3", "python3.11", "python3-venv", "xz-utils"),
    *("libc6-dev", "libexpat1-dev", "libgcc-12-dev", "libmd-dev", "libpython3.11-dev", "libpython3.11-stdlib"),
    *("zlib1g-dev", "gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user", "mmdebstrap"),
)
# SLSA wants URIs. Nobody can own a domain below .invalid, so these tags name podwire's rules and no server.
_TAG = "tag:podwire.invalid,2026:"
_BUILD_TYPE = f"{_TAG}make-release"
_SHOWN = "${db:Status-Status} ${Package} ${Architecture} ${Version}\n"


def write(version: str, epoch_s: int, artefacts: Sequence[Path], directory: Path) -> Path:
    """Writes podwire-<version>.provenance.json, which names the artefacts with their checksums, and returns it."""
    path = directory / f"{TOOL}-{version}.provenance.json"
    path.write_text(json.dumps(statement(version, epoch_s, artefacts), indent=2, sort_keys=True) + "\n")
    return path


def statement(version: str, epoch_s: int, artefacts: Sequence[Path]) -> dict[str, Any]:
    """Returns the statement."""
    subjects = [
        {"name": path.name, "digest": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}}
        for path in sorted(artefacts, key=lambda path: path.name)
    ]
    parameters = {"version": version, "SOURCE_DATE_EPOCH": epoch_s, "maintainer": maintainer()}
    definition = {
        "buildType": _BUILD_TYPE,
        "externalParameters": parameters,
        "resolvedDependencies": [*_commit(version), *_packages(), *map(_library, LIBRARY_PACKAGES)],
    }
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": definition, "runDetails": {"builder": {"id": _distribution()}}},
    }


def _commit(version: str) -> list[dict[str, Any]]:
    """Returns the commit; nothing outside of a git repository, where SOURCE_DATE_EPOCH alone names the version."""
    commit = git("rev-parse", "HEAD")
    uri = f"pkg:generic/{TOOL}@{quote(version, safe='')}"
    return [{"name": TOOL, "uri": uri, "digest": {"gitCommit": commit}}] if commit else []


def _packages() -> list[dict[str, Any]]:
    """Returns the installed builder packages, by their package URLs."""
    command = ["dpkg-query", "--show", f"--showformat={_SHOWN}", *_BUILDERS]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    rows = sorted(line.split()[1:] for line in lines if line.startswith("installed "))
    return [
        {"name": name, "uri": f"pkg:deb/debian/{quote(name, safe='')}@{quote(version, safe='')}?arch={architecture}"}
        for name, architecture, version in rows
    ]


def _library(name: str) -> dict[str, Any]:
    return {"name": name, "uri": f"pkg:pypi/{name}@{importlib.metadata.version(name)}"}


def _distribution() -> str:
    """Returns the URI of the distribution on which `make release` runs, from its /etc/os-release: "...:debian-12"."""
    release = platform.freedesktop_os_release()
    return f"{_TAG}{release['ID']}-{release['VERSION_ID']}"
