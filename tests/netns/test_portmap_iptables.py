"""Host ports with iptables, with both variants of it: rules, errors, CHECK, DEL, GC."""

import re

import pytest

from tests.support.hostports import run_in_parallel
from tests.support.xtables import TOOLS

SHARED = {"CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ"}
ONE_IPV4 = ["10.22.0.2/16"]


@pytest.fixture
def net(iptables_ports):
    return iptables_ports


def own(net, tool="iptables"):
    """Returns the rules that are of containers."""
    return [line for line in net.rules()[tool] if "CNI-DN-" in line]


def entries(net, tool="iptables"):
    """Returns the rules that lead to containers' chains, without their beginning."""
    start = "-A CNI-HOSTPORT-DNAT "
    return [line.removeprefix(start) for line in net.rules()[tool] if line.startswith(start)]


def owners(net):
    return [re.search(r'id: \\"(\w+)', line)[1] for line in entries(net)]


def shared(net, tool="iptables"):
    return {line.strip(":") for line in net.rules()[tool] if line.strip(":") in SHARED}


def test_the_chain_has_the_references_name(net):
    """The name is that of the reference's own test."""
    container_id = (
        "icee6giejonei6sohng6ahngee7laquohquee9shiGo7fohferakah3Feiyoolu2pei7ciPhoh7shaoX6vai3vuf0ahfaeng8yohb9ceu0daez5"
        "hashee8ooYai5wa3y"
    )
    net.having(name="test").add(container_id, "8080:80")
    assert ":CNI-DN-67e92b96e692a494b6b85" in net.rules()["iptables"]


def test_a_hundred_ports(net):
    """Ports are grouped by fifteen, by protocol, and CHECK and DEL find them all."""
    mappings = [f"{port}:80" for port in range(7000, 7060)] + [f"{port}:80/udp" for port in range(7000, 7040)]
    net.add("cid", *mappings)
    groups = [(line.split()[1], line.partition("--dports ")[2].split()[0].count(",") + 1) for line in entries(net)]
    assert groups == [("tcp", 15)] * 4 + [("udp", 15)] * 2 + [("udp", 10)]
    net.check("cid", *mappings)
    net.delete("cid", *mappings)
    assert own(net) == own(net, "ip6tables") == []


def test_sctp_comes_first(net):
    """Protocols stand in alphabetical order."""
    net.add("cid", "1:1/udp", "2:2/tcp", "3:3/sctp")
    assert [line.split()[1] for line in entries(net)] == ["sctp", "tcp", "udp"]
    net.check("cid", "1:1/udp", "2:2/tcp", "3:3/sctp")


def test_the_same_port_more_than_once(net):
    """A port for two addresses of the host, and twice for all, has its rules in order; CHECK demands the order."""
    mappings = ("192.0.2.1|8080:80", "8080:81", "0.0.0.0|8080:81", "::|8080:82")
    net.add("cid", *mappings)
    leads = [line.rpartition(" ")[2] for line in own(net) if "--to-destination" in line]
    assert leads == ["10.22.0.2:80", "10.22.0.2:81"]
    net.check("cid", *mappings)
    first = next(line for line in own(net) if line.endswith("10.22.0.2:80"))
    net.load("-D" + first[2:], first)
    assert "is missing" in net.run("CHECK", "cid", *mappings).error()["msg"]


@pytest.mark.parametrize("keys", [{}, {"snat": False}, {"masqAll": True, "markMasqBit": 31}, {"markMasqBit": 0}])
def test_check_demands_every_rule(net, keys):
    """When any one rule or jump is taken away CHECK fails with code 999 and names it, for each rule there is."""
    net = net.having(**keys)
    mappings = ("8080:80", "192.0.2.1|53:53/udp", "2001:db8::1|9000:90")
    net.add("cid", *mappings)
    net.check("cid", *mappings)
    for tool in TOOLS:
        rules = [line for line in net.rules()[tool] if line.startswith("-A ")]
        assert len(rules) > 4
        for number, line in enumerate(rules):
            place = sum(other.split()[1] == line.split()[1] for other in rules[:number]) + 1
            net.load("-D" + line[2:], tool=tool)
            error = net.run("CHECK", "cid", *mappings).error()
            assert error["code"] == 999
            assert f"rule {line} is missing" in error["msg"]
            assert f"({tool})" in error["msg"]
            net.load(f"-I {line.split()[1]} {place} {line.split(' ', 2)[2]}", tool=tool)
        net.check("cid", *mappings)


@pytest.mark.parametrize("chain", [*sorted(SHARED), "own"])
def test_check_demands_every_chain(net, chain):
    """When a chain is taken away, with what jumps there, CHECK fails and names it."""
    net.add("cid", "8080:80")
    rules = net.rules()["iptables"]
    chain = next(line.split()[1] for line in rules if line.startswith("-A CNI-DN-")) if chain == "own" else chain
    jumps = [line for line in rules if line.startswith("-A") and line.split()[1] != chain and chain in line.split()]
    net.load(*(f"-D{line[2:]}" for line in jumps), f"-F {chain}", f"-X {chain}")
    error = net.run("CHECK", "cid", "8080:80").error()
    assert (error["code"], f"chain {chain} is missing" in error["msg"]) == (999, True)
    net.add("cid", "8080:80")
    net.check("cid", "8080:80")


def test_a_repeated_add_replaces(net):
    """A second ADD with another address and other ports leaves nothing of the first."""
    net.add("cid", "8080:80", "8081:81", "53:53/udp")
    once = net.rules()
    net.add("cid", "8080:80", "8081:81", "53:53/udp")
    assert net.rules() == once
    net.add("cid", "8080:80", addresses=["10.22.0.9/16"])
    net.check("cid", "8080:80", addresses=["10.22.0.9/16"])
    assert not any("10.22.0.2" in line or "53" in line.split() for line in own(net))
    assert len(entries(net)) == 1
    net.add("cid", "9090:90", addresses=ONE_IPV4)
    assert [line.partition("--dports ")[2].split()[0] for line in entries(net)] == ["9090"]


def test_a_repeated_add_keeps_its_place(net):
    """The container that was first keeps a port when its ADD is repeated."""
    net.add("first", "8080:80", "9000:90")
    net.add("second", "8080:80")
    net.add("first", "8080:80", "9000:90")
    assert owners(net) == ["first", "second"]
    net.check("first", "8080:80", "9000:90")


def test_check_tells_who_has_the_port(net):
    """CHECK of the container that came second fails and names the first, until that is gone."""
    net.add("first", "8080:80")
    net.add("second", "8080:80", "8081:81", addresses=["10.22.0.3/16"])
    net.check("first", "8080:80")
    error = net.run("CHECK", "second", "8080:80", "8081:81", addresses=["10.22.0.3/16"]).error()
    assert error["msg"] == "host port 8080/tcp is forwarded to container first of network net, whose rule comes first"
    net.delete("first", "8080:80")
    net.check("second", "8080:80", "8081:81", addresses=["10.22.0.3/16"])


def test_an_older_rule_of_its_own(net):
    """CHECK finds a rule of a former life in front, as the reference's repeated ADD leaves one."""
    net.add("cid", "8080:80")
    line = next(line for line in own(net) if line.endswith("10.22.0.2:80"))
    net.load(f"-I {line.split()[1]} " + line.split(" ", 2)[2].replace("10.22.0.2", "10.22.0.7"))
    assert "is forwarded to 10.22.0.7:80, by an older rule" in net.run("CHECK", "cid", "8080:80").error()["msg"]


def test_addresses_that_do_not_meet_are_no_conflict(net):
    """One port for two addresses of the host, of two containers, is no conflict, nor are protocols and families."""
    net = net.having(onConflict="fail")
    net.add("a", "192.0.2.1|8080:80")
    for number, mapping in enumerate(("192.0.2.2|8080:80", "2001:db8::1|8080:80", "192.0.2.1|8080:80/udp")):
        net.add(f"b{number}", mapping)
        net.check(f"b{number}", mapping)
    net.check("a", "192.0.2.1|8080:80")


@pytest.mark.parametrize("mapping", ["8080:80", "0.0.0.0|8080:80", "192.0.2.1|8080:80"])
def test_a_port_that_is_taken_can_be_refused(net, mapping):
    """With onConflict "fail" ADD fails with code 11, names the other container, and leaves nothing."""
    net.add("first", "192.0.2.1|8080:80", "8081:81")
    before = net.rules()
    error = net.having(onConflict="fail").run("ADD", "second", mapping, "9000:90").error()
    assert error["code"] == 11
    assert "is in use by container first of network net" in error["msg"]
    assert net.rules() == before
    net.having(onConflict="fail").add("first", "192.0.2.1|8080:80", "8081:81")


def test_an_external_chain(net):
    """With externalSetMarkChain the marking rules go there, and no chains are made for it."""
    for tool in TOOLS:
        net.load("-N KUBE-MARK-MASQ", tool=tool)
    net = net.having(externalSetMarkChain="KUBE-MARK-MASQ")
    net.add("cid", "8080:80")
    assert shared(net) == {"CNI-HOSTPORT-DNAT"}
    assert [line.rpartition(" ")[2] for line in own(net) if " -s " in line] == ["KUBE-MARK-MASQ"] * 2
    net.check("cid", "8080:80")


def test_an_external_chain_that_is_missing(net):
    """An external chain that is not there in one family is told with key and chain, and nothing is left."""
    net.load("-N KUBE-MARK-MASQ")
    before = net.rules()
    error = net.having(externalSetMarkChain="KUBE-MARK-MASQ").run("ADD", "cid", "8080:80").error()
    assert '"externalSetMarkChain": chain KUBE-MARK-MASQ is missing in table nat of ip6tables' in error["msg"]
    assert net.rules() == before
    net.having(externalSetMarkChain="KUBE-MARK-MASQ").add("cid", "8080:80", addresses=ONE_IPV4)


def test_networks_with_different_marks(net):
    """Each network's mark is set and masqueraded, also when another network has another one."""
    net.add("a", "8080:80")
    other = net.having(name="other", markMasqBit=5)
    other.add("b", "8081:80")
    other.check("b", "8081:80")
    net.check("a", "8080:80")
    marks = [line.rpartition(" ")[2] for line in net.rules()["iptables"] if "--set-xmark" in line]
    assert marks == ["0x2000/0x2000", "0x20/0x20"]


WORDS = [
    ["!", "-d", "192.0.2.9"],
    ["-i", "eth0", "-m", "comment", "--comment", "a \"b\" 'c' \\d $(e) `f` ; # é \\"],
    ["-m", "comment", "--comment", " -j ACCEPT -p udp -m multiport --dports 1 ", "-s", "192.0.2.0/24"],
    ["-m", "comment", "--comment", "x" * 255],
    ["-m", "comment", "--comment", ""],
]


@pytest.mark.parametrize("words", WORDS)
def test_conditions(net, words):
    """Words with any printable character arrive as they are, and CHECK demands each entry with its conditions."""
    net = net.having(conditionsV4=words)
    mappings = ("8080:80", "53:53/udp")
    net.add("cid", *mappings, addresses=ONE_IPV4)
    net.check("cid", *mappings, addresses=ONE_IPV4)
    assert net.run("CHECK", "cid", *mappings, addresses=ONE_IPV4).status == 0
    found = [f"-A CNI-HOSTPORT-DNAT {line}" for line in entries(net)]
    assert len(found) == 2
    for line in found:
        net.load("-D" + line[2:])
        error = net.run("CHECK", "cid", *mappings, addresses=ONE_IPV4).error()
        assert "rule -A CNI-HOSTPORT-DNAT -p " + line.split(" -p ")[1][:3] in error["msg"]
        net.load(line)
    net.check("cid", *mappings, addresses=ONE_IPV4)
    wrong = net.having(conditionsV4=["-m", "comment", "--comment", "other"])
    assert "is missing" in wrong.run("CHECK", "cid", *mappings, addresses=ONE_IPV4).error()["msg"]
    plain = net.having(conditionsV4=None)
    assert "is missing" in plain.run("CHECK", "cid", *mappings, addresses=ONE_IPV4).error()["msg"]
    net.delete("cid", *mappings)
    assert own(net) == []


@pytest.mark.parametrize("words", [["--nonsense"], ["-j", "ACCEPT"], ["-t", "filter"], ["-m", "absent"], ["-D", "X"]])
@pytest.mark.parametrize("first", [True, False])
def test_conditions_that_are_none(net, words, first):
    """Words that iptables does not understand are code 7 with the key and what it said, and nothing is left."""
    if not first:
        net.add("other", "8080:80")
    before = own(net)
    error = net.having(conditionsV4=words).run("ADD", "cid", "8080:80").error()
    assert error["code"] == 7
    assert '"conditionsV4"' in error["msg"]
    assert "it printed: " in error["details"]
    assert own(net) == before
    assert '"conditionsV6"' in net.having(conditionsV6=words).run("ADD", "cid", "8080:80").error()["msg"]
    assert own(net) == before


def test_a_long_comment(net):
    """Names longer than a comment may be are served, and their rules are found again."""
    net = net.having(name="n" * 200)
    cid = "x" * 200
    net.add(cid, "8080:80")
    comment = f'dnat name: "{"n" * 200}" id: "{cid}"'[:255].replace('"', '\\"')
    assert f'--comment "{comment}"' in entries(net)[0]
    net.check(cid, "8080:80")
    net.add(cid, "8080:80")
    assert len(entries(net)) == 1
    net.delete(cid, "8080:80")
    assert own(net) == []


def test_only_the_other_familys_address(net):
    """A mapping of an IPv6 address of the host has its port in IPv4's entry and no rule in IPv4 (reference)."""
    net.add("cid", "2001:db8::1|9000:90")
    assert own(net)[-1].count("9000") == 1
    assert not any("--to-destination" in line for line in own(net))
    net.check("cid", "2001:db8::1|9000:90")


def test_del_removes_what_old_references_made(net):
    """Chains CNI-SN-... of before 0.7.0 go with DEL and with GC, and nobody else's."""
    net.add("cid", "8080:80")
    chain = next(line.split()[1] for line in net.rules()["iptables"] if line.startswith("-A CNI-DN-"))
    old = chain.replace("-DN-", "-SN-")
    made = (
        f"-N {old}",
        f"-A {old} -s 127.0.0.1/32 -d 10.22.0.2/32 -p tcp -m tcp --dport 80 -j MASQUERADE",
        f'-A CNI-HOSTPORT-SNAT -m comment --comment "snat name: \\"net\\" id: \\"cid\\"" -j {old}',
    )
    net.load("-N CNI-HOSTPORT-SNAT", "-A POSTROUTING -s 127.0.0.1 ! -d 127.0.0.1 -j CNI-HOSTPORT-SNAT")
    for remove in (lambda: net.delete("cid", "8080:80"), net.gc):
        net.load(*made)
        remove()
        assert not any(old in line for line in net.rules()["iptables"])
    assert any("CNI-HOSTPORT-SNAT" in line for line in net.rules()["iptables"])


def test_other_conditions_than_those(net):
    """An entry with other conditions than the configuration has by now is none."""
    net.having(conditionsV4=["-i", "eth0"]).add("cid", "8080:80", addresses=ONE_IPV4)
    for words in (["-i", "eth1"], ["!", "-i", "eth0"], None):
        error = net.having(conditionsV4=words).run("CHECK", "cid", "8080:80", addresses=ONE_IPV4).error()
        assert "rule -A CNI-HOSTPORT-DNAT -p tcp " in error["msg"]


def test_conditions_that_say_nothing(net):
    """Words that iptables leaves out when it lists a rule, since they say nothing, are no reason for CHECK to fail."""
    net = net.having(conditionsV4=["-s", "0.0.0.0/0"])
    net.add("cid", "8080:80", addresses=ONE_IPV4)
    net.check("cid", "8080:80", addresses=ONE_IPV4)


def test_gc_takes_what_has_no_attachment(net):
    """GC removes the rules of containers that are not listed, keeps those that are, and other networks'."""
    for name in ("dead", "alive", "z" * 250):
        net.add(name, "8080:80")
    net.having(name="other").add("dead", "8080:80")
    assert "host port rule(s) seem to be of network net and stay" in net.gc("alive")
    net.check("alive", "8080:80")
    assert len(entries(net)) == 3
    assert '\\"dead\\"' not in "".join(line for line in entries(net) if "other" not in line)
    assert net.gc("alive", "z" * 250) == ""


def test_a_foreign_jump_keeps_a_chain(net):
    """A chain to which a rule of somebody else leads is emptied and stays, which is told, and DEL succeeds."""
    net.add("cid", "8080:80")
    chain = next(line.split()[1] for line in net.rules()["iptables"] if line.startswith("-A CNI-DN-"))
    net.load("-N MINE", f"-A MINE -j {chain}")
    outcome = net.run("DEL", "cid", "8080:80")
    outcome.assert_silent()
    assert f"chain nat {chain} stays, empty" in outcome.stderr
    assert own(net) == [f":{chain}", f"-A MINE -j {chain}"]
    net.add("cid", "8080:80")
    net.check("cid", "8080:80")


def test_what_others_made_stays(net):
    """Rules and hundreds of chains of others are untouched by ADD, CHECK, GC and DEL."""
    for tool in TOOLS:
        chains = [f"-N KUBE-SVC-{number}" for number in range(300)]
        net.load(*chains, "-A PREROUTING -j KUBE-SVC-7", "-A POSTROUTING -j KUBE-SVC-8", tool=tool)
    net.add("other", "8080:80")
    before = net.rules()
    net.add("cid", "8080:80", "9090:90")
    net.gc("other", "cid")
    net.delete("cid", "8080:80", "9090:90")
    net.delete("cid", "8080:80", "9090:90")
    assert net.rules() == before


@pytest.mark.crowd
def test_many_at_once(net):
    """Sixteen first ADDs at once, CHECKs, and DELs beside other ADDs lose nothing and leave nothing twice."""
    first, second = (
        {
            f"{name}{number}": net.having(f"{port + number}:80", addresses=[f"{subnet}.{number + 1}/16"])
            for number in range(16)
        }
        for name, port, subnet in (("a", 8000, "10.22.1"), ("b", 9000, "10.22.2"))
    )
    for outcome in run_in_parallel(*(("ADD", name, pod) for name, pod in first.items())):
        outcome.result()
    everything = [line for line in net.rules()["iptables"] if line.startswith("-A")]
    assert len(everything) == len(set(everything))
    for name, pod in first.items():
        pod.check(name)
    leaving = [("DEL", name, pod) for name, pod in first.items()]
    coming = [("ADD", name, pod) for name, pod in second.items()]
    for outcome in run_in_parallel(*leaving, *coming):
        assert outcome.status == 0, outcome
    assert sorted(owners(net)) == sorted(second)
    for name, pod in second.items():
        pod.check(name)
