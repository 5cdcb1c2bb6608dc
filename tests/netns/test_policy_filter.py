"""The packet filter of network policies on the real kernel: its table as `nft` lists it, and its updates.

test_policy_filter_repair.py has its repair, test_policy_packets.py sends packets through it.
"""

import statistics
import subprocess
import threading
import time
from ipaddress import ip_address
from random import Random

import pytest

from agent.policy.filter import PolicyFilter
from agent.policy.filter_table import AcceptRule, ChainContent, FilterTable, SetChange, Verdict
from attachment.policy.table import EGRESS, INGRESS, SELF
from kernel.netfilter import nft, nft_set
from tests.support import namespaces
from tests.support.netstate import nft_rules
from tests.support.policy_tables import ADDRESSES, SAMPLE, SUBJECT, content
from tests.support.policy_world import KernelWorld

pytestmark = pytest.mark.needs("nft_inet")

(A, B), (A6, _) = ADDRESSES[4][:2], ADDRESSES[6][:2]

OF_ALL = """ct state established,related accept
    ip saddr . ip daddr @self4 accept
    ip6 saddr . ip6 daddr @self6 accept"""
EGRESS_OF_ALL = f"{OF_ALL} ip saddr vmap @egress4 ip6 saddr vmap @egress6"
INGRESS_OF_ALL = f"{OF_ALL} ip daddr vmap @ingress4 ip6 daddr vmap @ingress6"
LISTING = f"""
table inet podwire_policy {{
    comment "made by podwire-agent for NetworkPolicies"
    counter d-e-1 {{ }}
    counter d-i-1 {{ }}
    map egress4 {{ type ipv4_addr : verdict elements = {{ 10.0.0.1 : goto e-1, 10.0.0.2 : goto e-1 }} }}
    map egress6 {{ type ipv6_addr : verdict }}
    map ingress4 {{ type ipv4_addr : verdict elements = {{ 10.0.0.1 : goto i-1 }} }}
    map ingress6 {{ type ipv6_addr : verdict elements = {{ fd::1 : goto i-1 }} }}
    set self4 {{ type ipv4_addr . ipv4_addr elements = {{ 10.0.0.1 . 10.0.0.1, 10.0.0.2 . 10.0.0.2 }} }}
    set self6 {{ type ipv6_addr . ipv6_addr elements = {{ fd::1 . fd::1 }} }}
    set p4-1 {{ type ipv4_addr . inet_service elements = {{ 10.0.0.2 . 80, 10.0.0.3 . 65535 }} }}
    set p6-1 {{ type ipv6_addr . inet_service elements = {{ fd::2 . 53 }} }}
    set s4-1 {{ type ipv4_addr elements = {{ 10.0.0.4, 10.0.0.5 }} }}
    set s6-1 {{ type ipv6_addr elements = {{ fd::4, fd::5 }} }}
    set b4-1 {{ type ipv4_addr flags interval elements = {{ 0.0.0.0-9.255.255.255, 11.0.0.0-255.255.255.255 }} }}
    set b6-1 {{ type ipv6_addr flags interval elements = {{ ::-fcff:: }} }}
    set t-1 {{ type inet_service flags interval elements = {{ 1-5, 80, 65000-65535 }} }}
    chain egress {{
        type filter hook forward priority filter - 10; policy accept;
        icmpv6 type 133-137 accept {EGRESS_OF_ALL}
    }}
    chain ingress {{
        type filter hook forward priority filter - 9; policy accept;
        icmpv6 type 133-137 accept {INGRESS_OF_ALL}
    }}
    chain output-egress {{ type filter hook output priority filter - 10; policy accept; {EGRESS_OF_ALL} }}
    chain output-ingress {{
        type filter hook output priority filter - 9; policy accept;
        fib saddr type local accept {INGRESS_OF_ALL}
    }}
    chain e-1 {{
        comment "egress of shop: default-deny"
        ip daddr . tcp dport @p4-1 accept
        ip6 daddr . udp dport @p6-1 accept
        ip daddr @s4-1 meta l4proto tcp accept
        counter name "d-e-1" drop
    }}
    chain i-1 {{
        comment "ingress of shop: web"
        ip saddr @s4-1 accept
        ip6 saddr @s6-1 tcp dport 80 accept
        ip saddr @b4-1 udp dport 80-90 accept
        sctp dport @t-1 accept
        ip6 saddr @b6-1 accept
        meta l4proto tcp accept
        accept
        counter name "d-i-1" drop
    }}
}}
"""


@pytest.fixture
def new_host(root):
    """Another node."""
    with namespaces.temporary_host() as new:
        yield new


def lines_of(text):
    """Returns the lines of a listing, elements in one line each and sorted, without indentation."""
    flat = " ".join(text.split()).replace("elements = { ", "\nelements = { ")
    parts = []
    for part in flat.split("\n"):
        if part.startswith("elements"):
            elements, rest = part.removeprefix("elements = { ").split(" }", 1)
            parts += [*sorted(elements.split(", ")), rest]
        else:
            parts.append(part)
    return "\n".join(parts)


def test_nft_lists_the_table(host, host_filter):
    """`nft` lists sets, maps, counters and rules with their types and comments, and can load its listing again.

    The kernel's table then needs no repair: all bytes are those that the tool sends.
    """
    host_filter.repair(SAMPLE)
    assert lines_of("\n".join(nft_rules(host))) == lines_of(LISTING)
    before = content(host)
    with host.entered():
        listing = host.run("nft", "-s", "list", "ruleset")
        subprocess.run(["nft", "-f", "-"], input=f"flush ruleset\n{listing}", text=True, check=True)
    assert content(host) == before
    assert host_filter.repair(SAMPLE) == 0


def test_removal_leaves_nothing(host, host_filter):
    """The method remove deletes the table, also if it is absent, and a new table can be applied."""
    host_filter.apply(SAMPLE)
    before = content(host)
    host_filter.delete()
    host_filter.delete()
    assert nft_rules(host) == []
    host_filter.apply(SAMPLE)
    assert content(host) == before


def test_deletions_in_parallel(host, host_filter):
    """DELs delete addresses of pods all the time: no change needs a comparison, and nothing drifts."""
    tables = [
        SAMPLE,
        SAMPLE._replace(verdicts={**SAMPLE.verdicts, B: Verdict("", "i-1")}),
        SAMPLE._replace(verdicts={}),
    ]
    host_filter.apply(SAMPLE)
    is_done = threading.Event()

    def delete():
        with host.entered():
            socket = nft.open_socket()
        with socket:
            while not is_done.is_set():
                places = [(one[4], address.packed) for one in (EGRESS, INGRESS) for address in (A, B)]
                nft_set.delete_existing(socket, [*places, (SELF[4], A.packed * 2)])

    deleter = threading.Thread(target=delete)
    deleter.start()
    try:
        for number in range(300):
            table = tables[number % 3]
            assert host_filter.apply(table._replace(verdicts=dict(table.verdicts)))
    finally:
        is_done.set()
        deleter.join()
    assert host_filter.apply(SAMPLE._replace(verdicts=dict(SAMPLE.verdicts)))
    assert host_filter.repair(SAMPLE) == 0


@pytest.mark.parametrize("seed", range(4))
def test_differences_equal_a_new_table(host, new_host, host_filter, seed):
    """After random events, `nft` lists what it lists after the last table alone, and no repair is needed.

    The filter gets the differences of sets that were changed in place.
    """
    world = KernelWorld(Random(seed), host_filter)
    with new_host.entered():
        fresh = PolicyFilter()
    for _ in range(25):
        for _ in range(world.random.choice((1, 2, 5, 20))):
            world.change()
        world.update()
        fresh.delete()
        fresh.repair(world.table)
        assert content(host) == content(new_host)
        assert host_filter.repair(world.table) == 0
    fresh.close()


def test_a_set_that_is_another_object(host_filter):
    """A set that is another object under the same name gets the elements in which the two differ."""
    host_filter.apply(SAMPLE)
    table = SAMPLE._replace(sets={**SAMPLE.sets, "s4-1": frozenset(ADDRESSES[4][4:7])})
    assert host_filter.apply(table)
    assert host_filter.repair(table) == 0


def test_no_difference_of_a_failed_change_is_lost(host_filter):
    """After a change that fails, the next one compares the whole table, so no difference is lost."""
    addresses = set(ADDRESSES[4][:5])
    chains = {"e-1": ChainContent(SUBJECT, (AcceptRule(4, "s4-1"),))}
    table = FilterTable({A: Verdict("e-1")}, chains, {"s4-1": addresses})
    host_filter.apply(table)
    addresses.add(ADDRESSES[4][9])
    invalid = table._replace(chains={"e-1": ChainContent(SUBJECT, (AcceptRule(4, "s4-1", "icmp"),))})
    with pytest.raises(KeyError):
        host_filter.apply(invalid, {"s4-1": SetChange((ADDRESSES[4][9],))})
    assert not host_filter.apply(table)
    assert host_filter.repair(table) == 0


def test_deleted_attachments(host, host_filter):
    """DEL deletes a pod's addresses; if another pod gets them at once under the same policies, they are added again."""
    host_filter.apply(SAMPLE)
    before = content(host)
    with host.entered(), nft.open_socket() as socket:
        for one, key in ((EGRESS[4], A.packed), (INGRESS[4], A.packed), (SELF[4], A.packed * 2)):
            nft.change(socket, *nft_set.delete_element_requests(one, [key]))
    assert content(host) != before
    assert host_filter.apply(SAMPLE._replace(verdicts=dict(SAMPLE.verdicts)))
    assert content(host) == before


def test_a_new_process_takes_the_table_over(host, host_filter):
    """The filter of a new process changes what differs only: counters and equal chains stay as they are."""
    host_filter.apply(SAMPLE)
    handles = host.run("nft", "-a", "list", "ruleset")
    with host.entered():
        new = PolicyFilter()
    assert not new.apply(SAMPLE)
    assert host.run("nft", "-a", "list", "ruleset") == handles
    new.close()


JOIN_S, CHANGE_S = 0.001, 0.03  # of processor time; on an idle machine 0.06 ms, and 2 to 4 ms


def test_costs(host_filter):
    """A pod that joins or leaves a set of 10,000 costs less than a millisecond; a local pod or a policy some more."""
    first = ip_address("10.1.0.0")
    pods = [first + n for n in range(10_000)]
    everyone, some = set(pods), frozenset(pods[:500])
    rules = (AcceptRule(4, "s4-all"), *(AcceptRule(4, "s4-some", "tcp", (port, port)) for port in range(80, 87)))
    chains = {f"{kind}-{n}": ChainContent(SUBJECT, rules) for n in range(240) for kind in "ei"}
    verdicts = {pods[n]: Verdict(f"e-{n}", f"i-{n}") for n in range(240)}
    table = FilterTable(verdicts, chains, {"s4-some": some, "s4-all": everyone})
    with_pod = table._replace(verdicts={**verdicts, first - 1: Verdict("e-7", "i-7")})
    with_rule = table._replace(chains={**chains, "i-9": ChainContent(SUBJECT, (AcceptRule(),))})
    host_filter.apply(table)
    joins, changes = [], []
    peer = first + 20_000
    for _ in range(100):
        everyone.add(peer)
        joins.append(cost(host_filter, table, {"s4-all": SetChange((peer,))}))
        everyone.remove(peer)
        joins.append(cost(host_filter, table, {"s4-all": SetChange((), (peer,))}))
    for changed in (with_pod, with_rule) * 20:
        changes += [cost(host_filter, changed), cost(host_filter, table)]
    assert statistics.median(joins) < JOIN_S
    assert statistics.median(changes) < CHANGE_S


def cost(host_filter, *change):
    """Returns the processor time of a change, which must not have led to a comparison."""
    before = time.process_time()
    assert host_filter.apply(*change)
    return time.process_time() - before
