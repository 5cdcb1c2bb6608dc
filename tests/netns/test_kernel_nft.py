"""nftables over netlink on the real kernel: transactions, listings, the same rules as the `nft` tool."""

import errno
import os
from ipaddress import ip_address, ip_network

import pytest

from kernel.errors import KernelError
from kernel.netfilter import nft, nft_rule
from kernel.netfilter.nft import Chain, Hook, Table
from kernel.netns import Netns, entered
from kernel.rtnl import wait_readable
from tests.support.netstate import nft_rules

pytestmark = pytest.mark.needs("nft_nat")

TABLE = Table(nft.INET, "t", "a table")
CHAIN = Chain(TABLE, "c", comment="a chain")
OTHER = Chain(TABLE, "other")
BASE = Chain(TABLE, "base", Hook("nat", 4, 100))

IPV4, IPV6 = nft_rule.of_version(4), nft_rule.of_version(6)
MADE = {
    "ip saddr 10.22.0.2 return": IPV4 + nft_rule.source(ip_address("10.22.0.2")) + nft_rule.RETURN,
    "ip6 saddr fd00::2 accept": IPV6 + nft_rule.source(ip_address("fd00::2")) + nft_rule.ACCEPT,
    'iifname "eth0" drop': nft_rule.from_interface("eth0") + nft_rule.DROP,
    'iifname "fifteen-letters" drop': nft_rule.from_interface("fifteen-letters") + nft_rule.DROP,
    "jump other": nft_rule.jump("other"),
    "goto other": nft_rule.goto("other"),
} | {
    f"{ip} daddr {sign}{text} return": version
    + nft_rule.destination(ip_network(text), positive=not sign)
    + nft_rule.RETURN
    for ip, version, texts in (
        ("ip", IPV4, ("10.0.0.0/8", "10.22.0.0/16", "10.22.0.0/17", "10.22.3.4", "0.0.0.0/0", "224.0.0.0/4")),
        ("ip6", IPV6, ("ff00::/8", "fd00::/62", "fd00::/64", "fd00::1", "::/0", "fe80::/10")),
    )
    for text in texts
    for sign in ("", "!= ")
}


@pytest.fixture
def made(netfilter):
    """The same socket, with the table and its chains there."""
    nft.change(
        netfilter, nft.table_request(TABLE), nft.chain_request(CHAIN), nft.chain_request(OTHER), nft.chain_request(BASE)
    )
    return netfilter


@pytest.mark.parametrize("text", MADE)
def test_rules_are_those_of_the_tool(made, host, text):
    """A rule made here and one that `nft` made from its text are the same bytes in the kernel and in the listing."""
    host.run("nft", "add", "rule", "inet", "t", "c", text)
    nft.change(made, nft.rule_request(CHAIN, MADE[text]))
    theirs, ours = nft.list_rules(made, CHAIN)
    assert ours.expressions == theirs.expressions
    assert nft_rule.is_same_rule(MADE[text], theirs.expressions)
    assert nft_rule.is_same_rule(ours.expressions, theirs.expressions)
    assert [line.strip() for line in nft_rules(host)].count(text) == 2


def test_masquerade_is_that_of_the_tool(made, host):
    """The masquerade statement is the tool's."""
    host.run("nft", "add", "rule", "inet", "t", "base", "masquerade")
    nft.change(made, nft.rule_request(BASE, nft_rule.masquerade()))
    theirs, ours = nft.list_rules(made, BASE)
    assert ours.expressions == theirs.expressions


def test_ether_source_is_that_of_the_tool(netfilter, host):
    """Matching a MAC in a bridge table is the tool's."""
    own = Chain(Table(nft.BRIDGE, "t"), "c")
    nft.change(netfilter, nft.table_request(own.table), nft.chain_request(own))
    host.run("nft", "add", "rule", "bridge", "t", "c", "ether saddr 02:00:00:00:00:01 accept")
    nft.change(netfilter, nft.rule_request(own, nft_rule.ether_source(bytes.fromhex("020000000001")) + nft_rule.ACCEPT))
    theirs, ours = nft.list_rules(netfilter, own)
    assert ours.expressions == theirs.expressions


def test_tables_and_chains_are_listed_by_the_tool(made, host):
    """The tool shows comments, type, hook and priority; making them again changes nothing, comments neither."""
    before = nft_rules(host)
    assert [line.strip() for line in before if line.strip(" \t}")] == [
        "table inet t {",
        'comment "a table"',
        "chain c {",
        'comment "a chain"',
        "chain other {",
        "chain base {",
        "type nat hook postrouting priority srcnat; policy accept;",
    ]
    nft.change(
        made,
        nft.table_request(Table(nft.INET, "t", "else")),
        nft.chain_request(Chain(TABLE, "c")),
        nft.chain_request(BASE),
    )
    assert nft_rules(host) == before


def test_what_an_operator_set_stays(made, host):
    """Making a table and a chain that are there changes neither a policy nor a flag."""
    host.run("nft", "chain inet t base { policy drop; }")
    host.run("nft", "add table inet t { flags dormant; }")
    before = nft_rules(host)
    assert "flags dormant" in "".join(before)
    assert "policy drop" in "".join(before)
    nft.change(made, nft.table_request(TABLE), nft.chain_request(BASE))
    assert nft_rules(host) == before


def test_a_transaction_is_all_or_nothing(made, host):
    """When one request is refused none is done, and the refused one is named, also in the midst of many."""
    before = nft_rules(host)
    good = nft.rule_request(CHAIN, nft_rule.DROP)
    jump = nft.rule_request(OTHER, nft_rule.jump("base"))  # into a base chain
    for bad, number in ((nft.delete_rule_request(CHAIN, 999), errno.ENOENT), (jump, errno.EOPNOTSUPP)):
        for requests in ((bad, good), (good, bad), (good, bad, good)):
            with pytest.raises(KernelError) as caught:
                nft.change(made, *requests)
            assert (caught.value.description, caught.value.errno) == (bad.description, number)
            assert nft_rules(host) == before
    nft.change(made, good)
    assert len(nft.list_rules(made, CHAIN)) == 1


def test_a_transaction_refused_as_a_whole(made, monkeypatch):
    """A refusal of the whole transaction is told, and the socket can be used again."""
    before = nft._SUBSYSTEM
    monkeypatch.setattr(nft, "_SUBSYSTEM", 99)
    with pytest.raises(KernelError) as caught:
        nft.change(made, nft.table_request(TABLE), nft.rule_request(CHAIN, nft_rule.DROP))
    assert (caught.value.description, caught.value.errno) == ("change nftables", errno.EINVAL)
    monkeypatch.setattr(nft, "_SUBSYSTEM", before)
    nft.change(made, nft.rule_request(CHAIN, nft_rule.DROP))
    assert len(nft.list_rules(made, CHAIN)) == 1


def test_more_requests_than_answers_fit(made):
    """A transaction of a thousand rules is answered once, and the socket goes on working."""
    nft.change(
        made,
        *[
            nft.rule_request(CHAIN, nft_rule.DROP, nft_rule.comment_userdata(f"number {count}"))
            for count in range(1000)
        ],
    )
    found = nft.list_rules(made, CHAIN)
    assert [rule.comment for rule in found] == [f"number {count}" for count in range(1000)]
    assert [rule.comment for rule in nft.list_rules(made, CHAIN, "number 55")][:2] == ["number 55", "number 550"]
    nft.change(made, *(nft.delete_rule_request(CHAIN, rule.handle) for rule in found))
    assert nft.list_rules(made, CHAIN) == []


def test_a_rehearsal_leaves_nothing(netfilter, host):
    """What is rehearsed is tried, refused if it must be, and taken back."""
    nft.dry_run(
        netfilter, nft.table_request(TABLE), nft.chain_request(BASE), nft.rule_request(BASE, nft_rule.masquerade())
    )
    assert nft_rules(host) == []
    with pytest.raises(KernelError, match="add chain t base: no such file or directory"):
        nft.dry_run(
            netfilter, nft.table_request(TABLE), nft.chain_request(Chain(TABLE, "base", Hook("no-such-type", 4, 100)))
        )
    assert nft_rules(host) == []


def test_nothing_to_change_is_no_transaction(netfilter, host):
    """A change of nothing sends nothing."""
    nft.change(netfilter)
    assert nft_rules(host) == []


@pytest.mark.parametrize("filtering", [True, False])
def test_only_a_chains_own_rules_are_listed(made, monkeypatch, filtering):
    """Rules of other chains, even with the same comment, are not listed, also where the kernel does not filter."""
    userdata = nft_rule.comment_userdata("mine")
    nft.change(
        made, nft.rule_request(OTHER, nft_rule.DROP, userdata), nft.rule_request(CHAIN, nft_rule.ACCEPT, userdata)
    )
    if not filtering:
        monkeypatch.setattr(nft, "_of", lambda own: [("NFTA_RULE_TABLE", own.table.name)])
    (rule,) = nft.list_rules(made, CHAIN, "mine")
    assert nft_rule.is_same_rule(nft_rule.ACCEPT, rule.expressions)
    assert nft.list_rules(made, CHAIN, "other") == []
    assert (
        nft.list_rules(made, Chain(TABLE, "absent"))
        == nft.list_rules(made, Chain(Table(nft.INET, "absent"), "c"))
        == []
    )


def test_chains_are_looked_up(made):
    """A chain is found with its hook, an absent one is None."""
    absent = Chain(Table(nft.INET, "absent"), "c")
    found = nft.get_chains(made, BASE, Chain(TABLE, "absent"), Chain(TABLE, "other"), absent)
    assert found == [BASE, None, OTHER, None]


def test_what_vanishes_meanwhile_is_looked_for_again():
    """An attempt that fails because another took a rule away is made again, a few times; other failures are final."""
    calls = []

    def attempt(number):
        calls.append(number)
        if len(calls) < 3 or number != errno.ENOENT:
            raise KernelError("change", number)
        return "done"

    assert nft.retry(lambda: attempt(errno.ENOENT)) == "done"
    with pytest.raises(KernelError):
        nft.retry(lambda: attempt(errno.EPERM))
    assert len(calls) == 4
    with pytest.raises(KernelError):
        nft.retry(lambda: attempt(errno.EBUSY))
    assert len(calls) == 9


class Meddling:
    """A socket during whose reading something else happens."""

    def __init__(self, inner, meanwhile):
        self.inner = inner
        self.meanwhile = meanwhile

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def recv(self, size):
        data = self.inner.recv(size)
        self.meanwhile()
        return data


@pytest.mark.parametrize("times", [3, 100_000])
def test_a_listing_spoilt_by_a_change_is_read_again(made, host, monkeypatch, times):
    """A listing in the midst of which rules changed is repeated, and united from all attempts if that never ends."""
    nft.change(
        made, *[nft.rule_request(CHAIN, nft_rule.DROP, nft_rule.comment_userdata("x" * 100)) for _ in range(1000)]
    )
    with Netns(host.path) as namespace, entered(namespace):
        other = nft.open_socket()
    changes = [nft.rule_request(OTHER, nft_rule.DROP)] * times
    monkeypatch.setattr(made, "_socket", Meddling(made._socket, lambda: changes and nft.change(other, changes.pop())))
    with other:
        assert len(nft.list_rules(made, CHAIN)) == 1000
        assert (changes == []) == (times < 10)


def netfilter_sockets(host):
    """Returns the port numbers of the netfilter sockets in a namespace, the kernel's own left out."""
    lines = [line.split() for line in host.run("cat", "/proc/net/netlink").splitlines()]
    return [line[2] for line in lines if line[1] == "12" and line[2] != "0"]


@pytest.mark.parametrize("lacking", ["nothing", "process", "pipe"])
def test_closing_is_left_to_a_child(made, host, monkeypatch, lacking):
    """After a deletion a child closes the socket, and we do it ourselves when there can be no child."""
    children = []
    close_in_background = nft.close_in_background

    def started(*errand):
        pid = close_in_background(*errand)
        children.append(pid)
        with open(os.pidfd_open(pid)) as ended:
            assert not wait_readable([ended.fileno()], 0.2), "the child must be the last to close"
        return pid

    def refused(*_errand):
        raise OSError(errno.EAGAIN, "no more")

    nft.change(made, nft.rule_request(CHAIN, nft_rule.DROP))
    (rule,) = nft.list_rules(made, CHAIN)
    nft.change(made, nft.delete_rule_request(CHAIN, rule.handle))
    assert len(netfilter_sockets(host)) == 1
    monkeypatch.setattr(nft, "close_in_background", refused if lacking == "process" else started)
    if lacking == "pipe":
        monkeypatch.setattr(os, "pipe", refused)
    made.close()
    monkeypatch.undo()
    assert len(children) == (1 if lacking == "nothing" else 0)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    assert netfilter_sockets(host) == []


def test_closing_is_our_own_when_nothing_was_deleted(netfilter, host, monkeypatch):
    """A socket by which rules were only added or listed is closed without a child."""
    nft.change(netfilter, nft.table_request(TABLE))
    assert nft.list_rules(netfilter, CHAIN) == []
    with monkeypatch.context() as patched:
        patched.setattr(nft, "close_in_background", pytest.fail)
        netfilter.close()
    assert netfilter_sockets(host) == []
