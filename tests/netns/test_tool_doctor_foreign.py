"""`podwire doctor` raises no false alarm beside other programs' rules and routes; tests/data/foreign has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.binaries import ROOT
from tests.support.fault_node import describe, fault_node

FIXTURES = sorted((ROOT / "tests" / "data" / "foreign").glob("*.sh"))
NEEDS = {"firewalld.sh": ("nft_inet",), "netavark.sh": ("nft_inet", "nft_nat"), "kube-proxy-nftables.sh": ("nft_inet",)}
# Notes that are true on such a node.
NOTES = {"ufw.sh": {"node-closed"}}
RESTORED = "nft flush ruleset; ip route add blackhole 10.44.0.2/32"


def marked() -> list[object]:
    return [pytest.param(one, marks=pytest.mark.needs(*NEEDS.get(one.name, ())), id=one.stem) for one in FIXTURES]


@pytest.mark.needs("iptables_nft_nat")
@pytest.mark.parametrize("path", marked())
def test_node_of_another_program_is_in_order(tmp_path: Path, bin_dir: Path, root: None, path: Path) -> None:
    """Beside another program's rules the node is in order, and a DROP rule for the pods is still found."""
    with fault_node(tmp_path) as node:
        node.inject(path.read_text().replace("{", "{{").replace("}", "}}"))
        findings = node.list_findings()
        assert {one["name"] for one in findings} == NOTES.get(path.name, set()), describe(findings)
        node.inject("iptables -t raw -I PREROUTING -i {gate} -j DROP")
        assert node.list_findings()[0]["name"] == "rule-drops"
