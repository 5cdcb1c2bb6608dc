"""The content of the image: which modules it has, and no text of the building machine."""

import os
from pathlib import Path

import pytest

from pack import build
from pack.check import check_text
from pack.freeze import Module, imported_by


def module(name: str, source: str = "") -> Module:
    return Module(name, source.encode(), name, is_package=False)


def test_modules_that_the_roots_import():
    """Imports count directly and indirectly, inside functions, as attributes of packages; each package is included."""
    modules = [
        module("a"),
        module("a.b", "def f():\n    import c.d"),
        module("a.unused", "import a.e"),
        module("a.e"),
        module("c"),
        module("c.d", "from a import b\nfrom f import g"),
        module("f", "import sys"),
        module("f.g"),
    ]
    root = module("main", "from a.b import x")
    assert [each.name for each in imported_by([root], modules)] == ["a", "a.b", "c", "c.d", "f", "f.g"]


def test_the_agents_modules_are_not_in_the_executable():
    """The executable has the plugins and the tool; what only the node agent imports is left out."""
    names = {each.name for each in build.application()}
    assert {"podwire.main", "plugins.bridge.main", "ipam.host_local.main", "kernel.link", "_boot"} <= names
    assert not {name for name in names if name.partition(".")[0] == "agent"}
    assert not {"kernel.vxlan", "kernel.protocol_route", "attachment.masquerade.cluster"} & names


TEXT = "/srv/some-builder/podwire"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A dump with TEXT and the value of a variable."""
    path = tmp_path / "dump"
    path.write_bytes(b"\0\1" + TEXT.encode() + b"\0value-of-a-variable\0")
    return path


def source(dump: Path, content: str) -> Path:
    path = dump.with_name("source")
    path.write_text(content)
    return path


def test_a_path_of_the_machine_is_an_error(dump):
    """A path of the machine in the dump is an error, which contains the path."""
    with pytest.raises(SystemExit, match=f"the path '{TEXT}' of this machine"):
        check_text(dump, [source(dump, "something else")], ["/another/path", TEXT])


def test_a_variable_of_the_machine_is_an_error(dump, monkeypatch):
    """The value of a variable of the building process in the dump is an error."""
    monkeypatch.setattr(os, "environ", {"SOME_VARIABLE": "value-of-a-variable"})
    with pytest.raises(SystemExit, match="the value of the variable SOME_VARIABLE of this machine"):
        check_text(dump, [], [])


def test_a_text_of_the_sources_is_none_of_the_machine(dump):
    """A text that is also in a source of the image, and a text of 4 bytes, are no error."""
    check_text(dump, [source(dump, f"path = {TEXT!r}")], [TEXT, TEXT[:4]])
