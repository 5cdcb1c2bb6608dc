"""Texts of the building machine in the image."""

import os
from pathlib import Path

import pytest

from pack.check import check_text

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
