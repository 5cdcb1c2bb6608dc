"""The repair of the packet filter of network policies, when another program has changed its table."""

import re

import pytest

from agent.policy.filter_table import SetChange, Verdict
from tests.support.policy_tables import ADDRESSES, SAMPLE, content

pytestmark = pytest.mark.needs("nft_inet")

A, PEER = ADDRESSES[4][0], ADDRESSES[4][3]
FOREIGN = {
    "base chain flushed": "flush chain T egress",
    "rule appended to a base chain": "add rule T ingress accept",
    "rule before a base chain": "insert rule T ingress accept",
    "table deleted": "delete table T",
    "ruleset flushed": "flush ruleset",
    "verdict deleted": "delete element T egress4 { 10.0.0.1 }",
    "verdict of another pod": "add element T ingress6 { fd::2 : goto i-1 }",
    "verdict changed": "delete element T egress4 { 10.0.0.1 }; add element T egress4 { 10.0.0.1 : goto i-1 }",
    "verdict accept": "delete element T egress4 { 10.0.0.1 }; add element T egress4 { 10.0.0.1 : accept }",
    "pod with itself deleted": "delete element T self4 { 10.0.0.1 . 10.0.0.1 }",
    "peer deleted": "delete element T s4-1 { 10.0.0.4 }",
    "peer added": "add element T s6-1 { fd::9 }",
    "peer with a comment": 'delete element T s4-1 { 10.0.0.4 }; add element T s4-1 { 10.0.0.9 comment "mine" }',
    "set flushed": "flush set T p4-1",
    "port of a peer added": "add element T p6-1 { fd::1 . 1 }",
    "block deleted": "delete element T b4-1 { 11.0.0.0-255.255.255.255 }",
    "block added": "add element T b4-1 { 10.0.0.0-10.0.0.9 }",
    "ports added": "add element T t-1 { 6-79 }",
    "chain flushed": "flush chain T i-1",
    "rule inserted": "insert rule T e-1 tcp dport { 1, 2 } accept",
    "rule without counter": "flush chain T e-1; add rule T e-1 drop",
    "chain that a rule uses": "add chain T x; add chain T y; add rule T x jump y; add rule T egress jump x",
    "base chain added": "add chain T x { type filter hook input priority 0; }",
    "set added": "add set T x { type inet_service; }; add element T x { 7 }",
    "map to a chain": "add map T x { type inet_service : verdict; }; add element T x { 7 : goto i-1 }",
    "counter added": "add counter T x",
    "base chain with another priority": "delete table T; add table T;"
    "add chain T egress { type filter hook forward priority 5; }",
    "base chain that drops": "add chain T egress { type filter hook forward priority -10; policy drop; }",
    "set of another type": "delete table T; add table T; add set T s4-1 { type ipv6_addr; }",
    "map that is a set": "delete table T; add table T; add set T egress4 { type ipv4_addr; }",
}


def run_nft(host, command):
    """Runs `nft` with a command in which T stands for the table."""
    host.run("nft", re.sub(r"\bT\b", "inet podwire_policy", command))


@pytest.mark.parametrize("command", FOREIGN.values(), ids=FOREIGN)
def test_foreign_changes_are_repaired(host, host_filter, command):
    """A comparison finds and repairs what another program changed in the table, and finds nothing afterwards."""
    host_filter.apply(SAMPLE)
    before = content(host)
    run_nft(host, command)
    assert content(host) != before
    assert host_filter.repair(SAMPLE)
    assert content(host) == before
    assert not host_filter.repair(SAMPLE)


def test_a_repair_keeps_the_numbers_of_drops(host, host_filter):
    """A table that is replaced because another program changed it still says what its chains have dropped."""
    host_filter.apply(SAMPLE)
    run_nft(host, "flush chain T i-1; delete counter T d-i-1; add counter T d-x")
    run_nft(host, "add counter T d-i-1 { packets 70000000000 bytes 9; }")
    assert host_filter.repair(SAMPLE)
    assert host_filter.list_drops() == {"e-1": 0, "i-1": 70_000_000_000}


@pytest.mark.parametrize("name", ["table deleted", "peer deleted", "set of another type", "verdict changed"])
def test_a_refused_change_repairs_the_table(host, host_filter, name):
    """A change that the kernel refuses, because another program changed the table, is made with its repair."""
    addresses = set(SAMPLE.sets["s4-1"])
    table = SAMPLE._replace(sets={**SAMPLE.sets, "s4-1": addresses})
    host_filter.apply(table)
    run_nft(host, FOREIGN[name])
    addresses.remove(PEER)
    changes = {"s4-1": SetChange((), (PEER,))}
    host_filter.apply(table._replace(verdicts={A: Verdict("e-1", "")}), changes)
    after = content(host)
    host_filter.delete()
    host_filter.apply(table._replace(verdicts={A: Verdict("e-1", "")}))
    assert content(host) == after


@pytest.mark.parametrize("name", ["ruleset flushed", "table deleted", "base chain flushed", "rule before a base chain"])
def test_a_missing_table_is_seen_at_once(host, host_filter, name):
    """The short look at the base chains, which an agent can repeat each second, sees whether they are complete."""
    assert not host_filter.is_complete()
    host_filter.apply(SAMPLE)
    assert host_filter.is_complete()
    run_nft(host, FOREIGN[name])
    assert not host_filter.is_complete()
    host_filter.repair(SAMPLE)
    assert host_filter.is_complete()
