"""Which lines make and check host ports (plugins.portmap.iptables_*), given what iptables lists."""

import struct
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.errors import CniError
from kernel.netfilter.iptables_chains import quoted
from plugins.portmap import iptables_check, iptables_state, iptables_update
from plugins.portmap.iptables_rules import (
    CHAINS,
    OLD_CHAINS,
    desired_chain_rules,
    desired_jump_rules,
    parse_jump_rules,
    shared_rules,
)
from plugins.portmap.iptables_state import TableState
from plugins.portmap.spec import HostPorts, PortMapping
from tests.support.errors import failure_of

ADDRESSES = {4: ip_interface("10.22.0.2/16"), 6: ip_interface("fd00:22::2/64")}
WANTED = HostPorts("goldnet", "0123abcdef", "eth0", (PortMapping(8080, 80, "tcp"),), ADDRESSES)
CHAIN = "CNI-DN-f42161b9e0c33131294cd"
KNOWN = TableState(is_complete=False, chains=("PREROUTING",))


def after(wanted, listing=(), others=(), version=4):
    """Returns the listing after an ADD: what is applied understood as iptables-restore does."""
    chains: dict[str, list[str]] = {}
    for line in (*listing, *iptables_update.lines_for_add(wanted, others, version, list(listing))):
        command, chain, *rest = line.split(" ", 2)
        rule = rest[0] if rest else ""
        rules = chains.setdefault(chain, [])
        number, _, numbered = rule.partition(" ")
        if command == "-A":
            rules.append(rule)
        elif command == "-I" and number.isdigit():
            assert int(number) <= len(rules) + 1
            rules.insert(int(number) - 1, numbered)
        elif command == "-I":
            rules.insert(0, rule)
        elif command == "-D":
            rules.remove(rule)
        elif command == "-F":
            rules.clear()
        else:
            assert command == "-N"
            assert not rules
    names = [chain for chain in chains if chain.startswith("CNI-")]
    return [f"-N {name}" for name in names] + [f"-A {name} {rule}" for name in sorted(chains) for rule in chains[name]]


def check(wanted, listing, version=4):
    iptables_check.check_rules(wanted, version, listing, KNOWN)


def test_the_names_are_the_references():
    """The names of chains are those of the reference's tests and golden states."""
    container_id = (
        "icee6giejonei6sohng6ahngee7laquohquee9shiGo7fohferakah3Feiyoolu2pei7ciPhoh7shaoX6vai3vuf0ahfaeng8yohb9ceu0daez5"
        "hashee8ooYai5wa3y"
    )
    assert CHAINS.name("test", container_id) == "CNI-DN-67e92b96e692a494b6b85"
    assert OLD_CHAINS.name("testNetName", container_id) == "CNI-SN-bfd599665540dd91d5d28"
    assert CHAINS.name("goldnet", "0123abcdef") == CHAIN


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("keys", [{}, {"snat": False}, {"masq_all": True}, {"mark_bit": 31}])
def test_what_add_makes_check_accepts(version, keys):
    """After ADD, and after a repeated one, CHECK succeeds, and the second changes nothing."""
    wanted = replace(WANTED, **keys)
    listing = after(wanted, version=version)
    check(wanted, listing, version)
    assert after(wanted, listing, version=version) == listing


def test_a_mark_that_comes_too_late_is_missing():
    """A marking rule behind the one that leads away is never reached, and CHECK names it."""
    listing = after(WANTED)
    late = next(line for line in listing if "-s 127.0.0.1/32" in line)
    listing.remove(late)
    error = failure_of(lambda: check(WANTED, [*listing, late]), CniError)
    assert error.msg == f"host ports: rule {late} is missing in table nat (iptables)"


def test_the_shared_rules_are_made_once():
    """Of shared chains and rules only those are made that are not there; the masquerading comes first."""
    listing = after(WANTED)
    other = replace(WANTED, container_id="other", mappings=(PortMapping(8081, 80, "tcp"),))
    made = iptables_update.lines_for_add(other, (), 4, listing)
    assert not any(line.startswith("-N CNI-HOSTPORT") or "LOCAL" in line for line in made)
    listing.remove(shared_rules(WANTED)[-1])
    assert iptables_update.lines_for_add(other, (), 4, listing)[0].startswith("-I POSTROUTING -m comment")


@pytest.mark.parametrize("mark", range(32))
def test_marks(mark):
    """The mark is one bit, in hexadecimal."""
    assert f"--set-xmark {1 << mark:#x}/{1 << mark:#x}" in shared_rules(replace(WANTED, mark_bit=mark))[2]


def test_a_pod_without_a_subnet_marks_all():
    """An address with the prefix 0 is everybody's subnet, which iptables lists as no source."""
    wanted = replace(WANTED, addresses={4: ip_interface("10.22.0.2/0")})
    assert (
        str(desired_chain_rules(wanted, 4)[0][1][0]) == f"-A {CHAIN} -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK"
    )


def test_what_leads_to_another_interface_stays_in_front():
    """Rules that lead to an address of the container's other interface are kept, others of its chain are not."""
    second = replace(WANTED, ifname="eth1", addresses={4: ip_interface("10.22.0.9/16")})
    listing = after(second, after(WANTED), others=[ip_address("10.22.0.2")])
    leads = [line.rpartition(" ")[2] for line in listing if "--to-destination" in line]
    assert leads == ["10.22.0.2:80", "10.22.0.9:80"]
    assert len(parse_jump_rules(listing)) == 1
    assert after(second, listing, others=[ip_address("10.22.0.2")]) == listing
    leads = [line.rpartition(" ")[2] for line in after(second, listing) if "--to-destination" in line]
    assert leads == ["10.22.0.9:80"]


ENTRIES = [
    (r"-p tcp -m multiport --dports 80,81 -j X", ("tcp", (80, 81), "X")),
    (r"-s 1.2.3.4/32 ! -d 1.2.3.4/32 -p udp -m multiport --dports 1 -g X", ("udp", (1,), "X")),
    (r'-m comment --comment "dnat name: \"net\" id: \"cid\"" -j CNI-DN-x', ("", (), "CNI-DN-x")),
    (r"! -p tcp -m multiport ! --dports 80 -j X", ("", (), "X")),
    (r"-p tcp -m multiport --dports 80:90 -j X", ("tcp", (), "X")),
    (r"-p tcp", ("", (), "")),
]


@pytest.mark.parametrize(("text", "read"), ENTRIES)
def test_entries_of_others(text, read):
    """Of any rule in CNI-HOSTPORT-DNAT it is read what it surely says."""
    (entry,) = parse_jump_rules([f"-A CNI-HOSTPORT-DNAT {text}", "-A CNI-HOSTPORT-MASQ -j X"])
    assert (entry.protocol, entry.ports, entry.target) == read
    assert entry.conditional == (not text.startswith("-p tcp -m multiport --dports 80,81 "))


def test_our_entries_are_read():
    """Owner, ports and conditions of an entry of ours are read."""
    (entry,) = parse_jump_rules(desired_jump_rules(WANTED, 4))
    assert (entry.network, entry.container_id, entry.conditional) == ("goldnet", "0123abcdef", False)
    (entry,) = parse_jump_rules(desired_jump_rules(replace(WANTED, conditions={4: ("-i", "eth0")}), 4))
    assert entry.conditional


@pytest.mark.parametrize(
    ("target", "index"),
    [("-N CNI-DN-x", 0), ("", 1)],
)
def test_an_entry_says_less_than_its_chain(target, index):
    """A port that an entry names and its chain does not lead anywhere is not taken; without the chain it may be."""
    other = '-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "c" -m multiport --dports 8080 -j CNI-DN-x'
    found = iptables_update.foreign_rules(WANTED, 4, [target, other], parse_jump_rules([other]))
    assert len(found) == index


def test_a_taken_port_is_refused_without_a_name():
    """A rule that does not tell whose it is is nobody's that could be gone."""
    other = "-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 8080 -j MINE"
    wanted = replace(WANTED, refuse_conflicts=True)
    error = failure_of(lambda: iptables_update.lines_for_add(wanted, (), 4, [other]), CniError)
    assert (error.code, error.msg) == (11, "host port 8080/tcp is in use by a rule that names no container")


def test_a_container_takes_nothing_from_itself():
    """A port that the container has on another network as well is not taken: not refused, and not shadowed."""
    listing = after(replace(WANTED, network="other"))
    strict = replace(WANTED, refuse_conflicts=True)
    check(strict, after(strict, listing))


@given(st.text(st.characters(min_codepoint=0x20, exclude_characters="\x7f", exclude_categories=["Cs", "Cc"])))
def test_a_quoted_word_is_one_word(text):
    """What iptables-restore makes of a quoted word is the word."""
    assert words(f"-A X {quoted(text)} -j Y") == ["-A", "X", text, "-j", "Y"]


def words(line):
    """Splits a line as iptables-restore does (add_param_to_argv in xshared.c)."""
    found, word, inside, escaped, quote_used = [], "", False, False, False
    for character in f"{line} ":
        if inside and escaped:
            word, escaped = word + character, False
        elif inside and character == "\\":
            escaped = True
        elif character == '"':
            inside, quote_used = not inside, True
        elif character in " \t\n" and not inside:
            if word or quote_used:
                found.append(word)
            word, quote_used = "", False
        else:
            word += character
    return found


def message(ports, kind=1, flags=(0,) * 15, invert=0):
    """Returns how the kernel lists a multiport match of revision 1."""
    numbers = [*ports, *[0] * (15 - len(ports))]
    blob = struct.pack("=BB15H15BB", kind, len(ports), *numbers, *flags, invert)
    return b"\x0e\0\1\0multiport\0\0\0\x08\0\2\0\0\0\0\1\x34\0\3\0" + blob + b"after"


PERHAPS = [
    (message([8080]), True),
    (message([80, 443, 8080]), True),
    (message([80, 443]), False),
    (message(range(1, 16)), False),
    (message([80], kind=0), True),
    (message([80], kind=2), True),
    (message([80], flags=(1, *(0,) * 14)), True),
    (message([80], invert=1), True),
    (message([80])[:-20], True),
    (b"no multiport", True),
]


@pytest.mark.parametrize(("data", "perhaps"), PERHAPS)
def test_who_may_have_a_port(data, perhaps):
    """A rule that surely is for other ports needs no look; ranges, inversions and the unknown do."""
    assert iptables_state._may_match({8080})(data) is perhaps
