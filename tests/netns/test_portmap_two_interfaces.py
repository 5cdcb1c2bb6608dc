"""Host ports of a container with two interfaces on one network: each keeps its own while the other comes or goes."""

from dataclasses import replace

import pytest

from tests.netns.conftest import LEGACY, NFT
from tests.support import netstate, xtables
from tests.support.xtables import TOOLS

PODS = {
    "eth0": ("10.22.0.2/16", "fd00:22::2/64"),
    "eth1": ("10.22.0.9/16", "fd00:22::9/64"),
}
MAPPINGS = {"eth0": ("8080:80", "53:53/udp"), "eth1": ("8081:81", "192.0.2.1|8082:82")}
BACKENDS = [NFT, LEGACY, pytest.param("nftables", marks=pytest.mark.needs("nft_nat"))]


@pytest.fixture(params=BACKENDS)
def net(request, host_ports, sandbox, tmp_path):
    """The network of a container whose namespace has both interfaces, with each backend."""
    for name, addresses in PODS.items():
        sandbox.ip("link", "add", name, "type", "bridge")
        for address in addresses:
            sandbox.ip("addr", "add", address, "dev", name, *(["nodad"] if ":" in address else []))
    if request.param == "nftables":
        return replace(host_ports.having(backend="nftables"), netns=sandbox)
    tools = xtables.variant(tmp_path / "tools", request.param)
    return replace(host_ports.having(backend="iptables"), netns=sandbox, tools=tools)


def run(net, verb, ifname, *mappings):
    outcome = net.run(verb, "cid", *(mappings or MAPPINGS[ifname]), addresses=PODS[ifname], ifname=ifname)
    assert outcome.status == 0, outcome
    return outcome


def rules(net):
    """Returns the containers' rules and chains, in order."""
    if not net.tools:
        return [line for line in netstate.nft_rules(net.host) if "dport" in line]
    return [line for tool in TOOLS for line in net.rules()[tool] if "CNI-DN-" in line]


@pytest.mark.parametrize(("first", "last"), [("eth0", "eth1"), ("eth1", "eth0")])
def test_either_keeps_its_ports_when_the_other_goes(net, first, last):
    """After DEL of one interface, also repeated, there is what the other's ADD alone makes; after both nothing is."""
    run(net, "ADD", last)
    alone = rules(net)
    run(net, "DEL", last)
    assert rules(net) == []
    for ifname in ("eth0", "eth1"):
        run(net, "ADD", ifname)
    for ifname in ("eth0", "eth1", "eth0"):
        run(net, "CHECK", ifname)
    for _ in range(2):
        run(net, "DEL", first)
        run(net, "CHECK", last)
    assert sorted(rules(net)) == sorted(alone)
    run(net, "DEL", last)
    assert rules(net) == []


def test_del_without_a_result_keeps_the_other_s_ports(net, sandbox):
    """DEL that gets no address finds in the namespace which rules are another interface's; without it all go."""
    for ifname in ("eth0", "eth1"):
        run(net, "ADD", ifname)
    outcome = net.having(*MAPPINGS["eth1"]).having(prevResult=None).run("DEL", "cid", ifname="eth1")
    assert outcome.status == 0
    run(net, "CHECK", "eth0")
    if net.tools:
        assert not any("10.22.0.9" in line for line in rules(net))
        run(net, "ADD", "eth1")
        sandbox.delete()
        run(net, "DEL", "eth1")
        assert rules(net) == []


def test_gc_keeps_both_while_one_is_valid(net):
    """GC with both interfaces, or one, among the valid attachments keeps the valid one's ports; with none all go."""
    for ifname in ("eth0", "eth1"):
        run(net, "ADD", ifname)
    net.gc("cid", ifname="eth0")
    run(net, "CHECK", "eth0")
    run(net, "DEL", "eth1")
    run(net, "CHECK", "eth0")
    net.gc()
    assert rules(net) == []


def test_a_port_of_both_is_the_other_s_when_one_goes(net):
    """The first interface has a port that both ask for; when it goes the second has it, with all its rules."""
    for ifname in ("eth0", "eth1"):
        run(net, "ADD", ifname, "8080:80")
    run(net, "DEL", "eth0", "8080:80")
    run(net, "CHECK", "eth1", "8080:80")
    assert not any("10.22.0.2:" in line for line in rules(net))


@pytest.mark.parametrize("net", [NFT, LEGACY], indirect=True)  # with nftables both families are one transaction
def test_a_failed_add_leaves_the_other_s_ports(net):
    """An ADD that makes IPv4 rules and fails with IPv6 rolls back its own and leaves the other interface's."""
    run(net, "ADD", "eth0")
    before = rules(net)
    broken = xtables.counted(net.tools, net.tools.parent / "broken")
    working = (broken / "ip6tables-restore").read_text()
    program = (
        working.replace("exec ", "case $(cat | tee $0.stdin) in *8081*) exit 4; esac\nexec ").rstrip() + " < $0.stdin\n"
    )
    (broken / "ip6tables-restore").write_text(program)
    outcome = replace(net, tools=broken).run("ADD", "cid", *MAPPINGS["eth1"], addresses=PODS["eth1"], ifname="eth1")
    assert outcome.error()["code"] in (11, 999)
    assert sorted(rules(net)) == sorted(before)


# The reference's rules of nftables name no interface, and with ip6tables-legacy it does not make those of both.
@pytest.mark.parametrize("net", [NFT], indirect=True)
@pytest.mark.parametrize("first", ["eth0", "eth1"])
def test_what_the_reference_made_of_both(net, reference, first):
    """DEL of one interface whose rules the reference made keeps the other's; the reference's DEL then finds them."""
    theirs = replace(net, bin_dir=reference)
    for ifname in ("eth0", "eth1"):
        run(theirs, "ADD", ifname)
    (last,) = {"eth0", "eth1"} - {first}
    run(net, "DEL", first)
    run(net, "CHECK", last)
    run(theirs, "DEL", last)
    assert rules(net) == []
