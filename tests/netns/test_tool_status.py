"""`podwire status` and `podwire version`: the answers of each network's plugins to STATUS and VERSION."""

from pathlib import Path

import pytest

from tests.support import binaries
from tests.support.tool import PORTMAP, Tool

OLD = "1.0.0"  # a version without STATUS


def test_status_reports_networks_that_are_not_ready(tool: Tool):
    """Each network is ready, or the output has the reason: an error of STATUS, a missing plugin, an invalid file."""
    assert tool.json("status")["networks"][0]["ready"] is True
    tool.leases.parent.write_text("a file where the store should be")
    assert "cannot use the reservations" in tool.fail(1, "status", "net")
    tool.leases.parent.unlink()
    tool.configure({"type": "absent"}, name="old", version="1.0.0")
    (tool.directory / "net.d" / "broken.conflist").write_text("{")
    reports = {one.get("network"): one for one in tool.json("status", status=1)["networks"]}
    assert (reports["net"]["ready"], reports["net"]["asked"]) == (True, "STATUS")
    assert (reports["old"]["ready"], reports["old"]["asked"]) == (False, "VERSION")
    assert reports[None]["path"].endswith("broken.conflist")
    tool.succeed("status", "net")
    empty = Tool(tool.host, tool.directory / "empty")
    assert "there is no network" in empty.fail(1, "status")


def test_version_prints_the_vendor_of_each_file(tool: Tool, reference: Path):
    """Each plugin that net.d names is printed with its file, its versions and its vendor."""
    reports = {one["plugin"]: one for one in tool.json("version")}
    assert set(reports) == {"bridge", "portmap", "host-local"}
    assert all(one["podwire"] and "1.1.0" in one["versions"] for one in reports.values())
    theirs = Tool(tool.host, tool.directory, reference)
    assert not any(one["podwire"] for one in theirs.json("version"))
    assert "failed to find plugin" in tool.fail(1, "version", "absent")


@pytest.fixture
def node_without_store(tool: Tool) -> Tool:
    """A node whose store of addresses is a file, so that every ADD fails."""
    tool.leases.parent.write_text("a file where the store should be")
    return tool


def test_podwire_plugins_run_status_in_an_old_list(node_without_store: Tool):
    """In a list before 1.1.0 the plugins of podwire run STATUS, which reports that ADD would fail."""
    node_without_store.configure(node_without_store.bridge(ipMasq=True), PORTMAP, version=OLD)
    assert "cannot use the reservations" in node_without_store.fail(1, "status", "net")
    (report,) = node_without_store.json("status", status=1)["networks"]
    assert [(step["plugin"], step["command"]) for step in report["steps"]] == [
        ("bridge", "STATUS"),
        ("portmap", "STATUS"),
    ]
    assert (report["ready"], report["asked"], report["unasked"]) == (False, "STATUS", [])


def test_foreign_plugins_run_version_in_an_old_list(node_without_store: Tool, reference: Path, tmp_path: Path):
    """A plugin that is not podwire's, or whose IPAM plugin is not, is named and runs only VERSION."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name, home in (("bridge", binaries.directory()), ("host-local", reference), ("portmap", reference)):
        (directory / name).symlink_to(home / name)
    mixed = Tool(node_without_store.host, node_without_store.directory, directory)
    mixed.configure(mixed.bridge(), PORTMAP, {"type": "firewall"}, version=OLD)
    (directory / "firewall").symlink_to(binaries.directory() / "firewall")
    printed = mixed.succeed("status", "net")
    assert "STATUS was not run, as cniVersion 1.0.0 does not have it: bridge, portmap" in printed
    (report,) = mixed.json("status")["networks"]
    assert [(step["plugin"], step["command"]) for step in report["steps"]] == [
        ("bridge", "VERSION"),
        ("portmap", "VERSION"),
        ("firewall", "STATUS"),
    ]
    assert (report["ready"], report["asked"], report["unasked"]) == (True, "VERSION", ["bridge", "portmap"])


def test_unknown_version(tool: Tool):
    """For an unknown cniVersion the plugins do not run STATUS in another version."""
    tool.configure(tool.bridge(), version="0.9.0")
    assert "bridge does not support cniVersion 0.9.0" in tool.fail(1, "status", "net")
