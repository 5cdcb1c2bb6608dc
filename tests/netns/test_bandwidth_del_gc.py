"""DEL and GC of bandwidth, whatever the configuration and the pod's state are; STATUS and the kernel's features."""

import pytest

from tests.support.bandwidth_network import connect_veth, ifb_name, ifbs, qdiscs, state
from tests.support.invocation import run_plugin
from tests.support.modules import withheld

pytestmark = pytest.mark.needs("ifb", "tbf")


@pytest.fixture
def populated(shaped, new_sandbox, reference):
    """A host with the ifbs of three attachments on two networks, and one of the reference plugin."""
    nets = (
        ("keep", shaped),
        ("stale", shaped),
        ("stale", shaped.having(name="net2")),
        ("reference", shaped.with_bin_dir(reference)),
    )
    for number, (name, net) in enumerate(nets):
        pod = new_sandbox()
        net.limit(pod, connect_veth(shaped.host, pod, f"veth{number}"), container_id=name)
    return shaped


def owners(net):
    """Returns the owners of the ifbs, "" for the reference plugin's."""
    return sorted(ifbs(net.host).values())


KEPT = ["", "podwire net keep eth0", "podwire net2 stale eth0"]


def test_gc_removes_ifbs_of_invalid_attachments(populated):
    """GC removes the ifb of an invalid container or interface, whatever the limits are; others' stay."""
    assert owners(populated) == sorted([*KEPT, "podwire net stale eth0"])
    for valid in (("keep", "eth0"), ("reference", "eth0")), (("keep", "eth0"),):
        assert populated.having(ingressRate="x").gc(*valid) == ""
        assert owners(populated) == KEPT
    populated.gc(("keep", "net1"))
    assert owners(populated) == ["", "podwire net2 stale eth0"]


@pytest.mark.parametrize("empty", [None, []])
def test_gc_with_an_empty_list_removes_all(populated, empty):
    """With null (CRI-O) or [] GC removes all ifbs of the network; without the key none, and says so."""
    net = populated.having(cniVersion="1.1.0")
    outcome = net.bandwidth("GC")
    outcome.assert_silent()
    assert outcome.stderr == "bandwidth: GC without cni.dev/valid-attachments removes nothing\n"
    assert len(owners(net)) == 4
    run_plugin("bandwidth", "GC", {**net.config, "cni.dev/valid-attachments": empty}, host=net.host).assert_silent()
    assert owners(net) == ["", "podwire net2 stale eth0"]


@pytest.mark.parametrize("valid", [[{"ifname": "eth0"}], "x"])
def test_gc_with_an_invalid_list_removes_nothing(populated, valid):
    """An invalid list of attachments has code 7, and GC removes nothing."""
    config = {**populated.config, "cniVersion": "1.1.0", "cni.dev/valid-attachments": valid}
    assert run_plugin("bandwidth", "GC", config, host=populated.host).error()["code"] == 7
    assert len(owners(populated)) == 4


def test_gc_keeps_links_that_are_not_podwires(shaped):
    """A link of another kind, with another name or another alias stays."""
    for name, kind, text in (
        ("bwp0123456789ab", "bridge", "podwire net cid eth0"),
        ("mine", "ifb", "podwire net cid eth0"),
        ("bwp1123456789ab", "ifb", "podwire net cid"),
        ("bwp2123456789ab", "ifb", "another net cid eth0"),
        ("bwp3123456789ab", "ifb", ""),
    ):
        shaped.host.ip("link", "add", name, "type", kind)
        shaped.host.ip("link", "set", name, "alias", text)
    before = state(shaped.host)
    shaped.gc()
    assert state(shaped.host) == before


@pytest.mark.parametrize("root", ["", "pfifo limit 9", "handle 1: tbf rate 1mbit burst 10kb latency 10ms"])
def test_status_succeeds_with_any_qdisc_on_lo(shaped, root):
    """STATUS succeeds if limits are possible, whatever qdisc lo has, and changes nothing."""
    if root:
        shaped.host.run("tc", *f"qdisc add dev lo root {root}".split())
    before = state(shaped.host)
    outcome = shaped.having(cniVersion="1.1.0").bandwidth("STATUS")
    outcome.assert_silent()
    assert (outcome.stderr, state(shaped.host)) == ("", before)


@pytest.mark.parametrize("verb", ["ADD", "DEL", "GC", "STATUS"])
def test_missing_capability_is_reported(shaped, sandbox, veth_result, verb):
    """Without CAP_NET_ADMIN every verb that would change something fails with a message that says so."""
    if verb != "ADD":
        shaped.limit(sandbox, veth_result)
    limited = state(shaped.host)
    net = shaped.having(**{"cniVersion": "1.1.0", "cni.dev/valid-attachments": []})
    drop = ("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin")
    assert "not permitted" in net.bandwidth(verb, sandbox, veth_result, before=drop).error()["msg"]
    assert state(shaped.host) == limited


MISSING = {
    ("ifb",): "the kernel has no ifb",
    ("sch_tbf",): "the kernel has no tbf",
    ("ifb", "sch_tbf"): "the kernel has no ifb and no tbf",
}


@pytest.mark.needs("private_kernel")
@pytest.mark.parametrize("occupied", [False, True])
@pytest.mark.parametrize("modules", MISSING)
def test_missing_kernel_module_is_reported(shaped, sandbox, modules, occupied):
    """Without a module STATUS has code 50, ADD fails and is rolled back, and both name the module.

    The qdisc on the host's lo makes no difference.
    """
    if occupied:
        shaped.host.run("tc", "qdisc", "add", "dev", "lo", "root", "pfifo", "limit", "9")
    before = connect_veth(shaped.host, sandbox)
    empty = state(shaped.host)
    with withheld(modules):
        status = shaped.having(cniVersion="1.1.0").bandwidth("STATUS").error()
        failed = shaped.bandwidth("ADD", sandbox, before).error()
        assert state(shaped.host) == empty
    assert (status["code"], status["msg"]) == (50, f"limits do not work on this node: {MISSING[modules]}")
    assert failed["code"] == 999
    assert all(module in status["details"] for module in modules)
    assert any(module in failed["details"] for module in modules)
    shaped.limit(sandbox, before)


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
