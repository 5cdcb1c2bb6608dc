"""`podwire trace` names the VLAN that loses a packet, also on a kernel without nftables' inet family."""

from __future__ import annotations

import pytest

from tests.support.packet_node import BRIDGE, PacketNode

pytestmark = pytest.mark.needs("vlan_filtering")

WITHOUT_VLAN = "ip link set {bridge} type bridge vlan_filtering 1; bridge vlan del dev {veth} vid 1"
FAULTS = {
    "a port of another VLAN": (f"{WITHOUT_VLAN}; bridge vlan add dev {{veth}} vid 7 pvid untagged", ("VLAN 7",)),
    "a port without PVID": (WITHOUT_VLAN, ("{veth}", "no PVID")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_suspect(host, new_sandbox, tmp_path, fault):
    """The suspect is the injected fault."""
    node, server, client = PacketNode(host, tmp_path), new_sandbox(), new_sandbox()
    node.attach_pod(server, ipMasq=False)
    veth = node.attach_pod(client, ipMasq=False)
    shell, words = FAULTS[fault]
    node.host.run("sh", "-ec", shell.format(bridge=BRIDGE, veth=veth))
    trace = node.trace(client.name, f"{server.name}:80")
    assert trace["outcome"] == "lost", trace
    assert trace["suspect"]["name"] == "vlan", trace
    for word in words:
        assert word.format(veth=veth) in trace["suspect"]["text"], trace
