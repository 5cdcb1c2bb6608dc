"""ptp: CHECK, DEL, masquerading, and taking over from the reference's ptp and giving back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.netns.conftest import LEGACY, NFT
from tests.support import binaries, xtables
from tests.support.attaching import reaches
from tests.support.netstate import links, nft_rules, state

KINDS = ("ours", "reference")


@pytest.fixture
def by(routed, bin_dir, reference):
    """A function that returns the network served by one kind of ptp, with that kind's IPAM."""
    directories = {"ours": bin_dir, "reference": reference}
    return lambda kind, net=routed: replace(net, bin_dir=directories[kind], path=str(directories[kind]))


def break_address(net, pod, result):
    pod.ip("addr", "del", result["ips"][0]["address"], "dev", "eth0")


def break_route(net, pod, result):
    pod.ip("route", "del", "default")


def break_gateway_route(net, pod, result):
    pod.ip("-6", "route", "del", "fd00:23::/64")
    pod.ip("-6", "route", "del", "fd00:23::1")


def break_host_address(net, pod, result):
    net.host.ip("addr", "del", "10.23.0.1/32", "dev", result["interfaces"][0]["name"])


def break_host_route(net, pod, result):
    net.host.ip("route", "del", "10.23.0.2")


def break_link(net, pod, result):
    pod.ip("link", "del", "eth0")


def break_kind(net, pod, result):
    pod.ip("link", "set", "eth0", "down")
    pod.ip("link", "set", "eth0", "name", "eth9")
    pod.ip("link", "add", "eth0", "type", "bridge")


def break_mac(net, pod, result):
    pod.ip("link", "set", "eth0", "address", "02:00:00:00:00:77")


def break_mtu(net, pod, result):
    pod.ip("link", "set", "eth0", "mtu", "1399")


def break_state(net, pod, result):
    net.host.ip("link", "set", result["interfaces"][0]["name"], "down")


@pytest.mark.parametrize(
    ("breaking", "text"),
    [
        (break_address, 'Expected address 10.23.0.2/24 is not on "eth0"'),
        (break_route, "Expected route 0.0.0.0/0 is missing"),
        (break_gateway_route, "Failed to find Gateway fd00:23::1 for interface eth0"),
        (break_host_address, "has lost the gateway address 10.23.0.1"),
        (break_host_route, "The host's route to 10.23.0.2 does not go through veth"),
        (break_link, "ptp: Container Interface name in prevResult: eth0 not found"),
        (break_kind, "Error: Container interface eth0 not of type veth/p2p"),
        (break_mac, "ptp: Interface eth0 Mac "),
        (break_mtu, "Interface eth0 MTU doesn't match: 1400"),
        (break_state, " is down"),
    ],
)
def test_check_reports_what_is_broken(routed, sandbox, breaking, text):
    """CHECK passes after ADD, and reports each object that was removed since."""
    net = routed.having(mtu=1400, cniVersion="1.1.0")
    result = net.add(sandbox)
    net.check(sandbox, result)
    breaking(net, sandbox, result)
    error = net.run("CHECK", sandbox, prev_result=result).error()
    assert error["code"] == 999
    assert text in error["msg"]


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0"])
def test_check_behind_tuning(routed, sandbox, tuning, version):
    """CHECK passes when a later plugin of the list has given the pod's interface another address and MTU."""
    net = routed.having(mtu=1500, cniVersion=version)
    behind = tuning.having(cniVersion=version, mtu=1400, mac="02:00:00:00:00:42", mtuBothEnds=True)
    result = behind.add(sandbox, net.add(sandbox))
    net.check(sandbox, result)
    behind.check(sandbox, result)


def test_check_of_two_attachments_to_one_network(routed, sandbox):
    """Two interfaces of a pod have the same gateway; CHECK of each passes, and reports its own missing route to it."""
    ipam = {**routed.config["ipam"], "routes": [{"dst": "2001:db8::/32", "gw": "fd00:23::1"}]}
    net = routed.having(ipam=ipam)
    results = {ifname: net.add(sandbox, ifname=ifname) for ifname in ("eth0", "eth1")}
    for ifname, result in results.items():
        net.check(sandbox, result, ifname=ifname)
    sandbox.ip("route", "del", "10.23.0.1", "dev", "eth0")
    error = net.run("CHECK", sandbox, prev_result=results["eth0"], ifname="eth0").error()
    assert error["msg"] == "Failed to find Gateway 10.23.0.1 for interface eth0"
    net.check(sandbox, results["eth1"], ifname="eth1")


def test_check_needs_the_result(routed, sandbox):
    """CHECK without prevResult is refused in the reference's words, and so is another sandbox's result."""
    result = routed.add(sandbox)
    assert routed.run("CHECK", sandbox).error()["msg"] == "ptp: Required prevResult missing"
    other = {**result, "interfaces": [result["interfaces"][0], {**result["interfaces"][1], "sandbox": "/run/netns/x"}]}
    error = routed.run("CHECK", sandbox, prev_result=other).error()
    assert error["msg"] == f"Sandbox in prevResult /run/netns/x doesn't match configured netns: {sandbox.path}"


@pytest.fixture(params=[NFT, LEGACY, pytest.param("nftables", marks=pytest.mark.needs("nft_nat"))])
def masqueraded(routed, request, tmp_path):
    """The network masqueraded by each variant of iptables and by nftables."""
    if request.param == "nftables":
        return routed.having(ipMasq=True, ipMasqBackend="nftables")
    tools = xtables.variant(tmp_path / "tools", request.param)
    return replace(routed.having(ipMasq=True, ipMasqBackend="iptables"), env=xtables.path(tools))


def rules(net):
    """Returns all rules on the host, of whatever kind."""
    tool = f"{net.env['PATH'].partition(':')[0]}/iptables-save" if net.env else "iptables-save"
    return "\n".join([*nft_rules(net.host), net.host.run(tool)])


@pytest.mark.parametrize("gone", ["nothing", "the link", "the name", "the namespace", "its path"])
def test_del_leaves_nothing_whatever_is_gone(masqueraded, sandbox, gone):
    """DEL removes pair, routes, rules and reservations whatever is gone already, twice, and without prevResult."""
    net = masqueraded
    before = state(net.host), links(sandbox)
    result = net.add(sandbox)
    assert "masquerade" in rules(net).lower()
    assert "10.23.0.2" in rules(net)
    assert reaches(sandbox, "10.23.0.1")
    if gone == "the link":
        sandbox.ip("link", "del", "eth0")
    elif gone == "the name":
        sandbox.ip("link", "set", "eth0", "down")
        sandbox.ip("link", "set", "eth0", "name", "mine")
    elif gone == "the namespace":
        sandbox.delete()
    for _ in range(2):
        known = result if gone in ("the name", "its path") else None
        net.delete("" if gone == "its path" else sandbox, known, container_id=sandbox.name)
    for trace in ("10.23.0.2", "fd00:23::2", "CNI-"):
        assert trace not in rules(net)
    assert net.leases() == {}
    if gone != "the namespace":  # which the kernel destroys asynchronously
        assert (state(net.host), links(sandbox)) == before


@pytest.mark.parametrize(("maker", "taker"), [KINDS, KINDS[::-1]])
@pytest.mark.parametrize("version", ["0.4.0", "1.0.0"])
def test_a_pod_is_deleted_by_the_other_implementation(by, routed, new_sandbox, maker, taker, version):
    """A pod created by one is CHECKed and DELeted by the other, beside a running one; nothing remains."""
    net = routed.having(cniVersion=version, ipMasq=True, mtu=1400)
    creator, deleter = by(maker, net), by(taker, net)
    stays, pod = new_sandbox(), new_sandbox()
    other = deleter.add(stays)
    creator.delete(pod, creator.add(pod))
    before = state(net.host, netfilter=True)
    result = creator.add(pod)
    creator.check(pod, result)
    deleter.check(pod, result)
    assert reaches(stays, result["ips"][0]["address"].partition("/")[0])
    deleter.delete(pod, result)
    assert state(net.host, netfilter=True) == before
    assert set(links(pod)) == {"lo"}
    deleter.check(stays, other)
    creator.delete(stays, other)
    assert net.leases() == {}


def test_foreign_programs_are_not_needed(routed, sandbox, tmp_path):
    """Without masquerading by iptables no program is started: a PATH without any will do."""
    net = replace(routed, env={"PATH": str(tmp_path)}, path=str(binaries.directory()))
    net.delete(sandbox, net.add(sandbox))
