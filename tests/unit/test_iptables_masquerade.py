"""Which rules make and unmake masquerading (attachment.masquerade.iptables), on tables that live in the test."""

from ipaddress import ip_interface, ip_network

import pytest

from attachment.masquerade import iptables
from attachment.masquerade.names import chain_name
from attachment.masquerade.spec import Masquerade
from cni.errors import CniError
from kernel.netfilter.iptables import RefusedError
from tests.support.errors import failure_of

CHAIN = "CNI-f42161b9e0c33131294cdfd7"
COMMENT = r'-m comment --comment "name: \"goldnet\" id: \"0123abcdef\""'


class Tables:
    """Table nat of both families: chains with their rules, as text."""

    def __init__(self):
        self.chains = {family: {"POSTROUTING": []} for family in (4, 6)}
        self.applied = []
        self.meanwhile = []  # what others do to the table, once each, just before lines are applied

    def get_candidate_families(self, families, table, chain):
        assert table == "nat"
        return {family for family in families if chain in self.chains[family]}

    def get_legacy_families(self, table):
        return [4, 6]

    def read(self, families, table, chains=(), *, legacy=False):
        return {family: self._listing(family, chains or self.chains[family]) for family in families}

    def apply(self, changes, table, doing, *, legacy=False):
        if self.meanwhile:
            self.meanwhile.pop()()
        for family, lines in changes.items():
            self.applied += lines
            for line in lines:
                self._do(self.chains[family], line)

    def rules(self, chain=CHAIN, family=4):
        """Returns the rules of a chain without the comment that all have, None when there is no such chain."""
        found = self.chains[family].get(chain)
        return found and [rule.replace(f"{COMMENT} ", "") for rule in found]

    def _listing(self, family, chains):
        lines = []
        for chain in chains:
            if chain not in self.chains[family]:
                break
            lines.append("-P POSTROUTING ACCEPT" if chain == "POSTROUTING" else f"-N {chain}")
            lines += [f"-A {chain} {rule}" for rule in self.chains[family][chain]]
        return lines

    def _do(self, chains, line):
        command, chain, *rule = line.split(" ", 2)
        self._demand(command == "-N" or chain in chains)
        if command == "-N":
            self._demand(chain not in chains)
            chains[chain] = []
        elif command == "-A":
            chains[chain] += rule
        elif command == "-I":
            chains[chain][:0] = rule
        elif command == "-D":
            self._demand(rule[0] in chains[chain])
            chains[chain].remove(rule[0])
        elif command == "-F":
            chains[chain].clear()
        else:
            assert command == "-X"
            self._demand(not chains[chain] and not any(chain in rule for rules in chains.values() for rule in rules))
            del chains[chain]

    def _demand(self, condition):
        if not condition:
            raise RefusedError(999, "refused")


@pytest.fixture
def tables(monkeypatch):
    """Empty tables in place of the kernel's."""
    own = Tables()
    for name in ("get_candidate_families", "read", "apply", "get_legacy_families"):
        monkeypatch.setattr(iptables.iptables, name, getattr(own, name))
    return own


def pod(*addresses, exempt=(), container_id="0123abcdef", ifname="eth0", network="goldnet"):
    networks = tuple(ip_network(item) for item in exempt)
    return Masquerade(network, container_id, ifname, tuple(map(ip_interface, addresses)), networks)


def test_the_chain_is_named_as_the_references():
    """The name is that of the reference's own test."""
    assert chain_name("test", "1234") == "CNI-2bbe0c48b91a7d1b8a6753a8"


def test_a_pod_gets_a_chain_and_a_jump_in_each_family(tables):
    """Own subnet and multicast are left as they are, all else is masqueraded."""
    iptables.add(pod("10.22.0.2/16", "fd00:22::2/64"))
    assert tables.rules() == ["-d 10.22.0.0/16 -j ACCEPT", "! -d 224.0.0.0/4 -j MASQUERADE"]
    assert tables.rules("POSTROUTING") == [f"-s 10.22.0.2/32 -j {CHAIN}"]
    assert tables.rules(family=6) == ["-d fd00:22::/64 -j ACCEPT", "! -d ff00::/8 -j MASQUERADE"]
    assert tables.rules("POSTROUTING", 6) == [f"-s fd00:22::2/128 -j {CHAIN}"]


def test_every_rule_has_the_comment(tables):
    """Each rule names network and container, quoted as iptables lists it."""
    iptables.add(pod("10.22.0.2/16"))
    assert all(COMMENT in rule for rules in tables.chains[4].values() for rule in rules)


def test_exempt_networks_come_before_the_rest(tables):
    """Networks of the pod's families are exempt, each once, and everything can be."""
    iptables.add(pod("10.22.0.2/16", "10.22.0.3/16", exempt=("10.0.0.0/8", "fd00::/8", "10.22.0.0/16", "0.0.0.0/0")))
    assert tables.rules() == [
        "-d 10.22.0.0/16 -j ACCEPT",
        "-d 10.0.0.0/8 -j ACCEPT",
        "-j ACCEPT",
        "! -d 224.0.0.0/4 -j MASQUERADE",
    ]
    assert tables.rules("POSTROUTING") == [f"-s 10.22.0.2/32 -j {CHAIN}", f"-s 10.22.0.3/32 -j {CHAIN}"]
    assert tables.rules(family=6) is None


@pytest.mark.parametrize("exempt", [(), ("10.0.0.0/8", "0.0.0.0/0")])
def test_what_is_there_is_not_written_again(tables, exempt):
    """A second ADD with the same addresses applies nothing."""
    wanted = pod("10.22.0.2/16", "fd00:22::2/64", exempt=exempt)
    iptables.add(wanted)
    tables.applied.clear()
    iptables.add(wanted)
    assert tables.applied == []
    iptables.check(wanted)


def test_a_second_interface_shares_the_chain(tables):
    """Its subnet comes before the rest of the traffic, its jump after the first interface's."""
    iptables.add(pod("10.22.0.2/16"))
    iptables.add(pod("10.23.0.2/16", exempt=("10.0.0.0/8",), ifname="eth1"))
    assert tables.rules() == [
        "-d 10.23.0.0/16 -j ACCEPT",
        "-d 10.0.0.0/8 -j ACCEPT",
        "-d 10.22.0.0/16 -j ACCEPT",
        "! -d 224.0.0.0/4 -j MASQUERADE",
    ]
    assert tables.rules("POSTROUTING") == [f"-s 10.22.0.2/32 -j {CHAIN}", f"-s 10.23.0.2/32 -j {CHAIN}"]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_what_is_missing_is_added(tables, lost):
    """ADD mends a chain from which one rule, or all, have been removed, and CHECK names what was missing."""
    wanted = pod("10.22.0.2/16", exempt=("10.0.0.0/8",))
    iptables.add(wanted)
    rules = tables.rules()
    gone = tables.chains[4][CHAIN].pop(lost)
    assert gone in failure_of(lambda: iptables.check(wanted), CniError).msg
    iptables.add(wanted)
    assert sorted(tables.rules()) == sorted(rules)
    assert tables.rules()[-1] == rules[-1]
    iptables.check(wanted)


def test_an_exception_behind_the_rest_is_none(tables):
    """The reference appends a second interface's subnet behind MASQUERADE: for CHECK it is missing, ADD mends it."""
    wanted = pod("10.22.0.2/16")
    iptables.add(wanted)
    tables.chains[4][CHAIN].reverse()
    assert "-d 10.22.0.0/16" in failure_of(lambda: iptables.check(wanted), CniError).msg
    iptables.add(wanted)
    iptables.check(wanted)


def test_check_names_a_missing_jump_and_a_missing_chain(tables):
    """Code 999, with the family's tool, so that an operator knows where to look."""
    wanted = pod("fd00:22::2/64")
    missing = failure_of(lambda: iptables.check(wanted), CniError)
    assert (missing.code, missing.msg) == (999, f"masquerade: chain {CHAIN} is missing in table nat (ip6tables)")
    iptables.add(wanted)
    tables.chains[6]["POSTROUTING"].clear()
    assert "rule -A POSTROUTING -s fd00:22::2/128 " in failure_of(lambda: iptables.check(wanted), CniError).msg


def test_deletion_leaves_nothing_of_ours_and_all_of_others(tables):
    """Chain and jumps go in both families, other rules stay, and a second DEL finds nothing to do."""
    foreign = ["-j KUBE-POSTROUTING", f"-s 10.22.0.2/32 {COMMENT} -j CNI-{'0' * 24}", '-m comment --comment "-j " -j X']
    for family in (4, 6):
        tables.chains[family]["POSTROUTING"] += foreign
    wanted = pod("10.22.0.2/16", "fd00:22::2/64")
    iptables.add(wanted)
    iptables.delete_legacy(pod())
    assert tables.chains == {family: {"POSTROUTING": foreign} for family in (4, 6)}
    tables.applied.clear()
    iptables.delete_legacy(wanted)
    assert tables.applied == []


def test_the_jump_of_old_references_goes(tables):
    """Before 0.7 a jump named the whole subnet; DEL removes it, unless another interface in the subnet needs it."""
    wanted = pod("10.22.0.2/16")
    iptables.add(wanted)
    tables.chains[4]["POSTROUTING"] = [f"-s 10.22.0.0/16 {COMMENT} -j {CHAIN}"]
    iptables.delete_legacy(wanted, others=[ip_interface("10.22.0.3/16")])
    assert tables.rules("POSTROUTING") == [f"-s 10.22.0.0/16 -j {CHAIN}"]
    iptables.delete_legacy(wanted, others=[ip_interface("10.23.0.3/16")])
    assert tables.chains[4] == {"POSTROUTING": []}


@pytest.mark.parametrize(
    ("others", "left"),
    [
        (["10.22.0.3/16", "fd00:22::7/64"], ["10.22.0.3"]),
        ([], []),  # the other jump is of a former life, or the sandbox is gone
        (["10.22.0.2/16", "10.22.0.3/16"], ["10.22.0.2", "10.22.0.3"]),  # a second DEL after another ADD
    ],
)
def test_a_chain_goes_with_its_last_interface(tables, others, left):
    """The jumps of the container's other interfaces stay, with the chain; all others go."""
    for address in ("10.22.0.2/16", "10.22.0.3/16"):
        iptables.add(pod(address))
    before = tables.rules()
    iptables.delete_legacy(pod("10.22.0.2/16"), others=[ip_interface(item) for item in others])
    assert tables.rules("POSTROUTING") == [f"-s {address}/32 -j {CHAIN}" for address in left]
    assert tables.rules() == (before if left else None)


def test_gc_removes_what_belongs_to_no_attachment(tables):
    """Containers without a valid attachment lose chain and jumps, in both families; other networks lose nothing."""
    for number, network in enumerate(("goldnet", "goldnet", "other")):
        iptables.add(pod(f"10.22.0.{number}/16", f"fd00:22::{number}/64", container_id=f"pod{number}", network=network))
    iptables.gc_legacy("goldnet", {chain_name("goldnet", "pod1")})
    for family in (4, 6):
        names = {chain_name("goldnet", "pod1"), chain_name("other", "pod2")}
        assert tables.chains[family].keys() == {"POSTROUTING", *names}


def test_gc_leaves_what_it_cannot_prove(tables, capfd):
    """A jump whose comment and chain do not agree, or whose comment was cut, stays and is counted on stderr."""
    long = pod("10.22.0.2/16", container_id="x" * 300)
    iptables.add(long)
    tables.chains[4][CHAIN] = []
    tables.chains[4]["POSTROUTING"].append(rf'-m comment --comment "name: \"goldnet\" id: \"pod\"" -j {CHAIN}')
    before = tables.rules("POSTROUTING")
    iptables.gc_legacy("goldnet", set())
    assert tables.rules("POSTROUTING") == before
    assert capfd.readouterr().err.count("2 masquerade rule(s) seem to be of network goldnet") == 1
    iptables.gc_legacy("goldnet", {chain_name("goldnet", "x" * 300)})
    assert "1 masquerade rule(s)" in capfd.readouterr().err


def test_a_long_comment_is_cut(tables):
    """The kernel takes 255 bytes; the rules are known again all the same, and go."""
    wanted = pod("10.22.0.2/16", container_id="x" * 300)
    iptables.add(wanted)
    (jump,) = tables.rules("POSTROUTING")
    comment = jump.partition('--comment "')[2].partition('" -j')[0].replace("\\", "")
    assert comment == ('name: "goldnet" id: "' + "x" * 300)[:255]
    iptables.check(wanted)
    iptables.delete_legacy(wanted)
    assert tables.chains[4] == {"POSTROUTING": []}


def test_what_changed_meanwhile_is_read_again(tables):
    """When another DEL has been faster, there is nothing left to do; a refusal that stays is an error."""
    wanted = pod("10.22.0.2/16")
    iptables.add(wanted)
    tables.meanwhile.append(lambda: tables.chains.update({4: {"POSTROUTING": []}}))
    tables.applied.clear()
    iptables.delete_legacy(wanted)
    assert tables.chains[4] == {"POSTROUTING": []}
    tables.meanwhile.extend([refuse] * 12)
    assert failure_of(lambda: iptables.add(wanted), RefusedError) is not None
    assert len(tables.meanwhile) == 2


def refuse():
    raise RefusedError(999, "refused")
