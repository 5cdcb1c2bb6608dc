"""`podwire doctor` reports a fault once: its consequences have no finding and no fix."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.doctor_node import DoctorNode, list_problems
from tests.support.namespaces import Namespace

MAPPING = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}


class Fault(NamedTuple):
    """Damage to a healthy node with a pod, and the findings that report it; {veth} is the pod's host veth."""

    shell: str
    names: tuple[str, ...]
    sample: str = "60-podman.conflist"
    needs: tuple[str, ...] = ()


FAULTS = {
    "the bridge is down": Fault("ip link set cni4 down", ("bridge-down",)),
    "the bridge is deleted": Fault("ip link delete cni4", ("bridge-missing",)),
    "another bridge has its name": Fault(
        "ip link delete cni4; ip link add cni4 type bridge; ip link set cni4 up",
        ("port-lost", "gateway-missing", "bridge-address-changes"),
    ),
    "the gateway address is deleted": Fault("ip address flush dev cni4", ("gateway-missing",)),
    "the host veth is not a port": Fault("ip link set {veth} nomaster", ("port-lost",)),
    "the host veth is down": Fault("ip link set {veth} down", ("pod-interface-down",)),
    "the pod's interface is down": Fault("ip -n {pod} link set eth0 down", ("pod-link-down",)),
    "IPv6 is off": Fault(
        "sysctl -qw net/ipv6/conf/cni1/disable_ipv6=1", ("ipv6-off",), "20-dual-stack.conflist", ("ifb", "tbf")
    ),
    "iptables-legacy drops": Fault(
        "iptables-legacy -P FORWARD DROP",
        ("forward-drop",),
        "10-podwire.conflist",
        ("iptables_legacy_nat", "ifb", "tbf"),
    ),
}


@pytest.fixture
def node(host: Namespace, tmp_path: Path) -> DoctorNode:
    return DoctorNode(host, tmp_path)


@pytest.mark.parametrize(
    "fault", [pytest.param(one, marks=pytest.mark.needs(*one.needs), id=name) for name, one in FAULTS.items()]
)
def test_fault_has_one_fix(node, sandbox, fault):
    """Only the cause is reported, and not also the failing CHECK of each pod, with another fix."""
    result = node.attach(node.add_sample(fault.sample).with_capabilities(portMappings=[MAPPING]), sandbox)
    veth = next(interface["name"] for interface in result["interfaces"] if interface["name"].startswith("veth"))
    node.host.run("sh", "-ec", fault.shell.format(veth=veth, pod=sandbox.name))
    findings = [one for one in node.list_findings() if one["name"] not in ("store-in-memory", "pod-loopback-down")]
    assert tuple(one["name"] for one in findings) == fault.names, findings
    fixes = [one["cure"] for one in findings]
    assert len(set(fixes)) == len(fixes)


def test_fix_gives_a_recreated_bridge_the_address_that_pods_know(node, sandbox):
    """The fix for a recreated bridge sets the MAC address that its pods know as their gateway's."""
    result = node.attach(node.add_sample("60-podman.conflist"), sandbox)
    node.host.run("sh", "-ec", FAULTS["another bridge has its name"].shell)
    known = next(interface["mac"] for interface in result["interfaces"] if interface["name"] == "cni4")
    assert node.find("bridge-address-changes")["cure"] == f"ip link set cni4 address {known}"
    for name in ("port-lost", "gateway-missing", "bridge-address-changes"):
        node.run_fix(node.find(name))
    assert list_problems(node.list_findings()) == []


def test_uplink_is_the_default_route_in_use(node, sandbox):
    """The MTU of a default route with a higher metric, which the kernel does not use, is ignored."""
    node.attach(node.add_sample("60-podman.conflist"), sandbox)
    for number, mtu in ((0, 1500), (1, 1400)):
        net = f"192.0.{2 + number}"
        node.host.run(
            "sh", "-ec",
            f"ip link add out{number} mtu {mtu} type veth peer far{number}; ip link set out{number} up;"
            f"ip link set far{number} up; ip address add {net}.1/24 dev out{number};"
            f"ip route add default via {net}.2 metric {100 + number}",
        )  # fmt: skip
    findings = node.list_checks()
    assert [one["text"] for one in findings if one["name"] == "mtu"] == ['pods 1500, "out0" 1500'], findings
    node.host.ip("route", "del", "default", "dev", "out0")
    assert 'the uplink "out1" has 1400' in node.find("mtu-too-large")["text"]


def test_output_names_the_inspected_chains(node, sandbox):
    """Doctor says how many chains it read when no rule or policy takes the pods' packets."""
    node.attach(node.add_sample("60-podman.conflist"), sandbox)
    done = node.doctor("--all")
    (line,) = [line for line in done.stdout.splitlines() if line.endswith("no rule or policy takes the pods' packets")]
    assert re.fullmatch(r"ok packet filter: \d+ chains read: .*", line)


def test_two_pods_with_one_mac_address(node, new_sandbox):
    """Two pods on one bridge with the same MAC address are reported once."""
    network = node.add_sample("60-podman.conflist")
    for number in range(2):
        mapping = {**MAPPING, "hostPort": 8080 + number}
        pod = network.with_capabilities(portMappings=[mapping], mac="02:00:00:00:00:42")
        node.attach(pod, new_sandbox())
    assert "02:00:00:00:00:42" in node.find("mac-twice")["text"]


@pytest.mark.parametrize("group", ["all", "default"])
def test_ipv6_disabled_for_a_new_bridge(node, group):
    """Before the first ADD the setting of new interfaces counts, which the bridge will have; the fix removes it."""
    node.add_sample("20-dual-stack.conflist")
    node.host.set_sysctl(f"net/ipv6/conf/{group}/disable_ipv6", "1")
    finding = node.find("ipv6-off")
    assert f"net/ipv6/conf/{group}/disable_ipv6 is 1" in finding["text"]
    assert [one["name"] for one in list_problems(node.list_findings())] == ["ipv6-off"]
    node.run_fix(finding)
    assert list_problems(node.list_findings()) == []
