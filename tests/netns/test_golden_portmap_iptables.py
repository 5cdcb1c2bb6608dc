"""The rules that portmap makes with iptables, compared with those that the reference made.

tests/data/golden/README.md tells where the files come from.
"""

import json

import pytest

from tests.support import hostports
from tests.support.binaries import ROOT
from tests.support.hostports import HostPorts
from tests.support.running import run_plugin

FILES = sorted((ROOT / "tests" / "data" / "golden").glob("portmap-iptables*.json"))
NFT = pytest.param("nft", marks=pytest.mark.needs("iptables_nft_nat"))
LEGACY = pytest.param("legacy", marks=pytest.mark.needs("iptables_legacy_nat"))


@pytest.mark.parametrize("variant", [NFT, LEGACY])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_rules_are_the_references(host, bin_dir, tmp_path, file, variant):
    """Chains, rules, their order and comments equal the reference's after ADD, which CHECK accepts, and after DEL."""
    golden = json.loads(file.read_text())
    net = HostPorts(host, bin_dir, hostports.variant(tmp_path / variant, variant), golden["config"])
    how = {"container_id": "0123abcdef", "netns": "/var/run/netns/golden", "host": host}
    how |= {"env": {"PATH": f"{net.tools}:{hostports.SYSTEM_PATH}"}}
    assert run_plugin("portmap", "ADD", golden["config"], **how).result() == golden["result"]
    assert net.rules() == {tool: golden[tool] for tool in hostports.TOOLS}
    run_plugin("portmap", "CHECK", golden["config"], **how).silence()
    run_plugin("portmap", "DEL", golden["config"], **how).silence()
    assert net.rules() == {tool: golden[f"{tool} after DEL"] for tool in hostports.TOOLS}
