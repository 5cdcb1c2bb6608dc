"""The golden states, compared with those that Debian's newest reference plugins create.

`make test-newest-reference` runs these tests; tests/data/golden/README.md describes the source of the files.
"""

import pytest

from tests.netns.test_golden import SCENARIOS, assert_attached, files, needing, scenarios_network
from tests.support import golden, xtables
from tests.support.firewall_tables import Firewall
from tests.support.hostports import PortmapNetwork

pytestmark = pytest.mark.newest_reference

# Version 1.9.1 ignores masqAll with nftables; the golden state is of a later commit.
WITH_MASQ_ALL = [
    '\t\tip saddr 10.22.0.2 ip daddr 10.22.0.2 masquerade comment "0123abcdef"',
    '\t\tip saddr 127.0.0.1 ip daddr 10.22.0.2 masquerade comment "0123abcdef"',
]


@pytest.mark.parametrize("name", [*map(needing, SCENARIOS)])
def test_interface_and_leases(reference, host, sandbox, store, name):
    """Result, links, addresses, routes, rules and leases equal the golden state, after ADD and after DEL."""
    expected = golden.scenario(name)
    network = scenarios_network(host, store, expected, path=str(reference), bin_dir=reference)
    result = assert_attached(network, sandbox, expected, store)
    if "nft" in expected:
        assert golden.ruleset(host) == expected["nft"]
    outcome = network.run("DEL", sandbox, prev_result=result, container_id=golden.CONTAINER_ID)
    if "masq-nftables" in name:
        # Debian's 1.9.1 also deletes rules of iptables, and does not recognize that iptables 1.8.9 has none.
        assert (outcome.status == 0) or "does not exist" in outcome.error()["msg"]
    else:
        outcome.assert_silent()
    assert files(store / "goldnet") == expected["store after DEL"]
    if "nft" in expected:
        assert golden.ruleset(host) == expected["nft after DEL"]


@pytest.mark.parametrize("name", [*map(needing, golden.scenarios("portmap-nftables"))])
def test_host_ports_of_nftables(reference, host, name):
    """The ruleset equals the golden state, after ADD and after DEL."""
    expected = golden.scenario(name)
    network = PortmapNetwork(host, expected["config"], bin_dir=reference)
    network.add(golden.CONTAINER_ID)
    rules = golden.ruleset(host)
    if "masqall" in name:
        assert [line for line in rules if line in WITH_MASQ_ALL] == WITH_MASQ_ALL
        any_source = WITH_MASQ_ALL[0].replace("saddr 10.22.0.2", "saddr 0.0.0.0/0")
        rules = [any_source if line == WITH_MASQ_ALL[0] else line for line in rules if line != WITH_MASQ_ALL[1]]
    assert rules == expected["nft"]
    network.delete(golden.CONTAINER_ID)
    assert golden.ruleset(host) == expected["nft after DEL"]


@pytest.mark.parametrize("name", [*golden.scenarios("portmap-iptables"), *golden.scenarios("firewall-")])
def test_rules_of_iptables(reference, bridged, tools, name):
    """Result and tables equal the golden state, after ADD and after DEL."""
    expected = golden.scenario(name)
    kind = PortmapNetwork if expected["config"]["type"] == "portmap" else Firewall
    network = kind(bridged, expected["config"], bin_dir=reference, tools=tools)
    assert network.add(golden.CONTAINER_ID) == expected["result"]
    assert network.rules() == {tool: expected[tool] for tool in xtables.TOOLS}
    network.delete(golden.CONTAINER_ID)
    assert network.rules() == {tool: expected[f"{tool} after DEL"] for tool in xtables.TOOLS}
