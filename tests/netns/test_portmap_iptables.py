"""Host ports with iptables-legacy and iptables-nft: rules, errors, CHECK, DEL, GC."""

import pytest

from tests.support.xtables import TOOLS

SHARED = {"CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ"}
ONE_IPV4 = ["10.22.0.2/16"]


@pytest.fixture
def net(iptables_ports):
    return iptables_ports


def jump_rules(net, tool="iptables"):
    """Returns the jump rules to containers' chains, without "-A CHAIN"."""
    start = "-A CNI-HOSTPORT-DNAT "
    return [line.removeprefix(start) for line in net.rules()[tool] if line.startswith(start)]


def shared(net, tool="iptables"):
    return {line.strip(":") for line in net.rules()[tool] if line.strip(":") in SHARED}


def test_check_requires_the_order_of_rules_for_one_port(net):
    """Rules for one port with and without host address are in the order of the mappings, which CHECK requires."""
    mappings = ("192.0.2.1|8080:80", "8080:81", "0.0.0.0|8080:81", "::|8080:82")
    net.add("cid", *mappings)
    targets = [line.rpartition(" ")[2] for line in net.container_rules("iptables") if "--to-destination" in line]
    assert targets == ["10.22.0.2:80", "10.22.0.2:81"]
    net.check("cid", *mappings)
    first = next(line for line in net.container_rules("iptables") if line.endswith("10.22.0.2:80"))
    net.load("-D" + first[2:], first)
    assert "is missing" in net.run("CHECK", "cid", *mappings).error()["msg"]


@pytest.mark.parametrize("keys", [{}, {"snat": False}, {"masqAll": True, "markMasqBit": 31}, {"markMasqBit": 0}])
def test_check_reports_each_missing_rule(net, keys):
    """CHECK fails with code 999 and names the rule, whichever rule is missing."""
    net = net.having(**keys)
    mappings = ("8080:80", "192.0.2.1|53:53/udp", "2001:db8::1|9000:90")
    net.add("cid", *mappings)
    net.check("cid", *mappings)
    for tool in TOOLS:
        rules = [line for line in net.rules()[tool] if line.startswith("-A ")]
        assert len(rules) > 4
        for number, line in enumerate(rules):
            position = sum(other.split()[1] == line.split()[1] for other in rules[:number]) + 1
            net.load("-D" + line[2:], tool=tool)
            error = net.run("CHECK", "cid", *mappings).error()
            assert error["code"] == 999
            assert f"rule {line} is missing" in error["msg"]
            assert f"({tool})" in error["msg"]
            net.load(f"-I {line.split()[1]} {position} {line.split(' ', 2)[2]}", tool=tool)
        net.check("cid", *mappings)


@pytest.mark.parametrize("chain", [*sorted(SHARED), "own"])
def test_check_reports_each_missing_chain(net, chain):
    """CHECK fails with code 999 and names the chain, whichever chain is missing; ADD creates it again."""
    net.add("cid", "8080:80")
    rules = net.rules()["iptables"]
    chain = next(line.split()[1] for line in rules if line.startswith("-A CNI-DN-")) if chain == "own" else chain
    jumps = [line for line in rules if line.startswith("-A") and line.split()[1] != chain and chain in line.split()]
    net.load(*(f"-D{line[2:]}" for line in jumps), f"-F {chain}", f"-X {chain}")
    error = net.run("CHECK", "cid", "8080:80").error()
    assert (error["code"], f"chain {chain} is missing" in error["msg"]) == (999, True)
    net.add("cid", "8080:80")
    net.check("cid", "8080:80")


def test_check_reports_an_older_rule_of_the_same_container(net):
    """CHECK reports an older rule that comes first, as repeated ADDs of the reference plugin leave; ADD deletes it."""
    net.add("cid", "8080:80")
    line = next(line for line in net.container_rules("iptables") if line.endswith("10.22.0.2:80"))
    net.load(f"-I {line.split()[1]} " + line.split(" ", 2)[2].replace("10.22.0.2", "10.22.0.7"))
    assert "is forwarded to 10.22.0.7:80, by an older rule" in net.run("CHECK", "cid", "8080:80").error()["msg"]
    net.add("cid", "8080:80")
    net.check("cid", "8080:80")


def test_external_mark_chain(net):
    """With externalSetMarkChain the mark rules jump to that chain, and portmap's mark chains are not created."""
    for tool in TOOLS:
        net.load("-N KUBE-MARK-MASQ", tool=tool)
    net = net.having(externalSetMarkChain="KUBE-MARK-MASQ")
    net.add("cid", "8080:80")
    assert shared(net) == {"CNI-HOSTPORT-DNAT"}
    targets = [line.rpartition(" ")[2] for line in net.container_rules("iptables") if " -s " in line]
    assert targets == ["KUBE-MARK-MASQ"] * 2
    net.check("cid", "8080:80")


def test_missing_external_mark_chain(net):
    """If the external chain is missing for one IP version, ADD names key and chain, and changes nothing."""
    net.load("-N KUBE-MARK-MASQ")
    before = net.rules()
    error = net.having(externalSetMarkChain="KUBE-MARK-MASQ").run("ADD", "cid", "8080:80").error()
    assert '"externalSetMarkChain": chain KUBE-MARK-MASQ is missing in table nat of ip6tables' in error["msg"]
    assert net.rules() == before
    net.having(externalSetMarkChain="KUBE-MARK-MASQ").add("cid", "8080:80", addresses=ONE_IPV4)


def test_networks_with_different_packet_marks(net):
    """Two networks with different packet marks each have the rules for their own."""
    net.add("a", "8080:80")
    other = net.having(name="other", markMasqBit=5)
    other.add("b", "8081:80")
    other.check("b", "8081:80")
    net.check("a", "8080:80")
    packet_marks = [line.rpartition(" ")[2] for line in net.rules()["iptables"] if "--set-xmark" in line]
    assert packet_marks == ["0x2000/0x2000", "0x20/0x20"]


WORDS = [
    ["!", "-d", "192.0.2.9"],
    ["-i", "eth0", "-m", "comment", "--comment", "a \"b\" 'c' \\d $(e) `f` ; # é \\"],
    ["-m", "comment", "--comment", " -j ACCEPT -p udp -m multiport --dports 1 ", "-s", "192.0.2.0/24"],
    ["-m", "comment", "--comment", "x" * 255],
    ["-m", "comment", "--comment", ""],
]


@pytest.mark.parametrize("words", WORDS)
def test_conditions(net, words):
    """Conditions with any printable character are written unchanged, and CHECK requires them in each jump rule."""
    net = net.having(conditionsV4=words)
    mappings = ("8080:80", "53:53/udp")
    net.add("cid", *mappings, addresses=ONE_IPV4)
    net.check("cid", *mappings, addresses=ONE_IPV4)
    lines = [f"-A CNI-HOSTPORT-DNAT {line}" for line in jump_rules(net)]
    assert len(lines) == 2
    for line in lines:
        net.load("-D" + line[2:])
        error = net.run("CHECK", "cid", *mappings, addresses=ONE_IPV4).error()
        assert "rule -A CNI-HOSTPORT-DNAT -p " + line.split(" -p ")[1][:3] in error["msg"]
        net.load(line)
    net.check("cid", *mappings, addresses=ONE_IPV4)
    for other in (["-m", "comment", "--comment", "other"], None):
        error = net.having(conditionsV4=other).run("CHECK", "cid", *mappings, addresses=ONE_IPV4).error()
        assert "is missing" in error["msg"]
    net.delete("cid", *mappings)
    assert net.container_rules("iptables") == []


@pytest.mark.parametrize("words", [["--nonsense"], ["-j", "ACCEPT"], ["-t", "filter"], ["-m", "absent"], ["-D", "X"]])
@pytest.mark.parametrize("first", [True, False])
def test_invalid_conditions(net, words, first):
    """Conditions that iptables refuses are code 7 with the key and the output of iptables, and nothing is changed."""
    if not first:
        net.add("other", "8080:80")
    before = net.container_rules("iptables")
    error = net.having(conditionsV4=words).run("ADD", "cid", "8080:80").error()
    assert error["code"] == 7
    assert '"conditionsV4"' in error["msg"]
    assert "it printed: " in error["details"]
    assert net.container_rules("iptables") == before
    assert '"conditionsV6"' in net.having(conditionsV6=words).run("ADD", "cid", "8080:80").error()["msg"]
    assert net.container_rules("iptables") == before


def test_del_and_gc_remove_the_chains_of_old_reference_plugins(net):
    """DEL and GC delete the container's chain CNI-SN-..., which the reference plugin before 0.7.0 created."""
    net.add("cid", "8080:80")
    chain = next(line.split()[1] for line in net.rules()["iptables"] if line.startswith("-A CNI-DN-"))
    old = chain.replace("-DN-", "-SN-")
    old_lines = (
        f"-N {old}",
        f"-A {old} -s 127.0.0.1/32 -d 10.22.0.2/32 -p tcp -m tcp --dport 80 -j MASQUERADE",
        f'-A CNI-HOSTPORT-SNAT -m comment --comment "snat name: \\"net\\" id: \\"cid\\"" -j {old}',
    )
    net.load("-N CNI-HOSTPORT-SNAT", "-A POSTROUTING -s 127.0.0.1 ! -d 127.0.0.1 -j CNI-HOSTPORT-SNAT")
    for remove in (lambda: net.delete("cid", "8080:80"), net.gc):
        net.load(*old_lines)
        remove()
        assert not any(old in line for line in net.rules()["iptables"])
    assert any("CNI-HOSTPORT-SNAT" in line for line in net.rules()["iptables"])


def test_check_accepts_conditions_that_iptables_does_not_list(net):
    """CHECK succeeds with conditions that match every packet, which iptables omits when it lists a rule."""
    net = net.having(conditionsV4=["-s", "0.0.0.0/0"])
    net.add("cid", "8080:80", addresses=ONE_IPV4)
    net.check("cid", "8080:80", addresses=ONE_IPV4)


def test_del_keeps_a_chain_that_a_foreign_rule_jumps_to(net):
    """DEL empties and keeps a chain that another program's rule jumps to, reports it on stderr, and succeeds."""
    net.add("cid", "8080:80")
    chain = next(line.split()[1] for line in net.rules()["iptables"] if line.startswith("-A CNI-DN-"))
    net.load("-N MINE", f"-A MINE -j {chain}")
    outcome = net.run("DEL", "cid", "8080:80")
    outcome.assert_silent()
    assert f"chain nat {chain} stays, empty" in outcome.stderr
    assert net.container_rules("iptables") == [f":{chain}", f"-A MINE -j {chain}"]
    net.add("cid", "8080:80")
    net.check("cid", "8080:80")


def test_rules_of_other_programs_stay(net):
    """ADD, GC and DEL change no rule and no chain of other programs."""
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
