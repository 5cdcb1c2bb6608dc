"""The rules that masquerading creates and deletes (attachment.masquerade.iptables), in tables of the test."""

from collections.abc import Callable
from ipaddress import ip_interface, ip_network

import pytest

from attachment.masquerade import iptables
from attachment.masquerade.spec import Masquerade
from kernel.netfilter import iptables as netfilter_iptables
from kernel.netfilter.iptables_program import RefusedError
from kernel.netfilter.iptables_rule import IptablesChange
from tests.support.errors import error_of
from tests.support.iptables_table import Table

CHAIN = "CNI-f42161b9e0c33131294cdfd7"
COMMENT = r'-m comment --comment "name: \"goldnet\" id: \"0123abcdef\""'


class Tables:
    """The table nat of both families."""

    def __init__(self):
        self.nat = {family: Table("POSTROUTING") for family in (4, 6)}
        self.chains = {family: table.chains for family, table in self.nat.items()}
        self.applied: list[IptablesChange] = []
        # Actions of other programs, each run once before lines are applied.
        self.interruptions: list[Callable[[], None]] = []

    def get_missing_chains(self, families, table, chains):
        assert table == "nat"
        return {family: {chain for chain in chains if chain not in self.chains[family]} for family in families}

    def get_legacy_families(self, table):
        return [4, 6]

    def read(self, families, table, chains=(), *, legacy=False):
        return {family: self.nat[family].listing(*chains) for family in families}

    def apply(self, changes, table, description, *, legacy=False):
        if self.interruptions:
            self.interruptions.pop()()
        for family, items in changes.items():
            self.applied += items
            self.nat[family].apply(items)

    def rules(self, chain=CHAIN, family=4):
        """Returns the rules of a chain without their common comment, None for a missing chain."""
        chain_rules = self.chains[family].get(chain)
        return chain_rules and [rule.replace(f"{COMMENT} ", "") for rule in chain_rules]


@pytest.fixture
def tables(monkeypatch):
    """Empty tables that replace the kernel's."""
    empty = Tables()
    for name in ("get_missing_chains", "read", "apply", "get_legacy_families"):
        monkeypatch.setattr(netfilter_iptables, name, getattr(empty, name))
    return empty


def pod(*addresses, exempt=(), container_id="0123abcdef", ifname="eth0", network="goldnet", cluster=False):
    networks = tuple(ip_network(item) for item in exempt)
    return Masquerade(network, container_id, ifname, tuple(map(ip_interface, addresses)), networks, cluster)


def test_exempt_networks_precede_the_masquerading(tables):
    """Each exempt network of the pod's families has one rule; all traffic can be exempt."""
    iptables.add(pod("10.22.0.2/16", "10.22.0.3/16", exempt=("10.0.0.0/8", "fd00::/8", "10.22.0.0/16", "0.0.0.0/0")))
    assert tables.rules() == [
        "-d 10.22.0.0/16 -j ACCEPT",
        "-d 10.0.0.0/8 -j ACCEPT",
        "-j ACCEPT",
        "! -d 224.0.0.0/4 -j MASQUERADE",
    ]
    assert tables.rules("POSTROUTING") == [f"-s 10.22.0.2/32 -j {CHAIN}", f"-s 10.22.0.3/32 -j {CHAIN}"]
    assert tables.rules(family=6) is None


@pytest.mark.parametrize("exempt", [(), ("10.0.0.0/8", "0.0.0.0/0")])
def test_existing_rules_are_not_written_again(tables, exempt):
    """A second ADD with the same addresses applies nothing."""
    spec = pod("10.22.0.2/16", "fd00:22::2/64", exempt=exempt)
    iptables.add(spec)
    tables.applied.clear()
    iptables.add(spec)
    assert tables.applied == []
    iptables.check(spec)


def test_a_second_interface_shares_the_chain(tables):
    """A second interface's subnet precedes the masquerading, and its jump follows the first interface's."""
    iptables.add(pod("10.22.0.2/16"))
    iptables.add(pod("10.23.0.2/16", exempt=("10.0.0.0/8",), ifname="eth1"))
    assert tables.rules() == [
        "-d 10.23.0.0/16 -j ACCEPT",
        "-d 10.0.0.0/8 -j ACCEPT",
        "-d 10.22.0.0/16 -j ACCEPT",
        "! -d 224.0.0.0/4 -j MASQUERADE",
    ]
    assert tables.rules("POSTROUTING") == [f"-s 10.22.0.2/32 -j {CHAIN}", f"-s 10.23.0.2/32 -j {CHAIN}"]


def test_deletion_keeps_rules_of_other_programs(tables):
    """DEL deletes chain and jumps in both families and keeps other rules; a second DEL changes nothing."""
    foreign = ["-j KUBE-POSTROUTING", f"-s 10.22.0.2/32 {COMMENT} -j CNI-{'0' * 24}", '-m comment --comment "-j " -j X']
    for family in (4, 6):
        tables.chains[family]["POSTROUTING"] += foreign
    spec = pod("10.22.0.2/16", "fd00:22::2/64")
    iptables.add(spec)
    iptables.delete_legacy(pod())
    assert tables.chains == {family: {"POSTROUTING": foreign} for family in (4, 6)}
    tables.applied.clear()
    iptables.delete_legacy(spec)
    assert tables.applied == []


def test_jumps_of_old_reference_plugins_are_deleted(tables):
    """DEL deletes a jump that names the subnet (before 0.7), unless another interface in the subnet needs it."""
    spec = pod("10.22.0.2/16")
    iptables.add(spec)
    tables.chains[4]["POSTROUTING"] = [f"-s 10.22.0.0/16 {COMMENT} -j {CHAIN}"]
    iptables.delete_legacy(spec, other_addresses=[ip_interface("10.22.0.3/16")])
    assert tables.rules("POSTROUTING") == [f"-s 10.22.0.0/16 -j {CHAIN}"]
    iptables.delete_legacy(spec, other_addresses=[ip_interface("10.23.0.3/16")])
    assert tables.chains[4] == {"POSTROUTING": []}


def test_a_refused_change_is_retried(tables):
    """A change that is refused after a parallel DEL is computed again; a permanent refusal is an error."""
    spec = pod("10.22.0.2/16")
    iptables.add(spec)

    def delete_everything():
        tables.chains[4].clear()
        tables.chains[4]["POSTROUTING"] = []

    tables.interruptions.append(delete_everything)
    tables.applied.clear()
    iptables.delete_legacy(spec)
    assert tables.chains[4] == {"POSTROUTING": []}
    tables.interruptions.extend([refuse] * 12)
    assert error_of(lambda: iptables.add(spec), RefusedError) is not None
    assert len(tables.interruptions) == 2


def refuse():
    raise RefusedError(999, "refused")
