"""The bills of materials: the software in an executable, and in the image of the node agent, with versions.

One rule: versions come from the packages of the build, never from this file. The format is CycloneDX 1.5, whose
official schema is in a Python package, with which the tests validate it.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pack.build import LIBRARY_PACKAGES, ROOT
from pack.release.product import AGENT_SUMMARY, LICENSE, SUMMARY, TOOL, Product

# Name, Debian package, licence; a test compares this with THIRD-PARTY-NOTICES.md.
_LINKED = (
    ("CPython", "libpython{python}-dev", "Python-2.0.1"),
    ("GNU C Library", "libc6-dev", "LGPL-2.1-or-later"),
    ("GCC runtime library", "libgcc-{gcc}-dev", "GPL-3.0-or-later WITH GCC-exception-3.1"),
    ("zlib", "zlib1g-dev", "Zlib"),
)
_FROZEN = {"pyroute2": "Apache-2.0 OR GPL-2.0-or-later", "jeepney": "MIT"}
_SHOWN = "${Package} ${Architecture} ${Version} ${source:Package} ${source:Version}\n"


@dataclass(frozen=True)
class Component:
    """Third-party software; `source` is the Debian source package and its version, if any.

    Without a `license`, it is a package of Debian, which contains a file with its licences.
    """

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
    parts = components(product.machine)
    return _bill(TOOL, SUMMARY, product, product.sha256, parts)


def agent_document(product: Product, sha256: str, parts: Sequence[Component]) -> dict[str, Any]:
    """Returns the bill of materials of the node agent's image; `sha256` is the checksum of its file."""
    return _bill("podwire-agent", AGENT_SUMMARY, product, sha256, parts)


def _bill(name: str, summary: str, product: Product, sha256: str, parts: Sequence[Component]) -> dict[str, Any]:
    purl = f"pkg:generic/{name}@{quote(product.version, safe='')}?arch={product.machine}&os=linux"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{purl}#{sha256}')}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(product.epoch_s)),
            "component": {
                "type": "application",
                "bom-ref": purl,
                "name": name,
                "version": product.version,
                "description": summary,
                "licenses": [{"expression": LICENSE}],
                "purl": purl,
                "hashes": [{"alg": "SHA-256", "content": sha256}],
            },
        },
        "components": [_shown(component) for component in parts],
        "dependencies": [{"ref": purl, "dependsOn": [component.purl for component in parts]}],
    }


def debian_components(status: str) -> list[Component]:
    """Returns the packages of a root file system, from the text of its /var/lib/dpkg/status."""
    packages: list[Component] = []
    for paragraph in filter(None, status.split("\n\n")):
        values = dict(re.findall(r"^([A-Za-z-]+): (.*)$", paragraph, re.MULTILINE))
        name, version, architecture = (values[key] for key in ("Package", "Version", "Architecture"))
        source, _, source_version = values.get("Source", name).partition(" ")
        purl = f"pkg:deb/debian/{quote(name, safe='')}@{quote(version, safe='')}?arch={architecture}"
        packages.append(Component(name, version, "", purl, (source, source_version.strip("()") or version)))
    return sorted(packages, key=lambda one: one.name)


@cache
def components(machine: str) -> list[Component]:
    """Returns the third-party components of the executable for a machine."""
    packages = _packages(machine)
    python = "{}.{}".format(*sys.version_info)
    gcc = subprocess.run(["gcc", "-dumpversion"], capture_output=True, text=True, check=True).stdout.strip()
    linked = [
        _linked(machine, packages, name, package.format(python=python, gcc=gcc), license_)
        for name, package, license_ in _LINKED
    ]
    return [*linked, *map(library, LIBRARY_PACKAGES)]


def _packages(machine: str) -> dict[tuple[str, str], list[str]]:
    """Returns version, source and the source's version of Debian packages, by name and architecture.

    Lists the installed packages and, for another machine, those that `make` has unpacked for the build.
    """
    unpacked = sorted((ROOT / "build" / machine / "packages").glob("*.deb"))
    rows = _list_packages("dpkg-query", "--show", f"--showformat={_SHOWN}")
    rows += [row for path in unpacked for row in _list_packages("dpkg-deb", "--show", f"--showformat={_SHOWN}", path)]
    return {(name, architecture): rest for name, architecture, *rest in rows}


def _list_packages(*command: str | Path) -> list[list[str]]:
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split() for line in lines]


def _linked(
    machine: str, packages: Mapping[tuple[str, str], list[str]], name: str, package: str, license_: str
) -> Component:
    for binary, architecture in ((package, machine), (f"{package}-{machine}-cross", "all")):
        if row := packages.get((binary, architecture)):
            version, *source = row
            purl = f"pkg:deb/debian/{binary}@{quote(version, safe='')}?arch={architecture}"
            return Component(name, version, license_, purl, (source[0], source[1]))
    raise SystemExit(f"{name} for {machine} has no version: there is no package {package}")


def library(name: str) -> Component:
    """Returns a library from PyPI, in the installed version."""
    version = importlib.metadata.version(name)
    return Component(name, version, _FROZEN[name], f"pkg:pypi/{name}@{version}")


def _shown(component: Component) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "type": "library",
        "bom-ref": component.purl,
        "name": component.name,
        "version": component.version,
        "purl": component.purl,
    }
    if component.license:
        shown["licenses"] = [{"expression": component.license}]
    if component.source:
        shown["properties"] = [{"name": "debian:source", "value": "{} (= {})".format(*component.source)}]
    return shown
