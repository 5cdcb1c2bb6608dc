"""VLANs of bridge: CHECK reports each change, and the reference plugin creates the same state."""

import pytest

from tests.support import binaries
from tests.support.attaching import Network, address, host_end, reaches
from tests.support.netstate import links
from tests.support.vlans import filters, gateway_port, vlans

pytestmark = pytest.mark.needs("vlan_filtering")
RANGE = [{"id": 101}, {"minID": 200, "maxID": 210}]


def check_error(net, pod, result):
    """Returns the message of a CHECK that must fail."""
    return net.run("CHECK", pod, prev_result=result).error()["msg"]


CHANGES = {
    "another VLAN on the port": ("bridge vlan add dev {port} vid 300", "in VLAN 300, which is not configured"),
    "VLAN 1 on the port": ("bridge vlan add dev {port} vid 1 untagged", "in VLAN 1, which is not configured"),
    "no VLAN on the port": ("bridge vlan del dev {port} vid 100", "has lost VLAN 100"),
    "a missing VLAN of the trunk": ("bridge vlan del dev {port} vid 205", "has lost VLAN 205"),
    "untagged on a trunk": ("bridge vlan add dev {port} vid 205 untagged", "has VLAN 205 untagged, not tagged"),
    "not the PVID": ("bridge vlan add dev {port} vid 100 untagged", "has VLAN 100 untagged, not pvid untagged"),
    "no filtering": ("ip link set cni0 type bridge vlan_filtering 0", "cni0 does not filter by VLAN"),
    "the gateway's address": ("ip addr del 10.22.0.1/16 dev cni0.100", "lost the gateway address 10.22.0.1"),
    "the gateway interface missing": ("ip link del cni0.100", "Interface name cni0.100 not found"),
    "the gateway interface down": ("ip link set cni0.100 down", "Interface cni0.100 is down"),
    "the gateway's MAC": ("ip link set cni0.100 address 02:00:00:00:00:99", "Interface cni0.100 Mac doesn't match"),
    "the gateway in no VLAN": ("bridge vlan del dev {gateway} vid 100", "has lost VLAN 100"),
    "the gateway's port down": ("ip link set {gateway} down", "the other end of cni0.100, is down"),
    "the gateway's port free": ("ip link set {gateway} nomaster", "the other end of cni0.100, is not a port of cni0"),
    "the gateway tagged": ("bridge vlan add dev {gateway} vid 100 pvid", "has VLAN 100 pvid, not pvid untagged"),
    "the gateway in another VLAN": ("bridge vlan add dev {gateway} vid 7", "in VLAN 7, which is not configured"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_check_reports_changes(network, sandbox, change):
    """CHECK fails and names the difference in the VLANs of an attachment."""
    command, text = CHANGES[change]
    net = network.having(vlan=100, vlanTrunk=RANGE)
    result = net.add(sandbox)
    net.check(sandbox, result)
    line = command.format(port=host_end(result), gateway=gateway_port(net.host))
    net.host.run(*line.split())
    assert text in check_error(net, sandbox, result)


def test_check_of_a_result_without_the_gateway_interface(network, sandbox):
    """CHECK fails if prevResult does not list the gateway interface."""
    net = network.having(vlan=100)
    result = net.add(sandbox)
    short = {**result, "interfaces": result["interfaces"][:3]}
    assert check_error(net, sandbox, short) == 'prevResult has no interface "cni0.100" on the host'


def test_state_equals_the_references(network, new_sandbox, reference):
    """Both implementations create the same VLANs, links and addresses, and reuse each other's."""
    net = network.having(
        vlan=100, preserveDefaultVlan=True
    )  # Debian's 1.1.1 always keeps VLAN 1, and has no key for it
    reference_net = Network(net.host, net.config, path=str(binaries.REFERENCE), bin_dir=binaries.REFERENCE)
    states = []
    for creator, user in ((reference_net, net), (net, reference_net)):
        first, second = new_sandbox(), new_sandbox()
        result = creator.add(first)
        ports = {"pod": host_end(result), "gateway": gateway_port(net.host)}
        states.append(
            {
                "vlans": {role: vlans(net.host, port) for role, port in ports.items()},
                "filters": filters(net.host),
                "interfaces": [item["name"] for item in result["interfaces"] if not item["name"].startswith("veth")],
                "addresses": [item["local"] for item in links(net.host)["cni0.100"]["addresses"]],
                "links": len(links(net.host)),
            }
        )
        other = user.add(second)
        assert reaches(first, address(other))
        assert reaches(second, "10.22.0.1")
        assert other["interfaces"][3] == result["interfaces"][3]
        net.check(first, result)
        user.delete(first, result)
        creator.delete(second, other)
        net.host.ip("link", "del", "cni0.100")
        net.host.ip("link", "del", "cni0")
    assert states[0] == states[1]
