"""One file under examination: its text with places, the network in it, and what has been found.

One rule: every finding has a place, be it that of the nearest thing around what is missing.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from enum import StrEnum

from cni import gojson
from cni.errors import CniError
from podwire import networks
from podwire.lint import positions
from podwire.lint.positions import Document, JsonSyntaxError, Node
from podwire.networks import Network
from process import files

_QUOTED = re.compile(r'"([^"]+)"')


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"  # a runtime or a plugin will refuse it
    WARNING = "warning"  # it works, and is surely not what is meant
    NOTE = "note"  # worth knowing


@dataclass(frozen=True)
class Finding:
    """One finding; `key` is the path of what it is about, "" for the whole file."""

    severity: Severity
    line: int
    column: int
    key: str
    text: str
    hint: str = ""


@dataclass(eq=False)
class SourceFile:
    """One file; without `document` it is no JSON, without `network` no runtime can use it."""

    path: str
    document: Document | None = None
    network: Network | None = None
    findings: list[Finding] = field(default_factory=list)

    def add(self, severity: Severity, text: str, hint: str = "") -> None:
        """Notes what is about the whole file."""
        self.findings.append(Finding(severity, 1, 1, "", text, hint))

    @property
    def root(self) -> JsonObject | None:
        """The object in the file, if it is one."""
        if self.document is None or self.document.root.members is None:
            return None
        return JsonObject(self, self.document, self.document.root)

    def worst_severity(self) -> Severity | None:
        """The worst severity found."""
        found = {item.severity for item in self.findings}
        return next((severity for severity in Severity if severity in found), None)


@dataclass(frozen=True, eq=False)
class JsonObject:
    """An object in a file: paths are counted from it, `prefix` leads to it."""

    page: SourceFile
    document: Document
    node: Node
    prefix: str = ""

    def add(self, severity: Severity, path: str, text: str, hint: str = "") -> None:
        """Notes what is about the key `path`; of what is not there the place is that of the nearest around it."""
        offset, around = None, path
        while around and offset is None:
            offset = self.document.offset(around, self.node)
            around = around[: max(around.rfind("."), around.rfind("["), 0)]
        line, column = self.document.position(self.node.start if offset is None else offset)
        self.page.findings.append(Finding(severity, line, column, self.full(path), text, hint))

    def named_in(self, error: CniError) -> str:
        """Returns the path of the key that an error is about: the first one quoted that is there, or could be."""
        quoted = _QUOTED.findall(f"{error.msg} {error.details}")
        found = next((path for path in quoted if self.document.offset(path, self.node) is not None), "")
        return found or next((path for path in quoted if self._is_below(path)), "")

    def _is_below(self, path: str) -> bool:
        around = path.rpartition(".")[0]
        return bool(around) and self.document.offset(around, self.node) is not None

    def full(self, path: str) -> str:
        """Returns the path from the top of the file."""
        return ".".join(filter(None, (self.prefix, path))) if not path.startswith("[") else self.prefix + path

    def below(self, path: str) -> JsonObject | None:
        """Returns the object under the key `path`, if it is one."""
        node = self.document.node(path, self.node)
        return (
            JsonObject(self.page, self.document, node, self.full(path)) if node and node.members is not None else None
        )

    @property
    def value(self) -> dict[str, object]:
        """The object as a plugin reads it; {} where it is nested too deeply for that."""
        try:
            value = gojson.loads(self.text)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def text(self) -> bytes:
        """The object as it is written."""
        return self.document.text[self.node.start : self.node.end].encode("utf-8", "replace")


def read(path: str) -> SourceFile:
    """Reads a file; why it cannot be used is its first finding."""
    page, data = _bytes(path)
    if data is None or not _read_document(page, data):
        return page
    try:
        page.network = networks.parse(data, path)
    except OSError as error:
        page.add(Severity.ERROR, f"its plugins cannot be read: {error.filename}: {error.strerror}")
    except ValueError as error:
        page.add(Severity.ERROR, str(error))
    except CniError as error:
        text = error.msg.removeprefix("network configuration: ")
        if page.root:
            first = text.split('"')[1] if text.startswith('"') else ""  # the key, be it missing
            page.root.add(Severity.ERROR, page.root.named_in(error) or first, text, error.details)
        else:
            page.add(Severity.ERROR, text, 'write {"cniVersion": ..., "name": ..., "plugins": [...]}')
    return page


def read_part(path: str) -> SourceFile:
    """Reads a file with one plugin of a network that is in another file."""
    page, data = _bytes(path)
    if data is not None:
        _read_document(page, data)
    return page


def _bytes(path: str) -> tuple[SourceFile, bytes | None]:
    page = SourceFile(path)
    try:
        if stat.S_ISREG(os.stat(path).st_mode):
            return page, files.read(path, gojson.MAX_BYTES)
        page.add(Severity.ERROR, "it is no regular file", "a runtime would wait for its end")
    except OSError as error:
        page.add(Severity.ERROR, f"it cannot be read: {error.strerror}")
    except ValueError as error:
        page.add(Severity.ERROR, str(error), "no configuration is as long")
    return page, None


def _read_document(page: SourceFile, data: bytes) -> bool:
    try:
        page.document = positions.parse(data)
    except JsonSyntaxError as error:
        line, column = positions.position(data, error.offset)
        page.findings.append(Finding(Severity.ERROR, line, column, "", error.problem, error.hint))
    return page.document is not None
