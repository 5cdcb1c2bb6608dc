"""CHECK of bandwidth: each part of the limits that is gone or changed is told, and what is as good is accepted."""

import pytest

from tests.support.bandwidth_network import BOTH, EGRESS, INGRESS, connect_veth, ifbs, state

pytestmark = pytest.mark.needs("ifb", "tbf")

CHANGE = "qdisc change dev {} root handle 1: tbf rate {} burst {} latency 25ms"
LED = 'packets that "veth0" receives are not redirected to '
ALL = "protocol all prio 1 u32 match u32 0 0 flowid 1:1"
REDIRECT = "action mirred egress redirect dev"


@pytest.fixture
def limited(shaped, sandbox):
    """A pod with limits of both directions: network, namespace, result, the ifb's name."""
    result = shaped.limit(sandbox, connect_veth(shaped.host, sandbox))
    (ifb,) = ifbs(shaped.host)
    return shaped, sandbox, result, ifb


def tc(net, *lines):
    """Runs tc on the host."""
    for line in lines:
        net.host.run("tc", *line.split())


# What is done to the limits, the error, and a word of its details.
DAMAGE = {
    "the veth's TBF is gone": (["qdisc del dev veth0 root"], "Failed to find qdisc", "its root qdisc is no"),
    "another kind": (["qdisc replace dev veth0 root pfifo limit 9"], "Failed to find qdisc", "its root qdisc is pfifo"),
    "another rate": ([CHANGE.format("veth0", "9mbit", 100000)], "Rate doesn't", "1125000"),
    "another burst": ([CHANGE.format("veth0", "8mbit", 99000)], "Limit doesn't", "124000"),
    "another buffer": (
        ["qdisc change dev veth0 root handle 1: tbf rate 8mbit burst 99000 limit 125000"],
        "Buffer doesn't match",
        "ticks",
    ),
    "the ifb's TBF is gone": (["qdisc del dev IFB root"], "Failed to find qdisc", '"IFB"'),
    "the ifb's rate": ([CHANGE.format("IFB", "9mbit", 200000)], "Rate doesn't match", ""),
    "the filter is gone": (["filter del dev veth0 ingress"], f'{LED}"IFB"', "no ingress filter redirects them"),
    "the place is gone": (["qdisc del dev veth0 ingress"], f'{LED}"IFB"', "no ingress filter redirects them"),
    "a filter that leads elsewhere": (
        ["filter del dev veth0 ingress", f"filter add dev veth0 ingress {ALL} {REDIRECT} other"],
        f'{LED}"IFB"',
        "no ingress filter redirects them",
    ),
    "a copy instead of the packet": (
        ["filter del dev veth0 ingress", f"filter add dev veth0 ingress {ALL} action mirred egress mirror dev IFB"],
        f'{LED}"IFB"',
        "no ingress filter redirects them",
    ),
    "a filter of all in front": (
        [
            "filter del dev veth0 ingress",
            f"filter add dev veth0 ingress {ALL}",
            f"filter add dev veth0 ingress {ALL} {REDIRECT} IFB",
        ],
        f'{LED}"IFB"',
        "an earlier ingress filter matches every packet",
    ),
    "a filter of some packets only": (
        [
            "filter del dev veth0 ingress",
            f"filter add dev veth0 ingress protocol all prio 1 u32 match ip dport 80 0xffff {REDIRECT} IFB",
        ],
        f'{LED}"IFB"',
        "no ingress filter redirects them",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_told(limited, case):
    """Each part that is gone or changed is code 999 in the reference's words where it has some; ADD mends it."""
    net, pod, result, ifb = limited
    net.host.ip("link", "add", "other", "type", "ifb")
    lines, msg, details = DAMAGE[case]
    net.check(pod, result)
    tc(net, *(line.replace("IFB", ifb) for line in lines))
    error = net.bandwidth("CHECK", pod, result).error()
    assert (error["code"], error["msg"].startswith(msg.replace("IFB", ifb))) == (999, True), error
    assert details.replace("IFB", ifb) in error["details"]
    assert "remove the container and create it again" in error["details"]


@pytest.mark.needs("matchall")
def test_another_kind_of_filter_in_front(limited):
    """A filter of a kind that bandwidth does not read, and that stands in front, may take everything: CHECK fails."""
    net, pod, result, ifb = limited
    redirect = f"u32 match u32 0 0 {REDIRECT} {ifb}"
    tc(net, "filter del dev veth0 ingress", "filter add dev veth0 ingress prio 1 protocol all matchall action pass")
    tc(net, f"filter add dev veth0 ingress protocol all prio 2 {redirect}")
    assert "matches every packet" in net.bandwidth("CHECK", pod, result).error()["details"]


def test_the_ifb_is_gone_or_down(limited):
    """Without the ifb, or when it is down, what the pod sends is lost: CHECK says so."""
    net, pod, result, ifb = limited
    net.host.ip("link", "set", ifb, "down")
    error = net.bandwidth("CHECK", pod, result).error()
    assert (error["code"], error["msg"]) == (999, f"Interface {ifb} is down")
    assert error["details"] == f'set it up: ip link set "{ifb}" up'
    net.host.ip("link", "set", ifb, "up")
    net.check(pod, result)
    net.host.ip("link", "delete", ifb)
    error = net.bandwidth("CHECK", pod, result).error()
    assert (error["code"], error["msg"]) == (999, "get ifb device: Link not found")


@pytest.mark.parametrize(("limits", "other"), [(INGRESS, EGRESS), (EGRESS, INGRESS)])
def test_other_limits_than_those_set(limited, limits, other):
    """CHECK looks at what is asked for now: one direction of both is enough, another rate or burst is not there."""
    net, pod, result, _ = limited
    net.with_runtime_limits(**limits).check(pod, result)
    for key, msg in zip(limits, ("Rate doesn't match", "Limit doesn't match"), strict=True):
        error = net.with_runtime_limits(**{**BOTH, key: limits[key] + 8}).bandwidth("CHECK", pod, result).error()
        assert (error["code"], error["msg"]) == (999, msg)
    net.release(pod, result)
    net.with_runtime_limits(**other).limit(pod, result)
    gone = "Failed to find qdisc" if limits is INGRESS else "get ifb device: Link not found"
    assert net.bandwidth("CHECK", pod, result).error()["msg"] == gone


def test_filters_of_others_that_are_no_obstacle(limited):
    """Filters behind ours, or of one kind of packets in front of it, change nothing."""
    net, pod, result, ifb = limited
    tc(net, "filter del dev veth0 ingress")
    tc(net, "filter add dev veth0 ingress protocol all prio 1 u32 match ip dport 25 0xffff flowid 1:1")
    tc(net, f"filter add dev veth0 ingress {ALL} {REDIRECT} {ifb}", f"filter add dev veth0 ingress {ALL}")
    tc(net, "filter add dev veth0 ingress protocol ip prio 5 u32 match u32 0 0 flowid 1:1")
    net.check(pod, result)


def test_filters_of_another_chain(shaped, sandbox):
    """A chain that nothing leads to is no obstacle, though the kernel lists its filters first; it stays."""
    before = connect_veth(shaped.host, sandbox)
    tc(shaped, "qdisc add dev veth0 clsact", f"filter add dev veth0 ingress chain 5 {ALL.replace('prio 1', 'prio 7')}")
    empty = state(shaped.host)
    shaped.limit(sandbox, before)
    shaped.check(sandbox, before)
    shaped.release(sandbox)
    assert state(shaped.host) == empty
