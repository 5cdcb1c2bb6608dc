"""bridge's nftables rules of an attachment, of macspoofchk and of ipMasq: parallel pods, DEL, GC, CHECK, rollback."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.support.attaching import Network
from tests.support.invocation import finish
from tests.support.netstate import nft_rules


class Ruled(NamedTuple):
    """A network with rules; `counts` has texts and how often each is in the rules of eight pods; `chain` is shared."""

    network: Network
    counts: dict[str, int]
    chain: str


@pytest.fixture(params=["macspoofchk", pytest.param("ipMasq", marks=pytest.mark.needs("nft_nat"))])
def ruled(request, dual_network):
    """A dual-stack network with GC and one kind of rules."""
    net = dual_network.having(cniVersion="1.1.0")
    if request.param == "macspoofchk":
        keys: dict[str, Any] = {"macspoofchk": True}
        return Ruled(net.having(**keys), {"iifname": 8, "drop comment": 8}, "bridge nat PREROUTING")
    keys = {"ipMasq": True, "ipMasqBackend": "nftables"}
    counts = {"net: net, if: eth0": 16, "goto masq_checks": 1}
    return Ruled(net.having(**keys), counts, "inet cni_plugins_masquerade masq_checks")


def rules(net):
    """Returns the rules on the network's host as one text."""
    return "\n".join(nft_rules(net.host))


def test_parallel_first_pods(ruled, new_sandbox):
    """Eight parallel first pods all have their rules, which they share once, and parallel DELs leave nothing."""
    pods = [new_sandbox() for _ in range(8)]
    for outcome in [finish(process) for process in [ruled.network.start("ADD", pod) for pod in pods]]:
        outcome.result()
    text = rules(ruled.network)
    assert {part: text.count(part) for part in ruled.counts} == ruled.counts
    for outcome in [finish(process) for process in [ruled.network.start("DEL", pod) for pod in pods]]:
        outcome.assert_silent()
    assert not any(pod.name in rules(ruled.network) for pod in pods)


def test_del_without_a_namespace_removes_the_rules(ruled, new_sandbox):
    """DEL removes the rules if the namespace is missing, and if CNI_NETNS is empty."""
    net, deleted, unnamed = ruled.network, new_sandbox(), new_sandbox()
    net.add(deleted)
    net.add(unnamed)
    deleted.delete()
    net.delete(deleted)
    assert [pod.name in rules(net) for pod in (deleted, unnamed)] == [False, True]
    net.delete("", container_id=unnamed.name)
    assert unnamed.name not in rules(net)


def test_gc_removes_rules_of_one_network(ruled, new_sandbox):
    """GC removes the rules of pods that are not in its list, only of this network."""
    net, kept, stale, elsewhere = ruled.network, new_sandbox(), new_sandbox(), new_sandbox()
    result = net.add(kept)
    net.add(stale)
    net.having(name="elsewhere", bridge="cni1").add(elsewhere)
    net.gc(kept)
    assert [pod.name in rules(net) for pod in (kept, stale, elsewhere)] == [True, False, True]
    net.check(kept, result)


def test_check_reports_missing_rules(ruled, host, sandbox):
    """CHECK fails if the rules are missing."""
    result = ruled.network.add(sandbox)
    ruled.network.check(sandbox, result)
    host.run("nft", "flush", "chain", *ruled.chain.split())
    assert "is missing" in ruled.network.run("CHECK", sandbox, prev_result=result).error()["msg"]
