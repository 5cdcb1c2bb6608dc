"""Which policies select the pods of this node, and which pods their rules name: kept up to date by events.

One rule: a pod's change touches only the sets that contain it, and only the policies of a pod on this node.

A pod of this node is known by its record first, which has the addresses; its labels come from its object in the API.
Until the object is known, the pod is isolated wherever its namespace has policies, and `is_known` is False. An object
that goes before the record leaves the pod under the policies that it had.

Not safe for threads: the agent's main thread uses it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain

from agent.policy.objects import ClusterPod, Namespace, Policy
from agent.policy.peer_sets import PeerSets
from attachment.policy.records import PodRecord
from cni.address import Address

_RECORDED = 1 << 62  # the precedence of a pod with a record: no other pod can have its addresses
_DELETED_MAX = 1000  # objects: the last seconds of a large cluster
PodName = tuple[str, str]  # namespace and name


class LocalPod:
    """A pod of this node: its record, its last object, and the policies that select it, by name.

    A pod with several attachments is here once for each of them.
    """

    def __init__(self, record: PodRecord) -> None:
        self.namespace, self.name, self.uid = record.namespace, record.pod, record.uid
        self.addresses = record.addresses
        self.pod: ClusterPod | None = None
        self.policies: dict[str, Policy] = {}

    def is_of(self, pod: ClusterPod | None) -> bool:
        """Returns whether an object of the pod's name is the pod's; a runtime may pass no UID."""
        return pod is not None and self.uid in ("", pod.uid)


class PolicySelection:
    """The cluster's pods, namespaces and policies, seen from one node."""

    def __init__(self) -> None:
        self.namespaces: dict[str, Namespace] = {}
        self.policies: dict[str, dict[str, Policy]] = {}  # by namespace and name
        self.local: dict[str, LocalPod] = {}  # by the name of the record
        # The pod that has an address, a finished one only if it has a record; and all that say so, if they are several.
        self.owners: dict[Address, ClusterPod] = {}
        self._rivals: dict[Address, list[ClusterPod]] = {}
        self._pods: dict[str, dict[str, ClusterPod]] = {}  # by namespace and name
        self._local: dict[PodName, list[LocalPod]] = {}
        self._deleted: deque[str] = deque(maxlen=_DELETED_MAX)  # uids
        self._retired: set[str] = set()  # uids of pods without record again: status.podIPs still has their addresses
        self._changed: set[LocalPod] = set()
        self.peer_sets = PeerSets(self.namespaces, self.owners, self._members)

    # ---- events

    def set_pod(self, pod: ClusterPod) -> None:
        """Takes in a pod's object, which is new or changed."""
        if self._pods.get(pod.namespace, {}).get(pod.name) != pod:
            self._replace_pod((pod.namespace, pod.name), pod)

    def remove_pod(self, namespace: str, name: str) -> None:
        """Removes a pod's object."""
        if name in self._pods.get(namespace, {}):
            self._replace_pod((namespace, name), None)

    def set_namespace(self, namespace: Namespace) -> None:
        """Takes in a namespace's object, which is new or changed."""
        if self.namespaces.get(namespace.name) != namespace:
            self.peer_sets.change_namespace(namespace.name, lambda: self.namespaces.update({namespace.name: namespace}))

    def remove_namespace(self, name: str) -> None:
        """Removes a namespace's object; no selector of namespaces selects its pods any longer."""
        self.peer_sets.change_namespace(name, lambda: self.namespaces.pop(name, None) and None)

    def set_policy(self, policy: Policy) -> None:
        """Takes in a policy, which is new or changed."""
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
        """Takes in the record of a pod on this node, which is new or has changed."""
        self.remove_local(record_name)
        name = (record.namespace, record.pod)
        before = self._holders(name)
        local = self.local[record_name] = LocalPod(record)
        self._local.setdefault(name, []).append(local)
        self._changed.add(local)
        pod = self._pods.get(record.namespace, {}).get(record.pod)
        if local.is_of(pod):
            local.pod = pod
        self._change_owners(before, self._holders(name))

    def remove_local(self, record_name: str) -> None:
        """Removes a record: the pod's addresses leave all sets, whatever its object says; others may have them."""
        local = self.local.pop(record_name, None)
        if local is None:
            return
        name = (local.namespace, local.name)
        before = self._holders(name)
        self._local[name].remove(local)
        if not self._local[name]:
            del self._local[name]
        self._changed.add(local)
        pod = self._pods.get(local.namespace, {}).get(local.name)
        if pod is not None and local.is_of(pod):
            self._retired.add(pod.uid)
        self._change_owners(before, self._holders(name))

    # ---- answers

    def take_changes(self) -> set[LocalPod]:
        """Returns the pods of this node that are new, gone or may have other policies since the last call.

        Compares them with the policies first: once, however many events there were.
        """
        changed, self._changed = self._changed, set()
        for local in changed:
            pod, local.policies = local.pod, {}
            if pod is not None and pod.can_have_policies:
                policies = self.policies.get(local.namespace, {})
                local.policies = {name: policy for name, policy in policies.items() if policy.pods.matches(pod.labels)}
        return changed

    def is_deleted(self, uid: str) -> bool:
        """Returns whether a pod's object was deleted a short time ago: kubelet may still create a sandbox for it."""
        return uid in self._deleted

    def find_pod(self, namespace: str, name: str) -> ClusterPod | None:
        """Returns a pod with the addresses that it has, those of its record first; None if it is not known."""
        pods = self._holders((namespace, name)) or [*filter(None, [self._pods.get(namespace, {}).get(name)])]
        return max(pods, key=lambda pod: pod.precedence, default=None)

    # ---- pods

    def _replace_pod(self, name: PodName, pod: ClusterPod | None) -> None:
        before = self._holders(name)
        namespace = self._pods.setdefault(name[0], {})
        old = namespace.pop(name[1], None)
        if pod is not None:
            namespace[name[1]] = pod
        elif not namespace:
            del self._pods[name[0]]
        if old is not None and (pod is None or pod.uid != old.uid):
            self._retired.discard(old.uid)
            self._deleted.append(old.uid)
        for local in self._local.get(name, ()):
            if local.is_of(pod):
                local.pod = pod
                self._changed.add(local)
        self._change_owners(before, self._holders(name))

    def _holders(self, name: PodName) -> list[ClusterPod]:
        """Returns the pods of a name with their addresses: those of the records, else those of the object's status.

        The addresses of a record belong to its pod also if that is not known, or finished: they are in no set then.
        """
        pods = []
        for local in self._local.get(name, ()):
            known = local.pod or ClusterPod(local.namespace, local.name, local.uid, {}, is_finished=True)
            pods.append(known._replace(addresses=local.addresses, precedence=_RECORDED))
        pod = self._pods.get(name[0], {}).get(name[1])
        if pod is None or not pod.can_have_policies or pod.uid in self._retired:
            return pods
        return pods if any(each.uid == pod.uid for each in pods) else [*pods, pod]

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

    def _members(self, namespace: str) -> Iterator[tuple[Address, ClusterPod]]:
        """Yields the addresses that pods of a namespace have or claim, with their owners; some of them twice."""
        of_objects = (pod.addresses for pod in self._pods.get(namespace, {}).values())
        of_records = (local.addresses for local in self._local_in(namespace))
        for address in chain(chain.from_iterable(of_objects), chain.from_iterable(of_records)):
            if owner := self.owners.get(address):
                yield address, owner

    def _local_in(self, namespace: str) -> Iterator[LocalPod]:
        return (local for local in self.local.values() if local.namespace == namespace)
