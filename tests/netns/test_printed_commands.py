"""No command that doctor, check or repair prints on a faulty node exposes an interface that is not podwire's."""

from __future__ import annotations

import pytest

from tests.netns.test_tool_doctor_faults import FIXABLE, MAPPING, Fault
from tests.netns.test_tool_doctor_routes import ROUTED_ELSEWHERE, UPLINK
from tests.support import exposing_commands
from tests.support.doctor_node import DoctorNode

PTP = "70-ptp.conflist"
NEEDED = ("ifb", "tbf")
# Shell commands that damage a node with an uplink.
FAULTS = {
    **{name: one._replace(shell=f"{UPLINK}; {one.shell}") for name, one in FIXABLE.items()},
    **{f"routed elsewhere, {name}": Fault("", shell) for name, shell in ROUTED_ELSEWHERE.items()},
    "the uplink does not forward": Fault("", f"{UPLINK}; sysctl -qw net/ipv4/conf/out0/forwarding=0"),
    "no bridge": Fault("", f"{UPLINK}; ip link delete cni4"),
    "no address": Fault("", f"{UPLINK}; ip address flush dev cni4"),
    "no route_localnet on the bridge": Fault("", f"{UPLINK}; sysctl -qw net/ipv4/conf/cni4/route_localnet=0"),
    "no rules": Fault("", f"{UPLINK}; nft flush ruleset"),
    "no route_localnet on the host veth": Fault(
        "", f"{UPLINK}; sysctl -qw net/ipv4/conf/{{veth}}/route_localnet=0", PTP, NEEDED
    ),
    "no host veth": Fault("", f"{UPLINK}; ip link delete {{veth}}", PTP, NEEDED),
    "a pod with another route": Fault("", f"{UPLINK}; ip route replace {{pod}} via 192.0.2.2", PTP, NEEDED),
}


@pytest.fixture
def node(host, tmp_path) -> DoctorNode:
    return DoctorNode(host, tmp_path)


@pytest.mark.parametrize(
    "fault", [pytest.param(one, marks=pytest.mark.needs(*one.needs), id=name) for name, one in FAULTS.items()]
)
def test_no_command_opens_another_interface(node, sandbox, fault):
    """For each fault the printed commands concern only the bridge and the pod subnets."""
    network = node.add_sample(fault.sample)
    if any(plugin["type"] == "portmap" for plugin in network.plugins):
        network = network.with_capabilities(portMappings=[MAPPING])
    result = node.attach(network, sandbox)
    interfaces = [one["name"] for one in result["interfaces"] if not one.get("sandbox")]
    veth = next(name for name in interfaces if name.startswith("veth"))
    pod = result["ips"][0]["address"].partition("/")[0]
    node.host.run("sh", "-ec", fault.shell.format(veth=veth, pod=pod))
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
