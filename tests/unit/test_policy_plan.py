"""The plan of the filter: its names, and the objects that stay; test_policy_oracle.py has what the filter accepts."""

from ipaddress import ip_address

import pytest

from agent.policy.filter_table import EMPTY, AcceptRule, SetChange
from agent.policy.objects import EGRESS, INGRESS, ClusterPod, NamedPort, Namespace, parse_policy
from agent.policy.plan import FilterPlan
from agent.policy.selection import PolicySelection
from tests.support.policy_world import record_of

A, B, C = (ip_address(f"10.0.0.{n}") for n in (1, 2, 3))


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
    assert chain.subject == ("ingress", "shop", ("a", "b"))
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


def test_pods_share_a_chain_if_their_named_ports_agree(node):
    """Pods with different numbers of a port that a policy names have different chains; other ports do not count."""
    node.set_policy("ports", ingress=[{"ports": [{"port": "http"}]}])
    node.add("a", A, ports=PORTS)
    node.add("b", B, ports=PORTS[:1])
    node.add("c", C, ports=(NamedPort("http", "tcp", 8080),))
    chains = [node.table.verdicts[address].ingress for address in (A, B, C)]
    assert chains[0] == chains[1] != chains[2]


def test_named_ports_of_egress_follow_their_pod(node):
    """A pod whose ports change has other elements in the sets of addresses with ports."""
    ports = [{"port": "http"}]
    node.set_policy("names", policyTypes=["Egress"], egress=[{"to": [{"podSelector": {}}], "ports": ports}])
    node.add("web", A)
    node.set_pod("db", B, ports=PORTS)
    (pairs,) = node.table.sets.values()
    node.set_pod("db", B, ports=(NamedPort("http", "tcp", 8080),))
    assert pairs == {(B, 8080)}


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
    node.selection.set_pod(ClusterPod("shop", "db", "u-db", {"app": "db"}, (B,), precedence=5))
    node.set_pod("db", B, C)
    node.set_pod("db", B)
    node.selection.remove_pod("shop", "db")
    node.set_pod("db", B)
    node.set_pod("other", C)
    table, changes = node.plan.update()
    assert (table is before, changes) == (True, {})


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


def test_address_of_an_attachment_without_policies_stays_a_peer():
    """A pod's address in its status stays its own while a further attachment comes and goes with a record."""
    selection, pod = PolicySelection(), ClusterPod("shop", "web", "u1", {}, (A,))
    selection.set_pod(pod)
    record = record_of("shop", "web", "u1", (B,), "c1")
    selection.set_local(record.file_name, record)
    assert {address: owner.name for address, owner in selection.owners.items()} == {A: "web", B: "web"}
    selection.remove_local(record.file_name)
    selection.set_pod(pod._replace(addresses=(A, B)))  # the status is out of date
    assert {*selection.owners} == {A}
