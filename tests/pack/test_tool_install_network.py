"""podwire install --conf: the subnets of the network, and the file that is replaced."""

import json
import re
from typing import Any

import pytest

from podwire import default_network
from tests.pack.test_tool_install import run
from tests.support.binaries import ROOT

# A dual-stack cluster's object, shortened; `managedFields` contains the name podCIDR, too.
NODE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "worker-1", "managedFields": [{"fieldsV1": {"f:spec": {"f:podCIDR": {}}}}]},
    "spec": {"podCIDR": "10.244.3.0/24", "podCIDRs": ["10.244.3.0/24", "fd00:10:244:3::/64"]},
    "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.10"}]},
}
SUBNETS = ["10.244.3.0/24", "fd00:10:244:3::/64"]
PLUGINS: list[dict[str, object]] = [
    {"type": "ptp", "ipam": {"type": "host-local"}},
    {"type": "tuning", "sysctl": {"net.core.somaxconn": "1"}},
]
TEMPLATE = {"cniVersion": "1.0.0", "name": "mine", "plugins": PLUGINS}


@pytest.fixture
def install(podwire, tmp_path):
    """A function that runs `podwire install` with temporary directories and a Node object."""

    def run_it(*words, node=NODE, status=0):
        text = node if isinstance(node, str) else json.dumps(node)
        (tmp_path / "node.json").write_text(text)
        directories = ("--bin-dir", tmp_path / "bin", "--conf-dir", tmp_path / "net.d")
        return run(podwire, "install", *directories, "--node", tmp_path / "node.json", *words, status=status)

    return run_it


@pytest.fixture
def net_d(tmp_path):
    """The directory of networks, which does not exist yet."""
    return tmp_path / "net.d"


def ranges(path):
    """Returns the ranges of the first plugin of a list."""
    return json.loads(path.read_text())["plugins"][0]["ipam"]["ranges"]


def node_with(**spec):
    return {**NODE, "spec": spec}


def test_the_standard_network():
    """`install` writes the first sample."""
    sample = json.loads((ROOT / "conf" / default_network.FILE).read_text())
    assert json.loads(default_network.render(default_network.STANDARD, ["10.22.0.0/16"])) == sample


@pytest.mark.parametrize(
    ("spec", "subnets"),
    [
        (NODE["spec"], SUBNETS),
        ({"podCIDR": "10.244.3.0/24"}, ["10.244.3.0/24"]),
        ({"podCIDR": "fd00:1::/64", "podCIDRs": ["fd00:1::/64"], "providerID": "x://y"}, ["fd00:1::/64"]),
    ],
)
def test_the_nodes_subnets(install, net_d, spec, subnets):
    """The network has a range set for each podCIDR of the node; old Node objects have only one."""
    install("--conf", node=node_with(**spec))
    assert ranges(net_d / "10-podwire.conflist") == [[{"subnet": subnet}] for subnet in subnets]


def test_subnets_are_written_to_a_configured_network(install, net_d, tmp_path):
    """The node's subnets are added to a network whose host-local has no ranges; its other keys do not change."""
    mine = tmp_path / "05-mine.conflist"
    mine.write_text(json.dumps(TEMPLATE))
    install("--conf", mine)
    ipam = {"type": "host-local", "ranges": [[{"subnet": subnet}] for subnet in SUBNETS]}
    first, second = PLUGINS
    assert json.loads((net_d / mine.name).read_text()) == {**TEMPLATE, "plugins": [{**first, "ipam": ipam}, second]}


@pytest.mark.parametrize("ipam", [{"type": "host-local", "subnet": "10.1.0.0/24"}, {"type": "static"}, {}])
def test_a_network_with_other_addresses_is_refused(install, net_d, tmp_path, ipam):
    """A network that already has ranges, or whose IPAM is not host-local, is refused before any change."""
    mine = tmp_path / "05-mine.conflist"
    mine.write_text(json.dumps({**TEMPLATE, "plugins": [{"type": "ptp", "ipam": ipam}]}))
    assert "no place for the node's subnets" in install("--conf", mine, status=3)
    assert not (tmp_path / "bin").exists()
    assert not net_d.exists()


REFUSED = [
    (node_with(), r"node worker-1 has no podCIDR\n.*--allocate-node-cidrs"),
    (
        {"kind": "NodeList", "apiVersion": "v1", "items": []},
        r"is not a Node object, but a NodeList\n.*kubectl get node",
    ),
    (
        {"kind": "Status", "message": 'nodes "x" is forbidden'},
        r'is not a Node object, but a Status: nodes "x" is forbidden',
    ),
    ([], r"is not a Node object\n"),
    ("<html>", r"is not JSON: .*\n.*kubectl get node"),
    ("", r"is not JSON"),
    (node_with(podCIDR=7), r'"spec.podCIDR" must be a string'),
    (node_with(podCIDRs="10.0.0.0/8"), r'"spec.podCIDRs" must be a list'),
    (node_with(podCIDR="10.244.3.1/24"), r"10.244.3.1/24 is not a network"),
    (node_with(podCIDRs=["10.1.0.0/24", "10.2.0.0/24"]), r"of each IP version"),
    ({**NODE, "spec": None}, r"has no podCIDR"),
    (" " * (3 << 20), r"more than 2048 KiB"),
]


@pytest.mark.parametrize(("node", "message"), REFUSED)
@pytest.mark.parametrize("option", [(), ("--dry-run",)])
def test_a_file_without_subnets_of_a_node_is_refused(install, tmp_path, node, message, option):
    """Another object, invalid JSON and a node without subnets are reported with a fix, before any change."""
    text = install("--conf", *option, node=node, status=3)
    assert re.search(message, text), text
    assert "defect" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["node.json"]


def test_options_that_exclude_each_other(podwire, install, tmp_path):
    """--subnet excludes --node, --node needs --conf, and a missing Node object is reported."""
    assert "not allowed with" in install("--conf", "--subnet", "10.0.0.0/8", status=2)
    assert "--node has no effect without --conf" in install(status=2)
    absent = tmp_path / "absent.json"
    text = run(podwire, "install", "--bin-dir", tmp_path / "bin", "--conf", "--node", absent, status=3)
    assert f"cannot read {absent}: No such file or directory" in text


def test_a_network_that_is_not_json_is_refused(podwire, tmp_path):
    """A network that is not JSON is refused before any change, with a message that names it."""
    mine = tmp_path / "05-mine.conflist"
    mine.write_text('{"x\n')
    text = run(podwire, "install", "--bin-dir", tmp_path / "bin", "--conf", mine, status=3)
    assert str(mine) in text
    assert "defect" not in text
    assert not (tmp_path / "bin").exists()


def test_repeated_installations(install, net_d, tmp_path):
    """A second installation changes nothing; one with other subnets replaces the file only if it is unchanged."""
    path = net_d / "10-podwire.conflist"
    assert f"dry run: write {path}" in install("--conf", "--dry-run")
    assert not net_d.exists()
    assert f"wrote {path}" in install("--conf")
    before = (path.stat().st_ino, path.read_bytes())
    for option in ((), ("--dry-run",)):
        text = install("--conf", *option)
        assert f"nothing to do: {path} already has this content" in text
        assert "wrote" not in text
    assert (path.stat().st_ino, path.read_bytes()) == before
    moved = node_with(podCIDR="10.244.9.0/24")
    assert f"wrote {path}" in install("--conf", node=moved)
    assert ranges(path) == [[{"subnet": "10.244.9.0/24"}]]
    assert [file.name for file in net_d.iterdir()] == [path.name]
    path.write_text(path.read_text().replace("cni0", "cni9"))
    for option in ((), ("--dry-run",)):
        assert f"{path} exists and is different" in install("--conf", *option, status=3)
    assert "cni9" in path.read_text()
    install("--conf", "--force")
    assert sorted(file.name for file in net_d.iterdir()) == [path.name, f"{path.name}.podwire-backup"]


def test_a_dry_run_of_uninstall_reports_the_network(podwire, install, net_d, tmp_path):
    """`uninstall --dry-run` reports whether the network would be removed or left, and keeps it."""
    path = net_d / "10-podwire.conflist"
    uninstall = ("uninstall", "--bin-dir", tmp_path / "bin", "--dry-run")
    install("--conf")
    assert f"dry run: remove {path}\n" in run(podwire, *uninstall)
    path.write_text("{}")
    assert f"dry run: leave {path}: it was changed since\n" in run(podwire, *uninstall)
    assert path.read_text() == "{}"


def test_a_network_that_was_not_recorded_is_adopted(podwire, install, net_d, tmp_path):
    """A network that a killed installation wrote but did not record is recorded by the next installation."""
    path = net_d / "10-podwire.conflist"
    install("--conf")
    manifest = tmp_path / "bin" / ".podwire-replaced" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "conf": {}}))
    assert "nothing to do" in install("--conf")
    assert f"removed {path}" in run(podwire, "uninstall", "--bin-dir", tmp_path / "bin")
    assert list(net_d.iterdir()) == []
