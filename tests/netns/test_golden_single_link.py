"""Pods of macvlan, tap and host-device, compared with the golden states of the reference plugins.

tests/data/golden/README.md describes the origin of the files.
"""

import pytest

from tests.netns.test_golden import await_states, files
from tests.support import golden, single_link
from tests.support.host_device_network import PEER

# Attributes that each kernel and version of ip reports, so that the comparison is never empty.
REQUIRED = {
    "macvlan": {"flags", "mtu", "qdisc", "state", "link/ether", "macvlan", "port mode"},
    "tap": {"flags", "mtu", "state", "link/ether", "tun", "type", "pi", "vnet_hdr", "multi_queue", "persist"},
    "host-device": {"flags", "mtu", "qlen", "qdisc", "state", "link/ether", "veth", "link-netns"},
}
SCENARIOS = [
    single_link.param(golden.scenario(name)["config"]["type"], name, label=name)
    for name in (*golden.scenarios("macvlan-"), "tap", "host-device")
]


@pytest.mark.parametrize(("net", "name"), SCENARIOS, indirect=["net"])
def test_state_equals_the_reference_plugins(net, sandbox, store, name):
    """Result, links, addresses, routes and reservations equal the reference plugin's, after ADD and after DEL."""
    expected = golden.scenario(name)
    config = expected["config"]
    ipam = {**config["ipam"], "dataDir": str(store)} if "ipam" in config else None
    if config["type"] == "host-device":
        net.host.ip("link", "set", PEER, "down")
        net.host.ip("link", "set", config["device"], "mtu", "1500")
    net = net.having(**{**config, "ipam": ipam})
    before = golden.of(net.host)["links"]
    result = net.add(sandbox, container_id=golden.CONTAINER_ID)
    await_states(sandbox, expected["pod"]["links"])
    assert golden.result(result) == expected["result"]
    actual = golden.of(sandbox)
    assert actual["links"].keys() == expected["pod"]["links"].keys()
    for link, attributes in expected["pod"]["links"].items():
        common = attributes.keys() & actual["links"][link].keys()
        assert link == "lo" or common >= REQUIRED[config["type"]]
        assert {key: actual["links"][link][key] for key in common} == {key: attributes[key] for key in common}
    for part in ("addresses", "routes"):
        assert without_link_local(actual[part]) == without_link_local(expected["pod"][part])
    assert "store" not in expected or files(store / "goldnet") == expected["store"]
    net.delete(sandbox, result, container_id=golden.CONTAINER_ID)
    assert "store" not in expected or files(store / "goldnet") == expected["store after DEL"]
    assert golden.of(sandbox)["links"].keys() == {"lo"}
    assert golden.of(net.host)["links"].keys() == before.keys()


def without_link_local(part):
    """Returns addresses or routes without those of IPv6's link-local network, which come with the carrier."""
    if isinstance(part, list):
        return [line for line in part if "fe80:" not in line]
    return {link: without_link_local(lines) for link, lines in part.items()}
