"""`podwire doctor` on files of net.d and plugins' programs that are not as they must be, and on a running firewalld."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support import binaries, firewalld
from tests.support.doctor_node import DoctorNode, list_problems

BRIDGE = {"type": "bridge", "bridge": "cni0", "isGateway": True}


@pytest.fixture
def node(host, tmp_path) -> DoctorNode:
    """A node whose plugin directory may be changed."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for name in (*binaries.names(), "podwire"):
        (bin_dir / name).symlink_to(binaries.directory() / name)
    return DoctorNode(host, tmp_path, bin_dir)


def configured(node, name: str = "pods", subnet: str = "10.9.0.0/24", **keys: object) -> Path:
    """Puts a network into net.d; None leaves a key out."""
    ipam = {"type": "host-local", "subnet": subnet, "dataDir": str(node.directory / "leases")}
    plugin = {**BRIDGE, "ipam": ipam, **keys}
    version = plugin.pop("cniVersion", "1.0.0")
    return node.configure(f"10-{name}.conflist", {"cniVersion": version, "name": name, "plugins": [plugin]})


@pytest.mark.parametrize("absent", [True, False])
def test_no_network_at_all(node, absent):
    """A net.d that is absent or empty is a problem, with what to put there."""
    before = "umount /etc/cni/net.d; rmdir /etc/cni/net.d" if absent else ""
    found = node.find("no-network", before=before)
    assert found["text"].startswith("it does not exist" if absent else "it has no usable configuration")
    assert "podwire lint /etc/cni/net.d" in found["cure"]


def test_a_file_that_no_runtime_can_use(node):
    """A file that is no JSON is told with the command that says where, and the first usable one is the pod network."""
    configured(node)
    node.configure("05-broken.conflist", '{"name": "x", }')
    found = node.list_checks()
    assert [(one["name"], one["cure"]) for one in list_problems(found)] == [
        ("file-unusable", "podwire lint /etc/cni/net.d/05-broken.conflist")
    ]
    assert any(one["subject"].endswith("10-pods.conflist") and "use this file" in one["text"] for one in found)


def test_two_files_with_one_network(node):
    """Two networks of one name are told, and taking one file away is the cure."""
    configured(node)
    twin = node.configure("20-twin.conflist", (node.conf / "10-pods.conflist").read_text())
    assert "/etc/cni/net.d/20-twin.conflist" in node.find("same-name")["cure"]
    twin.unlink()
    assert list_problems(node.list_findings()) == []


def test_two_networks_with_one_subnet(node):
    """Two networks that give addresses of one subnet are told with both files."""
    configured(node)
    configured(node, "others", "10.9.0.128/25", bridge="cni1")
    text = node.find("subnets-overlap")["text"]
    assert "10-others.conflist" in text
    assert "10-pods.conflist" in text
    configured(node, "others", "10.9.1.0/24", bridge="cni1")
    assert list_problems(node.list_findings()) == []


def test_a_plugin_that_is_missing(node):
    """A plugin of ours that is in no directory is told, with the command that puts it there."""
    configured(node)
    (node.bin_dir / "host-local").unlink()
    found = node.find("plugin-missing")
    assert (found["subject"], found["cure"]) == ("host-local", f"podwire install --bin-dir {node.bin_dir}")
    (node.bin_dir / "host-local").symlink_to(binaries.directory() / "host-local")
    assert list_problems(node.list_findings()) == []


def test_a_plugin_that_may_not_be_executed(node):
    """The command that makes it executable is told, and cures."""
    configured(node)
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
def test_a_plugin_that_does_not_start(node, content, name):
    """A program for another processor, an empty one, and one that answers nonsense are told."""
    configured(node)
    (node.bin_dir / "bridge").unlink()
    (node.bin_dir / "bridge").write_bytes(content)
    (node.bin_dir / "bridge").chmod(0o755)
    assert node.find(name)["subject"] == "bridge"


def test_a_version_that_a_plugin_does_not_know(node, reference):
    """A cniVersion that one plugin of the list does not know is told with the highest that all know."""
    (node.bin_dir / "bridge").unlink()
    shutil.copy(reference / "bridge", node.bin_dir / "bridge")
    configured(node, cniVersion="1.1.0")
    found = node.find("version-unknown")
    assert 'set "cniVersion" to "1.0.0" in /etc/cni/net.d/10-pods.conflist' in found["cure"]
    configured(node, cniVersion="1.0.0")
    assert list_problems(node.list_findings()) == []


def test_what_a_plugins_status_says(node):
    """A configuration that ADD would refuse is told as the plugin's STATUS tells it, also in a version without it."""
    configured(node, hairpinMode=True, promiscMode=True)
    found = node.find("not-ready")
    assert found["subject"] == "pods: bridge"
    assert found["cure"] == 'remove "hairpinMode" or "promiscMode"'


def test_iptables_is_needed_and_missing(node):
    """A network that needs iptables, on a node without, is not ready."""
    configured(node, ipMasq=True, ipMasqBackend="iptables")
    hidden = "mount -t tmpfs podwire /usr/sbin; mount -t tmpfs podwire /sbin"
    assert "iptables-restore is not installed" in node.find("not-ready", before=hidden)["text"]


def test_anothers_status_is_asked_for_in_its_version(node):
    """STATUS of a plugin that is not ours is run where the network's version has it, and its error is told."""
    path = node.bin_dir / "other"
    answer = {"cniVersion": "1.1.0", "code": 50, "msg": "no uplink", "details": "plug it in"}
    versions = {"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}
    path.write_text(
        f"#!/bin/sh\ncase $CNI_COMMAND in VERSION) echo '{json.dumps(versions)}';; "
        f"*) echo '{json.dumps(answer)}'; exit 1;; esac\n"
    )
    path.chmod(0o755)
    node.configure("10-x.conflist", {"cniVersion": "1.1.0", "name": "x", "plugins": [{"type": "other"}]})
    found = node.find("not-ready")
    assert (found["text"], found["cure"]) == ("no uplink", "plug it in")
    node.configure("10-x.conflist", {"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "other"}]})
    assert list_problems(node.list_findings()) == []


def test_what_other_cnis_left(node):
    """An interface of flannel's without a network that uses it is a note."""
    configured(node)
    node.host.ip("link", "add", "flannel.1", "type", "bridge")
    found = node.find("other-cni")
    assert (found["subject"], found["severity"]) == ("flannel", "note")
    assert list_problems(node.list_findings()) == []


@pytest.mark.skipif(bool(firewalld.missing()), reason=firewalld.missing())
@pytest.mark.needs("nft_inet")
def test_firewalld_that_knows_no_pod(node):
    """A running firewalld, and a network whose list tells it of no pod, is a note with the plugin to add."""
    configured(node)
    with firewalld.bus() as bus, bus.firewalld(node.host):
        found = node.find("firewalld-untold", env=bus.env)
        assert 'add {"type": "firewall"}' in found["cure"]
        assert list_problems(node.list_findings(env=bus.env)) == []


@pytest.mark.skipif(bool(firewalld.missing()), reason=firewalld.missing())
@pytest.mark.needs("nft_inet")
def test_a_reload_of_firewalld(node, sandbox):
    """After a reload firewalld has forgotten the pods: that is told, and repair is the cure."""
    network = node.add_sample("60-podman.conflist")
    with firewalld.bus() as bus, bus.firewalld(node.host) as running:
        variables = {**bus.env}
        node.attach(network, sandbox, env=variables)
        assert list_problems(node.list_findings(env=variables)) == []
        running.command("--reload")
        found = list_problems(node.list_findings(env=variables))
        assert {(one["name"], one["cure"]) for one in found} == {("rules-missing", "podwire repair podwire-podman")}
        assert any("trusted" in one["text"] for one in found), found
