"""Layers below the runtime: Multus' configuration in net.d, its delegates and cache; flannel's delegate and file."""

import base64
import json
from pathlib import Path

import pytest

from attachment.presence import Presence
from cni.errors import CniError
from podwire import attachments, networks
from podwire.flannel import has_ranges, resolve_delegate
from podwire.layers import Layer, read_layers
from podwire.runtimes import Runtime
from tests.support import libcni
from tests.support.flannel import subnet_env
from tests.support.unit_node import new_node, run_check

CLUSTER = {"cniVersion": "1.0.0", "name": "cluster", "plugins": [{"type": "bridge"}]}
BROKEN = {"cniVersion": "1.0.0", "name": "cluster", "plugins": []}


def multus(**keys):
    """Returns the text of Multus' configuration."""
    return json.dumps({"cniVersion": "1.0.0", "name": "multus-cni-network", "type": "multus", **keys})


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, "/var/lib/cni/multus"),
        ({"cniDir": "/srv/multus"}, "/srv/multus"),
        ({"cniDir": "srv/multus"}, "/srv/multus"),
        ({"cniDir": 5}, "/var/lib/cni/multus"),
        ({"type": "multus-shim"}, "/var/lib/cni/multus"),
    ],
)
def test_multus_cache_is_that_of_its_configuration(tmp_path, keys, expected):
    """Multus' cache is read beside those of the runtimes, at the place that its file names, thin or thick."""
    path = tmp_path / "00-multus.conf"
    path.write_text(multus(**keys))
    assert read_layers(str(tmp_path), ["/a", "/b"]) == (Layer("/a"), Layer("/b"), Layer(expected, str(path)))
    assert read_layers(str(tmp_path / "none"), ["/a"]) == (Layer("/a"),)


def test_named_cache_of_multus(tmp_path):
    """A cache that the command line names is Multus' if Multus saves the pods' networks in it."""
    saved = [{"Bytes": base64.b64encode(json.dumps(CLUSTER).encode()).decode()}]
    for name, text in (("pod", json.dumps(saved)), ("damaged", "["), ("other", '{"Bytes": "e30="}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0123").write_text(text)
    paths = [str(tmp_path / name) for name in ("other", "pod", "damaged")]
    sources = ["", paths[1], ""]
    assert read_layers(str(tmp_path / "none"), paths) == tuple(map(Layer, paths, sources))


def test_delegates_are_networks(tmp_path):
    """The cluster's network is that in Multus' file, whatever a file of that name has; a broken one is reported."""
    (tmp_path / "00-multus.conf").write_text(multus(delegates=[CLUSTER, BROKEN]))
    (tmp_path / "10.conflist").write_text(json.dumps({**CLUSTER, "plugins": [{"type": "ptp"}]}))
    files = networks.read_directory(str(tmp_path))
    network = networks.by_name(files)["cluster"]
    assert (network.plugins[0]["type"], network.path) == ("bridge", str(tmp_path / "00-multus.conf"))
    assert [one.problem.msg for one in networks.with_delegates(files) if one.problem] == [
        'delegates[1]: network configuration: "plugins" has no plugin'
    ]


def test_delegate_that_copies_a_file_is_no_second_network(tmp_path):
    """A delegate that equals the cluster's file, as Multus' daemon writes it, is that file's network."""
    (tmp_path / "00-multus.conf").write_text(multus(delegates=[CLUSTER]))
    (tmp_path / "10.conflist").write_text(json.dumps(CLUSTER))
    files = networks.read_directory(str(tmp_path))
    assert [one.path for one in networks.with_delegates(files)] == [one.path for one in files]
    assert networks.by_name(files)["cluster"].path == str(tmp_path / "10.conflist")


@pytest.mark.parametrize("prefix", ["", "/host"])
def test_cluster_network_of_a_file(tmp_path, prefix):
    """A clusterNetwork that is a path, on the node or below the daemon's /host, replaces the list."""
    (tmp_path / "cluster.conflist").write_text(json.dumps(CLUSTER))
    conf_dir = tmp_path / "net.d"
    conf_dir.mkdir()
    keys = {"clusterNetwork": f"{prefix}{tmp_path}/cluster.conflist", "delegates": [BROKEN]}
    (conf_dir / "00-multus.conf").write_text(multus(**keys))
    (file,) = networks.read_directory(str(conf_dir))
    assert [one.network.name for one in file.delegates if one.network] == ["cluster"]


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"clusterNetwork": "cluster", "confDir": "{}/multus.d"}, ["cluster"]),
        ({"clusterNetwork": "other", "confDir": "{}/multus.d"}, ["other"]),
        ({"clusterNetwork": "absent", "confDir": "{}/multus.d"}, []),
        ({"clusterNetwork": "{}/multus.d"}, ["other"]),
        ({"clusterNetwork": "/host{}/multus.d"}, ["other"]),
        ({"clusterNetwork": "{}/net.d/00-multus.conf"}, ["multus-cni-network"]),
        ({"clusterNetwork": "{}/absent"}, []),
        ({"clusterNetwork": 5}, []),
    ],
)
def test_cluster_network_of_a_directory(tmp_path, keys, names):
    """A clusterNetwork is the first network of a directory, or one of "confDir" by name; a cycle ends."""
    for directory in ("net.d", "multus.d"):
        (tmp_path / directory).mkdir()
    (tmp_path / "multus.d" / "05-broken.conflist").write_text(json.dumps(BROKEN))
    (tmp_path / "multus.d" / "10.conflist").write_text(json.dumps({**CLUSTER, "name": "other"}))
    (tmp_path / "multus.d" / "20.conflist").write_text(json.dumps(CLUSTER))
    keys = {key: value.format(tmp_path) if isinstance(value, str) else value for key, value in keys.items()}
    (tmp_path / "net.d" / "00-multus.conf").write_text(multus(**keys))
    file = networks.read_file(str(tmp_path / "net.d" / "00-multus.conf"))
    assert [one.network.name for one in file.delegates if one.network] == names


@pytest.fixture
def layers(tmp_path):
    """The layers of a node with Multus, whose caches are empty directories."""
    return Layer(str(tmp_path / "cni")), Layer(str(tmp_path / "multus"), "00-multus.conf")


def test_an_interface_is_one_attachment(tmp_path, layers):
    """The runtime's entry of Multus is left out where Multus' cache has the delegate's, also when listed by name."""
    libcni.write_entry(tmp_path / "cni", "multus-cni-network", "a", config=json.loads(multus()))
    for network, ifname in (("cluster", "eth0"), ("storage", "net1")):
        libcni.write_entry(tmp_path / "multus", network, "a", ifname=ifname, config={**CLUSTER, "name": network})
    cached = attachments.list_cached(layers)
    assert [(one.network_name, one.attachment.ifname, one.needs_file) for one in cached] == [
        ("cluster", "eth0", False),
        ("storage", "net1", False),
    ]
    assert attachments.list_cached(layers, "multus-cni-network") == []
    assert attachments.describe_missing_delegates(cached) == []


def test_multus_without_its_cache_is_incomplete(tmp_path, layers):
    """An attachment of Multus without its delegates' entries stays listed, and is described while it may be running."""
    libcni.write_entry(tmp_path / "cni", "multus-cni-network", "a", config=json.loads(multus()))
    (one,) = attachments.list_cached(layers)
    assert one.presence is Presence.HERE
    (text,) = attachments.describe_missing_delegates([one])
    assert "container a: Multus attached it" in text
    libcni.write_entry(tmp_path / "cni", "multus-cni-network", "a", config=json.loads(multus()), netns="/absent/x")
    (one,) = attachments.list_cached(layers)
    assert one.presence is not Presence.GONE or attachments.describe_missing_delegates([one]) == []


def test_doctor_reports_a_delegate_that_cannot_be_used(tmp_path):
    """A broken network inside Multus' file is a finding about that file, and no second one of lint."""
    node = new_node(tmp_path)
    (tmp_path / "net.d" / "00-multus.conf").write_text(multus(delegates=[BROKEN]))
    (finding,) = run_check(node, "files")
    assert finding.name == "file-unusable"
    assert "delegates[0]" in finding.text
    assert run_check(node, "lint") == []


@pytest.mark.parametrize(("version", "is_reported"), [("1.0.0", False), ("1.1.0", True)])
def test_doctor_names_a_version_that_the_runtime_refuses(tmp_path, version, is_reported):
    """A cluster's network of 1.1.0 inside Multus' file is a problem with containerd 1: every pod waits."""
    node = new_node(tmp_path)
    (tmp_path / "net.d" / "00-multus.conf").write_text(multus(delegates=[{**CLUSTER, "cniVersion": version}]))
    (tmp_path / "containerd").write_text("#!/bin/sh\necho containerd github.com/containerd/containerd 1.6.20 1")
    (tmp_path / "containerd").chmod(0o755)
    node.env = {"PATH": str(tmp_path)}
    node.runtimes = (Runtime("containerd", ("/opt/cni/bin",), conf_dir=node.conf_dir),)
    assert [one.subject for one in run_check(node, "versions")] == ["cluster"] * is_reported


def test_delegate_of_flannel(tmp_path: Path) -> None:
    """The keys of "delegate" win over the file's, and the file's subnets over those of "ipam"."""
    path = tmp_path / "subnet.env"
    plugin = {"type": "flannel", "subnetFile": str(path), "delegate": {"mtu": 9000}, "ipam": {"dataDir": "/x"}}
    before = resolve_delegate(plugin)
    assert (before["type"], before["ipam"]) == ("bridge", {"type": "host-local", "dataDir": "/x"})
    assert not has_ranges(before)
    path.write_text(subnet_env("10.42.3.1/24", "fd42::1/64"))
    ranges = [[{"subnet": "10.42.3.0/24"}], [{"subnet": "fd42::/64"}]]
    expected = {"type": "bridge", "isGateway": True, "ipMasq": False, "mtu": 9000}
    ipam = {"type": "host-local", "dataDir": "/x", "ranges": ranges}
    assert resolve_delegate(plugin) == {**expected, "ipam": ipam}
    other = {"type": "bridge"}
    assert resolve_delegate(other) is other


def test_masquerading_of_the_delegate(tmp_path: Path) -> None:
    """A network of flannel is masqueraded by the delegate if flannel's daemon does not do it."""
    node, path = new_node(tmp_path), tmp_path / "subnet.env"
    path.write_text(subnet_env("10.42.3.1/24").replace("IPMASQ=true", "IPMASQ=false"))
    plugin = {"type": "flannel", "subnetFile": str(path)}
    content = json.dumps({"cniVersion": "1.0.0", "name": "net", "plugins": [plugin]})
    (tmp_path / "net.d" / "10.conflist").write_text(content)
    (item,) = node.interfaces
    assert item.masquerades


def test_unreadable_mtu_of_flannel(tmp_path: Path) -> None:
    """A file with more digits than Python reads is one that cannot be read, and no error."""
    path = tmp_path / "subnet.env"
    path.write_text(f"{subnet_env('10.42.3.1/24', '')}\nFLANNEL_MTU={'9' * 5000}\n")
    assert not has_ranges(resolve_delegate({"type": "flannel", "subnetFile": str(path)}))


def test_gc_needs_the_cache_of_a_runtime(tmp_path, monkeypatch):
    """Multus' cache lacks the pods of the time before Multus: without the runtime's, they would count as garbage."""
    runtime, delegates = Layer(str(tmp_path / "cni")), Layer(str(tmp_path / "multus"), "00-multus.conf")
    monkeypatch.setattr("attachment.cache.RESULTS_DIR", runtime.results_dir)
    Path(delegates.results_dir).mkdir(parents=True)
    with pytest.raises(CniError, match=r"cannot read the cache .*/cni/results: No such file"):
        attachments.require_existing((runtime, delegates))
    Path(runtime.results_dir).mkdir(parents=True)
    attachments.require_existing((runtime, delegates))
