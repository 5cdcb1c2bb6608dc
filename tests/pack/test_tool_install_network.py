"""podwire install --conf: whose addresses the network gets, and which file is replaced."""

import json
import re

import pytest

from podwire import default_network
from tests.pack.test_tool_install import run
from tests.support.api_server import NODE
from tests.support.binaries import ROOT

TEMPLATE = {
    "cniVersion": "1.0.0",
    "name": "mine",
    "plugins": [
        {"type": "ptp", "ipam": {"type": "host-local"}},
        {"type": "tuning", "sysctl": {"net.core.somaxconn": "1"}},
    ],
}


@pytest.fixture
def install(podwire, tmp_path):
    """A function that runs `podwire install` on directories of the test's own, with a Node object."""

    def run_it(*words, node=NODE, status=0):
        text = node if isinstance(node, str) else json.dumps(node)
        (tmp_path / "node.json").write_text(text)
        places = ("--bin-dir", tmp_path / "bin", "--conf-dir", tmp_path / "net.d")
        return run(podwire, "install", *places, "--node", tmp_path / "node.json", *words, status=status)

    return run_it


@pytest.fixture
def net_d(tmp_path):
    """The directory of networks, which is not there yet."""
    return tmp_path / "net.d"


def ranges(path):
    """Returns the ranges of the first plugin of a list."""
    return json.loads(path.read_text())["plugins"][0]["ipam"]["ranges"]


def node_with(**spec):
    return {**NODE, "spec": spec}


def test_the_standard_network():
    """What install writes is the first sample."""
    sample = json.loads((ROOT / "conf" / default_network.FILE).read_text())
    assert json.loads(default_network.render(default_network.STANDARD, ["10.22.0.0/16"])) == sample


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (NODE["spec"], ["10.244.3.0/24", "fd00:10:244:3::/64"]),
        ({"podCIDR": "10.244.3.0/24"}, ["10.244.3.0/24"]),
        ({"podCIDR": "fd00:1::/64", "podCIDRs": ["fd00:1::/64"], "providerID": "x://y"}, ["fd00:1::/64"]),
    ],
)
def test_the_nodes_subnets(install, net_d, spec, found):
    """A range set for each podCIDR of the node, of an old Node object for its only one."""
    install("--conf", node=node_with(**spec))
    assert ranges(net_d / "10-podwire.conflist") == [[{"subnet": subnet}] for subnet in found]


def test_into_a_file(install, net_d, tmp_path):
    """A network of one's own gets the node's subnets where its host-local has no range, and stays as it is besides."""
    mine = tmp_path / "05-mine.conflist"
    mine.write_text(json.dumps(TEMPLATE))
    install("--conf", mine)
    ipam = {"type": "host-local", "ranges": [[{"subnet": subnet}] for subnet in NODE["spec"]["podCIDRs"]]}
    first, second = TEMPLATE["plugins"]
    assert json.loads((net_d / mine.name).read_text()) == {**TEMPLATE, "plugins": [{**first, "ipam": ipam}, second]}


@pytest.mark.parametrize("ipam", [{"type": "host-local", "subnet": "10.1.0.0/24"}, {"type": "static"}, {}])
def test_a_file_that_has_no_place_for_them(install, net_d, tmp_path, ipam):
    """A network whose addresses are said already, or not by host-local, is refused before anything is done."""
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
def test_what_is_no_node_with_subnets(install, tmp_path, node, message, option):
    """Another object, no object, or a node without subnets is told, with what to do, before anything is done."""
    text = install("--conf", *option, node=node, status=3)
    assert re.search(message, text), text
    assert "defect" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["node.json"]


def test_options_that_exclude_each_other(podwire, install, tmp_path):
    """Subnets are said once, for a network; a Node object that cannot be read is named."""
    assert "not allowed with" in install("--conf", "--subnet", "10.0.0.0/8", status=2)
    assert "--node has no effect without --conf" in install(status=2)
    absent = tmp_path / "absent.json"
    text = run(podwire, "install", "--bin-dir", tmp_path / "bin", "--conf", "--node", absent, status=3)
    assert f"cannot read {absent}: No such file or directory" in text


def test_a_file_that_is_no_json(podwire, tmp_path):
    """A network that is not JSON is refused in words, before anything is done."""
    mine = tmp_path / "05-mine.conflist"
    mine.write_text('{"x\n')
    text = run(podwire, "install", "--bin-dir", tmp_path / "bin", "--conf", mine, status=3)
    assert str(mine) in text
    assert "defect" not in text
    assert not (tmp_path / "bin").exists()


def test_again_and_again(install, net_d, tmp_path):
    """The same is done once; of another network or range the file is replaced while nobody has changed it."""
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


def test_a_dry_run_tells_what_becomes_of_the_network(podwire, install, net_d, tmp_path):
    """`uninstall --dry-run` names the network that would be removed, and the one that would be left, and keeps both."""
    path = net_d / "10-podwire.conflist"
    uninstall = ("uninstall", "--bin-dir", tmp_path / "bin", "--dry-run")
    install("--conf")
    assert f"dry run: remove {path}\n" in run(podwire, *uninstall)
    path.write_text("{}")
    assert f"dry run: leave {path}: it was changed since\n" in run(podwire, *uninstall)
    assert path.read_text() == "{}"


def test_killed_before_it_was_noted(podwire, install, net_d, tmp_path):
    """A file that was written and not noted, its installation killed, is ours again after the next one."""
    path = net_d / "10-podwire.conflist"
    install("--conf")
    manifest = tmp_path / "bin" / ".podwire-replaced" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "conf": {}}))
    assert "nothing to do" in install("--conf")
    assert f"removed {path}" in run(podwire, "uninstall", "--bin-dir", tmp_path / "bin")
    assert list(net_d.iterdir()) == []
