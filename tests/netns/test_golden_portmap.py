"""The rules of portmap, compared with those of the reference plugin, and changes of its rules of nftables.

tests/data/golden/README.md describes the origin of the files.
"""

import json
import re

import pytest

from tests.support import golden
from tests.support.golden import CONTAINER_ID, ruleset
from tests.support.hostports import PortmapNetwork
from tests.support.xtables import TOOLS

CONDITION = "ip daddr != 192.0.2.9 "
BASE_CHAIN_RULE = "\t\tfib daddr type local jump hostports_all"
HAIRPIN = re.compile(r"(ip6?) saddr (\S+) ip6? daddr (\S+) meta mark & 0x00002000 == 0x00002000 masquerade")


NFTABLES = [pytest.param(name, marks=pytest.mark.needs("nft_nat")) for name in golden.scenarios("portmap-nftables")]


@pytest.fixture(params=NFTABLES)
def expected(request):
    """One scenario: a configuration, and the rules that the reference plugin creates for it."""
    return golden.scenario(request.param)


@pytest.fixture
def network(bin_dir, host, expected):
    """The scenario's network on the test's host."""
    return PortmapNetwork(host, expected["config"])


@pytest.fixture
def load(host, tmp_path):
    """A function that loads a ruleset of the reference plugin."""

    def load_rules(lines):
        file = tmp_path / "rules"
        file.write_text("\n".join(lines) + "\n")
        host.run("nft", "-f", str(file))

    return load_rules


def as_reference_plugin(lines, config):
    """Returns podwire's ruleset with the documented differences from the reference plugin removed."""
    assert any(" meta mark set " in line for line in lines) == (config.get("snat", True) and not config.get("masqAll"))
    converted = [HAIRPIN.sub(r"\1 saddr \3 \1 daddr \3 masquerade", line) for line in lines]
    converted = [line for line in converted if " meta mark set " not in line]
    if "conditionsV4" in config:
        assert sum(f"{CONDITION}{protocol} dport" in line for line in converted for protocol in ("tcp", "udp")) == 3
        converted = [line.replace(CONDITION, "") if " dport " in line else line for line in converted]
        converted = [line.replace("fib", f"{CONDITION}fib") if line == BASE_CHAIN_RULE else line for line in converted]
    return converted


def unconditional(lines):
    """Returns a ruleset of the reference plugin without conditions in the base chains."""
    return [BASE_CHAIN_RULE if line.endswith(BASE_CHAIN_RULE.strip()) else line for line in lines]


@pytest.mark.parametrize("file", golden.scenarios("portmap-iptables"))
def test_rules_of_iptables_equal_those_of_the_reference_plugin(host, bin_dir, tools, file):
    """Chains, rules, order and comments equal those of the reference plugin after ADD and DEL, and CHECK succeeds."""
    scenario = golden.scenario(file)
    net = PortmapNetwork(host, scenario["config"], tools=tools)
    assert net.add(CONTAINER_ID) == scenario["result"]
    assert net.rules() == {tool: scenario[tool] for tool in TOOLS}
    net.check(CONTAINER_ID)
    net.delete(CONTAINER_ID)
    assert net.rules() == {tool: scenario[f"{tool} after DEL"] for tool in TOOLS}


@pytest.mark.parametrize("is_replaced", [False, True], ids=["new", "replaced"])
def test_rulesets_equal_those_of_the_reference_plugin(network, expected, load, is_replaced):
    """After ADD, also in place of its rules, the ruleset is the reference's but for conditions and hairpin."""
    if is_replaced:
        load(expected["nft"])
    network.add(CONTAINER_ID)
    assert as_reference_plugin(ruleset(network.host), network.config) == expected["nft"]
    network.check(CONTAINER_ID)
    network.delete(CONTAINER_ID)
    after = expected["nft after DEL"]
    assert ruleset(network.host) == (after if is_replaced else unconditional(after))


@pytest.mark.parametrize("has_result", [True, False])
def test_check_and_del_of_rules_of_the_reference_plugin(network, expected, load, has_result):
    """CHECK accepts these rules; DEL, repeated or without prevResult, leaves what the reference plugin's DEL leaves."""
    load(expected["nft"])
    assert ruleset(network.host) == expected["nft"]
    network.check(CONTAINER_ID)
    for _ in range(2):
        (network if has_result else network.without_result()).delete(CONTAINER_ID)
        assert ruleset(network.host) == expected["nft after DEL"]


def test_del_of_the_reference_plugin_removes_rules_of_podwire(network, expected):
    """Deleting rules by comment in three chains, as DEL of the reference plugin does, leaves only shared chains."""
    network.add(CONTAINER_ID)
    for family in ("ip", "ip6"):
        for name in ("hostports", "hostip_hostports", "masquerading"):
            text = network.host.run("nft", "-j", "-a", "list", "chain", family, "cni_hostport", name, check=False)
            for item in json.loads(text or '{"nftables": []}')["nftables"]:
                if item.get("rule", {}).get("comment") == CONTAINER_ID:
                    handle = str(item["rule"]["handle"])
                    network.host.run("nft", "delete", "rule", family, "cni_hostport", name, "handle", handle)
    assert ruleset(network.host) == unconditional(expected["nft after DEL"])
