"""Host ports of iptables beside other programs' rules, including rules that iptables cannot list; processes."""

import re
from dataclasses import replace
from ipaddress import ip_interface

import pytest

from plugins.portmap import iptables_state
from plugins.portmap.conf import HostPorts, PortMapping
from plugins.portmap.iptables_rules import DNAT_CHAINS
from tests.netns.conftest import NFT
from tests.support import xtables
from tests.support.xtables import TOOLS

OTHER = ["10.22.0.3/16", "fd00:22::3/64"]
JUMP = "-m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT"
MARK_MATCH = "-m mark --mark 0x2000/0x2000"
MARK_TARGET = "MARK --set-xmark 0x2000/0x2000"
# A line that replaces a shared rule by a similar one, and the shared rule.
SIMILAR_RULES = [
    ("-R PREROUTING 1 -i lo {}", JUMP),
    ("-R OUTPUT 1 -m addrtype ! --dst-type LOCAL -j CNI-HOSTPORT-DNAT", JUMP),
    ("-R PREROUTING 1 -m addrtype --src-type LOCAL -j CNI-HOSTPORT-DNAT", JUMP),
    ("-R PREROUTING 1 -m addrtype --dst-type LOCAL -g CNI-HOSTPORT-DNAT", JUMP),
    ('-R PREROUTING 1 -m comment --comment "mine" {}', JUMP),
    ("-R CNI-HOSTPORT-MASQ 1 -m mark ! --mark 0x2000/0x2000 -j MASQUERADE", f"{MARK_MATCH} -j MASQUERADE"),
    ("-R CNI-HOSTPORT-MASQ 1 -m mark --mark 0x2000/0x2000 -j MASQUERADE --random", f"{MARK_MATCH} -j MASQUERADE"),
    ("-R CNI-HOSTPORT-SETMARK 1 -i eth9 -j {}", MARK_TARGET),
    ("-R POSTROUTING 1 -o eth9 {}", '-m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ'),
]


@pytest.fixture
def net(iptables_ports):
    return iptables_ports


@pytest.mark.parametrize(("line", "rule"), SIMILAR_RULES)
def test_similar_rule_does_not_replace_a_shared_rule(net, line, rule):
    """CHECK requires the exact shared rule, and ADD creates it beside one that differs in a match or an option."""
    net.add("cid", "8080:80")
    for tool in TOOLS:
        net.load(line.format(rule), tool=tool)
    before = net.rules()
    assert rule in net.run("CHECK", "cid", "8080:80").error()["msg"]
    net.add("other", "9090:90", addresses=OTHER)
    net.check("cid", "8080:80")
    net.check("other", "9090:90", addresses=OTHER)
    for tool, lines in net.rules().items():
        assert set(before[tool]) <= set(lines)


@pytest.mark.parametrize("tools", [NFT], indirect=True)
def test_jump_rules_of_the_administrator_stay(net):
    """An administrator's rule that jumps to a shared chain is not deleted as a duplicate."""
    net.add("cid", "8080:80")
    mine = "-A OUTPUT ! -d 127.0.0.0/8 -o uplink -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT"
    net.load(mine.replace("-A OUTPUT", "-I OUTPUT 1"), "-F CNI-HOSTPORT-SETMARK")
    net.add("other", "9090:90", addresses=OTHER)
    jumps = [line for line in net.rules()["iptables"] if line.startswith("-A OUTPUT")]
    assert jumps == [mine, f"-A OUTPUT {JUMP}"]
    net.check("cid", "8080:80")


@pytest.mark.parametrize("command", ["DEL", "GC"])
def test_rules_of_the_administrator_that_name_a_chain_stay(net, command):
    """A rule whose comment ends in the name of a container's chain is no jump to it: no verb deletes or lists it."""
    net.add("cid", "8080:80")
    mine = [
        f'-A CNI-HOSTPORT-DNAT -s 203.0.113.7/32 -m comment --comment "{comment}" -j RETURN'
        for comment in (f"blocks -j {DNAT_CHAINS.name('net', 'cid')}", "was CNI-DN-0123456789abcdef01234")
    ]
    net.load(*mine)
    net.check("cid", "8080:80")
    net.add("other", "9090:90", addresses=OTHER)
    net.check("other", "9090:90", addresses=OTHER)
    _ = net.gc("other") if command == "GC" else net.delete("cid", "8080:80")
    jumps = [line for line in net.rules()["iptables"] if line.startswith("-A CNI-HOSTPORT-DNAT ")]
    assert [line for line in jumps if "203.0.113.7" in line] == mine
    assert len(jumps) == len(mine) + 1


@pytest.mark.parametrize(("name", "cid"), [("n" * 240, "cid"), ("net", "z" * 250)], ids=["network", "container"])
def test_gc_reports_rules_with_a_truncated_name(net, name, cid):
    """GC keeps rules whose comment has no room for both names, says how many, and nothing if the container is valid."""
    long = net.having(name=name)
    long.add(cid, "8080:80")
    assert "host port rule(s) seem to be of network" in long.gc()
    assert any("CNI-DN-" in line for line in net.rules()["iptables"])
    assert long.gc(cid) == ""
    long.delete(cid, "8080:80")


def test_ipv6_address_with_an_ipv4_address_in_it(net):
    """CHECK finds the rules of ::1.2.3.5, which iptables lists in this form, and a repeated ADD adds none."""
    addresses = ["10.22.0.2/16", "::1.2.3.5/96"]
    net.add("cid", "8080:80", addresses=addresses)
    net.check("cid", "8080:80", addresses=addresses)
    before = net.rules()
    net.add("cid", "8080:80", addresses=addresses)
    assert net.rules() == before
    assert any("[::1.2.3.5]:80" in line for line in before["ip6tables"])


FOREIGN = "numgen random mod 2 == 0 counter accept"


@pytest.mark.parametrize("tools", [NFT], indirect=True)
def test_rules_that_iptables_cannot_express(net, host):
    """Rules in built-in chains that iptables cannot list do not disturb any verb, and stay."""
    net.add("cid", "8080:80")
    for family in ("ip", "ip6"):
        for chain in ("PREROUTING", "OUTPUT", "POSTROUTING"):
            host.run("nft", f"add rule {family} nat {chain} {FOREIGN}")
    net.check("cid", "8080:80")
    net.add("other", "8080:80", "9090:90", addresses=OTHER)
    assert "is forwarded to container cid" in net.run("CHECK", "other", "8080:80", addresses=OTHER).error()["msg"]
    net.add("cid", "8080:80", "8081:81")
    net.check("cid", "8080:80", "8081:81")
    net.delete("cid", "8080:80", "8081:81")
    net.check("other", "8080:80", "9090:90", addresses=OTHER)
    net.delete("other")
    rules = host.run("nft", "list", "ruleset")
    assert (rules.count("numgen random"), "CNI-DN-" in rules) == (6, False)


@pytest.mark.parametrize("tools", [NFT], indirect=True)
def test_chain_that_cannot_be_listed_is_named(net, host):
    """If iptables cannot list CNI-HOSTPORT-DNAT, ADD and CHECK fail with code 999, name it, and change nothing."""
    net.add("cid", "8080:80")
    host.run("nft", f"add rule ip nat CNI-HOSTPORT-DNAT {FOREIGN}")
    before = host.run("nft", "-s", "list", "ruleset")
    for command in ("ADD", "CHECK"):
        error = net.run(command, "cid", "8080:80").error()
        assert (error["code"], "iptables-restore does not list chain CNI-HOSTPORT-DNAT" in error["msg"]) == (999, True)
        assert "incompatible" in error["details"]
    assert host.run("nft", "-s", "list", "ruleset") == before


def test_two_containers_with_one_chain_name(net):
    """ADD refuses a container whose chain name is that of another network's container, and changes nothing."""
    net.add("1a", "8080:80")
    before = net.rules()
    error = net.having(name="net1").run("ADD", "a", "9090:90", addresses=OTHER).error()
    assert (error["code"], "already belongs to container 1a of network net" in error["msg"]) == (999, True)
    assert net.rules() == before
    net.check("1a", "8080:80")


def test_number_of_processes(net, tmp_path):
    """With iptables-nft ADD runs one process for each IP version, two if a port is in use, CHECK one, and DEL none.

    CHECK of a few ports runs none: it recognises their rules over netlink.
    """
    legacy = net.tools.name == "legacy"
    net = replace(net, tools=xtables.counted(net.tools, tmp_path / "counted"))
    one_process, two_processes = (sorted(f"{tool}-restore" for tool in TOOLS * number) for number in (1, 2))
    mappings = [f"{port}:80" for port in range(7000, 7100)]
    net.add("first", *mappings)
    assert xtables.calls(net.tools) == one_process
    net.add("second", "9000:90", addresses=["10.22.0.3/16", "fd00:22::3/64"])
    assert xtables.calls(net.tools) == (two_processes if legacy else one_process)
    net.check("second", "9000:90", addresses=["10.22.0.3/16", "fd00:22::3/64"])
    assert xtables.calls(net.tools) == (one_process if legacy else [])
    net.add("third", *mappings, addresses=["10.22.0.4/16", "fd00:22::4/64"])
    assert xtables.calls(net.tools) == two_processes
    net.add("first", *mappings)
    assert xtables.calls(net.tools) == two_processes
    net.check("first", *mappings)
    assert xtables.calls(net.tools) == one_process
    net.having(conditionsV4=["-m", "comment", "--comment", "x"]).run("CHECK", "first", *mappings)
    assert xtables.calls(net.tools) == one_process
    net.delete("third", *mappings)
    assert xtables.calls(net.tools) == (two_processes if legacy else [])
    net.delete("third", *mappings)
    assert xtables.calls(net.tools) == (one_process if legacy else [])


@pytest.mark.parametrize("tools", [NFT], indirect=True)
def test_check_runs_a_process_for_an_unknown_rule(net, tmp_path):
    """CHECK runs iptables-restore only if the container's chain, or a jump rule for its port, is not recognised."""
    net = replace(net, tools=xtables.counted(net.tools, tmp_path / "counted"))
    net.add("cid", "8080:80", "8081:81", "192.0.2.1|53:53/udp")
    chain = next(line.split()[1] for line in net.rules()["iptables"] if line.startswith("-A CNI-DN-"))
    xtables.calls(net.tools)
    for line in (f"{chain} -p tcp -j LOG", "CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 8081:8090 -j RETURN"):
        net.check("cid", "8080:80", "8081:81", "192.0.2.1|53:53/udp")
        assert xtables.calls(net.tools) == []
        net.load(f"-A {line}")
        xtables.calls(net.tools)
        net.check("cid", "8080:80", "8081:81", "192.0.2.1|53:53/udp")
        assert xtables.calls(net.tools) == ["iptables-restore"]
        net.load(f"-D {line}")
        xtables.calls(net.tools)


@pytest.mark.parametrize("tools", [NFT], indirect=True)
def test_duplicate_shared_rules_are_deleted(net, host):
    """Duplicate shared rules, as parallel ADDs create them, are deleted, and other programs' rules stay."""
    net.having(markMasqBit=5).add("other", "8081:80")
    net.add("cid", "8080:80")
    before = net.rules()
    for tool in TOOLS:
        lines = [line for line in before[tool] if line.startswith("-A") and not re.search("CNI-DN-|0x20/", line)]
        net.load(*lines, "-A PREROUTING -j RETURN", *lines, tool=tool)
    with host.entered():
        addresses = {4: ip_interface("10.22.0.2/16"), 6: ip_interface("fd00:22::2/64")}
        ports = HostPorts("net", "cid", "eth0", (PortMapping(8080, 80, "tcp"),), addresses)
        iptables_state.delete_duplicate_rules(ports)
    after = net.rules()
    for tool in TOOLS:
        assert sorted([*before[tool], "-A PREROUTING -j RETURN"]) == sorted(after[tool])
