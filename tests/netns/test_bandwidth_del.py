"""DEL of bandwidth: whatever has become of the configuration, of prevResult or of the pod, the limits go."""

import pytest

from tests.support.bandwidth_network import connect_veth, ifb_name, ifbs, qdiscs, state

pytestmark = pytest.mark.needs("ifb", "tbf")


@pytest.fixture
def before(host, sandbox):
    """The result of the plugin before; veth0 leads to the pod."""
    return connect_veth(host, sandbox)


@pytest.mark.parametrize("given", ["x", [1], {"interfaces": 5}, {"cniVersion": "7.0.0"}, {"cniVersion": "1.0.0"}, None])
def test_del_whatever_prev_result_is(shaped, sandbox, before, given):
    """DEL removes the limits whatever has become of prevResult."""
    empty = state(shaped.host)
    shaped.limit(sandbox, before)
    shaped.release(sandbox, given)
    assert state(shaped.host) == empty


GONE = {
    "the pod's interface": lambda host, pod: pod.ip("link", "delete", "eth0"),
    "the ifb": lambda host, pod: host.ip("link", "delete", ifb_name(pod.name)),
    "the ingress qdisc": lambda host, pod: host.run("tc", "qdisc", "delete", "dev", "veth0", "ingress"),
    "the root qdisc": lambda host, pod: host.run("tc", "qdisc", "delete", "dev", "veth0", "root"),
    "the filter": lambda host, pod: host.run("tc", "filter", "delete", "dev", "veth0", "ingress"),
    "all": lambda host, pod: (host.ip("link", "delete", "veth0"), GONE["the ifb"](host, pod), pod.delete()),
}


@pytest.mark.parametrize("gone", GONE)
def test_del_of_what_is_gone(shaped, sandbox, before, gone):
    """DEL removes what is left, twice, when something has gone before: an interface, a qdisc, the namespace."""
    shaped.limit(sandbox, before)
    GONE[gone](shaped.host, sandbox)
    for _ in range(2):
        shaped.release(sandbox, before)
        assert (qdiscs(shaped.host), ifbs(shaped.host)) == ([], {})


def test_del_with_a_namespace_that_cannot_be_entered(shaped, sandbox, before):
    """DEL with the namespace of something else than a network removes the ifb all the same, and reports it."""
    shaped.limit(sandbox, before)
    error = shaped.bandwidth("DEL", sandbox, netns="/proc/self/ns/uts").error()
    assert (error["code"], error["msg"]) == (8, 'cannot enter netns "/proc/self/ns/uts": invalid argument')
    assert ifbs(shaped.host) == {}


@pytest.mark.parametrize("netns", ["", "/no/such/netns", "file"])
def test_del_without_a_namespace(shaped, sandbox, before, netns, tmp_path):
    """DEL without a namespace, or with what is none, removes the ifb; the rest goes with the pod."""
    (tmp_path / "file").touch()
    shaped.limit(sandbox, before)
    for _ in range(2):
        shaped.release(sandbox, netns=str(tmp_path / "file") if netns == "file" else netns)
        assert ifbs(shaped.host) == {}
