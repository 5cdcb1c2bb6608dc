"""A file to check: its text with positions, the network in it, and the findings.

Every finding has a position; that of a missing key is the nearest object around it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from cni import gojson
from cni.errors import CniError
from podwire import multus, networks
from podwire.lint import positions
from podwire.lint.positions import Document, JsonSyntaxError, JsonValue
from podwire.networks import Network
from process import files

_QUOTED = re.compile(r'"([^"]+)"')


class LintSeverity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"  # a runtime or a plugin will refuse it
    WARNING = "warning"  # it works, but not as intended
    NOTE = "note"  # worth knowing


@dataclass(frozen=True)
class LintFinding:
    """A finding; `key` is the path of its key, "" for the whole file."""

    severity: LintSeverity
    line: int
    column: int
    key: str
    text: str
    hint: str = ""


@dataclass(eq=False)
class SourceFile:
    """A file; `document` is None if it is not JSON, `network` None if no runtime can use it.

    `top` is the key path of a network inside the file, to which Multus delegates: findings are the whole file's.
    """

    path: str
    document: Document | None = None
    network: Network | None = None
    findings: list[LintFinding] = field(default_factory=list)
    top: str = ""

    def add(self, severity: LintSeverity, text: str, hint: str = "") -> None:
        """Adds a finding about the whole file."""
        self.findings.append(LintFinding(severity, 1, 1, "", text, hint))

    @property
    def root(self) -> JsonObject | None:
        """The JSON object in the file, None if the file has none."""
        if self.document is None or self.document.root.members is None:
            return None
        whole = JsonObject(self, self.document, self.document.root)
        return whole.below(self.top) if self.top else whole


@dataclass(frozen=True, eq=False)
class JsonObject:
    """A JSON object in a file; the key paths of its methods start at it, and `prefix` is its own path in the file."""

    source: SourceFile
    document: Document
    node: JsonValue
    prefix: str = ""

    def add(self, severity: LintSeverity, path: str, text: str, hint: str = "") -> None:
        """Adds a finding about the key `path`; a missing key has the position of the nearest object around it."""
        offset, around = None, path
        while around and offset is None:
            offset = self.document.offset(around, self.node)
            around = around[: max(around.rfind("."), around.rfind("["), 0)]
        line, column = self.document.position(self.node.start if offset is None else offset)
        self.source.findings.append(LintFinding(severity, line, column, self.full(path), text, hint))

    def key_of(self, error: CniError) -> str:
        """Returns the path of the key that an error names: the first quoted one that exists, else that could exist."""
        quoted = _QUOTED.findall(f"{error.msg} {error.details}")
        existing = next((path for path in quoted if self.document.offset(path, self.node) is not None), "")
        return existing or next((path for path in quoted if self._is_below(path)), "")

    def _is_below(self, path: str) -> bool:
        around = path.rpartition(".")[0]
        return bool(around) and self.document.offset(around, self.node) is not None

    def full(self, path: str) -> str:
        """Returns a key path as counted from the top of the file."""
        return ".".join(filter(None, (self.prefix, path))) if not path.startswith("[") else self.prefix + path

    def below(self, path: str) -> JsonObject | None:
        """Returns the object at the key `path`, None if its value is not an object."""
        node = self.document.node(path, self.node)
        return (
            JsonObject(self.source, self.document, node, self.full(path)) if node and node.members is not None else None
        )

    @property
    def value(self) -> dict[str, object]:
        """The object as a plugin parses it; {} if it is nested too deeply."""
        try:
            value = gojson.loads(self.text)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def text(self) -> bytes:
        """The object's text."""
        return self.document.text[self.node.start : self.node.end].encode("utf-8", "replace")


def read(path: str) -> SourceFile:
    """Reads a file; if it is invalid, the reason is its first finding."""
    source, data = _read_bytes(path)
    if data is not None:
        _read_network(source, data)
    return source


def read_text(path: str, data: bytes) -> SourceFile:
    """Reads a network that is in no file of this node, as `path` names it; if it is invalid, a finding says why."""
    source = SourceFile(path)
    _read_network(source, data)
    return source


def list_delegates(source: SourceFile) -> Iterator[SourceFile]:
    """Yields the networks in a file to which Multus delegates."""
    for index, plugin in enumerate(source.network.plugins if source.network else ()):
        is_list = source.root is not None and source.root.node.get("plugins") is not None
        for number, items in multus.list_delegates(plugin) if multus.find_multus([plugin]) else ():
            top = f"plugins[{index}].delegates[{number}]" if is_list else f"delegates[{number}]"
            delegate = SourceFile(source.path, source.document, None, source.findings, top)
            _set_network(delegate, partial(networks.build, items, ""))
            yield delegate


def _read_network(source: SourceFile, data: bytes) -> None:
    if _read_document(source, data):
        _set_network(source, partial(networks.parse, data, source.path))


def _set_network(source: SourceFile, parse: Callable[[], Network]) -> None:
    """Sets the network of a file; if it is invalid, the reason becomes a finding."""
    try:
        source.network = parse()
    except OSError as error:
        source.add(LintSeverity.ERROR, f"its plugins cannot be read: {error.filename}: {error.strerror}")
    except ValueError as error:
        source.add(LintSeverity.ERROR, str(error))
    except CniError as error:
        text = error.msg.removeprefix("network configuration: ")
        if source.root:
            first = text.split('"')[1] if text.startswith('"') else ""  # the key, which may be missing
            source.root.add(LintSeverity.ERROR, source.root.key_of(error) or first, text, error.details)
        else:
            source.add(LintSeverity.ERROR, text, 'write {"cniVersion": ..., "name": ..., "plugins": [...]}')


def read_part(path: str) -> SourceFile:
    """Reads a file with one plugin of a network that another file defines."""
    source, data = _read_bytes(path)
    if data is not None:
        _read_document(source, data)
    return source


def _read_bytes(path: str) -> tuple[SourceFile, bytes | None]:
    source = SourceFile(path)
    try:
        if stat.S_ISREG(os.stat(path).st_mode):
            return source, files.read(path, gojson.MAX_BYTES)
        source.add(LintSeverity.ERROR, "it is not a regular file", "replace it: a runtime would wait for its end")
    except OSError as error:
        source.add(LintSeverity.ERROR, f"it cannot be read: {error.strerror}")
    except ValueError as error:
        source.add(LintSeverity.ERROR, str(error), "replace it: no valid configuration is this long")
    return source, None


def _read_document(source: SourceFile, data: bytes) -> bool:
    try:
        source.document = positions.parse(data)
    except JsonSyntaxError as error:
        line, column = positions.position(data, error.offset)
        source.findings.append(LintFinding(LintSeverity.ERROR, line, column, "", error.problem, error.hint))
    return source.document is not None
