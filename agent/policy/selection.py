"""Follows which policies select the pods of this node, and which pods the rules of policies select.

One rule: a pod's change updates only the sets that contain the pod, and compares policies only with pods of this node.

The record of a pod of this node comes first, and has the addresses; the pod's labels come from its object in the API.
Until the object is known, `LocalPod.pod` is None, and the pod is isolated in each direction that a policy of its
namespace isolates. If the object is deleted before the record, the pod keeps the last object's labels.

Not thread-safe: only the agent's main thread uses it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain

from agent.policy.objects import ClusterPod, Namespace, Policy
from agent.policy.peer_sets import PeerSets
from attachment.policy.records import PodRecord
from cni.address import Address

RECORD_PRECEDENCE = 1 << 62  # a pod with a record wins: no other pod can have its addresses
_DELETED_MAX = 1000  # as many pods as a large cluster deletes in a few seconds
PodName = tuple[str, str]  # namespace and name


class LocalPod:
    """A pod of this node: its record, its last object, and the policies that select it, by name.

    A pod with several attachments has a LocalPod for each of them.
    """

    def __init__(self, record: PodRecord) -> None:
        self.namespace, self.name, self.uid = record.namespace, record.pod, record.uid
        self.addresses = record.addresses
        self.pod: ClusterPod | None = None
        self.policies: dict[str, Policy] = {}

    def is_same_pod(self, pod: ClusterPod | None) -> bool:
        """Returns whether `pod`, which has the same name, is this pod: by UID, if the runtime has passed one."""
        return pod is not None and self.uid in ("", pod.uid)


class PolicySelection:
    """The cluster's pods, namespaces and policies, and the pods of this node."""

    def __init__(self) -> None:
        self.namespaces: dict[str, Namespace] = {}
        self.policies: dict[str, dict[str, Policy]] = {}  # by namespace and name
        self.local: dict[str, LocalPod] = {}  # by the name of the record
        self.owners: dict[Address, ClusterPod] = {}  # the pod that has an address; a finished pod only with a record
        self._candidates: dict[Address, list[ClusterPod]] = {}  # all pods with an address, if they are several
        self._pods: dict[str, dict[str, ClusterPod]] = {}  # by namespace and name
        self._local_by_name: dict[PodName, list[LocalPod]] = {}
        self._deleted: deque[str] = deque(maxlen=_DELETED_MAX)  # UIDs
        # Addresses of deleted records, by the pod's UID: its status.podIPs is out of date if it contains them.
        self._released: dict[str, set[Address]] = {}
        self._changed: set[LocalPod] = set()
        self.peer_sets = PeerSets(self.namespaces, self.owners, self._owners_in)

    # ---- events

    def set_pod(self, pod: ClusterPod) -> None:
        """Stores a pod's new or changed object."""
        if self._pods.get(pod.namespace, {}).get(pod.name) != pod:
            self._replace_pod((pod.namespace, pod.name), pod)

    def remove_pod(self, namespace: str, name: str) -> None:
        """Removes a pod's object."""
        if name in self._pods.get(namespace, {}):
            self._replace_pod((namespace, name), None)

    def set_namespace(self, namespace: Namespace) -> None:
        """Stores a namespace's new or changed object."""
        if self.namespaces.get(namespace.name) != namespace:
            self.peer_sets.change_namespace(namespace.name, namespace)
            self.namespaces[namespace.name] = namespace

    def remove_namespace(self, name: str) -> None:
        """Removes a namespace's object: of the selectors of namespaces only the empty one still selects it."""
        self.peer_sets.change_namespace(name, None)
        self.namespaces.pop(name, None)

    def set_policy(self, policy: Policy) -> None:
        """Stores a new or changed policy."""
        policies = self.policies.setdefault(policy.namespace, {})
        if policies.get(policy.name) != policy:
            policies[policy.name] = policy
            self._changed.update(self._local_in(policy.namespace))

    def remove_policy(self, namespace: str, name: str) -> None:
        """Removes a policy."""
        policies = self.policies.get(namespace, {})
        if policies.pop(name, None):
            self._changed.update(self._local_in(namespace))
            if not policies:
                del self.policies[namespace]

    def set_local(self, record_name: str, record: PodRecord) -> None:
        """Stores the new or changed record of a pod on this node."""
        self.remove_local(record_name)
        name = (record.namespace, record.pod)
        before = self._pods_named(name)
        local = self.local[record_name] = LocalPod(record)
        self._local_by_name.setdefault(name, []).append(local)
        self._changed.add(local)
        pod = self._pods.get(record.namespace, {}).get(record.pod)
        if local.is_same_pod(pod):
            local.pod = pod
        self._change_owners(before, self._pods_named(name))

    def remove_local(self, record_name: str) -> None:
        """Removes a record, and its addresses from all sets: other pods may get them by now."""
        local = self.local.pop(record_name, None)
        if local is None:
            return
        name = (local.namespace, local.name)
        before = self._pods_named(name)
        self._local_by_name[name].remove(local)
        if not self._local_by_name[name]:
            del self._local_by_name[name]
        self._changed.add(local)
        pod = self._pods.get(local.namespace, {}).get(local.name)
        if pod is not None and local.is_same_pod(pod):
            self._released.setdefault(pod.uid, set()).update(local.addresses)
        self._change_owners(before, self._pods_named(name))

    # ---- queries

    def take_changes(self) -> set[LocalPod]:
        """Returns the pods of this node that are new, removed or may have other policies since the last call.

        It compares the policies with each of them once, however many events there were.
        """
        changed, self._changed = self._changed, set()
        for local in changed:
            pod, local.policies = local.pod, {}
            if pod is not None and pod.can_have_policies:
                policies = self.policies.get(local.namespace, {})
                local.policies = {name: policy for name, policy in policies.items() if policy.pods.matches(pod.labels)}
        return changed

    def is_isolated_as_unknown(self, local: LocalPod, direction: str) -> bool:
        """Returns whether a pod is isolated because its object is unknown, and its namespace has policies."""
        policies = self.policies.get(local.namespace, {}).values() if local.pod is None else ()
        return any(policy.rules(direction) is not None for policy in policies)

    def is_deleted(self, uid: str) -> bool:
        """Returns whether a pod's object was deleted recently: the kubelet may still create a sandbox for it."""
        return uid in self._deleted

    def pods_in(self, namespace: str) -> Iterable[ClusterPod]:
        """Returns the objects of a namespace's pods."""
        return self._pods.get(namespace, {}).values()

    def find_pod(self, namespace: str, name: str) -> ClusterPod | None:
        """Returns a pod with its addresses, from its record if it has one; None if the pod is unknown."""
        pods = self._pods_named((namespace, name)) or [*filter(None, [self._pods.get(namespace, {}).get(name)])]
        return max(pods, key=lambda pod: pod.precedence, default=None)

    # ---- pods

    def _replace_pod(self, name: PodName, pod: ClusterPod | None) -> None:
        before = self._pods_named(name)
        namespace = self._pods.setdefault(name[0], {})
        old = namespace.pop(name[1], None)
        if pod is not None:
            namespace[name[1]] = pod
        elif not namespace:
            del self._pods[name[0]]
        if old is not None and (pod is None or pod.uid != old.uid):
            self._released.pop(old.uid, None)
            self._deleted.append(old.uid)
        for local in self._local_by_name.get(name, ()):
            if local.is_same_pod(pod):
                local.pod = pod
                self._changed.add(local)
        self._change_owners(before, self._pods_named(name))

    def _pods_named(self, name: PodName) -> list[ClusterPod]:
        """Returns the pods of a name: one for each record with its addresses, one with the others of status.podIPs.

        A pod with a record has its addresses even if its object is unknown, or finished: then no set contains them. The
        others are those of attachments without networkPolicy.
        """
        pods = []
        for local in self._local_by_name.get(name, ()):
            known = local.pod or ClusterPod(local.namespace, local.name, local.uid, {}, can_have_policies=False)
            pods.append(known._replace(addresses=local.addresses, precedence=RECORD_PRECEDENCE))
        pod = self._pods.get(name[0], {}).get(name[1])
        if pod is None or not pod.can_have_policies:
            return pods
        known_addresses = self._released.get(pod.uid, set()).union(*(each.addresses for each in pods))
        others = tuple(address for address in pod.addresses if address not in known_addresses)
        return [*pods, pod._replace(addresses=others)] if others else pods

    def _change_owners(self, before: list[ClusterPod], after: list[ClusterPod]) -> None:
        for address in dict.fromkeys(address for pod in (*before, *after) for address in pod.addresses):
            old = self.owners.get(address)
            candidates = self._candidates.pop(address, None) or ([old] if old else [])
            candidates = [pod for pod in candidates if pod not in before]
            candidates += [pod for pod in after if address in pod.addresses]
            new = max(candidates, key=lambda pod: (pod.precedence, pod.uid), default=None)
            if len(candidates) > 1:
                self._candidates[address] = candidates
            if new is None:
                del self.owners[address]
            else:
                self.owners[address] = new
            self.peer_sets.change_owner(address, old, new)

    def _owners_in(self, namespace: str) -> Iterator[tuple[Address, ClusterPod]]:
        """Yields the addresses of a namespace's pods with their owners; some twice, some of other namespaces."""
        of_objects = (pod.addresses for pod in self._pods.get(namespace, {}).values())
        of_records = (local.addresses for local in self._local_in(namespace))
        for address in chain(chain.from_iterable(of_objects), chain.from_iterable(of_records)):
            if owner := self.owners.get(address):
                yield address, owner

    def _local_in(self, namespace: str) -> Iterator[LocalPod]:
        return (local for local in self.local.values() if local.namespace == namespace)
