"""An existing bridge that filters by VLAN, and a network without VLAN options."""

import json

import pytest

from tests.support.attaching import address, host_end, reaches

pytestmark = pytest.mark.needs("vlan_filtering")


def test_pods_are_in_the_default_vlan_of_a_filtering_bridge(network, new_sandbox):
    """Without VLAN options, pods on a filtering bridge are in its default VLAN, and reach each other."""
    network.host.ip("link", "add", "cni0", "type", "bridge", "vlan_filtering", "1", "vlan_default_pvid", "7")
    first, second = new_sandbox(), new_sandbox()
    results = [network.add(first), network.add(second)]
    shown = json.loads(network.host.run("bridge", "-j", "vlan", "show"))
    vlans = {port["ifname"]: [vlan["vlan"] for vlan in port["vlans"]] for port in shown}
    assert vlans == {name: [7] for name in ("cni0", *map(host_end, results))}
    assert reaches(second, address(results[0]))
    network.delete(first)
    network.delete(second)
