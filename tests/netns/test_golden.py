"""The state that plugins with their IPAM plugin create, compared with that of the reference plugins.

tests/data/golden/README.md describes the source of the files.
"""

import stat
from pathlib import Path

import pytest

from tests.support import golden, single_link
from tests.support.attaching import Network
from tests.support.host_device_network import PEER
from tests.support.machine import eventually

SCENARIOS = [name for name in golden.scenarios() if golden.scenario(name)["config"]["type"] in ("bridge", "ptp")]
SINGLE_LINK = [
    single_link.param(golden.scenario(name)["config"]["type"], name, label=name)
    for name in (*golden.scenarios("macvlan-"), "tap", "host-device")
]

# Attributes that each kernel and version of ip reports, so that the comparison is never empty.
REQUIRED_ATTRIBUTES = {
    "lo": {"mtu"},
    "cni0": {"flags", "mtu", "qlen", "qdisc", "state", "bridge", "stp_state", "vlan_filtering", "ageing_time"}
    | {"promiscuity"},
    "PORT@if": {"flags", "mtu", "state"},
    "port of a bridge": {"master", "port state", "hairpin", "isolated", "learning", "flood"},
    "eth0@if": {"flags", "mtu", "qlen", "qdisc", "state", "veth", "link-netns"},
    "macvlan": {"flags", "mtu", "qdisc", "state", "link/ether", "macvlan", "port mode"},
    "tap": {"flags", "mtu", "state", "link/ether", "tun", "type", "pi", "vnet_hdr", "multi_queue", "persist"},
    "host-device": {"flags", "mtu", "qlen", "qdisc", "state", "link/ether", "veth", "link-netns"},
}


def needing(name):
    """Returns a scenario as a parameter, with the kernel features that it needs."""
    return pytest.param(name, marks=pytest.mark.needs("nft_nat") if "nftables" in name else ())


@pytest.fixture(params=map(needing, SCENARIOS))
def expected(request):
    """One scenario: a configuration and the golden state for it."""
    return golden.scenario(request.param)


def scenarios_network(host, store, expected, **how):
    """Returns a scenario's network on a host, by default with podwire's plugins."""
    config = dict(expected["config"])
    if "ipam" in config:
        config["ipam"] = {**config["ipam"], "dataDir": str(store)}
    return Network(host, config, **how)


@pytest.fixture
def network(bin_dir, host, store, expected):
    """The scenario's network on a host, with podwire's plugins."""
    return scenarios_network(host, store, expected)


def assert_links_equal(actual, golden_state, kind=""):
    """Compares the attributes of links that both kernels and both versions of ip report; `kind` is that of eth0."""
    assert actual.keys() == golden_state.keys()
    for name, attributes in golden_state.items():
        common = attributes.keys() & actual[name].keys()
        required = REQUIRED_ATTRIBUTES[name if name == "lo" or not kind else kind]
        required = required | REQUIRED_ATTRIBUTES["port of a bridge"] if "bridge_slave" in attributes else set()
        assert required <= common, f"{name}: {sorted(required - common)} missing"
        assert {key: actual[name][key] for key in common} == {key: attributes[key] for key in common}, name
        assert ("qlen" in actual[name]) == ("qlen" in attributes), name  # a queue length of 0 is not shown


def with_nodad(addresses):
    """Returns the reference plugins' addresses of the host with podwire's flag `nodad` on IPv6 gateways.

    docs/bridge.md describes that difference; all other flags are compared.
    """
    on_bridge = [f"{line} nodad" if line.startswith("inet6 fd") else line for line in addresses.get("cni0", [])]
    return addresses | ({"cni0": on_bridge} if on_bridge else {})


def await_states(namespace, links):
    """Waits until all links have the state that they have in `links`: the kernel updates it in the background."""
    expected = {name: link["state"] for name, link in links.items()}
    eventually(lambda: {name: link["state"] for name, link in golden.of(namespace)["links"].items()} == expected)


def files(directory: Path):
    """Returns host-local's files: mode and content by name."""
    existing = directory.iterdir() if directory.is_dir() else ()
    return {file.name: [f"{stat.S_IMODE(file.stat().st_mode):o}", file.read_bytes().decode()] for file in existing}


def assert_attached(network, sandbox, expected, store, host_addresses=lambda addresses: addresses):
    """Attaches the sandbox, and compares all but rules with the golden state; the host's addresses may differ."""
    result = network.add(sandbox, container_id=golden.CONTAINER_ID)
    assert golden.result(result) == expected["result"]
    for namespace, side in ((network.host, "host"), (sandbox, "pod")):
        await_states(namespace, expected[side]["links"])
        actual, addresses = golden.of(namespace), expected[side]["addresses"]
        assert_links_equal(actual["links"], expected[side]["links"])
        assert actual["addresses"] == (host_addresses(addresses) if side == "host" else addresses)
        assert actual["routes"] == expected[side]["routes"]
    assert files(store / "goldnet") == expected["store"]
    return result


def test_state_equals_the_reference_plugins(network, sandbox, expected, store):
    """Result, links with all attributes, addresses, routes, sysctls and leases equal the reference plugins'."""
    assert_attached(network, sandbox, expected, store, with_nodad)
    assert {key: network.host.sysctl(key) for key in expected["sysctl"]} == expected["sysctl"]
    network.delete(sandbox, container_id=golden.CONTAINER_ID)
    assert files(store / "goldnet") == expected["store after DEL"]
    assert golden.of(sandbox)["links"].keys() == {"lo"}
    assert golden.of(network.host)["links"].keys() == {"lo", "cni0"} & expected["host"]["links"].keys()


@pytest.mark.parametrize(("net", "name"), SINGLE_LINK, indirect=["net"])
def test_state_of_a_single_link_equals_the_reference_plugins(net, sandbox, store, name):
    """Result, links, addresses, routes and reservations equal the reference plugin's, after ADD and after DEL."""
    expected = golden.scenario(name)
    config = expected["config"]
    if config["type"] == "host-device":
        net.host.ip("link", "set", PEER, "down")
        net.host.ip("link", "set", config["device"], "mtu", "1500")
    net = net.having(**{**config, "ipam": {**config["ipam"], "dataDir": str(store)} if "ipam" in config else None})
    before = golden.of(net.host)["links"]
    result = net.add(sandbox, container_id=golden.CONTAINER_ID)
    await_states(sandbox, expected["pod"]["links"])
    assert golden.result(result) == expected["result"]
    actual = golden.of(sandbox)
    assert_links_equal(actual["links"], expected["pod"]["links"], config["type"])
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
