"""The selection: records before objects, UIDs, addresses of several pods, policies that come and go."""

from ipaddress import ip_address
from typing import Any

import pytest

from agent.policy.objects import ClusterPod, parse_namespace, parse_policy
from agent.policy.peer_sets import SetKey
from agent.policy.plan import FilterPlan
from agent.policy.selection import PolicySelection
from tests.support.policy_world import record_of

A, B, C = (ip_address(f"10.0.0.{n}") for n in (1, 2, 3))
ANY: dict[str, Any] = {"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}


def pod(name="web", uid="u1", *addresses, labels=None, **keys):
    return ClusterPod("shop", name, uid, labels or {"app": name}, addresses, **keys)


def record(*addresses, name="web", uid="u1", container="c"):
    return record_of("shop", name, uid, addresses, container)


def policy(name, **spec):
    return parse_policy({"metadata": {"namespace": "shop", "name": name}, "spec": spec})


@pytest.fixture
def selection():
    """A selection with a policy that allows all pods of the namespace, and a pod of this node that it selects."""
    selection = PolicySelection()
    selection.set_policy(policy("any", **ANY))
    selection.set_pod(pod("local", "u0"))
    selection.set_local("r0", record(C, name="local", uid="u0", container="c0"))
    return selection


def peers(selection):
    """Returns the addresses that the policy `any` allows, without the local pod's."""
    (rule,) = selection.policies["shop"]["any"].ingress
    return selection.peer_sets.get(SetKey(4, rule.peers[0])).elements - {C}


def policies(selection, name):
    """Returns the names of the policies that select a pod of this node."""
    selection.take_changes()
    return [list(local.policies) for local in selection.local.values() if local.name == name]


def test_addresses_of_a_local_pod_are_those_of_its_record(selection):
    """A pod of this node is in the sets by its record's addresses before its status has any, and whatever it says."""
    selection.set_local("r1", record(A))
    assert not selection.local["r1"].pod
    assert peers(selection) == set()
    selection.set_pod(pod())
    assert selection.local["r1"].pod
    assert peers(selection) == {A}
    selection.set_pod(pod("web", "u1", B))
    assert peers(selection) == {A}


def test_addresses_leave_with_the_record(selection):
    """When a record is removed its addresses leave all sets at once, though the pod's status still has them."""
    selection.set_pod(pod("web", "u1", A))
    selection.set_local("r1", record(A))
    assert peers(selection) == {A}
    selection.remove_local("r1")
    assert peers(selection) == set()
    selection.set_pod(pod("web", "u1", A, labels={"app": "web", "new": ""}))
    assert peers(selection) == set()
    selection.set_local("r2", record(B, container="c2"))  # a new sandbox of the same pod
    assert peers(selection) == {B}
    selection.remove_local("r2")
    selection.set_pod(pod("web", "u2", A))
    assert peers(selection) == {A}  # the next pod of this name, elsewhere
    selection.remove_local("none")


def test_several_records_of_a_pod(selection):
    """A pod with several attachments has the addresses of all of them, and is gone with the last one."""
    selection.set_pod(pod())
    selection.set_local("r1", record(A))
    selection.set_local("r2", record(B, container="c2"))
    assert peers(selection) == {A, B}
    selection.set_local("r2", record(A, container="c2"))
    assert peers(selection) == {A}
    selection.remove_local("r1")
    assert peers(selection) == {A}
    selection.remove_local("r2")
    assert peers(selection) == set()


def test_pods_of_one_name_differ_by_their_uid(selection):
    """The object of the next pod of a name does not decide about the one whose record is still there."""
    selection.set_pod(pod("web", "u1", labels={"app": "old"}))
    selection.set_local("r1", record(A))
    selection.set_pod(pod("web", "u2", labels={"app": "new"}))
    assert {local.pod.labels["app"] for local in selection.local.values() if local.name == "web"} == {"old"}
    selection.set_local("r2", record(B, uid="u2", container="c2"))
    assert peers(selection) == {A, B}
    selection.remove_local("r1")
    assert peers(selection) == {B}


def test_object_that_goes_before_the_record(selection):
    """A pod whose object was deleted keeps its policies and its place in the sets while its record is there."""
    selection.set_pod(pod())
    selection.set_local("r1", record(A))
    selection.remove_pod("shop", "web")
    assert peers(selection) == {A}
    assert policies(selection, "web") == [["any"]]


def test_record_without_uid(selection):
    """A record of a runtime that passes no UID is that of the pod with its name."""
    selection.set_pod(pod("web", "u1", B))
    selection.set_local("r1", record(A, uid=""))
    assert selection.local["r1"].pod
    assert peers(selection) == {A}


@pytest.mark.parametrize("is_known", [True, False])
def test_address_of_a_record_belongs_to_its_pod(selection, is_known):
    """An address that another pod's status has belongs to the pod with the record, also if that is not known yet."""
    selection.set_pod(pod("stale", "u9", A, precedence=9))
    assert peers(selection) == {A}
    if is_known:
        selection.set_pod(pod(labels={"app": "web"}, is_finished=True))
    selection.set_local("r1", record(A))
    assert peers(selection) == set()
    selection.remove_local("r1")
    assert peers(selection) == {A}


def test_finished_and_host_network_pods_are_in_no_set(selection):
    """A pod that has ended, or is on the host's network, is in no set and under no policy, whatever its status says."""
    for keys in ({"is_finished": True}, {"host_network": True}):
        selection.set_pod(pod("web", "u1", A))
        assert peers(selection) == {A}
        selection.set_pod(pod("web", "u1", A, **keys))
        assert peers(selection) == set()
    selection.set_local("r1", record(A))
    assert policies(selection, "web") == [[]]


def test_sets_of_policies_that_select_no_local_pod(selection):
    """A policy has sets only while it selects a pod of this node; a pod's labels and the policy can change that."""
    plan = FilterPlan(selection)

    def sets():
        """Returns the number of sets, which is that of the table."""
        assert len(plan.update()[0].sets) == len(selection.peer_sets)
        return len(selection.peer_sets)

    spec = {"podSelector": {"matchLabels": {"app": "db"}}, "egress": [{"to": [{"namespaceSelector": {}}]}]}
    selection.set_policy(policy("db", **spec))
    assert sets() == 1
    selection.set_pod(pod("local", "u0", labels={"app": "db"}))
    assert sets() == 2
    selection.set_pod(pod("local", "u0", labels={}))
    assert sets() == 1
    selection.set_policy(policy("db", **{**spec, "podSelector": {}}))
    assert sets() == 2
    selection.remove_policy("shop", "db")
    selection.remove_local("r0")
    assert sets() == 0
    assert list(selection.policies) == ["shop"]
    selection.remove_policy("shop", "any")
    assert not selection.policies


def test_changes_name_the_pods_and_sets_of_an_event(selection):
    """An event that concerns no local pod changes the sets with the pod only, and one that changes nothing no set."""
    peers(selection)
    selection.take_changes()
    selection.set_pod(pod("web", "u1", A))
    (change,) = selection.peer_sets.take_changes().values()
    assert (set(change.added), set(change.removed)) == ({A}, set())
    selection.set_pod(pod("web", "u1", A, precedence=5))
    selection.set_pod(pod("web", "u1", A, B))
    selection.set_pod(pod("web", "u1", A))
    selection.remove_pod("shop", "web")
    selection.set_pod(pod("web", "u1", A))
    assert (selection.take_changes(), selection.peer_sets.take_changes()) == (set(), {})
    selection.set_policy(policy("other", podSelector={"matchLabels": {"app": "none"}}))
    assert [each.name for each in selection.take_changes()] == ["local"]


def test_namespace_that_goes_while_its_pods_stay(selection):
    """Pods of a namespace that is not known are selected by no selector of namespaces, and again when it is known."""
    selection.set_policy(policy("any", podSelector={}, ingress=[{"from": [{"namespaceSelector": {}}]}]))
    selection.set_pod(pod("web", "u1", A))
    shop = parse_namespace({"metadata": {"name": "shop"}})
    assert peers(selection) == set()
    for _ in range(2):
        selection.set_namespace(shop)
        assert peers(selection) == {A}
        selection.remove_namespace("shop")
        selection.remove_namespace("shop")
        assert peers(selection) == set()
