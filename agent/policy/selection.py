"""Which policies select the pods of this node, and which pods their rules name: kept up to date by events.

One rule: a pod's change touches only the sets that contain it, and only the policies of a pod on this node.

A pod of this node is known by its record first, which has the addresses; its labels come from its object in the API.
Until the object is known, the pod is isolated wherever its namespace has policies, and `is_known` is False. An object
that goes before the record leaves the pod under the policies that it had.

Not safe for threads: the agent's main thread uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from agent.policy.evaluator import ClusterState
from agent.policy.filter_table import SetChange
from agent.policy.objects import EGRESS, INGRESS, ClusterPod, Namespace, Policy
from agent.policy.peer_sets import PeerSets, SetKey, set_keys
from agent.policy.selector import Selector
from attachment.policy.records import PodRecord
from cni.address import Address

_RECORDED = 1 << 62  # the precedence of a pod with a record: no other pod can have its addresses
PodName = tuple[str, str]  # namespace and name; also of a policy


class LocalPod:
    """A pod of this node: its records by their names, its last object, and the policies that select it, by name."""

    def __init__(self, namespace: str, name: str, uid: str) -> None:
        self.namespace, self.name, self.uid = namespace, name, uid
        self.records: dict[str, tuple[Address, ...]] = {}
        self.pod: ClusterPod | None = None
        self.policies: dict[str, Policy] = {}

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses of all records, in the order of their arrival."""
        return tuple(dict.fromkeys(address for addresses in self.records.values() for address in addresses))

    def has_uid(self, uid: str) -> bool:
        """Returns whether an object with this UID is the pod's."""
        return self.uid in ("", uid)


class _Use(NamedTuple):
    """A policy that selects pods of this node."""

    policy: Policy
    pods: set[LocalPod]


class PolicySelection:
    """The cluster's pods, namespaces and policies, seen from one node."""

    def __init__(self) -> None:
        self.namespaces: dict[str, Namespace] = {}
        self.policies: dict[str, dict[str, Policy]] = {}  # by namespace and name
        self.owners: dict[
            Address, ClusterPod
        ] = {}  # the pod that has an address, a finished one only if it has a record
        self._rivals: dict[
            Address, list[ClusterPod]
        ] = {}  # all pods that say they have an address, if they are several
        self._pods: dict[str, dict[str, ClusterPod]] = {}  # by namespace and name
        self._local: dict[PodName, list[LocalPod]] = {}  # several have one name if the uid differs
        self._records: dict[str, LocalPod] = {}
        self._retired: set[str] = set()  # uids of pods without record again: status.podIPs still has their addresses
        self._uses: dict[PodName, _Use] = {}
        self._changed: set[LocalPod] = set()
        self.peer_sets = PeerSets(self.namespaces, self.owners, self._members)

    # ---- events

    def set_pod(self, pod: ClusterPod) -> None:
        """Takes in a pod's object, which is new or changed."""
        if self._pods.get(pod.namespace, {}).get(pod.name) != pod:
            self._set_pod((pod.namespace, pod.name), pod)

    def remove_pod(self, namespace: str, name: str, uid: str = "") -> None:
        """Removes a pod's object; does nothing if the name belongs to an object with another UID by now."""
        pod = self._pods.get(namespace, {}).get(name)
        if pod is not None and uid in ("", pod.uid):
            self._set_pod((namespace, name), None)

    def set_namespace(self, namespace: Namespace) -> None:
        """Takes in a namespace's object, which is new or changed."""
        if self.namespaces.get(namespace.name) != namespace:
            self.peer_sets.change_namespace(namespace.name, lambda: self.namespaces.update({namespace.name: namespace}))

    def remove_namespace(self, name: str) -> None:
        """Removes a namespace's object; no selector of namespaces selects its pods any longer."""
        self.peer_sets.change_namespace(name, lambda: self.namespaces.pop(name, None) and None)

    def set_policy(self, policy: Policy) -> None:
        """Takes in a policy, which is new or changed."""
        if self.policies.get(policy.namespace, {}).get(policy.name) != policy:
            self._set_policy((policy.namespace, policy.name), policy)

    def remove_policy(self, namespace: str, name: str) -> None:
        """Removes a policy."""
        if name in self.policies.get(namespace, {}):
            self._set_policy((namespace, name), None)

    def set_local(self, record_name: str, record: PodRecord) -> None:
        """Takes in the record of a pod on this node, which is new or may have changed."""
        name = (record.namespace, record.pod)
        known = self._records.get(record_name)
        if known is not None and (known.namespace, known.name, known.uid) != (*name, record.uid):
            self.remove_local(record_name)
        before = self._holders(name)
        pods = self._local.setdefault(name, [])
        local = next((pod for pod in pods if pod.uid == record.uid), None)
        if local is None:
            local = LocalPod(*name, record.uid)
            pods.append(local)
        local.records[record_name] = record.addresses
        self._records[record_name] = local
        pod = self._pods.get(record.namespace, {}).get(record.pod)
        if pod is not None and local.has_uid(pod.uid):
            local.pod = pod
        self._change_owners(before, self._holders(name))
        self._select(local)

    def remove_local(self, record_name: str) -> None:
        """Removes a record: the pod's addresses leave all sets, whatever its object says; others may have them."""
        local = self._records.pop(record_name, None)
        if local is None:
            return
        name = (local.namespace, local.name)
        before = self._holders(name)
        del local.records[record_name]
        if not local.records:
            self._local[name].remove(local)
            if not self._local[name]:
                del self._local[name]
            pod = self._pods.get(local.namespace, {}).get(local.name)
            if pod is not None and local.has_uid(pod.uid):
                self._retired.add(pod.uid)
        self._change_owners(before, self._holders(name))
        self._select(local)

    # ---- answers

    def local_pods(self) -> Iterator[LocalPod]:
        """Yields the pods that have records."""
        for pods in self._local.values():
            yield from pods

    def is_known(self, record_name: str) -> bool:
        """Returns whether a record is there and the object of its pod is known, so that its policies are."""
        local = self._records.get(record_name)
        return local is not None and local.pod is not None

    def find_pod(self, namespace: str, name: str) -> ClusterPod | None:
        """Returns a pod with the addresses that it has, those of its record first; None if it is not known."""
        pods = self._holders((namespace, name)) or [*filter(None, [self._pods.get(namespace, {}).get(name)])]
        return max(pods, key=lambda pod: pod.precedence, default=None)

    def cluster(self, nodes: Mapping[str, frozenset[Address]]) -> ClusterState:
        """Returns all of it for the evaluator."""
        policies = [policy for policies in self.policies.values() for policy in policies.values()]
        pods = {address: pod for address, pod in self.owners.items() if pod.can_have_policies}
        return ClusterState(pods, self.namespaces, policies, nodes)

    def take_changes(self) -> tuple[set[LocalPod], dict[tuple[SetKey, int], SetChange]]:
        """Returns the pods of this node that changed, in their records or policies, and the changes of the sets.

        Both since the last call. A pod without records is gone.
        """
        changed, self._changed = self._changed, set()
        return changed, self.peer_sets.take_changes()

    # ---- pods

    def _set_pod(self, name: PodName, pod: ClusterPod | None) -> None:
        before = self._holders(name)
        namespace = self._pods.setdefault(name[0], {})
        old = namespace.pop(name[1], None)
        if pod is not None:
            namespace[name[1]] = pod
        elif not namespace:
            del self._pods[name[0]]
        if old is not None and (pod is None or pod.uid != old.uid):
            self._retired.discard(old.uid)
        local_pods = [each for each in self._local.get(name, ()) if pod is not None and each.has_uid(pod.uid)]
        for local in local_pods:
            local.pod = pod
        self._change_owners(before, self._holders(name))
        for local in local_pods:  # the owners come first: new sets are filled from them
            self._select(local)

    def _holders(self, name: PodName) -> list[ClusterPod]:
        """Returns the pods of a name with their addresses: those of the records, else those of the object's status.

        The addresses of a record belong to its pod also if that is not known, or finished: they are in no set then.
        """
        pod = self._pods.get(name[0], {}).get(name[1])
        pods = [pod] if pod is not None and pod.uid not in self._retired and pod.can_have_policies else []
        for local in self._local.get(name, ()):
            known = local.pod or ClusterPod(local.namespace, local.name, local.uid, {}, is_finished=True)
            pods = [each for each in pods if each.uid != known.uid]
            pods.append(known._replace(addresses=local.addresses, precedence=_RECORDED))
        return pods

    def _change_owners(self, before: list[ClusterPod], after: list[ClusterPod]) -> None:
        for address in dict.fromkeys(address for pod in (*before, *after) for address in pod.addresses):
            old = self.owners.get(address)
            rivals = self._rivals.pop(address, None) or ([old] if old else [])
            rivals = [pod for pod in rivals if pod not in before] + [pod for pod in after if address in pod.addresses]
            new = max(rivals, key=lambda pod: (pod.precedence, pod.uid), default=None)
            if len(rivals) > 1:
                self._rivals[address] = rivals
            if new is None:
                del self.owners[address]
            else:
                self.owners[address] = new
            self.peer_sets.move(address, old, new)

    def _members(self, namespace: str, selector: Selector) -> Iterator[tuple[Address, ClusterPod]]:
        """Yields the owners of addresses in a namespace, at least those that the selector matches."""
        for pod in self._pods.get(namespace, {}).values():
            if selector.matches(pod.labels):
                yield from self._owned(pod.addresses, namespace)
        for local in self.local_pods():
            if local.namespace == namespace and local.pod and selector.matches(local.pod.labels):
                yield from self._owned(local.addresses, namespace)

    def _owned(self, addresses: Iterable[Address], namespace: str) -> Iterator[tuple[Address, ClusterPod]]:
        for address in addresses:
            owner = self.owners.get(address)
            if owner is not None and owner.namespace == namespace:
                yield address, owner

    # ---- policies

    def _select(self, local: LocalPod) -> None:
        """Compares a pod of this node with the policies of its namespace."""
        self._changed.add(local)
        pod, before = local.pod, local.policies
        policies = self.policies.get(local.namespace, {})
        local.policies = {}
        if pod is not None and local.records and pod.can_have_policies:
            local.policies = {name: policy for name, policy in policies.items() if policy.pods.matches(pod.labels)}
        for name in before.keys() ^ local.policies.keys():
            use = self._uses.get((local.namespace, name))
            self._set_use((local.namespace, name), policies[name], {local} ^ (use.pods if use else set()))

    def _set_policy(self, name: PodName, policy: Policy | None) -> None:
        policies = self.policies.setdefault(name[0], {})
        policies.pop(name[1], None)
        if policy is not None:
            policies[name[1]] = policy
        elif not policies:
            del self.policies[name[0]]
        selected = set()
        for local in self.local_pods():
            if local.namespace != name[0]:
                continue
            self._changed.add(local)
            local.policies.pop(name[1], None)
            pod = local.pod
            if policy is not None and pod is not None and pod.can_have_policies and policy.pods.matches(pod.labels):
                local.policies[name[1]] = policy
                selected.add(local)
        self._set_use(name, policy, selected)

    def _set_use(self, name: PodName, policy: Policy | None, pods: set[LocalPod]) -> None:
        """Keeps which pods a policy selects; its sets exist while there are any."""
        old = self._uses.pop(name, None)
        if policy is not None and pods:
            self._uses[name] = _Use(policy, pods)
        else:
            policy = None
        if old is None or old.policy is not policy:
            self.peer_sets.use(_set_keys(policy))  # before the release, so that sets that both use stay
            self.peer_sets.release(_set_keys(old.policy if old else None))


def _set_keys(policy: Policy | None) -> set[SetKey]:
    """Returns the keys of the sets that a policy's rules name."""
    if policy is None:
        return set()
    rules = [(direction, rule) for direction in (INGRESS, EGRESS) for rule in policy.rules(direction) or ()]
    return {key for direction, rule in rules for key in set_keys(rule, direction)}
