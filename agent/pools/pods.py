"""The pods of this node, for the keys of their sticky addresses.

One rule: a pod counts as gone only if a list or an event said so. While the API server does not answer, the pods stay.

Source: the Kubernetes API, core/v1 Pod.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from agent.api_object import Document, object_at
from agent.object_source import KubernetesObjects, ObjectClient
from agent.object_watch import Changed, Deleted, Failed, ObjectEvent, Synced

PODS = "/api/v1/pods"
ANNOTATION = "podwire.io/sticky-key"
_VIRTUAL_MACHINE = ("vm.kubevirt.io/name", "kubevirt.io/domain")  # labels of the pod in which a machine runs
_NAME = re.compile(r"[-A-Za-z0-9._]{1,63}")
_ENDED = ("Succeeded", "Failed")


class PodKey(NamedTuple):
    """A pod that has, or waits for, an address: its name ("team-a/db-0") and key, "" if its annotation is not valid."""

    name: str
    key: str
    has_address: bool


def parse_pod(document: Document) -> PodKey:
    """Returns a pod's key; raises ValueError for an object that is no pod.

    The key is the pod's name, which a StatefulSet gives to the next pod, too; for a virtual machine of KubeVirt the
    machine's name, and with the annotation podwire.io/sticky-key its value.
    """
    metadata, spec, status = (object_at(document, key) for key in ("metadata", "spec", "status"))
    namespace, name = metadata.get("namespace"), metadata.get("name")
    if not isinstance(namespace, str) or not isinstance(name, str):
        raise ValueError("it has no name")
    annotations, labels = object_at(metadata, "annotations"), object_at(metadata, "labels")
    has_address = spec.get("hostNetwork") is not True and status.get("phase") not in _ENDED
    key = f"{namespace}/{name}"
    machine = next((value for label in _VIRTUAL_MACHINE if (value := labels.get(label))), None)
    if (chosen := annotations.get(ANNOTATION)) is not None:
        key = f"{namespace}/{chosen}" if isinstance(chosen, str) and _NAME.fullmatch(chosen) else ""
    elif machine is not None:
        key = f"{namespace}/vm:{machine}"  # no pod's name has a colon
    return PodKey(f"{namespace}/{name}", key, has_address)


class PodKeys:
    """Reports the pods of an ObjectWatch to `put`: each one's name and key.

    `fail` gets the reason while the API server does not list them, "" when it does again.
    """

    def __init__(self, put: Callable[[Mapping[str, str]], None], fail: Callable[[str], None]) -> None:
        self._put, self._fail = put, fail
        self._pods: dict[str, str] = {}

    def handle(self, event: ObjectEvent[PodKey]) -> None:
        """Handles an event of the watch, in its thread."""
        before = dict(self._pods)
        if isinstance(event, Failed):
            self._fail(f"the pods of this node, which have sticky addresses, are not known: {event.error}")
            return
        if isinstance(event, Synced):
            self._pods = {pod.name: pod.key for pod in event.items.values() if pod.has_address}
        elif isinstance(event, Deleted):
            self._pods.pop(event.key, None)
        elif isinstance(event, Changed):
            self._pods.pop(event.item.name, None)
            if event.item.has_address:
                self._pods[event.item.name] = event.item.key
        if isinstance(event, Synced) or self._pods != before:
            self._put(self._pods)
        self._fail("")


def pods_of_node(client: ObjectClient, node: str) -> KubernetesObjects[PodKey]:
    """Returns the pods of a node as a source of keys."""
    query = {"fieldSelector": f"spec.nodeName={node}"}
    return KubernetesObjects(client, PODS, parse_pod, lambda pod: pod.name, query)
