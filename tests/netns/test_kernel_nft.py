"""nftables over netlink on the real kernel: transactions, listings, the end of a socket."""

import errno
import os
from ipaddress import ip_address
from socket import AF_INET, SOCK_DGRAM, socket

import pytest

from kernel.errors import KernelError
from kernel.netfilter import nft, nft_rule, nft_trace
from kernel.netfilter.nft import Chain, Hook, Table
from kernel.netfilter.nft_dry_run import dry_run
from kernel.netfilter.nft_trace import Tracer, Tuple
from kernel.rtnl import wait_readable
from kernel.system import System
from tests.support.netstate import nft_rules
from tests.support.sockets import hold_queue

pytestmark = pytest.mark.needs("nft_nat")

LOOPBACK = ip_address("127.0.0.1")
TABLE = Table(nft.INET, "t", "a table")
CHAIN = Chain(TABLE, "c", comment="a chain")
OTHER = Chain(TABLE, "other")
BASE = Chain(TABLE, "base", Hook("nat", 4, 100))


@pytest.fixture
def prepared(netfilter):
    """A netfilter socket in a namespace with the table and its chains."""
    nft.change(
        netfilter, nft.table_request(TABLE), nft.chain_request(CHAIN), nft.chain_request(OTHER), nft.chain_request(BASE)
    )
    return netfilter


def test_an_operators_settings_stay(prepared, host):
    """Creating an existing table and chain changes neither a policy nor a flag."""
    host.run("nft", "chain inet t base { policy drop; }")
    host.run("nft", "add table inet t { flags dormant; }")
    before = nft_rules(host)
    assert "flags dormant" in "".join(before)
    assert "policy drop" in "".join(before)
    nft.change(prepared, nft.table_request(TABLE), nft.chain_request(BASE))
    assert nft_rules(host) == before


def test_a_transaction_is_all_or_nothing(prepared, host):
    """If the kernel refuses one request, no change is made, and the error names that request, at any position."""
    before = nft_rules(host)
    good = nft.rule_request(CHAIN, nft_rule.DROP)
    jump = nft.rule_request(OTHER, nft_rule.jump("base"))  # into a base chain
    for bad, number in ((nft.delete_rule_request(CHAIN, 999), errno.ENOENT), (jump, errno.EOPNOTSUPP)):
        for requests in ((bad, good), (good, bad), (good, bad, good)):
            with pytest.raises(KernelError) as caught:
                nft.change(prepared, *requests)
            assert (caught.value.description, caught.value.errno) == (bad.description, number)
            assert nft_rules(host) == before
    nft.change(prepared, good)
    assert len(nft.list_rules(prepared, CHAIN)) == 1


def test_a_transaction_refused_as_a_whole(prepared, monkeypatch):
    """A refusal of the whole transaction is an error, and the socket can be used again."""
    before = nft._SUBSYSTEM
    monkeypatch.setattr(nft, "_SUBSYSTEM", 99)
    with pytest.raises(KernelError) as caught:
        nft.change(prepared, nft.table_request(TABLE), nft.rule_request(CHAIN, nft_rule.DROP))
    assert (caught.value.description, caught.value.errno) == ("change nftables", errno.EINVAL)
    monkeypatch.setattr(nft, "_SUBSYSTEM", before)
    nft.change(prepared, nft.rule_request(CHAIN, nft_rule.DROP))
    assert len(nft.list_rules(prepared, CHAIN)) == 1


def test_a_large_transaction(prepared):
    """A transaction of a thousand rules has one answer, and the socket can be used again."""
    comments = [nft_rule.comment_userdata(f"number {count}") for count in range(1000)]
    nft.change(prepared, *(nft.rule_request(CHAIN, nft_rule.DROP, comment) for comment in comments))
    existing = nft.list_rules(prepared, CHAIN)
    assert [rule.comment for rule in existing] == [f"number {count}" for count in range(1000)]
    assert [rule.comment for rule in nft.list_rules(prepared, CHAIN, "number 55")][:2] == ["number 55", "number 550"]
    nft.change(prepared, *(nft.delete_rule_request(CHAIN, rule.handle) for rule in existing))
    assert nft.list_rules(prepared, CHAIN) == []


def test_a_dry_run_changes_nothing(netfilter, host):
    """The kernel validates the requests of a dry run, refuses invalid ones, and changes nothing."""
    dry_run(netfilter, nft.table_request(TABLE), nft.chain_request(BASE), nft.rule_request(BASE, nft_rule.masquerade()))
    assert nft_rules(host) == []
    wrong = Chain(TABLE, "base", Hook("no-such-type", 4, 100))
    with pytest.raises(KernelError, match="add chain t base: no such file or directory"):
        dry_run(netfilter, nft.table_request(TABLE), nft.chain_request(wrong))
    assert nft_rules(host) == []


@pytest.fixture
def queued(host):
    """A packet waits for an intrusion prevention system (NFQUEUE); returns how many wait there now."""
    host.run("iptables-nft", "-A", "OUTPUT", "-p", "udp", "--dport", "9", "-j", "NFQUEUE", "--queue-num", "9")
    with host.entered(), hold_queue(9), socket(AF_INET, SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", 9))
        yield lambda: host.run("cat", "/proc/net/netfilter/nfnetlink_queue").split()[2]


@pytest.mark.needs("iptables_nft_nat")
def test_a_dry_run_discards_no_queued_packet(netfilter, queued):
    """A dry run of a table with hooks removes none from the kernel."""
    waiting = queued()
    dry_run(netfilter, nft.table_request(TABLE), nft.chain_request(BASE))
    assert (waiting, queued()) == ("1", "1")


@pytest.mark.needs("iptables_nft_nat", "nft_inet")
def test_a_trace_is_refused_beside_queued_packets(netfilter, queued):
    """Neither a trace nor the removal of a killed one's tables discards waiting packets."""
    nft.change(netfilter, nft.table_request(Table(nft.INET, "podwire_trace_99999999")), recorded=False)
    assert nft_trace.delete_stale(netfilter) == 0
    with Tracer() as tracer, pytest.raises(KernelError, match=r"queue 9 \(NFQUEUE\)"):
        tracer.start([Tuple(17, LOOPBACK, 1, LOOPBACK, 9)])
    assert queued() == "1"


@pytest.mark.parametrize("filtering", [True, False])
def test_only_rules_of_the_chain_are_listed(prepared, monkeypatch, filtering):
    """Rules of other chains, even with the same comment, are not listed, even if the kernel does not filter."""
    userdata = nft_rule.comment_userdata("mine")
    nft.change(
        prepared, nft.rule_request(OTHER, nft_rule.DROP, userdata), nft.rule_request(CHAIN, nft_rule.ACCEPT, userdata)
    )
    if not filtering:
        monkeypatch.setattr(nft, "_of", lambda chain: [("NFTA_RULE_TABLE", chain.table.name)])
    (rule,) = nft.list_rules(prepared, CHAIN, "mine")
    assert nft_rule.is_same_rule(nft_rule.ACCEPT, rule.expressions)
    assert nft.list_rules(prepared, CHAIN, "other") == []
    for absent in (Chain(TABLE, "absent"), Chain(Table(nft.INET, "absent"), "c")):
        assert nft.list_rules(prepared, absent) == []


def test_retry_when_objects_disappear():
    """An attempt that fails because an object disappeared is repeated a few times; other failures are final."""
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


class Interrupted:
    """A socket that calls a function after each read."""

    def __init__(self, wrapped, interrupt):
        self.wrapped = wrapped
        self.interrupt = interrupt

    def __getattr__(self, name):
        return getattr(self.wrapped, name)

    def recv(self, size):
        data = self.wrapped.recv(size)
        self.interrupt()
        return data


@pytest.mark.parametrize("times", [3, 100_000])
def test_an_inconsistent_listing_is_read_again(prepared, host, monkeypatch, times):
    """A listing during which rules change is repeated; if rules keep changing, the results are merged."""
    nft.change(
        prepared, *[nft.rule_request(CHAIN, nft_rule.DROP, nft_rule.comment_userdata("x" * 100)) for _ in range(1000)]
    )
    with host.entered():
        other = nft.open_socket()
    changes = [nft.rule_request(OTHER, nft_rule.DROP)] * times

    def change_other():
        if changes:
            nft.change(other, changes.pop())

    monkeypatch.setattr(prepared, "_socket", Interrupted(prepared._socket, change_other))
    with other:
        assert len(nft.list_rules(prepared, CHAIN)) == 1000
        assert (changes == []) == (times < 10)


def netfilter_sockets(host):
    """Returns the port numbers of the netfilter sockets of processes in a namespace."""
    lines = [line.split() for line in host.run("cat", "/proc/net/netlink").splitlines()]
    return [line[2] for line in lines if line[1] == "12" and line[2] != "0"]


@pytest.mark.parametrize("missing", ["nothing", "process", "pipe"])
def test_a_child_closes_the_socket(prepared, host, monkeypatch, missing):
    """After a deletion a child process closes the socket, and this process does if no child can be started."""
    children = []
    start_child = System.close_in_background

    def started(*arguments):
        pid = start_child(*arguments)
        children.append(pid)
        with open(os.pidfd_open(pid)) as ended:
            assert not wait_readable([ended.fileno()], 0.2), "the child must be the last to close"
        return pid

    def refused(*_arguments):
        raise OSError(errno.EAGAIN, "no more")

    nft.change(prepared, nft.rule_request(CHAIN, nft_rule.DROP))
    (rule,) = nft.list_rules(prepared, CHAIN)
    nft.change(prepared, nft.delete_rule_request(CHAIN, rule.handle))
    assert len(netfilter_sockets(host)) == 1
    monkeypatch.setattr(System, "close_in_background", refused if missing == "process" else started)
    if missing == "pipe":
        monkeypatch.setattr(os, "pipe", refused)
    prepared.close()
    monkeypatch.undo()
    assert len(children) == (1 if missing == "nothing" else 0)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    assert netfilter_sockets(host) == []


def test_without_deletions_no_child_is_started(netfilter, host, monkeypatch):
    """A socket that was used only to add or list rules is closed without a child process."""
    nft.change(netfilter, nft.table_request(TABLE))
    assert nft.list_rules(netfilter, CHAIN) == []
    with monkeypatch.context() as patched:
        patched.setattr(System, "close_in_background", pytest.fail)
        netfilter.close()
    assert netfilter_sockets(host) == []
