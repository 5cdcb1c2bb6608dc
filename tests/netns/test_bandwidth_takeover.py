"""The CHECK and DEL of podwire and of the reference plugin accept each other's limits."""

import pytest

from tests.support.bandwidth_network import BOTH, EGRESS, INGRESS, connect_veth, ifbs, qdiscs, state

pytestmark = pytest.mark.needs("ifb", "tbf")

LARGEST = 8 * ((1 << 32) - 1) - 1
PLACEHOLDER_BURSTS = {"kubelet": (1 << 31) - 1, "containerd": (1 << 32) - 1, "CRI-O": LARGEST, "no one": LARGEST - 7}
ORDINARY = [
    BOTH,
    INGRESS,
    EGRESS,
    {"ingressRate": 1_000_000, "ingressBurst": 1_000_000, "egressRate": 12_345_678, "egressBurst": 1_234_567},
    {"ingressRate": 100_000_000_000, "ingressBurst": 10_000_000_000, "egressRate": 40 << 30, "egressBurst": 1 << 32},
]


@pytest.fixture
def both(shaped, reference):
    """The network with podwire's bandwidth, and with the reference plugin."""
    return shaped, shaped.with_bin_dir(reference)


@pytest.mark.parametrize("limits", ORDINARY)
def test_ordinary_limits_are_exchangeable(both, sandbox, veth_result, limits):
    """For ordinary bursts both plugins create the same qdiscs and results, and accept and remove each other's."""
    empty = state(both[0].host)
    states = []
    for creator, other in (both, both[::-1]):
        result = creator.with_runtime_limits(**limits).limit(sandbox, veth_result)
        states.append((sorted(qdiscs(creator.host)), [item["name"] for item in result["interfaces"]]))
        for each in (creator, other):
            each.with_runtime_limits(**limits).check(sandbox, result)
        other.with_runtime_limits(**limits).release(sandbox, result)
        assert ifbs(creator.host) == {}
        both[0].release(sandbox)  # the reference leaves the veth's qdiscs to the plugin that removes it
        assert state(creator.host) == empty
    assert states[0] == states[1]


@pytest.mark.parametrize("burst", [*PLACEHOLDER_BURSTS.values(), 8000], ids=[*PLACEHOLDER_BURSTS, "below the MTU"])
@pytest.mark.parametrize("rate", [10_000_000, 1_000_000_000])
def test_placeholder_bursts_of_the_reference_are_accepted(both, sandbox, veth_result, rate, burst):
    """The reference's buckets for placeholder bursts, or for one below the MTU, are accepted and removed."""
    podwire, reference_net = (
        net.with_runtime_limits(ingressRate=rate, ingressBurst=burst, egressRate=rate, egressBurst=burst)
        for net in both
    )
    empty = state(podwire.host)
    result = reference_net.limit(sandbox, veth_result)
    podwire.check(sandbox, result)
    podwire.having(maxBurst=1_000_000).check(sandbox, result)
    podwire.release(sandbox)
    assert state(podwire.host) == empty
    podwire.check(sandbox, podwire.limit(sandbox, veth_result))


def test_add_replaces_limits_of_the_reference(both, sandbox, veth_result):
    """ADD replaces existing limits of the reference plugin, and uses the same names."""
    podwire, reference_net = both
    reference_net.limit(sandbox, veth_result)
    states = sorted(qdiscs(podwire.host))
    (name,) = ifbs(podwire.host)
    podwire.check(sandbox, podwire.limit(sandbox, veth_result))
    reference_net.check(sandbox, veth_result)
    assert sorted(qdiscs(podwire.host)) == states
    assert ifbs(podwire.host) == {name: f"podwire net {sandbox.name} eth0"}


def test_del_without_a_namespace_removes_the_others_ifb(both, sandbox, veth_result):
    """Each plugin removes the other's ifb by the container ID alone."""
    for creator, other in (both, both[::-1]):
        creator.limit(sandbox, veth_result)
        other.release(sandbox, netns=None)
        assert ifbs(creator.host) == {}
        both[0].release(sandbox)


def test_ifb_of_the_references_interface_is_kept(both, sandbox, veth_result):
    """DEL of one interface keeps the reference plugin's ifb of the container's other interface."""
    podwire, reference_net = both
    other = connect_veth(podwire.host, sandbox, "veth1", "net1")
    result = reference_net.limit(sandbox, veth_result)
    podwire.release(sandbox, ifname="net1")
    podwire.check(sandbox, result)
    second = podwire.limit(sandbox, other, ifname="net1")
    podwire.check(sandbox, second, ifname="net1")
    podwire.check(sandbox, result)
    podwire.release(sandbox, ifname="net1")
    podwire.check(sandbox, result)
    podwire.release(sandbox)
    assert (qdiscs(podwire.host), ifbs(podwire.host)) == ([], {})
