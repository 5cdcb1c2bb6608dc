"""The rules that portmap makes with iptables, compared with those that the reference made.

tests/data/golden/README.md tells where the files come from.
"""

import pytest

from tests.support import golden
from tests.support.golden import CONTAINER_ID
from tests.support.hostports import PortmapNetwork
from tests.support.xtables import TOOLS


@pytest.mark.parametrize("file", golden.scenarios("portmap-iptables"))
def test_the_rules_are_the_references(host, bin_dir, tools, file):
    """Chains, rules, their order and comments equal the reference's after ADD, which CHECK accepts, and after DEL."""
    expected = golden.scenario(file)
    net = PortmapNetwork(host, expected["config"], tools=tools)
    assert net.add(CONTAINER_ID) == expected["result"]
    assert net.rules() == {tool: expected[tool] for tool in TOOLS}
    net.check(CONTAINER_ID)
    net.delete(CONTAINER_ID)
    assert net.rules() == {tool: expected[f"{tool} after DEL"] for tool in TOOLS}
