"""ptp: CHECK, DEL, masquerading, and switching between podwire and the reference's ptp while pods run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.netns.conftest import LEGACY, NFT
from tests.support import binaries, xtables
from tests.support.attaching import reaches
from tests.support.netstate import links, nft_rules, state

KINDS = ("podwire", "reference")


@pytest.fixture
def network_of(routed, bin_dir, reference):
    """A function that returns the network with the ptp and the IPAM plugin of one implementation."""
    directories = {"podwire": bin_dir, "reference": reference}
    return lambda kind, net=routed: replace(net, bin_dir=directories[kind], path=str(directories[kind]))


# Where a command changes something ({veth} is the host veth), the command, and a part of CHECK's message.
CHANGES = {
    "address": ("pod", "addr del 10.23.0.2/24 dev eth0", 'Expected address 10.23.0.2/24 is not on "eth0"'),
    "route": ("pod", "route del default", "Expected route 0.0.0.0/0 is missing"),
    "gateway's route": (
        "pod",
        "-6 route del fd00:23::/64; -6 route del fd00:23::1",
        "Failed to find Gateway fd00:23::1 for interface eth0",
    ),
    "host address": ("host", "addr del 10.23.0.1/32 dev {veth}", "has lost the gateway address 10.23.0.1"),
    "host route": ("host", "route del 10.23.0.2", "The host's route to 10.23.0.2 does not go through veth"),
    "link": ("pod", "link del eth0", "ptp: Container Interface name in prevResult: eth0 not found"),
    "MAC": ("pod", "link set eth0 address 02:00:00:00:00:77", "ptp: Interface eth0 Mac "),
    "MTU": ("pod", "link set eth0 mtu 1399", "Interface eth0 MTU doesn't match: 1400"),
    "host veth": ("host", "link set {veth} down", " is down"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_check_reports_changes(routed, sandbox, change):
    """CHECK passes after ADD, and reports each part that was changed or removed since."""
    where, commands, text = CHANGES[change]
    net = routed.having(mtu=1400, cniVersion="1.1.0")
    result = net.add(sandbox)
    net.check(sandbox, result)
    for command in commands.format(veth=result["interfaces"][0]["name"]).split(";"):
        (sandbox if where == "pod" else net.host).ip(*command.split())
    error = net.run("CHECK", sandbox, prev_result=result).error()
    assert (error["code"], text in error["msg"]) == (999, True), error


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0"])
def test_check_behind_tuning(routed, sandbox, tuning, version):
    """CHECK passes if a later plugin of the list changed the MAC address and MTU of the pod's interface."""
    net = routed.having(mtu=1500, cniVersion=version)
    behind = tuning.having(cniVersion=version, mtu=1400, mac="02:00:00:00:00:42", mtuBothEnds=True)
    result = behind.add(sandbox, net.add(sandbox))
    net.check(sandbox, result)
    behind.check(sandbox, result)


def test_check_of_two_attachments_to_one_network(routed, sandbox):
    """CHECK of two interfaces of a pod with one gateway passes, and reports a missing route of its own."""
    ipam = {**routed.config["ipam"], "routes": [{"dst": "2001:db8::/32", "gw": "fd00:23::1"}]}
    net = routed.having(ipam=ipam)
    results = {ifname: net.add(sandbox, ifname=ifname) for ifname in ("eth0", "eth1")}
    for ifname, result in results.items():
        net.check(sandbox, result, ifname=ifname)
    sandbox.ip("route", "del", "10.23.0.1", "dev", "eth0")
    error = net.run("CHECK", sandbox, prev_result=results["eth0"], ifname="eth0").error()
    assert error["msg"] == "Failed to find Gateway 10.23.0.1 for interface eth0"
    net.check(sandbox, results["eth1"], ifname="eth1")


@pytest.fixture(params=[NFT, LEGACY, pytest.param("nftables", marks=pytest.mark.needs("nft_nat"))])
def masqueraded(routed, request, tmp_path):
    """The network masqueraded by each variant of iptables and by nftables."""
    if request.param == "nftables":
        return routed.having(ipMasq=True, ipMasqBackend="nftables")
    tools = xtables.variant(tmp_path / "tools", request.param)
    return replace(routed.having(ipMasq=True, ipMasqBackend="iptables"), env=xtables.path(tools))


def rules(net):
    """Returns all rules on the host, of both backends."""
    tool = f"{net.env['PATH'].partition(':')[0]}/iptables-save" if net.env else "iptables-save"
    return "\n".join([*nft_rules(net.host), net.host.run(tool)])


@pytest.mark.parametrize("missing", ["nothing", "the link", "the name", "the namespace", "its path"])
def test_del_deletes_everything_that_still_exists(masqueraded, sandbox, missing):
    """DEL deletes veth, routes, rules and leases if parts are missing, twice, and without prevResult."""
    net = masqueraded
    before = state(net.host), links(sandbox)
    result = net.add(sandbox)
    assert "masquerade" in rules(net).lower()
    assert "10.23.0.2" in rules(net)
    assert reaches(sandbox, "10.23.0.1")
    if missing == "the link":
        sandbox.ip("link", "del", "eth0")
    elif missing == "the name":
        sandbox.ip("link", "set", "eth0", "down")
        sandbox.ip("link", "set", "eth0", "name", "mine")
    elif missing == "the namespace":
        sandbox.delete()
    for _ in range(2):
        known = result if missing in ("the name", "its path") else None
        net.delete("" if missing == "its path" else sandbox, known, container_id=sandbox.name)
    for trace in ("10.23.0.2", "fd00:23::2", "CNI-"):
        assert trace not in rules(net)
    assert net.leases() == {}
    if missing != "the namespace":  # the kernel destroys a namespace asynchronously
        assert (state(net.host), links(sandbox)) == before


@pytest.mark.parametrize(("created_by", "deleted_by"), [KINDS, KINDS[::-1]])
@pytest.mark.parametrize("version", ["0.4.0", "1.0.0"])
def test_a_pod_is_deleted_by_the_other_implementation(network_of, routed, new_sandbox, created_by, deleted_by, version):
    """A pod of one implementation passes CHECK and DEL of the other, beside a running one; nothing remains."""
    net = routed.having(cniVersion=version, ipMasq=True, mtu=1400)
    creator, deleter = network_of(created_by, net), network_of(deleted_by, net)
    running_pod, pod = new_sandbox(), new_sandbox()
    other = deleter.add(running_pod)
    creator.delete(pod, creator.add(pod))
    before = state(net.host, netfilter=True)
    result = creator.add(pod)
    creator.check(pod, result)
    deleter.check(pod, result)
    assert reaches(running_pod, result["ips"][0]["address"].partition("/")[0])
    deleter.delete(pod, result)
    assert state(net.host, netfilter=True) == before
    assert set(links(pod)) == {"lo"}
    deleter.check(running_pod, other)
    creator.delete(running_pod, other)
    assert net.leases() == {}


def test_no_program_is_needed(routed, sandbox, tmp_path):
    """Without masquerading by iptables ptp starts no program: it works with an empty PATH."""
    net = replace(routed, env={"PATH": str(tmp_path)}, path=str(binaries.directory()))
    net.delete(sandbox, net.add(sandbox))
