"""CHECK of bandwidth reports every missing or changed part of the limits, and accepts equivalent ones."""

import pytest

from tests.support.bandwidth_network import BOTH, EGRESS, INGRESS, connect_veth, ifbs, state

pytestmark = pytest.mark.needs("ifb", "tbf")

NINE_MBIT = "handle 1: tbf rate 9mbit burst 100000 latency 25ms"
MATCH_ALL = "protocol all prio 1 u32 match u32 0 0 flowid 1:1"
MATCH_TCP_80 = "protocol all prio 1 u32 match ip dport 80 0xffff"
REDIRECT = "action mirred egress redirect dev"


@pytest.fixture
def limited(shaped, sandbox):
    """A pod with limits in both directions: network, namespace, result, the ifb's name."""
    result = shaped.limit(sandbox, connect_veth(shaped.host, sandbox))
    (ifb,) = ifbs(shaped.host)
    return shaped, sandbox, result, ifb


# A change of a qdisc, the error, and a part of its details.
QDISCS = {
    "the veth's TBF is missing": ("qdisc del dev veth0 root", "Failed to find qdisc", "its root qdisc is no"),
    "another kind": ("qdisc replace dev veth0 root pfifo limit 9", "Failed to find qdisc", "its root qdisc is pfifo"),
    "another rate": (f"qdisc change dev veth0 root {NINE_MBIT}", "Rate doesn't match", "1125000"),
    "the ifb's TBF is missing": ("qdisc del dev IFB root", "Failed to find qdisc", '"IFB"'),
    "the ingress qdisc is missing": (
        "qdisc del dev veth0 ingress",
        'packets that "veth0" receives are not redirected to "IFB"',
        "no ingress filter redirects them",
    ),
}


def assert_reported(limited, lines, msg, details):
    """Asserts that CHECK succeeds, and after these lines of tc fails with code 999, the text, and details and fix."""
    net, pod, result, ifb = limited
    net.check(pod, result)
    net.tc(*(line.replace("IFB", ifb) for line in lines))
    error = net.bandwidth("CHECK", pod, result).error()
    assert (error["code"], error["msg"].startswith(msg.replace("IFB", ifb))) == (999, True), error
    assert details.replace("IFB", ifb) in error["details"]
    assert "remove the container and create it again" in error["details"]


@pytest.mark.parametrize("case", QDISCS)
def test_missing_or_changed_qdisc_is_reported(limited, case):
    """Each missing or changed qdisc has the reference's text, if it has one, and details with the fix."""
    line, msg, details = QDISCS[case]
    assert_reported(limited, [line], msg, details)


NONE, EARLIER = "no ingress filter redirects them", "an earlier ingress filter matches every packet"


@pytest.mark.parametrize(
    ("added", "details"),
    [
        pytest.param([], NONE, id="no filter"),
        pytest.param([f"{MATCH_ALL} {REDIRECT} other"], NONE, id="a redirect elsewhere"),
        pytest.param([f"{MATCH_ALL} action mirred egress mirror dev IFB"], NONE, id="a copy instead of the packet"),
        pytest.param([MATCH_ALL, f"{MATCH_ALL} {REDIRECT} IFB"], EARLIER, id="an earlier filter for all packets"),
        pytest.param([f"{MATCH_TCP_80} {REDIRECT} IFB"], NONE, id="a filter for some packets"),
        pytest.param(  # bandwidth does not read this kind, and it may match every packet
            ["prio 1 protocol all matchall action pass", f"{MATCH_ALL.replace('prio 1', 'prio 2')} {REDIRECT} IFB"],
            "matches every packet",
            id="an earlier filter of another kind",
            marks=pytest.mark.needs("matchall"),
        ),
    ],
)
def test_missing_redirect_is_reported(limited, added, details):
    """Without a filter that redirects all packets to the ifb CHECK fails."""
    net, *_ = limited
    net.host.ip("link", "add", "other", "type", "ifb")
    lines = ["filter del dev veth0 ingress", *(f"filter add dev veth0 ingress {item}" for item in added)]
    assert_reported(limited, lines, 'packets that "veth0" receives are not redirected to "IFB"', details)


def test_ifb_that_is_missing_or_down_is_reported(limited):
    """If the ifb is missing or down, packets that the pod sends are lost, and CHECK reports it."""
    net, pod, result, ifb = limited
    net.host.ip("link", "set", ifb, "down")
    error = net.bandwidth("CHECK", pod, result).error()
    assert (error["code"], error["msg"]) == (999, f"Interface {ifb} is down")
    assert error["details"] == f'bring it up: ip link set "{ifb}" up'
    net.host.ip("link", "set", ifb, "up")
    net.check(pod, result)
    net.host.ip("link", "delete", ifb)
    error = net.bandwidth("CHECK", pod, result).error()
    assert (error["code"], error["msg"]) == (999, "get ifb device: Link not found")


@pytest.mark.parametrize(("limits", "other"), [(INGRESS, EGRESS), (EGRESS, INGRESS)])
def test_limits_other_than_the_existing_ones_are_reported(limited, limits, other):
    """CHECK compares the configured directions: one of two existing ones passes, another rate or burst fails."""
    net, pod, result, _ = limited
    net.with_runtime_limits(**limits).check(pod, result)
    for key, msg in zip(limits, ("Rate doesn't match", "Limit doesn't match"), strict=True):
        error = net.with_runtime_limits(**{**BOTH, key: limits[key] + 8}).bandwidth("CHECK", pod, result).error()
        assert (error["code"], error["msg"]) == (999, msg)
    net.release(pod, result)
    net.with_runtime_limits(**other).limit(pod, result)
    missing = "Failed to find qdisc" if limits is INGRESS else "get ifb device: Link not found"
    assert net.bandwidth("CHECK", pod, result).error()["msg"] == missing


def test_later_and_narrower_filters_are_accepted(limited):
    """Later filters of other programs, or earlier ones for some packets, do not fail CHECK."""
    net, pod, result, ifb = limited
    net.tc("filter del dev veth0 ingress")
    net.tc("filter add dev veth0 ingress protocol all prio 1 u32 match ip dport 25 0xffff flowid 1:1")
    net.tc(f"filter add dev veth0 ingress {MATCH_ALL} {REDIRECT} {ifb}", f"filter add dev veth0 ingress {MATCH_ALL}")
    net.tc("filter add dev veth0 ingress protocol ip prio 5 u32 match u32 0 0 flowid 1:1")
    net.check(pod, result)


def test_filters_of_another_chain_are_accepted(shaped, sandbox):
    """A chain that nothing jumps to is accepted, although the kernel lists its filters first, and stays."""
    before = connect_veth(shaped.host, sandbox)
    shaped.tc("qdisc add dev veth0 clsact")
    shaped.tc(f"filter add dev veth0 ingress chain 5 {MATCH_ALL.replace('prio 1', 'prio 7')}")
    empty = state(shaped.host)
    shaped.limit(sandbox, before)
    shaped.check(sandbox, before)
    shaped.release(sandbox)
    assert state(shaped.host) == empty
