"""`podwire doctor` with invalid files in net.d, with plugins that cannot run, and with firewalld."""

import json
import os
import shlex
import shutil
from ipaddress import ip_network

import pytest

from attachment.masquerade.cluster import ClusterNetworks
from kernel.netns import Netns, entered
from tests.netns.conftest import LEGACY, NFT
from tests.support import binaries, firewalld, xtables
from tests.support import programs as stand_ins
from tests.support.doctor_node import DoctorNode, list_problems


@pytest.fixture
def node(host, tmp_path) -> DoctorNode:
    """A node with a plugin directory that the test may change."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for name in (*binaries.names(), "podwire"):
        (bin_dir / name).symlink_to(binaries.directory() / name)
    return DoctorNode(host, tmp_path, bin_dir)


@pytest.mark.parametrize("absent", [True, False])
def test_net_d_without_a_network(node, absent):
    """A missing or empty net.d is a problem, and the advice is the command that writes a network of free addresses."""
    node.host.ip("link", "add", "lan0", "up", "address", "02:00:00:00:00:01", "type", "bridge")
    node.host.ip("address", "add", "10.22.0.1/24", "dev", "lan0")
    before = "umount /etc/cni/net.d; rmdir /etc/cni/net.d" if absent else ""
    finding = node.find("no-network", before=before)
    assert finding["text"].startswith("it does not exist" if absent else "it has no usable configuration")
    assert finding["cure"] == "podwire install --conf --subnet 10.23.0.0/16"
    assert "commands" not in finding or finding["commands"] == []  # --fix does not choose addresses
    done = node.podwire(*shlex.split(finding["cure"])[1:], before="mount -t tmpfs podwire /opt")
    assert done.returncode == 0, done.stderr
    assert [one["name"] for one in node.list_findings() if one["name"] == "no-network"] == []


def test_net_d_of_a_node_of_kubernetes(node):
    """Without a network on a node of Kubernetes, the advice is to use the node's podCIDRs."""
    finding = node.find("no-network", before="mount -t tmpfs podwire /var/lib; mkdir -p /var/lib/kubelet /var/lib/cni")
    assert finding["cure"].startswith("podwire install --conf --node node.json, where ")


def test_missing_plugin(node):
    """A plugin of podwire that is in no plugin directory is reported with the command that installs it."""
    node.add_bridge()
    (node.bin_dir / "host-local").unlink()
    finding = node.find("plugin-missing")
    assert (finding["subject"], finding["cure"]) == ("host-local", f"podwire install --bin-dir {node.bin_dir}")
    (node.bin_dir / "host-local").symlink_to(binaries.directory() / "host-local")
    assert list_problems(node.list_findings()) == []


def test_plugin_that_is_not_executable(node):
    """A plugin that is not executable is reported with the command that fixes it."""
    node.add_bridge()
    (node.bin_dir / "bridge").unlink()
    shutil.copyfile(binaries.directory() / "bridge", node.bin_dir / "bridge")
    node.run_fix(node.find("plugin-not-executable"))
    assert list_problems(node.list_findings()) == []


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00" + bytes(100), "plugin-wrong-architecture"),
        (b"", "plugin-not-starting"),
        (b"#!/bin/sh\necho nonsense\n", "plugin-not-starting"),
        (b"#!/bin/sh\nexit 3\n", "plugin-not-starting"),
        (b"#!/bin/absent\n", "plugin-not-starting"),
    ],
)
def test_plugin_that_does_not_start(node, content, name):
    """A program for another processor, an empty one, and one with an invalid answer are reported."""
    node.add_bridge()
    (node.bin_dir / "bridge").unlink()
    (node.bin_dir / "bridge").write_bytes(content)
    (node.bin_dir / "bridge").chmod(0o755)
    assert node.find(name)["subject"] == "bridge"


def test_plugin_of_another_name(node, reference):
    """After a `cp` of another plugin onto one of several hard links, each of the names is reported."""
    node.add_bridge()
    for name in ("bridge", "host-local"):
        (node.bin_dir / name).unlink()
    shutil.copy(reference / "vrf", node.bin_dir / "bridge")
    (node.bin_dir / "host-local").hardlink_to(node.bin_dir / "bridge")
    findings = [one for one in node.list_findings() if one["name"] == "plugin-of-another-name"]
    assert {one["subject"] for one in findings} == {"bridge", "host-local"}
    assert all(one["text"].endswith("is the plugin vrf") for one in findings)


@pytest.mark.old_reference
def test_version_that_a_plugin_does_not_support(node, reference):
    """A cniVersion that a plugin of the list does not support is reported with the highest that all support."""
    (node.bin_dir / "bridge").unlink()
    shutil.copy(reference / "bridge", node.bin_dir / "bridge")
    node.add_bridge(version="1.1.0")
    finding = node.find("version-unknown")
    assert 'set "cniVersion" to "1.0.0" in /etc/cni/net.d/10-pods.conflist' in finding["cure"]
    node.add_bridge(version="1.0.0")
    assert list_problems(node.list_findings()) == []


def test_error_of_a_plugins_status(node):
    """A configuration that ADD would refuse is reported by STATUS, even if the network's version has no STATUS."""
    node.add_bridge(hairpinMode=True, promiscMode=True)
    finding = node.find("not-ready")
    assert finding["subject"] == "pods: bridge"
    assert finding["cure"] == 'remove "hairpinMode" or "promiscMode"'


def test_status_of_a_foreign_plugin(node):
    """STATUS of another vendor's plugin is run if the network's version has it, and its error is reported."""
    answer = {"cniVersion": "1.1.0", "code": 50, "msg": "no uplink", "details": "plug it in"}
    versions = {"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}
    script = (
        f"case $CNI_COMMAND in VERSION) echo '{json.dumps(versions)}';; *) echo '{json.dumps(answer)}'; exit 1;; esac"
    )
    stand_ins.install(node.bin_dir, other=script)
    node.add_network({"cniVersion": "1.1.0", "name": "x", "plugins": [{"type": "other"}]})
    finding = node.find("not-ready")
    assert (finding["text"], finding["cure"]) == ("no uplink", "plug it in")
    node.add_network({"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "other"}]})
    assert list_problems(node.list_findings()) == []


@pytest.mark.parametrize("in_version", [False, True])
def test_plugin_without_an_answer_to_status(node, in_version):
    """A foreign plugin that does not answer STATUS is not ready; one that does not start is reported once."""
    answer = "exec sleep 60" if in_version else 'echo \'{"supportedVersions": ["1.1.0"]}\''
    stand_ins.install(node.bin_dir, other=f"case $CNI_COMMAND in VERSION) {answer};; *) exec sleep 60;; esac")
    node.add_network({"cniVersion": "1.1.0", "name": "x", "plugins": [{"type": "other"}]})
    problems = [one for one in node.list_findings() if one["severity"] == "problem"]
    expected = ("plugin-not-starting", "VERSION") if in_version else ("not-ready", "STATUS")
    assert [(one["name"], f"does not answer {expected[1]}" in one["text"]) for one in problems] == [(expected[0], True)]


@pytest.mark.parametrize(
    ("backend", "variant", "place"),
    [
        pytest.param("nftables", "", "podwire_cluster_4", marks=pytest.mark.needs("nft_nat")),
        pytest.param("iptables", "nft", "chain nat PODWIRE-CLUSTER (iptables)", marks=NFT.marks),
        pytest.param("iptables", "legacy", "chain nat PODWIRE-CLUSTER (iptables-legacy)", marks=LEGACY.marks),
    ],
)
def test_networks_of_the_cluster_are_unknown(node, sandbox, tmp_path, monkeypatch, backend, variant, place):
    """A network with nonMasqueradeCluster is reported until podwire-agent has set the networks of the cluster."""
    if variant:
        monkeypatch.setenv("PATH", xtables.path(xtables.variant(tmp_path / variant, variant))["PATH"])
    env = {"PATH": os.environ["PATH"]}
    network = node.add_bridge(ipMasq=True, ipMasqBackend=backend, nonMasqueradeCluster=True)
    assert list_problems(node.list_findings(env=env)) == []
    node.attach(network, sandbox, env=env)
    finding = node.find("cluster-networks-empty", env=env)
    assert place in finding["text"]
    with Netns(node.host.path) as namespace, entered(namespace), ClusterNetworks(()) as agent:
        agent.set_networks([ip_network("10.9.1.0/24")])
    assert list_problems(node.list_findings(env=env)) == []


@pytest.mark.skipif(bool(firewalld.missing()), reason=firewalld.missing())
@pytest.mark.needs("nft_inet")
def test_firewalld_without_the_firewall_plugin(node):
    """If firewalld is running and no plugin of a network adds pods to a zone, a note names the plugin to add."""
    node.add_bridge()
    with firewalld.bus() as bus, bus.firewalld(node.host):
        finding = node.find("firewalld-untold", env=bus.env)
        assert 'add {"type": "firewall"}' in finding["cure"]
        assert list_problems(node.list_findings(env=bus.env)) == []


@pytest.mark.long
@pytest.mark.skipif(bool(firewalld.missing()), reason=firewalld.missing())
@pytest.mark.needs("nft_inet")
def test_reload_of_firewalld(node, sandbox):
    """After a reload, in which firewalld loses the pods, doctor reports missing rules and the fix is repair."""
    network = node.add_sample("60-podman.conflist")
    with firewalld.bus() as bus, bus.firewalld(node.host) as running:
        variables = {**bus.env}
        node.attach(network, sandbox, env=variables)
        assert list_problems(node.list_findings(env=variables)) == []
        running.command("--reload")
        findings = list_problems(node.list_findings(env=variables))
        assert {(one["name"], one["cure"]) for one in findings} == {("rules-missing", "podwire repair podwire-podman")}
        assert any("trusted" in one["text"] for one in findings), findings
