"""Host ports with iptables among what others do there: rules like ours, rules that iptables cannot express."""

from dataclasses import replace

import pytest

from plugins.portmap.iptables_rules import CHAINS
from tests.netns.conftest import LEGACY, NFT
from tests.support import hostports, xtables
from tests.support.xtables import TOOLS

OTHER = ["10.22.0.3/16", "fd00:22::3/64"]
JUMP = "-m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT"
MARK = "-m mark --mark 0x2000/0x2000"
MARKED = "MARK --set-xmark 0x2000/0x2000"
# Lines that make a rule of all containers another one, and that one.
LOOK_ALIKE = [
    ("-R PREROUTING 1 -i lo {}", JUMP),
    ("-R OUTPUT 1 -m addrtype ! --dst-type LOCAL -j CNI-HOSTPORT-DNAT", JUMP),
    ("-R PREROUTING 1 -m addrtype --src-type LOCAL -j CNI-HOSTPORT-DNAT", JUMP),
    ("-R PREROUTING 1 -m addrtype --dst-type LOCAL -g CNI-HOSTPORT-DNAT", JUMP),
    ('-R PREROUTING 1 -m comment --comment "mine" {}', JUMP),
    ("-R CNI-HOSTPORT-MASQ 1 -m mark ! --mark 0x2000/0x2000 -j MASQUERADE", f"{MARK} -j MASQUERADE"),
    ("-R CNI-HOSTPORT-MASQ 1 -m mark --mark 0x2000/0x2000 -j MASQUERADE --random", f"{MARK} -j MASQUERADE"),
    ("-R CNI-HOSTPORT-SETMARK 1 -i eth9 -j {}", MARKED),
    ("-R POSTROUTING 1 -o eth9 {}", '-m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ'),
]


@pytest.fixture
def net(iptables_ports):
    return iptables_ports


@pytest.mark.parametrize(("line", "rule"), LOOK_ALIKE)
def test_a_rule_that_looks_like_a_shared_one_is_none(net, line, rule):
    """ADD makes the shared rule beside one that differs in a condition or an option, which stays; CHECK demands it."""
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
def test_jumps_of_the_user_stay(net):
    """A way into our chains that the user made is not taken for a shared rule that is there twice."""
    net.add("cid", "8080:80")
    mine = "-A OUTPUT ! -d 127.0.0.0/8 -o uplink -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT"
    net.load(mine.replace("-A OUTPUT", "-I OUTPUT 1"), "-F CNI-HOSTPORT-SETMARK")
    net.add("other", "9090:90", addresses=OTHER)
    jumps = [line for line in net.rules()["iptables"] if line.startswith("-A OUTPUT")]
    assert jumps == [mine, f"-A OUTPUT {JUMP}"]
    net.check("cid", "8080:80")


def overtaken(tools, directory):
    """Makes a directory of the same programs, the first of which finds done by another what it is to change."""
    directory.mkdir()
    for program in tools.iterdir():
        wrapper = directory / program.name
        lines = (
            "#!/bin/sh",
            f"cat > {directory}/$$",
            f"grep -q '^-[DFX]' {directory}/$$ && mkdir {directory}/done && {program} --noflush < {directory}/$$",
            f'exec {program} "$@" < {directory}/$$',
        )
        wrapper.write_text("\n".join(lines))
        wrapper.chmod(0o755)
    return directory


@pytest.mark.parametrize("tools", [LEGACY], indirect=True)
@pytest.mark.parametrize("command", ["DEL", "GC"])
def test_what_another_takes_away_meanwhile(net, tmp_path, command):
    """DEL and GC succeed though another takes away all that they have read before they write."""
    net.add("cid", "8080:80")
    late = replace(net, tools=overtaken(net.tools, tmp_path / "overtaken"))
    _ = late.gc() if command == "GC" else late.delete("cid", "8080:80")
    assert (late.tools / "done").exists()
    assert not any("CNI-DN-" in line for tool in TOOLS for line in net.rules()[tool])


@pytest.mark.needs("iptables_legacy_nat")
@pytest.mark.parametrize("tools", [NFT], indirect=True)
def test_from_one_variant_to_the_other(net, tmp_path):
    """The first ADD after the host's programs became those of iptables-legacy succeeds, and so do CHECK and DEL."""
    now = replace(net, tools=xtables.variant(tmp_path / "legacy", "legacy"))
    net.add("cid", "8080:80")
    net.add("again", "8082:80", addresses=OTHER)
    now.add("other", "9090:90", addresses=OTHER)
    now.check("other", "9090:90", addresses=OTHER)
    now.add("again", "8082:80", addresses=OTHER)
    now.check("again", "8082:80", addresses=OTHER)
    for name in ("cid", "other", "again"):
        now.delete(name, "8080:80")
    for tool in TOOLS:
        assert not any("CNI-DN-" in line for line in net.rules()[tool] + now.rules()[tool])


FOREIGN = "numgen random mod 2 == 0 counter accept"


@pytest.mark.parametrize("tools", [NFT], indirect=True)
def test_rules_that_iptables_cannot_express(net, host):
    """Rules of nft's own in the built-in chains, which iptables cannot list, are in nobody's way and stay."""
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
def test_a_chain_that_cannot_be_listed_is_named(net, host):
    """Where the chain of entries itself has such a rule ADD and CHECK name it, with code 999, and all stays."""
    net.add("cid", "8080:80")
    host.run("nft", f"add rule ip nat CNI-HOSTPORT-DNAT {FOREIGN}")
    before = host.run("nft", "-s", "list", "ruleset")
    for command in ("ADD", "CHECK"):
        error = net.run(command, "cid", "8080:80").error()
        assert (error["code"], "iptables-restore does not list chain CNI-HOSTPORT-DNAT" in error["msg"]) == (999, True)
        assert "incompatible" in error["details"]
    assert host.run("nft", "-s", "list", "ruleset") == before


def test_a_repeated_add_that_is_refused_changes_nothing(net):
    """What a container has stays as it is when its second ADD is refused before anything was changed."""
    net.add("first", "8081:81", addresses=OTHER)
    net.add("cid", "8080:80")
    before = net.rules()
    assert net.having(onConflict="fail").run("ADD", "cid", "8080:80", "8081:81").error()["code"] == 11
    assert net.rules() == before


@pytest.mark.parametrize("tools", [NFT], indirect=True)
def test_gc_of_hundreds(net):
    """GC takes hundreds of containers' chains away, in a few transactions, also where a foreign jump keeps one."""
    net.add("c0", "8080:80")
    net.add("alive", "8081:80", addresses=OTHER)
    for tool in TOOLS:
        chain = CHAINS.name("net", "c0")
        own = [line for line in net.rules()[tool] if chain in line and line.startswith("-A")]
        lines = ["-N MINE", f"-A MINE -j {CHAINS.name('net', 'c7')}"]
        for number in range(1, 300):
            name = CHAINS.name("net", f"c{number}")
            lines += [f"-N {name}", *(line.replace(chain, name).replace('"c0', f'"c{number}') for line in own)]
        net.load(*sorted(lines, key=lambda line: not line.startswith("-N")), tool=tool)
    said = net.gc("alive")
    kept = CHAINS.name("net", "c7")
    assert f"chain nat {kept} stays, empty" in said
    for tool in TOOLS:
        found = [line for line in net.rules()[tool] if "CNI-DN-" in line and CHAINS.name("net", "alive") not in line]
        assert found == [f":{kept}", f"-A MINE -j {kept}"]
    net.check("alive", "8081:80", addresses=OTHER)


@pytest.mark.crowd
def test_one_port_for_many_at_once(net):
    """ADD, DEL and GC of containers with one port, all at once and again and again, never lose to each other."""
    for turn in range(3):
        calls = []
        for number in range(20):
            pod = net.having("8080:80", addresses=[f"10.22.0.{number % 5 + 2}/16"])
            command = ("ADD", "DEL", "ADD", "GC")[(number + turn) % 4]
            keys = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": []} if command == "GC" else {}
            calls.append((command, f"c{number % 5}", pod.having(**keys)))
        for (command, name, _), outcome in zip(calls, hostports.run_in_parallel(*calls), strict=True):
            assert outcome.status == 0, (command, name, outcome)
    for number in range(5):
        net.delete(f"c{number}", "8080:80")
    assert not any("CNI-DN-" in line for line in net.rules()["iptables"])


def test_two_containers_with_one_chain(net):
    """A container whose chain is named as that of another network's is refused, and nothing is changed."""
    net.add("1a", "8080:80")
    before = net.rules()
    error = net.having(name="net1").run("ADD", "a", "9090:90", addresses=OTHER).error()
    assert (error["code"], "already belongs to container 1a of network net" in error["msg"]) == (999, True)
    assert net.rules() == before
    net.check("1a", "8080:80")
