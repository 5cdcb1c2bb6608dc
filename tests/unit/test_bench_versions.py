"""The version of the reference plugins: printed by them, in the directory's name, or unknown."""

import pytest

from bench.versions import reference_version


def plugin(directory, text):
    """Creates a plugin that prints a text on stderr, as without CNI_COMMAND."""
    directory.mkdir()
    file = directory / "bridge"
    file.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    file.chmod(0o755)
    return directory


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("bin", "CNI bridge plugin v1.9.1", "1.9.1"),
        ("1.1.1", "CNI bridge plugin v1.9.1", "1.9.1"),
        ("1.9.1", "CNI bridge plugin version unknown", "1.9.1"),
        ("1.9.1+ds1-1", "CNI bridge plugin version unknown", "1.9.1"),
        ("bin", "CNI bridge plugin version unknown", ""),
    ],
)
def test_version(tmp_path, name, text, version):
    """What the plugin prints counts more than the directory's name; without both it is unknown."""
    assert reference_version(plugin(tmp_path / name, text)) == version


def test_version_behind_a_link(tmp_path):
    """A link to a directory has the version of the directory."""
    plugin(tmp_path / "1.9.1", "CNI bridge plugin version unknown")
    (tmp_path / "newest").symlink_to("1.9.1")
    assert reference_version(tmp_path / "newest") == "1.9.1"


def test_without_plugins(tmp_path):
    """A directory without plugins has no version."""
    assert reference_version(tmp_path / "absent") == ""
