"""DEL of bandwidth removes the limits whatever the configuration, prevResult and the state of the pod are."""

import pytest

from tests.support.bandwidth_network import ifb_name, ifbs, qdiscs, state

pytestmark = pytest.mark.needs("ifb", "tbf")


@pytest.mark.parametrize(
    "prev_result", ["x", [1], {"interfaces": 5}, {"cniVersion": "7.0.0"}, {"cniVersion": "1.0.0"}, None]
)
def test_del_works_with_any_prev_result(shaped, sandbox, veth_result, prev_result):
    """DEL removes the limits whatever prevResult is."""
    empty = state(shaped.host)
    shaped.limit(sandbox, veth_result)
    shaped.release(sandbox, prev_result)
    assert state(shaped.host) == empty


def remove_ifb(host, pod):
    """Removes the pod's ifb."""
    host.ip("link", "delete", ifb_name(pod.name))


REMOVE = {
    "the pod's interface": lambda host, pod: pod.ip("link", "delete", "eth0"),
    "the ifb": remove_ifb,
    "the ingress qdisc": lambda host, pod: host.run("tc", "qdisc", "delete", "dev", "veth0", "ingress"),
    "the root qdisc": lambda host, pod: host.run("tc", "qdisc", "delete", "dev", "veth0", "root"),
    "the filter": lambda host, pod: host.run("tc", "filter", "delete", "dev", "veth0", "ingress"),
    "all": lambda host, pod: (host.ip("link", "delete", "veth0"), remove_ifb(host, pod), pod.delete()),
}


@pytest.mark.parametrize("part", REMOVE)
def test_del_succeeds_if_a_part_is_missing(shaped, sandbox, veth_result, part):
    """DEL, run twice, removes the rest if an interface, a qdisc or the namespace is missing."""
    shaped.limit(sandbox, veth_result)
    REMOVE[part](shaped.host, sandbox)
    for _ in range(2):
        shaped.release(sandbox, veth_result)
        assert (qdiscs(shaped.host), ifbs(shaped.host)) == ([], {})


def test_del_with_a_namespace_that_cannot_be_entered(shaped, sandbox, veth_result):
    """DEL with a namespace of another kind removes the ifb and reports the failure."""
    shaped.limit(sandbox, veth_result)
    error = shaped.bandwidth("DEL", sandbox, netns="/proc/self/ns/uts").error()
    assert (error["code"], error["msg"]) == (8, 'cannot enter netns "/proc/self/ns/uts": invalid argument')
    assert ifbs(shaped.host) == {}
