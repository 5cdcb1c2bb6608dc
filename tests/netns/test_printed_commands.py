"""No command that doctor, check or repair prints on a faulty node exposes an interface that is not podwire's."""

from __future__ import annotations

import pytest

from tests.netns.test_tool_doctor_faults import MAPPING, UPLINK
from tests.support import exposing_commands

PODMAN, PTP, DUAL, IPTABLES = (f"{name}.conflist" for name in ("60-podman", "70-ptp", "20-dual-stack", "10-podwire"))
# Shell commands that damage a node with an uplink, and its network.
FAULTS = {
    "forwarding is off": ("sysctl -qw net/ipv4/ip_forward=0", PODMAN),
    "forwarding of IPv6 is off": ("sysctl -qw net/ipv6/conf/all/forwarding=0", DUAL),
    "forwarding of the bridge is off": ("sysctl -qw net/ipv4/conf/cni4/forwarding=0", PODMAN),
    "IPv6 is off": ("sysctl -qw net/ipv6/conf/cni1/disable_ipv6=1", DUAL),
    "the bridge is down": ("ip link set cni4 down", PODMAN),
    "the port is lost": ("ip link set {veth} nomaster", PODMAN),
    "the port is down": ("ip link set {veth} down", PODMAN),
    "the pod's address on the host": ("ip address add 10.26.0.2/32 dev lo", PODMAN),
    "a policy": ("iptables -P FORWARD DROP", IPTABLES),
    "a policy at routed veths": (
        "nft 'add table ip f; add chain ip f c {{ type filter hook forward priority 0; policy drop; }}'",
        PTP,
    ),
    "one pod is routed elsewhere": ("ip route add 10.26.0.2/32 via 192.0.2.2", PODMAN),
    "half of the pods are routed elsewhere": ("ip route add 10.26.0.0/25 via 192.0.2.2 metric 7", PODMAN),
    "the pods are routed elsewhere": ("ip route add 10.26.0.0/24 dev out0", PODMAN),
    "the uplink does not forward": ("sysctl -qw net/ipv4/conf/out0/forwarding=0", PODMAN),
    "no bridge": ("ip link delete cni4", PODMAN),
    "no address": ("ip address flush dev cni4", PODMAN),
    "no route_localnet on the bridge": ("sysctl -qw net/ipv4/conf/cni4/route_localnet=0", PODMAN),
    "no rules": ("nft flush ruleset", PODMAN),
    "no route_localnet on the host veth": ("sysctl -qw net/ipv4/conf/{veth}/route_localnet=0", PTP),
    "no host veth": ("ip link delete {veth}", PTP),
    "a pod with another route": ("ip route replace {pod} via 192.0.2.2", PTP),
}


@pytest.mark.parametrize(
    ("shell", "sample"),
    [
        pytest.param(*one, marks=[pytest.mark.needs("ifb", "tbf")] if one[1] != PODMAN else [], id=name)
        for name, one in FAULTS.items()
    ],
)
def test_no_command_opens_another_interface(node, sandbox, shell, sample):
    """For each fault the printed commands concern only the bridge and the pod subnets."""
    network = node.add_sample(sample)
    if any(plugin["type"] == "portmap" for plugin in network.plugins):
        network = network.with_capabilities(portMappings=[MAPPING])
    result = node.attach(network, sandbox)
    interfaces = [one["name"] for one in result["interfaces"] if not one.get("sandbox")]
    veth = next(name for name in interfaces if name.startswith("veth"))
    pod = result["ips"][0]["address"].partition("/")[0]
    node.host.run("sh", "-ec", f"{UPLINK}; {shell.format(veth=veth, pod=pod)}")
    subnets = [str(one) for plugin in network.plugins for one in ranges(plugin)]
    outputs = [node.doctor(), node.doctor("--json"), node.podwire("check", network.name, sandbox.path)]
    outputs.append(node.podwire("repair", "--dry-run", network.name))
    for done in outputs:
        assert list(exposing_commands.commands(done.stdout + done.stderr, interfaces, subnets)) == [], done


def ranges(plugin):
    """Yields the host-local subnets of a plugin."""
    for one in plugin.get("ipam", {}).get("ranges", ()):
        yield from (item["subnet"] for item in one)
    if subnet := plugin.get("ipam", {}).get("subnet"):
        yield subnet
