"""Limits that change hands between the reference and us: each CHECK and DEL takes the other's work for its own."""

from dataclasses import replace

import pytest

from tests.support import netstate
from tests.support.bandwidth_network import BOTH, EGRESS, INGRESS, connect_veth, ifbs, qdiscs, state
from tests.support.publishing import PublishingNetwork

pytestmark = pytest.mark.needs("ifb", "tbf")

PLACEHOLDER_BURSTS = {"kubelet": (1 << 31) - 1, "containerd": (1 << 32) - 1, "CRI-O": 8 * ((1 << 32) - 1) - 1}
ORDINARY = [
    BOTH,
    INGRESS,
    EGRESS,
    {"ingressRate": 1_000_000, "ingressBurst": 1_000_000, "egressRate": 12_345_678, "egressBurst": 1_234_567},
    {"ingressRate": 100_000_000_000, "ingressBurst": 10_000_000_000, "egressRate": 40 << 30, "egressBurst": 1 << 32},
]


@pytest.fixture
def before(host, sandbox):
    """The result of the plugin before; veth0 leads to the pod."""
    return connect_veth(host, sandbox)


@pytest.fixture
def both(shaped, reference):
    """The network with our bandwidth and with the reference's."""
    return shaped, shaped.with_bin_dir(reference)


@pytest.mark.parametrize("limits", ORDINARY)
def test_ordinary_limits(both, sandbox, before, limits):
    """For ordinary bursts both make the same qdiscs and results, and accept and remove each other's."""
    empty = state(both[0].host)
    made = []
    for maker, other in (both, both[::-1]):
        result = maker.with_runtime_limits(**limits).limit(sandbox, before)
        made.append((sorted(qdiscs(maker.host)), [item["name"] for item in result["interfaces"]]))
        for each in (maker, other):
            each.with_runtime_limits(**limits).check(sandbox, result)
        other.with_runtime_limits(**limits).release(sandbox, result)
        assert ifbs(maker.host) == {}
        both[0].release(sandbox)  # the reference leaves the veth's qdiscs to the plugin that removes it
        assert state(maker.host) == empty
    assert made[0] == made[1]


@pytest.mark.parametrize("burst", [*PLACEHOLDER_BURSTS.values(), 8000], ids=[*PLACEHOLDER_BURSTS, "below the MTU"])
@pytest.mark.parametrize("rate", [10_000_000, 1_000_000_000])
def test_bursts_that_no_one_means(both, sandbox, before, rate, burst):
    """What the reference makes of a runtime's invented bursts, or of one below the MTU, is accepted and removed."""
    ours, theirs = (
        net.with_runtime_limits(ingressRate=rate, ingressBurst=burst, egressRate=rate, egressBurst=burst)
        for net in both
    )
    empty = state(ours.host)
    result = theirs.limit(sandbox, before)
    ours.check(sandbox, result)
    ours.having(maxBurst=1_000_000).check(sandbox, result)
    ours.release(sandbox)
    assert state(ours.host) == empty
    ours.check(sandbox, ours.limit(sandbox, before))


def test_add_replaces_what_the_reference_made(both, sandbox, before):
    """Where the reference's limits are there already, ADD makes ours in their place, under the same name."""
    ours, theirs = both
    theirs.limit(sandbox, before)
    made = sorted(qdiscs(ours.host))
    (name,) = ifbs(ours.host)
    ours.check(sandbox, ours.limit(sandbox, before))
    theirs.check(sandbox, before)
    assert sorted(qdiscs(ours.host)) == made
    assert ifbs(ours.host) == {name: f"podwire net {sandbox.name} eth0"}


def test_del_without_a_namespace(both, sandbox, before):
    """Each removes the other's ifb by the container's name alone."""
    for maker, other in (both, both[::-1]):
        maker.limit(sandbox, before)
        other.release(sandbox, netns=None)
        assert ifbs(maker.host) == {}
        both[0].release(sandbox)


def test_the_references_ifb_belongs_to_the_other_interface(both, sandbox, before):
    """An ifb of the reference for one interface survives DEL of the container's other one, limited by us or not."""
    ours, theirs = both
    other = connect_veth(ours.host, sandbox, "veth1", "net1")
    result = theirs.limit(sandbox, before)
    ours.release(sandbox, ifname="net1")
    ours.check(sandbox, result)
    second = ours.limit(sandbox, other, ifname="net1")
    ours.check(sandbox, second, ifname="net1")
    ours.check(sandbox, result)
    ours.release(sandbox, ifname="net1")
    ours.check(sandbox, result)
    ours.release(sandbox)
    assert (qdiscs(ours.host), ifbs(ours.host)) == ([], {})


@pytest.mark.parametrize("ours_first", [True, False])
def test_a_pod_of_a_whole_chain(both, sandbox, ours_first):
    """A pod that one implementation attached with bridge, portmap and bandwidth changes over to the other."""
    ours, theirs = (replace(net, bridge=replace(net.bridge, bin_dir=net.bin_dir)) for net in both)
    maker, other = (ours, theirs) if ours_first else (theirs, ours)
    ports = [PublishingNetwork(net.bridge, {"snat": True}, net.bin_dir) for net in (maker, other)]
    result = maker.limit(sandbox, ports[0].add(sandbox, "8080:80"))
    other.check(sandbox, result)
    other.bridge.check(sandbox, result)
    other.release(sandbox, result)
    ports[1].delete(sandbox, "8080:80", result=result)
    assert (qdiscs(ours.host), set(netstate.links(ours.host))) == ([], {"lo", "cni0"})
