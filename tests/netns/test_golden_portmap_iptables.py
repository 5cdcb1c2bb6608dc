"""The iptables rules of portmap, compared with those of the reference plugin.

tests/data/golden/README.md describes the origin of the files.
"""

import pytest

from tests.support import golden
from tests.support.golden import CONTAINER_ID
from tests.support.hostports import PortmapNetwork
from tests.support.xtables import TOOLS


@pytest.mark.parametrize("file", golden.scenarios("portmap-iptables"))
def test_rules_equal_those_of_the_reference_plugin(host, bin_dir, tools, file):
    """Chains, rules, order and comments equal those of the reference plugin after ADD and DEL, and CHECK succeeds."""
    expected = golden.scenario(file)
    net = PortmapNetwork(host, expected["config"], tools=tools)
    assert net.add(CONTAINER_ID) == expected["result"]
    assert net.rules() == {tool: expected[tool] for tool in TOOLS}
    net.check(CONTAINER_ID)
    net.delete(CONTAINER_ID)
    assert net.rules() == {tool: expected[f"{tool} after DEL"] for tool in TOOLS}
