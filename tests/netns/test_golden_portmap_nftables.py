"""Host ports by nftables, compared with what the reference left behind, and taken over from it.

tests/data/golden/README.md tells where the files come from.
"""

import json
import re

import pytest

from tests.support import golden
from tests.support.golden import CONTAINER_ID, ruleset
from tests.support.hostports import PortmapNetwork

pytestmark = pytest.mark.needs("nft_nat")

CONDITION = "ip daddr != 192.0.2.9 "
ENTRY = "\t\tfib daddr type local jump hostports_all"
HAIRPIN = re.compile(r"(ip6?) saddr (\S+) ip6? daddr (\S+) meta mark & 0x00002000 == 0x00002000 masquerade")


@pytest.fixture(params=golden.scenarios("portmap-nftables"))
def expected(request):
    """One scenario: configuration and what the reference made of it."""
    return golden.scenario(request.param)


@pytest.fixture
def network(bin_dir, host, expected):
    """The scenario's network on our host."""
    return PortmapNetwork(host, expected["config"])


@pytest.fixture
def load(host, tmp_path):
    """A function that makes a rule set as the reference left it."""

    def loaded(lines):
        file = tmp_path / "rules"
        file.write_text("\n".join(lines) + "\n")
        host.run("nft", "-f", str(file))

    return loaded


def without_ours(lines, config):
    """Returns our rule set as the reference would have it: what differs is taken back, and nothing else."""
    assert any(" meta mark set " in line for line in lines) == (config.get("snat", True) and not config.get("masqAll"))
    found = [HAIRPIN.sub(r"\1 saddr \3 \1 daddr \3 masquerade", line) for line in lines]
    found = [line for line in found if " meta mark set " not in line]
    if "conditionsV4" in config:
        assert sum(f"{CONDITION}{protocol} dport" in line for line in found for protocol in ("tcp", "udp")) == 3
        found = [line.replace(CONDITION, "") if " dport " in line else line for line in found]
        found = [line.replace("fib", f"{CONDITION}fib") if line == ENTRY else line for line in found]
    return found


def unconditional(lines):
    """Returns a rule set of the reference with base chains that lead on whatever comes."""
    return [ENTRY if line.endswith(ENTRY.strip()) else line for line in lines]


def test_add_and_del_leave_what_the_reference_left(network, expected):
    """What ADD leaves is the reference's, but for conditions and hairpin, and what DEL leaves is."""
    network.add(CONTAINER_ID)
    assert without_ours(ruleset(network.host), network.config) == expected["nft"]
    network.check(CONTAINER_ID)
    network.delete(CONTAINER_ID)
    assert ruleset(network.host) == unconditional(expected["nft after DEL"])


def test_what_the_reference_made_is_checked_and_removed(network, expected, load):
    """CHECK accepts the reference's rules, and DEL leaves what its DEL leaves, a second time, too."""
    load(expected["nft"])
    assert ruleset(network.host) == expected["nft"]
    network.check(CONTAINER_ID)
    for _ in range(2):
        network.delete(CONTAINER_ID)
        assert ruleset(network.host) == expected["nft after DEL"]


def test_what_the_reference_made_is_removed_by_its_name_alone(network, expected, load):
    """DEL without prevResult and without ports removes the reference's rules."""
    load(expected["nft"])
    network.without_result().delete(CONTAINER_ID)
    assert ruleset(network.host) == expected["nft after DEL"]


def test_what_the_reference_made_is_replaced(network, expected, load):
    """A repeated ADD replaces the reference's rules by ours; base chains with the network's own conditions stay."""
    load(expected["nft"])
    network.add(CONTAINER_ID)
    assert without_ours(ruleset(network.host), network.config) == expected["nft"]
    network.check(CONTAINER_ID)
    network.delete(CONTAINER_ID)
    assert ruleset(network.host) == expected["nft after DEL"]


def test_the_reference_removes_what_we_made(network, expected):
    """What the reference's DEL does, delete rules by their comment in three chains, leaves the shared chains only."""
    network.add(CONTAINER_ID)
    for family in ("ip", "ip6"):
        for name in ("hostports", "hostip_hostports", "masquerading"):
            text = network.host.run("nft", "-j", "-a", "list", "chain", family, "cni_hostport", name, check=False)
            for item in json.loads(text or '{"nftables": []}')["nftables"]:
                if item.get("rule", {}).get("comment") == CONTAINER_ID:
                    handle = str(item["rule"]["handle"])
                    network.host.run("nft", "delete", "rule", family, "cni_hostport", name, "handle", handle)
    assert ruleset(network.host) == unconditional(expected["nft after DEL"])
