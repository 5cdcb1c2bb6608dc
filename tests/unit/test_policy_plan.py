"""The plan of the filter: names, objects that stay, and, at random, the same answers as the evaluator's."""

import re
from ipaddress import ip_address
from random import Random
from typing import Any

import pytest

from agent.policy.evaluator import decide_direction
from agent.policy.filter_table import EMPTY, AcceptRule, SetChange
from agent.policy.objects import EGRESS, INGRESS, ClusterPod, NamedPort, Namespace, parse_policy
from agent.policy.plan import FilterPlan
from agent.policy.selection import PolicySelection
from tests.support.policy_world import World, accepts, record_of

A, B, C = (ip_address(f"10.0.0.{n}") for n in (1, 2, 3))


@pytest.mark.parametrize("seed", range(10))
def test_the_filter_agrees_with_the_evaluator(seed):
    """After random events the chains of a node's pods accept the connections that the evaluator allows, and no other.

    The sets are those that the differences of the plan produce, as in the kernel.
    """
    world = World(Random(seed))
    verdicts = {True: 0, False: 0}
    for _ in range(60):
        for _ in range(world.random.choice((1, 1, 2, 5, 20))):
            world.change()
        world.update()
        assert world.kernel == {name: set(elements) for name, elements in world.table.sets.items()}
        check_table(world.table)
        cluster = world.cluster()
        assert identities(cluster.pods) == identities(subjects(world.selection.owners))
        known = {each for name, record in world.records.items() if world.last_pods[name] for each in record.addresses}
        for _ in range(10):
            connection = world.connection()
            for direction in (EGRESS, INGRESS):
                subject = connection.source if direction == EGRESS else connection.destination
                if subject in known:
                    decision = decide_direction(cluster, connection, direction)
                    assert accepts(world.table, world.kernel, connection, direction) == decision.allowed, decision
                    verdicts[decision.allowed] += bool(decision.policies)
    assert all(verdicts.values())


def subjects(pods):
    """Returns the pods that can have policies."""
    return {address: pod for address, pod in pods.items() if pod.can_have_policies}


def identities(pods):
    """Returns what pods are except for their addresses, by address."""
    return {address: pod._replace(precedence=0, addresses=()) for address, pod in pods.items()}


def check_table(table):
    """A table has exactly the sets and chains that are used, under valid names."""
    used = {name for verdict in table.verdicts.values() for name in verdict if name}
    assert used == set(table.chains)
    rules = [rule for chain in table.chains.values() for rule in chain.rules]
    assert {name for rule in rules for name in (rule.peer_set, rule.port_set, rule.pair_set) if name} == set(table.sets)
    assert all(re.fullmatch(r"[a-z0-9-]{1,31}", name) for name in (*table.chains, *table.sets))


class Node:
    """A selection with its plan, and short ways to give it events of namespace shop."""

    def __init__(self):
        self.selection = PolicySelection()
        self.selection.set_namespace(Namespace("shop", {}))
        self.plan = FilterPlan(self.selection)

    def set_policy(self, name, **spec):
        self.selection.set_policy(parse_policy({"metadata": {"namespace": "shop", "name": name}, "spec": spec}))

    def set_pod(self, name, *addresses, labels=None, ports=()):
        self.selection.set_pod(ClusterPod("shop", name, f"u-{name}", labels or {"app": name}, addresses, ports=ports))

    def set_local(self, name, *addresses):
        self.selection.set_local(name, record_of("shop", name, f"u-{name}", addresses))

    def add(self, name, *addresses, **keys):
        self.set_pod(name, **keys)
        self.set_local(name, *addresses)

    @property
    def table(self):
        return self.plan.update()[0]

    def rules(self, address=A, direction=INGRESS):
        return self.table.chains[getattr(self.table.verdicts[address], direction)].rules


@pytest.fixture
def node():
    return Node()


def test_nothing_without_policies(node):
    """A node without policies has an empty table, whatever pods it has."""
    node.add("web", A)
    assert node.table == EMPTY


def test_pods_of_the_same_policies_share_their_chains(node):
    """Pods that the same policies select have the same chains, also in the next agent, whatever the order of events."""
    other = Node()
    for each, names in ((node, ("a", "b")), (other, ("b", "a"))):
        for name in names:
            each.set_policy(name, ingress=[{"from": [{"podSelector": {}}]}])
    for each, pods in ((node, (("web", A), ("db", B))), (other, (("db", B), ("web", A)))):
        for name, address in pods:
            each.add(name, address)
    assert node.table == other.table
    (chain,) = node.table.chains.values()
    assert chain.comment == "ingress of shop: a, b"
    (name,) = node.table.sets
    assert chain.rules == (AcceptRule(4, name),)  # the two policies' rules are equal
    assert {A, B} == node.table.sets[name]
    assert node.table.verdicts[A] == node.table.verdicts[B]
    assert not node.table.verdicts[A].egress


def test_unknown_pod_is_closed(node):
    """A pod whose object is not known is closed in the directions in which its namespace has policies."""
    node.set_local("web", A)
    assert node.table == EMPTY
    node.set_policy("egress", policyTypes=["Egress"], podSelector={"matchLabels": {"app": "none"}}, egress=[{}])
    assert not node.table.verdicts[A].ingress
    assert node.rules(direction=EGRESS) == ()
    node.set_pod("web")
    assert node.table == EMPTY


def test_chains_have_the_ip_versions_of_their_pods(node):
    """Pods with IPv4 only have chains without sets of IPv6, and do not share them with pods that have both."""
    node.set_policy("all", ingress=[{"from": [{"podSelector": {}}]}])
    node.add("both", A, ip_address("fd00::1"))
    node.add("four", B)
    assert [rule.version for rule in node.rules(A)] == [4, 6]
    assert [rule.version for rule in node.rules(B)] == [4]
    assert node.table.verdicts[A] == node.table.verdicts[ip_address("fd00::1")]


PORTS = (NamedPort("http", "tcp", 80), NamedPort("http", "udp", 81), NamedPort("dns", "udp", 53))


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ([], [AcceptRule()]),
        ([{}], [AcceptRule(protocol="tcp")]),
        ([{"port": 80}], [AcceptRule(protocol="tcp", ports=(80, 80))]),
        ([{"port": 80, "endPort": 90}, {"port": 91}], [AcceptRule(protocol="tcp", ports=(80, 91))]),
        ([{"port": 80}, {}], [AcceptRule(protocol="tcp")]),
        ([{"port": "http"}], [AcceptRule(protocol="tcp", ports=(80, 80))]),
        ([{"port": "http", "protocol": "SCTP"}], []),
        (
            [{"port": "dns", "protocol": "UDP"}, {"port": 80, "protocol": "UDP"}, {"port": 9, "protocol": "SCTP"}],
            [AcceptRule(protocol="sctp", ports=(9, 9)), AcceptRule(protocol="udp", port_set="t")],
        ),
    ],
)
def test_ports_of_ingress(node, ports, expected):
    """Ports are one range, or a set of ranges, of each protocol; a name is the number of the pod's container."""
    node.set_policy("ports", ingress=[{"ports": ports}])
    node.add("web", A, ports=PORTS)
    rules = [rule._replace(port_set=rule.port_set[:1]) for rule in node.rules()]
    assert rules == expected
    assert [sorted(each) for each in node.table.sets.values()] == ([[(53, 53), (80, 80)]] if rules[1:] else [])


def test_pods_share_a_chain_if_their_named_ports_agree(node):
    """Pods with different numbers of a port that a policy names have different chains; other ports do not count."""
    node.set_policy("ports", ingress=[{"ports": [{"port": "http"}]}])
    node.add("a", A, ports=PORTS)
    node.add("b", B, ports=PORTS[:1])
    node.add("c", C, ports=(NamedPort("http", "tcp", 8080),))
    chains = [node.table.verdicts[address].ingress for address in (A, B, C)]
    assert chains[0] == chains[1] != chains[2]


def test_named_ports_of_egress_are_pairs(node):
    """A name in an egress rule is a set of the peers' addresses with their numbers; without peers, of all pods."""
    ports = [{"port": "http"}, {"port": 53, "protocol": "UDP"}]
    node.set_policy(
        "names", policyTypes=["Egress"], egress=[{"ports": ports}, {"to": [{"podSelector": {}}], "ports": ports}]
    )
    node.add("web", A)
    node.set_pod("db", B, ports=PORTS)
    rules = [rule._replace(pair_set=rule.pair_set[:2], peer_set=rule.peer_set[:2]) for rule in node.rules(A, EGRESS)]
    dns, pair = AcceptRule(protocol="udp", ports=(53, 53)), AcceptRule(4, protocol="tcp", pair_set="p4")
    assert rules == [dns, pair, dns._replace(version=4, peer_set="s4"), pair]
    pair_sets = [elements for name, elements in node.table.sets.items() if name.startswith("p4")]
    assert pair_sets == [{(B, 80)}] * 2
    node.set_pod("db", B, ports=(NamedPort("http", "tcp", 8080), *PORTS))
    node.selection.set_pod(ClusterPod("shop", "job", "u-job", {"app": "job"}, is_finished=True, ports=PORTS))
    node.set_local("job", C)  # no peer of others
    assert pair_sets == [{(B, 80), (B, 8080)}] * 2
    node.set_pod("db", B)
    assert pair_sets == [set()] * 2


def test_blocks_of_a_rule_are_one_set(node):
    """The blocks of a rule are one set of disjoint ranges for each IP version, each block without its exceptions."""
    blocks: Any = [
        {"cidr": "10.0.0.0/24", "except": ["10.0.0.0/26", "10.0.0.32/27", "10.0.0.128/32", "fd00::/64"]},
        {"cidr": "10.0.0.128/32"},
        {"cidr": "10.9.0.0/16", "except": ["10.0.0.0/8"]},
        {"cidr": "fd00::/120", "except": ["fd00::80/121"]},
        {"cidr": "10.0.2.0/31", "except": ["10.0.1.0/30"]},
    ]
    node.set_policy("blocks", ingress=[{"from": [{"ipBlock": block} for block in blocks]}])
    node.add("web", A, ip_address("fd00::1"))
    assert sorted(rule.peer_set[:2] for rule in node.rules()) == ["b4", "b6"]
    ranges = {tuple(map(str, each)) for elements in node.table.sets.values() for each in elements}
    assert ranges == {("10.0.0.64", "10.0.0.255"), ("10.0.2.0", "10.0.2.1"), ("fd00::", "fd00::7f")}


def test_change_of_a_remote_pod_changes_the_set_in_place(node):
    """A pod's change leaves the table as it is, and yields the difference of the sets that contain the pod."""
    node.set_policy("all", ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "db"}}}]}])
    node.add("web", A)
    before = node.table
    (name,) = before.sets
    node.set_pod("db", B)
    table, changes = node.plan.update()
    assert table is before
    assert changes == {name: SetChange({B}, set())}
    assert node.plan.update() == (before, {})


def test_change_of_a_policy_replaces_its_chain_only(node):
    """When a policy changes, the other chains and the sets that stay are the same objects, and its chain its name."""
    block = {"ipBlock": {"cidr": "10.0.0.0/8"}}
    for name, others in (("web", [block]), ("db", [])):
        spec = {"matchLabels": {"app": name}}
        node.set_policy(name, podSelector=spec, ingress=[{"from": [{"podSelector": spec}, *others]}])
    node.add("web", A)
    node.add("db", B)
    before = node.table
    node.set_policy("web", podSelector={"matchLabels": {"app": "web"}}, ingress=[{"from": [block]}])
    after = node.table
    changed, other = before.verdicts[A].ingress, before.verdicts[B].ingress
    assert after.verdicts == before.verdicts
    assert len(after.chains[changed].rules) == 1
    assert after.chains[other] is before.chains[other]
    assert len(after.sets) == 2
    assert all(after.sets[name] is before.sets[name] for name in after.sets if name.startswith("s4"))


def test_set_that_is_used_again_is_the_same(node):
    """A set that is released and used again between two tables reports the difference of what it was."""
    spec: Any = {"ingress": [{"from": [{"podSelector": {}}]}]}
    node.set_policy("all", **spec)
    node.add("web", A)
    before = node.table
    (name,) = before.sets
    node.set_pod("db", B)
    node.selection.remove_policy("shop", "all")
    node.set_pod("cache", C)
    node.set_policy("all", **spec)
    table, changes = node.plan.update()
    assert table.sets[name] is before.sets[name]
    assert changes == {name: SetChange({B, C}, set())}


def test_record_that_is_set_again_gives_new_verdicts(node):
    """An event of a local pod makes the verdicts a new object, which the filter compares; the rest stays."""
    node.set_policy("all", ingress=[{}])
    node.add("web", A)
    before = node.table
    node.set_local("web", A)
    after = node.table
    assert after == before
    assert after.verdicts is not before.verdicts
    assert after.chains is before.chains
    assert after.sets is before.sets
    node.selection.remove_local("web")
    assert node.table == EMPTY
