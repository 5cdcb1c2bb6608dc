"""The packet filter of network policies on the real kernel: its table as `nft` lists it, its updates and its repair.

tests/netns/test_policy_packets.py sends packets through it.
"""

import json
import re
import statistics
import subprocess
import time
from ipaddress import ip_address
from random import Random

import pytest

from agent.policy.filter import PolicyFilter
from agent.policy.filter_table import EMPTY, AcceptRule, ChainContent, FilterTable, SetChange, Verdict
from attachment.policy.table import EGRESS, INGRESS, SELF
from kernel.netfilter import nft, nft_set
from tests.support import namespaces
from tests.support.netstate import nft_rules

pytestmark = pytest.mark.needs("nft_inet")

PODS = {
    version: [ip_address(f"{prefix}{n}") for n in range(1, 20)] for version, prefix in ((4, "10.0.0."), (6, "fd::"))
}
A, B = PODS[4][:2]
A6, B6 = PODS[6][:2]
TABLE = FilterTable(
    {A: Verdict("e-1", "i-1"), A6: Verdict("", "i-1"), B: Verdict("e-1", "")},
    {
        "e-1": ChainContent(
            "egress of shop: default-deny",
            (
                AcceptRule(4, protocol="tcp", pair_set="p4-1"),
                AcceptRule(6, protocol="udp", pair_set="p6-1"),
                AcceptRule(4, "s4-1", "tcp"),
            ),
        ),
        "i-1": ChainContent(
            'ingress of shop: "web"',
            (
                AcceptRule(4, "s4-1"),
                AcceptRule(6, "s6-1", "tcp", (80, 80)),
                AcceptRule(4, "b4-1", "udp", (80, 90)),
                AcceptRule(0, "", "sctp", None, "t-1"),
                AcceptRule(6, "b6-1"),
                AcceptRule(protocol="tcp"),
                AcceptRule(),
            ),
        ),
    },
    {
        "p4-1": frozenset({(B, 80), (PODS[4][2], 65535)}),
        "p6-1": frozenset({(B6, 53)}),
        "s4-1": frozenset(PODS[4][3:5]),
        "s6-1": frozenset(PODS[6][3:5]),
        "b4-1": frozenset(
            (ip_address(first), ip_address(last))
            for first, last in (("0.0.0.0", "9.255.255.255"), ("11.0.0.0", "255.255.255.255"))
        ),
        "b6-1": frozenset({(ip_address("::"), ip_address("fcff::"))}),
        "t-1": frozenset({(1, 5), (80, 80), (65000, 65535)}),
    },
)
OF_ALL = """
        ct state established,related accept
        ip saddr . ip daddr @self4 accept
        ip6 saddr . ip6 daddr @self6 accept"""
LISTING = f"""
table inet podwire_policy {{
    comment "made by podwire-agent for NetworkPolicies"
    counter d-e-1 {{
    }}
    counter d-i-1 {{
    }}
    map egress4 {{
        type ipv4_addr : verdict
        elements = {{ 10.0.0.1 : goto e-1, 10.0.0.2 : goto e-1 }}
    }}
    map egress6 {{
        type ipv6_addr : verdict
    }}
    map ingress4 {{
        type ipv4_addr : verdict
        elements = {{ 10.0.0.1 : goto i-1 }}
    }}
    map ingress6 {{
        type ipv6_addr : verdict
        elements = {{ fd::1 : goto i-1 }}
    }}
    set self4 {{
        type ipv4_addr . ipv4_addr
        elements = {{ 10.0.0.1 . 10.0.0.1, 10.0.0.2 . 10.0.0.2 }}
    }}
    set self6 {{
        type ipv6_addr . ipv6_addr
        elements = {{ fd::1 . fd::1 }}
    }}
    set p4-1 {{
        type ipv4_addr . inet_service
        elements = {{ 10.0.0.2 . 80, 10.0.0.3 . 65535 }}
    }}
    set p6-1 {{
        type ipv6_addr . inet_service
        elements = {{ fd::2 . 53 }}
    }}
    set s4-1 {{
        type ipv4_addr
        elements = {{ 10.0.0.4, 10.0.0.5 }}
    }}
    set s6-1 {{
        type ipv6_addr
        elements = {{ fd::4, fd::5 }}
    }}
    set b4-1 {{
        type ipv4_addr
        flags interval
        elements = {{ 0.0.0.0-9.255.255.255, 11.0.0.0-255.255.255.255 }}
    }}
    set b6-1 {{
        type ipv6_addr
        flags interval
        elements = {{ ::-fcff:: }}
    }}
    set t-1 {{
        type inet_service
        flags interval
        elements = {{ 1-5, 80, 65000-65535 }}
    }}
    chain egress {{
        type filter hook forward priority filter - 10; policy accept;
        icmpv6 type 133-137 accept{OF_ALL}
        ip saddr vmap @egress4
        ip6 saddr vmap @egress6
    }}
    chain ingress {{
        type filter hook forward priority filter - 9; policy accept;
        icmpv6 type 133-137 accept{OF_ALL}
        ip daddr vmap @ingress4
        ip6 daddr vmap @ingress6
    }}
    chain output-egress {{
        type filter hook output priority filter - 10; policy accept;{OF_ALL}
        ip saddr vmap @egress4
        ip6 saddr vmap @egress6
    }}
    chain output-ingress {{
        type filter hook output priority filter - 9; policy accept;
        fib saddr type local accept{OF_ALL}
        ip daddr vmap @ingress4
        ip6 daddr vmap @ingress6
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


@pytest.fixture
def packet_filter(host):
    """A filter in the host's namespace."""
    with host.entered():
        new = PolicyFilter()
    yield new
    new.close()


def content(host):
    """Returns the table's objects as `nft` lists them, with elements sorted, and rules in the order of each chain."""
    listing = json.loads(host.run("nft", "-j", "list", "ruleset"))["nftables"]
    objects = {}
    for item in listing:
        ((kind, item_content),) = item.items()
        item_content.pop("handle", None)
        if kind == "rule":
            objects.setdefault(("rules", item_content["chain"]), []).append(json.dumps(item_content["expr"]))
        elif kind != "metainfo":
            item_content["elem"] = sorted(map(json.dumps, item_content.get("elem", ())))
            objects[kind, item_content["name"]] = item_content
    return objects


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


def test_nft_lists_the_table(host, packet_filter):
    """`nft` lists sets, maps, counters and rules with their types and comments, and can load its listing again.

    The kernel's table then needs no repair: all bytes are those that the tool sends.
    """
    packet_filter.compare(TABLE)
    assert lines_of("\n".join(nft_rules(host))) == lines_of(LISTING)
    before = content(host)
    with host.entered():
        listing = host.run("nft", "-s", "list", "ruleset")
        subprocess.run(["nft", "-f", "-"], input=f"flush ruleset\n{listing}", text=True, check=True)
    assert content(host) == before
    assert packet_filter.compare(TABLE) == 0


def test_removal_leaves_nothing(host, packet_filter):
    """remove() deletes the table, also if it is absent, and apply() creates it again."""
    packet_filter.apply(TABLE)
    before = content(host)
    packet_filter.remove()
    packet_filter.remove()
    assert nft_rules(host) == []
    packet_filter.apply(TABLE)
    assert content(host) == before


class RandomTables:
    """Random tables, in which some contents are those of the last one."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.last = EMPTY

    def new(self):
        """Returns the next table."""
        random, last = self.random, self.last
        chains = {}
        for name in random.sample([f"{direction}-{n}" for direction in "ei" for n in range(5)], random.randrange(8)):
            if name in last.chains and random.randrange(3):
                chains[name] = last.chains[name]
            else:
                rules = tuple(self.rule() for _ in range(random.randrange(4)))
                chains[name] = ChainContent(f"chain {name}", rules)
        names = {
            name
            for chain in chains.values()
            for rule in chain.rules
            for name in (rule.peer_set, rule.port_set, rule.pair_set)
            if name
        }
        sets = {name: self.elements(name) for name in names}
        verdicts = {}
        for address in random.sample(PODS[4] + PODS[6], random.randrange(12)):
            ways = [random.choice(["", *(name for name in chains if name.startswith(kind))]) for kind in "ei"]
            if any(ways):
                verdicts[address] = Verdict(*ways)
        self.last = FilterTable(verdicts, chains, sets)
        return self.last

    def rule(self):
        random, number = self.random, self.random.randrange(3)
        version = random.choice((4, 6))
        protocol = random.choice(("tcp", "udp", "sctp"))
        ports = random.choice(({}, {"ports": (80, 80)}, {"ports": (1, number + 7)}, {"port_set": f"t-{number}"}))
        return random.choice(
            (
                AcceptRule(),
                AcceptRule(version, protocol=protocol, pair_set=f"p{version}-{number}"),
                AcceptRule(version, f"{random.choice('sb')}{version}-{number}"),
                AcceptRule(version, f"{random.choice('sb')}{version}-{number}", protocol, **ports),
                AcceptRule(protocol=protocol, **ports),
            )
        )

    def elements(self, name):
        random = self.random
        if name in self.last.sets and random.randrange(2):
            return self.last.sets[name]
        if name.startswith("t"):
            cuts = sorted(random.sample(range(65536), 6))
            return frozenset(zip(cuts[::2], cuts[1::2], strict=True))
        version = int(name[1])
        if name.startswith("b"):
            limit = 1 << PODS[version][0].max_prefixlen
            cuts = sorted(random.choices((0, limit - 1, random.randrange(limit), random.randrange(limit)), k=4))
            ranges = {(cuts[0], cuts[1]), (cuts[2], cuts[3])} if cuts[1] < cuts[2] else {(cuts[0], cuts[3])}
            address = type(PODS[version][0])
            return frozenset((address(first), address(last)) for first, last in ranges)
        members = random.sample(PODS[version], random.randrange(8))
        return frozenset((each, random.randrange(65536)) for each in members) if name[0] == "p" else frozenset(members)


@pytest.mark.parametrize("seed", range(4))
def test_differences_equal_a_new_table(host, new_host, packet_filter, seed):
    """After each of a row of random tables, `nft` lists what it lists after the last one alone; no repair is needed."""
    tables = RandomTables(seed)
    packet_filter.apply(EMPTY)
    with new_host.entered():
        fresh = PolicyFilter()
    for _ in range(25):
        table = tables.new()
        assert packet_filter.apply(table)
        fresh.remove()
        fresh.compare(table)
        assert content(host) == content(new_host)
        assert packet_filter.compare(table) == 0
    fresh.close()


def test_sets_changed_in_place(host, packet_filter):
    """A difference of a set that was changed in place changes the kernel's set; other sets are left alone."""
    addresses, pairs = set(PODS[4][:5]), {(A, 80), (B, 81)}
    rules = AcceptRule(4, "s4-1"), AcceptRule(4, protocol="tcp", pair_set="p4-1")
    table = FilterTable({A: Verdict("e-1")}, {"e-1": ChainContent("", rules)}, {"s4-1": addresses, "p4-1": pairs})
    packet_filter.apply(table)
    addresses ^= {A, PODS[4][9]}
    pairs ^= {(A, 80), (A, 8080)}
    changes = {"s4-1": SetChange((PODS[4][9],), (A,)), "p4-1": SetChange(((A, 8080),), ((A, 80),))}
    assert packet_filter.apply(table, changes)
    assert packet_filter.compare(table) == 0


def test_deleted_attachments(host, packet_filter):
    """DEL deletes a pod's addresses; if another pod gets them at once under the same policies, they are added again."""
    packet_filter.apply(TABLE)
    before = content(host)
    with host.entered(), nft.open_socket() as socket:
        for one, key in ((EGRESS[4], A.packed), (INGRESS[4], A.packed), (SELF[4], A.packed * 2)):
            nft.change(socket, *nft_set.delete_element_requests(one, [key]))
    assert content(host) != before
    assert packet_filter.apply(TABLE._replace(verdicts=dict(TABLE.verdicts)))
    assert content(host) == before
    with host.entered(), nft.open_socket() as socket:
        nft.change(socket, *nft_set.delete_element_requests(EGRESS[4], [A.packed]))
    assert packet_filter.apply(TABLE._replace(verdicts={B: Verdict("e-1", ""), A6: Verdict("", "i-1")}))
    assert packet_filter.apply(TABLE._replace(verdicts=dict(TABLE.verdicts)))
    assert content(host) == before


FOREIGN = {
    "base chain flushed": "flush chain T egress",
    "rule appended to a base chain": "add rule T ingress accept",
    "rule before a base chain": "insert rule T ingress accept",
    "table deleted": "delete table T",
    "ruleset flushed": "flush ruleset",
    "verdict deleted": "delete element T egress4 { 10.0.0.1 }",
    "verdict of another pod": "add element T ingress6 { fd::2 : goto i-1 }",
    "verdict changed": "delete element T egress4 { 10.0.0.1 }; add element T egress4 { 10.0.0.1 : goto i-1 }",
    "verdict accept": "delete element T egress4 { 10.0.0.1 }; add element T egress4 { 10.0.0.1 : accept }",
    "pod with itself deleted": "delete element T self4 { 10.0.0.1 . 10.0.0.1 }",
    "peer deleted": "delete element T s4-1 { 10.0.0.4 }",
    "peer added": "add element T s6-1 { fd::9 }",
    "peer with a comment": 'delete element T s4-1 { 10.0.0.4 }; add element T s4-1 { 10.0.0.9 comment "mine" }',
    "set flushed": "flush set T p4-1",
    "port of a peer added": "add element T p6-1 { fd::1 . 1 }",
    "block deleted": "delete element T b4-1 { 11.0.0.0-255.255.255.255 }",
    "block added": "add element T b4-1 { 10.0.0.0-10.0.0.9 }",
    "ports added": "add element T t-1 { 6-79 }",
    "chain flushed": "flush chain T i-1",
    "rule inserted": "insert rule T e-1 tcp dport { 1, 2 } accept",
    "rule without counter": "flush chain T e-1; add rule T e-1 drop",
    "chain that a rule uses": "add chain T x; add chain T y; add rule T x jump y; add rule T egress jump x",
    "base chain added": "add chain T x { type filter hook input priority 0; }",
    "set added": "add set T x { type inet_service; }; add element T x { 7 }",
    "map to a chain": "add map T x { type inet_service : verdict; }; add element T x { 7 : goto i-1 }",
    "counter added": "add counter T x",
    "base chain with another priority": "delete table T; add table T;"
    "add chain T egress { type filter hook forward priority 5; }",
    "base chain that drops": "add chain T egress { type filter hook forward priority -10; policy drop; }",
    "set of another type": "delete table T; add table T; add set T s4-1 { type ipv6_addr; }",
    "map that is a set": "delete table T; add table T; add set T egress4 { type ipv4_addr; }",
}


def run_nft(host, command):
    """Runs `nft` with a command in which T stands for the table."""
    host.run("nft", re.sub(r"\bT\b", "inet podwire_policy", command))


@pytest.mark.parametrize("command", FOREIGN.values(), ids=FOREIGN)
def test_foreign_changes_are_repaired(host, packet_filter, command):
    """compare() finds and repairs what another program changed in the table, and finds nothing afterwards."""
    packet_filter.apply(TABLE)
    before = content(host)
    run_nft(host, command)
    assert content(host) != before
    assert packet_filter.compare(TABLE) > 0
    assert content(host) == before
    assert packet_filter.compare(TABLE) == 0


@pytest.mark.parametrize("name", ["table deleted", "peer deleted", "set of another type", "verdict changed"])
def test_a_refused_change_repairs_the_table(host, packet_filter, name):
    """A change that the kernel refuses, because another program changed the table, is made with its repair."""
    addresses = set(TABLE.sets["s4-1"])
    table = TABLE._replace(sets={**TABLE.sets, "s4-1": addresses})
    packet_filter.apply(table)
    run_nft(host, FOREIGN[name])
    addresses.remove(PODS[4][3])
    changes = {"s4-1": SetChange((), (PODS[4][3],))}
    packet_filter.apply(table._replace(verdicts={A: Verdict("e-1", "")}), changes)
    after = content(host)
    packet_filter.remove()
    packet_filter.apply(table._replace(verdicts={A: Verdict("e-1", "")}))
    assert content(host) == after


def test_a_new_process_takes_the_table_over(host, packet_filter):
    """The filter of a new process changes what differs only: counters and equal chains stay as they are."""
    packet_filter.apply(TABLE)
    handles = host.run("nft", "-a", "list", "ruleset")
    with host.entered():
        new = PolicyFilter()
    assert not new.apply(TABLE)
    assert host.run("nft", "-a", "list", "ruleset") == handles
    new.close()


JOIN_S, CHANGE_S = 0.001, 0.03  # of processor time; on an idle machine 0.06 ms, and 2 to 4 ms


def test_costs(packet_filter):
    """A pod that joins or leaves a set of 10,000 costs less than a millisecond; a local pod or a policy some more.

    The table has 240 local pods with chains of their own, 90 sets of 500 addresses, and one of 10,000.
    """
    first = ip_address("10.1.0.0")
    pods = [first + n for n in range(10_000)]
    sets = {f"s4-{n}": frozenset(pods[n * 100 : n * 100 + 500]) for n in range(90)}
    everyone = set(pods)
    chains = {
        f"{kind}-{n}": ChainContent(
            "", tuple(AcceptRule(4, f"s4-{(n + k) % 90}", "tcp", (80 + k, 80 + k)) for k in range(8))
        )
        for n in range(240)
        for kind in "ei"
    }
    chains["e-0"] = ChainContent("", (AcceptRule(4, "s4-all"),))
    verdicts = {pods[n]: Verdict(f"e-{n}", f"i-{n}") for n in range(240)}
    table = FilterTable(verdicts, chains, {**sets, "s4-all": everyone})
    with_pod = table._replace(verdicts={**verdicts, first - 1: Verdict("e-7", "i-7")})
    with_rule = table._replace(chains={**chains, "i-9": ChainContent("", (AcceptRule(),))})
    packet_filter.apply(table)
    costs = {"join": [], "leave": [], "local pod": [], "policy": []}
    for n in range(100):
        peer = first + 20_000 + n
        everyone.add(peer)
        costs["join"].append(cost(packet_filter, table, {"s4-all": SetChange((peer,))}))
        everyone.remove(peer)
        costs["leave"].append(cost(packet_filter, table, {"s4-all": SetChange((), (peer,))}))
    for _ in range(20):
        for name, changed in (("local pod", with_pod), ("policy", with_rule)):
            costs[name] += [cost(packet_filter, changed), cost(packet_filter, table)]
    medians = {name: statistics.median(times) for name, times in costs.items()}
    assert max(medians["join"], medians["leave"]) < JOIN_S, medians
    assert max(medians["local pod"], medians["policy"]) < CHANGE_S, medians


def cost(packet_filter, *change):
    """Returns the processor time of a change, which must not have led to a comparison."""
    before = time.process_time()
    assert packet_filter.apply(*change)
    return time.process_time() - before
