"""Rules of iptables written over netlink (netfilter.iptables) equal the program's, to the byte."""

import re

import pytest

from kernel.netfilter import iptables, iptables_program, nft
from kernel.netfilter.iptables_expressions import match_rules
from kernel.netfilter.iptables_rule import IptablesChange, IptablesRule
from kernel.netfilter.nft import Chain, Table
from tests.netns.conftest import LEGACY
from tests.support import xtables

pytestmark = pytest.mark.needs("iptables_nft_nat")

COMMENT = r'-m comment --comment "name: \"net\" id: \"c\\d é\""'
LINES = {
    (4, "nat"): [
        "-N CNI-a",
        "-N CNI-b",
        f"-A CNI-a -d 10.22.0.0/16 {COMMENT} -j ACCEPT",
        f"-A CNI-a ! -d 224.0.0.0/4 {COMMENT} -j MASQUERADE",
        f"-A POSTROUTING -s 10.22.0.2/32 {COMMENT} -j CNI-a",
        "-I CNI-a -s 10.20.0.0/14 -j RETURN",
        "-A CNI-b -s 10.22.0.0/16 -p tcp -m tcp --dport 8080 -j CNI-a-b",
        "-N CNI-a-b",
        "-A CNI-b -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.22.0.2:80",
        "-A CNI-b -d 192.0.2.1/32 -p udp -m udp --dport 53 -j DNAT --to-destination 10.22.0.2:5353",
        f"-A CNI-b -p tcp {COMMENT} -m multiport --dports 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15 -j RETURN",
        f"-A CNI-b -p sctp {COMMENT} -m multiport --dports 8080 -j RETURN",
        "-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-b",
        f"-A CNI-a {COMMENT} -j MARK --set-xmark 0x2000/0x2000",
        "-A CNI-a -m mark --mark 0x80000000/0x80000000 -j MASQUERADE",
        "-I CNI-a -m mark --mark 0x1/0x1 -j MASQUERADE",
    ],
    (4, "filter"): [
        "-N CNI-f",
        "-A CNI-f -d 10.22.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A CNI-f -s 10.22.0.2/32 -j ACCEPT",
        '-I FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-f',
        '-I CNI-f -i cni0 ! -o cni0 -m comment --comment "x" -j DROP',
        "-A CNI-f -s 10.22.0.2/32 -m comment --comment owner",
    ],
    (6, "nat"): [
        "-N CNI-a",
        "-N CNI-b",
        "-A CNI-b -p tcp -m tcp --dport 8080 -j DNAT --to-destination [fd00::2]:80",
        "-A CNI-b -p udp -m comment --comment dnat -m multiport --dports 53,54 -j RETURN",
        "-A CNI-a -s fd00::/64 -d fd00::/63 -j MASQUERADE",
        "-A POSTROUTING ! -d ff00::/8 -j CNI-a",
        "-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-b",
        "-A CNI-a -j MARK --set-xmark 0x4/0x4",
        "-A CNI-a -m mark --mark 0x4/0x4 -j MASQUERADE",
    ],
    (6, "filter"): [
        "-N CNI-f",
        "-A CNI-f -d fd00::2/128 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A CNI-f -s fd00::2/128 -p tcp -m tcp --dport 80 -i x -j ACCEPT",
        "-A FORWARD -j CNI-f",
    ],
}
ACCEPT = IptablesChange.append(IptablesRule("POSTROUTING", "-j ACCEPT"))
NEW_FIRST = {key: sorted(lines, key=lambda line: not line.startswith("-N")) for key, lines in LINES.items()}


@pytest.fixture
def prepared(host, monkeypatch):
    """The host, with the tables that the program creates; this process is in its namespace."""
    with host.entered():
        for tool in iptables.TOOLS.values():
            for table, chain in (("nat", "POSTROUTING"), ("nat", "PREROUTING"), ("filter", "FORWARD")):
                host.run(tool, "-t", table, "-A", chain, "-j", "ACCEPT")
                host.run(tool, "-t", table, "-F", chain)
        yield host


def existing_rules(host):
    """Returns the bytes of all rules, and the output of iptables-save without counters."""
    with nft.open_socket() as socket:
        rules = {
            key: [(rule.expressions, rule.userdata) for rule in nft.list_rules(socket, Chain(Table(*key[:2]), key[2]))]
            for key in chain_keys()
        }
    saved = [host.run(f"{tool}-save") for tool in iptables.TOOLS.values()]
    return rules, [re.sub(r"(?m)^#.*$|\[\d+:\d+\]", "", text) for text in saved]


def chain_keys():
    for (version, table), lines in LINES.items():
        names = {line.split()[1] for line in lines}
        yield from ((iptables.NFPROTO[version], table, name) for name in sorted(names))


def write(by):
    for table in ("nat", "filter"):
        by({version: parse(lines) for (version, name), lines in NEW_FIRST.items() if name == table}, table)


def parse(lines):
    """Returns lines of iptables-restore as changes."""
    return [IptablesChange(*line.split(" ", 2)) for line in lines]


def directly(changes, table):
    programs = {version: iptables_program.find(version) for version in changes}
    assert iptables.apply_by_netlink(changes, table, programs) == set(changes)


def test_the_rules_are_the_programs(prepared, monkeypatch):
    """Each known option gives the same expressions as iptables-restore, in every chain."""
    with monkeypatch.context() as patch:
        patch.setattr(iptables_program, "is_nft", lambda program: False)
        write(lambda changes, table: iptables.apply(changes, table, "write"))
    program_rules = existing_rules(prepared)
    assert all(rules for key, rules in program_rules[0].items() if key[2] != "CNI-a-b")
    for (version, table), lines in NEW_FIRST.items():
        deleted = [line for line in lines if line.startswith(("-A", "-I"))]
        text = "\n".join([f"*{table}", *("-D" + line[2:] for line in deleted)])
        text += "".join(f"\n-X {line[3:]}" for line in lines if line.startswith("-N")) + "\nCOMMIT\n"
        file = f"{iptables.TOOLS[version]}-restore"
        prepared.run("sh", "-c", 'printf %s "$1" | "$0" --noflush', file, text)
    assert existing_rules(prepared) != program_rules
    write(directly)
    assert existing_rules(prepared) == program_rules


@pytest.mark.parametrize(
    "line",
    [
        "-D POSTROUTING -j ACCEPT",
        "-A POSTROUTING -m mark --mark 1 -j ACCEPT",
        "-A POSTROUTING -m mark --mark 0x2000 -j ACCEPT",
        "-A POSTROUTING -m mark --mark 0x3/0x3 -j ACCEPT",
        "-A POSTROUTING -m mark --mark 0x0/0x1 -j ACCEPT",
        "-A POSTROUTING -m mark ! --mark 0x1/0x1 -j ACCEPT",
        "-A POSTROUTING -m addrtype --dst-type LOCAL --limit-iface-in -j ACCEPT",
        "-A POSTROUTING -m addrtype --src-type LOCAL -j ACCEPT",
        "-A POSTROUTING -j MARK --or-mark 0x1",
        "-A POSTROUTING -j LOG",
        "-A POSTROUTING -s 0.0.0.0/0 -j ACCEPT",
        "-A POSTROUTING -s ::1/128 -j ACCEPT",
        "-A POSTROUTING -o eth+ -j ACCEPT",
        "-A POSTROUTING ! -p tcp -j ACCEPT",
        "-A POSTROUTING -j ACCEPT further",
        "-A POSTROUTING -m comment",
        "-A POSTROUTING -p tcp -m multiport --dports 1:5 -j ACCEPT",
        "-A POSTROUTING -p tcp -m multiport --dports 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16 -j ACCEPT",
        "-A POSTROUTING -p tcp -m tcp --dport 70000 -j ACCEPT",
        "-A POSTROUTING -j DNAT --to-destination 10.0.0.1",
        "-A POSTROUTING -p tcp -p udp -j ACCEPT",
        "-A POSTROUTING -s 10.0.0.1/32 -s 10.0.0.2/32 -j ACCEPT",
        "-A POSTROUTING -s 10.0.0.0/0.0.0.255 -j ACCEPT",
        "-A POSTROUTING -s 10.0.0.0/024 -j ACCEPT",
        "-A POSTROUTING -p udp -m tcp --dport 80 -j ACCEPT",
        "-A POSTROUTING -m tcp --dport 80 -j ACCEPT",
        "-A POSTROUTING -p tcp -m tcp --dport 010 -j ACCEPT",
        f"-A POSTROUTING -o {'a' * 16} -j ACCEPT",
        '-A POSTROUTING -o "" -j ACCEPT',
        f"-A POSTROUTING -m comment --comment {'a' * 256} -j ACCEPT",
        "-A MISSING -j ACCEPT",
        "-N POSTROUTING",
    ],
)
def test_unknown_options_are_left_to_the_program(prepared, line):
    """Lines with unknown options, missing chains or used names are not written over netlink."""
    before = existing_rules(prepared)
    changes = parse(["-A POSTROUTING -j ACCEPT", line])
    assert iptables.apply_by_netlink({4: changes}, "nat", {4: iptables_program.find(4)}) == set()
    assert existing_rules(prepared) == before


def test_a_chain_with_another_hook_is_left_to_the_program(host):
    """A table of the same name with another hook is not written to over netlink."""
    host.run("nft", "add table ip nat; add chain ip nat POSTROUTING { type nat hook postrouting priority 99; }")
    with host.entered():
        programs = {4: iptables_program.find(4)}
        assert iptables.apply_by_netlink({4: [ACCEPT]}, "nat", programs) == set()


def test_other_programs_are_run(prepared, tmp_path):
    """If the program is iptables-legacy's, a script or missing, no rules are written over netlink."""
    legacy = xtables.variant(tmp_path / "legacy", str(LEGACY.values[0])) / "iptables-restore"
    script = tmp_path / "iptables-restore"
    script.write_text("#!/bin/sh\n")
    for program in (str(legacy), str(script), ""):
        assert iptables.apply_by_netlink({4: [ACCEPT]}, "nat", {4: program}) == set()


def test_one_family_is_written_without_the_other(prepared):
    """The lines of one family are written over netlink even if those of the other are unknown."""
    changes = {4: [ACCEPT], 6: [IptablesChange.append(IptablesRule("POSTROUTING", "-j LOG"))]}
    assert iptables.apply_by_netlink(changes, "nat", {v: iptables_program.find(v) for v in changes}) == {4}


def test_rules_of_the_program_are_recognised(prepared):
    """Each rule of the program is recognised as its line, with any counters, and as no other line."""
    for (version, table), lines in NEW_FIRST.items():
        changes = parse(lines)
        # Counters are unknown to netlink, so the program runs.
        counted = [
            change if change.verb == "-N" else change._replace(spec=f"{change.spec} -c 5 300") for change in changes
        ]
        iptables.apply({version: counted}, table, "write")
        with nft.open_socket() as socket:
            for chain in dict.fromkeys(change.chain for change in changes):
                rules = {
                    IptablesRule(item.chain, item.spec): item.verb
                    for item in changes
                    if item.chain == chain and item.spec
                }
                existing = nft.list_rules(socket, Chain(Table(iptables.NFPROTO[version], table), chain))
                inserted = [rule for rule, verb in rules.items() if verb == "-I"]
                ordered = inserted[::-1] + [rule for rule in rules if rule not in inserted]
                assert match_rules(version, list(rules), existing) == ordered
                for rule in rules:
                    others = [other for other in rules if other != rule]
                    assert match_rules(version, others, existing) is None
