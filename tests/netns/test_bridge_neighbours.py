"""A reused address: neighbours must learn the MAC address of its new owner without delay."""

import json

import pytest

from tests.support.attaching import reaches

ADDRESSES = {"IPv4": ("10.22.0.9/16", "10.22.0.8/16"), "IPv6": ("fd00:22::9/64", "fd00:22::8/64")}


def known_mac(namespace, device, ip):
    """Returns the MAC that `namespace` has for an address in its neighbour table."""
    entries = json.loads(namespace.ip("-j", "neigh", "show", "to", ip, "dev", device) or "[]")
    return next((entry.get("lladdr") for entry in entries), None)


@pytest.mark.parametrize("family", ADDRESSES)
def test_a_reused_address_is_announced(scripted_network, new_sandbox, family):
    """Host and other pods reach the new owner of an address when ADD returns, not after a timeout."""
    reused, other = ADDRESSES[family]
    ip = reused.partition("/")[0]
    onlooker, old, new = new_sandbox(), new_sandbox(), new_sandbox()
    scripted_network([{"address": other}]).add(onlooker)
    net = scripted_network([{"address": reused}])
    for _ in range(3):
        before = net.add(old)["interfaces"][2]["mac"]
        assert reaches(net.host, ip)
        assert reaches(onlooker, ip)
        assert {known_mac(net.host, "cni0", ip), known_mac(onlooker, "eth0", ip)} == {before}
        net.delete(old)
        after = net.add(new)["interfaces"][2]["mac"]
        assert {known_mac(net.host, "cni0", ip), known_mac(onlooker, "eth0", ip)} == {after}
        assert reaches(net.host, ip, within_s=1)
        assert reaches(onlooker, ip, within_s=1)
        net.delete(new)
