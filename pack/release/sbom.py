"""The bill of materials: what is linked and frozen into an executable, which version of it, under which licence.

One rule: versions are asked of the packages that were built with, never written down. It is CycloneDX 1.5, since its
official schema comes as a Python package, with which the tests validate it.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pack.build import LIBRARY_PACKAGES
from pack.release.product import BUILT, LICENSE, SUMMARY, TOOL, Product

_PYTHON = "{}.{}".format(*sys.version_info)
# Name, the Debian package it is linked from, licence. THIRD-PARTY-NOTICES.md has the same; a test compares them.
_LINKED = (
    ("CPython", rf"libpython{re.escape(_PYTHON)}-dev", "Python-2.0.1"),
    ("GNU C Library", r"libc6-dev", "LGPL-2.1-or-later"),
    ("GCC runtime library", r"libgcc-\d+-dev", "GPL-3.0-or-later WITH GCC-exception-3.1"),
    ("Expat", r"libexpat1-dev", "MIT"),
    ("zlib", r"zlib1g-dev", "Zlib"),
)
_FROZEN = {"pyroute2": "Apache-2.0 OR GPL-2.0-or-later", "jeepney": "MIT"}
_SHOWN = "${Package} ${Version} ${source:Package} ${source:Version}\n"


@dataclass(frozen=True)
class Component:
    """Somebody else's software in the executable; `source` is the Debian source package and its version, if any."""

    name: str
    version: str
    license: str
    purl: str
    source: tuple[str, str] | None = None


def write(product: Product, directory: Path) -> Path:
    """Writes podwire-<version>-linux-<machine>.cdx.json and returns it."""
    path = directory / f"{product.stem}.cdx.json"
    path.write_text(json.dumps(document(product), indent=2, sort_keys=True) + "\n")
    return path


def document(product: Product) -> dict[str, Any]:
    """Returns the bill of materials of an executable."""
    found = components(product.machine)
    own = f"pkg:generic/{TOOL}@{quote(product.version, safe='')}?arch={product.machine}&os=linux"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{own}#{product.sha256}')}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(product.epoch_s)),
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": TOOL,
                "version": product.version,
                "description": SUMMARY,
                "licenses": [{"expression": LICENSE}],
                "purl": own,
                "hashes": [{"alg": "SHA-256", "content": product.sha256}],
            },
        },
        "components": [_shown(component) for component in found],
        "dependencies": [{"ref": own, "dependsOn": [component.purl for component in found]}],
    }


@cache
def components(machine: str) -> list[Component]:
    """Returns what the executable for a machine is made of besides our own code."""
    packages = _packages(machine)
    linked = [_linked(machine, packages, *row) for row in _LINKED]
    return [*linked, *map(_frozen, LIBRARY_PACKAGES)]


def _packages(machine: str) -> list[list[str]]:
    """Returns name, version, source and its version of Debian packages: what is installed here.

    For another machine than this one, they stand beside its executables, in a file `packages` of the same lines, which
    `dpkg-deb --show --showformat` prints of the packages that were unpacked for the build.
    """
    here = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
    if machine == here:
        command = ["dpkg-query", "--show", f"--showformat=${{db:Status-Status}} {_SHOWN}"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        return [line.split()[1:] for line in lines if line.startswith("installed ")]
    listed = BUILT[machine].parent / "packages"
    if not listed.is_file():
        raise SystemExit(f"{listed} is missing: `dpkg-deb --show --showformat='{_SHOWN}'` of what {machine} is made of")
    return [line.split() for line in listed.read_text().splitlines()]


def _linked(machine: str, packages: list[list[str]], name: str, package: str, license_: str) -> Component:
    # A cross compiler's packages have its machine behind the name.
    pattern = re.compile(rf"{package}(-{machine}-cross)?")
    found = [row for row in packages if pattern.fullmatch(row[0])]
    if len(found) > 1 and name == "GCC runtime library":
        major = subprocess.run(["gcc", "-dumpversion"], capture_output=True, text=True, check=True).stdout.strip()
        found = [row for row in found if f"-{major}-" in row[0]]
    if not found:
        raise SystemExit(f"no package {package} for {machine}: {name} has no version")
    binary, version, *source = found[0]
    purl = f"pkg:deb/debian/{binary}@{quote(version, safe='')}?arch={machine}"
    return Component(name, version, license_, purl, (source[0], source[1]))


def _frozen(name: str) -> Component:
    version = importlib.metadata.version(name)
    return Component(name, version, _FROZEN[name], f"pkg:pypi/{name}@{version}")


def _shown(component: Component) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "type": "library",
        "bom-ref": component.purl,
        "name": component.name,
        "version": component.version,
        "licenses": [{"expression": component.license}],
        "purl": component.purl,
    }
    if component.source:
        shown["properties"] = [{"name": "debian:source", "value": "{} (= {})".format(*component.source)}]
    return shown
