"""GC and STATUS of bandwidth: what is nobody's goes, what may be somebody's stays; whether the kernel can limit."""

import pytest

from tests.support import binaries
from tests.support.bandwidth_network import connect_veth, ifbs, state
from tests.support.invocation import run_plugin
from tests.support.modules import withheld

pytestmark = pytest.mark.needs("ifb", "tbf")


@pytest.fixture
def populated(shaped, new_sandbox, reference):
    """A host with limits of two containers, of which one is on another network, too, and of one of the reference's."""
    nets = (
        ("keep", shaped),
        ("stale", shaped),
        ("stale", shaped.having(name="net2")),
        ("theirs", shaped.with_bin_dir(reference)),
    )
    for number, (name, net) in enumerate(nets):
        pod = new_sandbox()
        net.limit(pod, connect_veth(shaped.host, pod, f"veth{number}"), container_id=name)
    return shaped


def owners(net):
    """Returns whose the ifbs are, "" for the reference's."""
    return sorted(ifbs(net.host).values())


KEPT = ["", "podwire net keep eth0", "podwire net2 stale eth0"]


def test_what_is_nobodys_goes(populated):
    """The ifb of an attachment that is not listed goes; another network's and one without a text stay."""
    assert owners(populated) == sorted([*KEPT, "podwire net stale eth0"])
    assert populated.gc(("keep", "eth0"), ("theirs", "eth0")) == ""
    assert owners(populated) == KEPT
    assert populated.gc(("keep", "eth0")) == ""
    assert owners(populated) == KEPT


def test_another_interface_of_a_living_container(populated):
    """The list is of interfaces, too: that of a container that lives is nobody's when another one is listed."""
    populated.gc(("keep", "net1"), ("stale", "eth0"))
    assert owners(populated) == sorted(["", "podwire net stale eth0", "podwire net2 stale eth0"])


@pytest.mark.parametrize("nothing", [None, []])
def test_an_empty_list_is_authoritative(populated, nothing):
    """With null, as CRI-O sends it, or [] all of this network goes; without the key nothing, and GC says so."""
    net = populated.having(cniVersion="1.1.0")
    outcome = net.bandwidth("GC")
    outcome.assert_silent()
    assert outcome.stderr == "bandwidth: GC without cni.dev/valid-attachments removes nothing\n"
    assert len(owners(net)) == 4
    run_plugin("bandwidth", "GC", {**net.config, "cni.dev/valid-attachments": nothing}, host=net.host).assert_silent()
    assert owners(net) == ["", "podwire net2 stale eth0"]


@pytest.mark.parametrize("valid", [[{"ifname": "eth0"}], [5], "x", [{"containerID": 5}]])
def test_a_list_that_cannot_be_read(populated, valid):
    """What is no list of attachments is code 7, and nothing goes."""
    config = {**populated.config, "cniVersion": "1.1.0", "cni.dev/valid-attachments": valid}
    assert run_plugin("bandwidth", "GC", config, host=populated.host).error()["code"] == 7
    assert len(owners(populated)) == 4


def test_gc_with_wrong_limits(populated):
    """GC does not ask what is configured."""
    populated.having(ingressRate="x").gc(("keep", "eth0"))
    assert owners(populated) == KEPT


def test_what_others_made_stays(shaped):
    """An interface that only looks like an ifb of ours is nobody's business: of another kind, name or text."""
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
def test_ready(shaped, root):
    """STATUS has nothing to say where limits can be served, and makes nothing, whatever lo has."""
    if root:
        shaped.host.run("tc", *f"qdisc add dev lo root {root}".split())
    before = state(shaped.host)
    outcome = shaped.having(cniVersion="1.1.0").bandwidth("STATUS")
    outcome.assert_silent()
    assert (outcome.stderr, state(shaped.host)) == ("", before)


@pytest.mark.parametrize("verb", ["ADD", "DEL", "GC", "STATUS"])
def test_without_privilege(shaped, sandbox, tmp_path, verb):
    """Who lacks CAP_NET_ADMIN is told so at once, by every verb that would change something."""
    wrapper = tmp_path / "bandwidth"
    program = binaries.directory() / "bandwidth"
    wrapper.write_text(f"#!/bin/sh\nexec setpriv --bounding-set=-net_admin --inh-caps=-net_admin {program}\n")
    wrapper.chmod(0o755)
    before = connect_veth(shaped.host, sandbox)
    if verb != "ADD":
        shaped.limit(sandbox, before)
    made = state(shaped.host)
    own = shaped.having(cniVersion="1.1.0").with_bin_dir(tmp_path)
    config = {**own.config, "prevResult": before, "cni.dev/valid-attachments": []}
    how = {"host": own.host, "bin_dir": tmp_path, "netns": sandbox, "container_id": sandbox.name}
    error = run_plugin("bandwidth", verb, config, **how).error()
    assert "not permitted" in error["msg"]
    assert state(shaped.host) == made


LACKING = {
    ("ifb",): "the kernel has no ifb",
    ("sch_tbf",): "the kernel has no tbf",
    ("ifb", "sch_tbf"): "the kernel has no ifb and no tbf",
}


@pytest.mark.needs("in_user_mode_linux")
@pytest.mark.parametrize("occupied", [False, True])
@pytest.mark.parametrize("modules", LACKING)
def test_a_kernel_without(shaped, sandbox, modules, occupied):
    """STATUS is code 50 where the kernel lacks a part, ADD fails and leaves nothing, and both name what to load.

    It is so whatever an administrator has on the host's lo.
    """
    if occupied:
        shaped.host.run("tc", "qdisc", "add", "dev", "lo", "root", "pfifo", "limit", "9")
    before = connect_veth(shaped.host, sandbox)
    empty = state(shaped.host)
    with withheld(modules):
        told = shaped.having(cniVersion="1.1.0").bandwidth("STATUS").error()
        failed = shaped.bandwidth("ADD", sandbox, before).error()
        assert state(shaped.host) == empty
    assert (told["code"], told["msg"]) == (50, f"limits cannot be served: {LACKING[modules]}")
    assert failed["code"] == 999
    assert all(module in told["details"] for module in modules)
    assert any(module in failed["details"] for module in modules)
    shaped.limit(sandbox, before)
