"""`podwire status` and `podwire version`: what the plugins of each network say of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import binaries
from tests.support.tool import PORTMAP, Tool

OLD = "1.0.0"  # a version without STATUS


def test_status_tells_what_is_not_ready(tool: Tool):
    """Each network of net.d is ready or says why not: its plugins' STATUS, a missing file, a file nobody can read."""
    assert tool.json("status")["networks"][0]["ready"] is True
    tool.leases.parent.write_text("a file where the store should be")
    assert "cannot use the reservations" in tool.fail(1, "status", "net")
    tool.leases.parent.unlink()
    tool.configure({"type": "absent"}, name="old", version="1.0.0")
    (tool.directory / "net.d" / "broken.conflist").write_text("{")
    found = {one.get("network"): one for one in tool.json("status", status=1)["networks"]}
    assert (found["net"]["ready"], found["net"]["asked"]) == (True, "STATUS")
    assert (found["old"]["ready"], found["old"]["asked"]) == (False, "VERSION")
    assert found[None]["path"].endswith("broken.conflist")
    tool.succeed("status", "net")
    empty = Tool(tool.host, tool.directory / "empty")
    assert "there is no network" in empty.fail(1, "status")


def test_version_tells_whose_the_files_are(tool: Tool, reference: Path):
    """Each plugin that net.d names is printed with its file, its versions and its maker."""
    found = {one["plugin"]: one for one in tool.json("version")}
    assert set(found) == {"bridge", "portmap", "host-local"}
    assert all(one["podwire"] and "1.1.0" in one["versions"] for one in found.values())
    theirs = Tool(tool.host, tool.directory, reference)
    assert not any(one["podwire"] for one in theirs.json("version"))
    assert "failed to find plugin" in tool.fail(1, "version", "absent")


@pytest.fixture
def blocked(tool: Tool) -> Tool:
    """A node whose store of addresses is a file, so that every ADD fails."""
    tool.leases.parent.write_text("a file where the store should be")
    return tool


def test_our_plugins_are_asked_in_an_old_network(blocked: Tool):
    """Our own plugins answer STATUS of a list before 1.1.0, in which ADD would fail."""
    blocked.configure(blocked.bridge(ipMasq=True), PORTMAP, version=OLD)
    assert "cannot use the reservations" in blocked.fail(1, "status", "net")
    (found,) = blocked.json("status", status=1)["networks"]
    assert [(step["plugin"], step["command"]) for step in found["steps"]] == [
        ("bridge", "STATUS"),
        ("portmap", "STATUS"),
    ]
    assert (found["ready"], found["asked"], found["unasked"]) == (False, "STATUS", [])


def test_plugins_of_others_are_asked_as_the_list_says(blocked: Tool, reference: Path, tmp_path: Path):
    """A plugin that is not podwire's, or whose IPAM plugin is not, is named and asked only for its versions."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name, home in (("bridge", binaries.directory()), ("host-local", reference), ("portmap", reference)):
        (directory / name).symlink_to(home / name)
    mixed = Tool(blocked.host, blocked.directory, directory)
    mixed.configure(mixed.bridge(), PORTMAP, {"type": "firewall"}, version=OLD)
    (directory / "firewall").symlink_to(binaries.directory() / "firewall")
    told = mixed.succeed("status", "net")
    assert "STATUS was not run, as cniVersion 1.0.0 does not have it: bridge, portmap" in told
    (found,) = mixed.json("status")["networks"]
    assert [(step["plugin"], step["command"]) for step in found["steps"]] == [
        ("bridge", "VERSION"),
        ("portmap", "VERSION"),
        ("firewall", "STATUS"),
    ]
    assert (found["ready"], found["asked"], found["unasked"]) == (True, "VERSION", ["bridge", "portmap"])


def test_a_version_that_nobody_knows_is_told(tool: Tool):
    """A cniVersion that podwire's plugins do not know is no reason to ask them in another one."""
    tool.configure(tool.bridge(), version="0.9.0")
    assert "bridge does not support cniVersion 0.9.0" in tool.fail(1, "status", "net")
