"""The state that bridge and ptp, with their IPAM, leave behind, compared with what the reference plugins left behind.

tests/data/golden/README.md tells where the files come from.
"""

import stat
import time
from pathlib import Path

import pytest

from tests.support import golden
from tests.support.attaching import Network

SCENARIOS = [name for name in golden.scenarios() if golden.scenario(name)["config"]["type"] in ("bridge", "ptp")]

# Attributes that must be in both, whatever the kernel and the version of ip: a comparison of nothing proves nothing.
SEEN = {
    "lo": {"mtu"},
    "cni0": {
        "flags",
        "mtu",
        "qlen",
        "qdisc",
        "state",
        "bridge",
        "stp_state",
        "vlan_filtering",
        "ageing_time",
        "promiscuity",
    },
    "PORT@if": {"flags", "mtu", "state"},
    "port of a bridge": {"master", "port state", "hairpin", "isolated", "learning", "flood"},
    "eth0@if": {"flags", "mtu", "qlen", "qdisc", "state", "veth", "link-netns"},
}


def needing(name):
    """Returns a scenario as a parameter, with what it needs of the kernel."""
    return pytest.param(name, marks=pytest.mark.needs("nft_nat") if "nftables" in name else ())


@pytest.fixture(params=map(needing, SCENARIOS))
def expected(request):
    """One scenario: configuration and what the reference made of it."""
    return golden.scenario(request.param)


@pytest.fixture
def network(bin_dir, host, store, expected):
    """The scenario's network on our host, served by our plugins."""
    config = dict(expected["config"])
    if "ipam" in config:
        config["ipam"] = {**config["ipam"], "dataDir": str(store)}
    return Network(host, config)


def assert_links_equal(found, wanted):
    """Compares links attribute by attribute, as far as both kernels and both versions of ip know an attribute."""
    assert found.keys() == wanted.keys()
    for name, attributes in wanted.items():
        common = attributes.keys() & found[name].keys()
        seen = SEEN[name] | (SEEN["port of a bridge"] if "bridge_slave" in attributes else set())
        assert seen <= common, f"{name}: {sorted(seen - common)} missing"
        assert {key: found[name][key] for key in common} == {key: attributes[key] for key in common}, name
        assert ("qlen" in found[name]) == ("qlen" in attributes), name  # a queue length of 0 is not shown


def usable_at_once(addresses):
    """Returns the reference's addresses of the host as ours are: no duplicate address detection of an IPv6 gateway.

    That is a difference of ours (docs/bridge.md); every other flag of every address counts.
    """
    on_bridge = [f"{line} nodad" if line.startswith("inet6 fd") else line for line in addresses.get("cni0", [])]
    return addresses | ({"cni0": on_bridge} if on_bridge else {})


def await_operstate(pod):
    """Waits until the pod's end says that it is up: before Linux 6.8 the kernel gets to that in its own time."""
    deadline = time.monotonic() + 5
    while "state UNKNOWN" in pod.ip("link", "show", "eth0") and time.monotonic() < deadline:
        time.sleep(0.02)


def files(directory: Path):
    """Returns host-local's files: mode and content by name."""
    if not directory.is_dir():
        return {}
    return {
        file.name: [f"{stat.S_IMODE(file.stat().st_mode):o}", file.read_bytes().decode()]
        for file in directory.iterdir()
    }


def test_add_leaves_what_the_reference_left(network, sandbox, expected, store):
    """Result, links with all their attributes, addresses, routes, sysctls and lease files equal the reference's."""
    result = network.add(sandbox, container_id=golden.CONTAINER_ID)
    await_operstate(sandbox)
    assert golden.result(result) == expected["result"]
    for namespace, wanted in ((network.host, expected["host"]), (sandbox, expected["pod"])):
        found = golden.of(namespace)
        assert_links_equal(found["links"], wanted["links"])
        is_host = namespace is network.host
        assert found["addresses"] == (usable_at_once(wanted["addresses"]) if is_host else wanted["addresses"])
        assert found["routes"] == wanted["routes"]
    assert {key: network.host.sysctl(key) for key in expected["sysctl"]} == expected["sysctl"]
    assert files(store / "goldnet") == expected["store"]


def test_del_leaves_what_the_reference_left(network, sandbox, expected, store):
    """After DEL host-local's directory holds what the reference's held, and the sandbox only lo."""
    network.add(sandbox, container_id=golden.CONTAINER_ID)
    network.delete(sandbox, container_id=golden.CONTAINER_ID)
    assert files(store / "goldnet") == expected["store after DEL"]
    assert golden.of(sandbox)["links"].keys() == {"lo"}
    assert golden.of(network.host)["links"].keys() == {"lo", "cni0"} & expected["host"]["links"].keys()
