"""Selects and sorts the attachments of a node, by a pod's name, by their faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from ipaddress import ip_interface

from cni.errors import CniError, Code
from podwire.lint.known import nearest
from podwire.node.model import AttachmentState, NodeInventory, Pod

FINE = (AttachmentState.OK, AttachmentState.NOT_CHECKED)
_WRONG = (AttachmentState.NO_INTERFACE, AttachmentState.FAILED)
_SHORTEST_ID = 6  # characters of an abbreviated container ID


def lacks_rules(pod: Pod) -> bool:
    """Returns whether the packet filter has no rule for a host port of a running pod."""
    return not pod.leaked and any(port.confirmed is False for port in pod.host_ports)


def is_wrong(pod: Pod) -> bool:
    """Returns whether a pod has a fault, so that `podwire show` exits with 1."""
    return pod.state in _WRONG or lacks_rules(pod)


def select(node: NodeInventory, pattern: str = "", *, wrong: bool = False) -> NodeInventory:
    """Returns the node with only the attachments that a pattern names and, with `wrong`, that have a fault or leaked.

    Raises CniError(3) for a pattern that matches none.
    """
    pods = tuple(pod for pod in node.pods if not pattern or matches(pod, pattern))
    if pattern and not pods:
        raise unknown_pod(pattern, node)
    if wrong:
        pods = tuple(pod for pod in pods if is_wrong(pod) or pod.leaked or pod.state not in FINE)
    shown = {(pod.network, pod.attachment) for pod in pods}
    leaks = node.leaks
    if pattern:
        leaks = tuple(leak for leak in leaks if (leak.network, leak.attachment) in shown)
    return replace(node, pods=pods, leaks=leaks)


def matches(pod: Pod, pattern: str) -> bool:
    """Returns whether a pattern (`*` matches any text) names a pod: "namespace/name", its name, its container ID."""
    names = (pod.pod, pod.pod.rpartition("/")[2], pod.attachment.container_id)
    if any(fnmatchcase(name, pattern) for name in names if name):
        return True
    return len(pattern) >= _SHORTEST_ID and pod.attachment.container_id.startswith(pattern)


def unknown_pod(pattern: str, node: NodeInventory) -> CniError:
    """Returns the error for a pod that this node does not have, with the most similar name."""
    full = {pod.pod for pod in node.pods if pod.pod}
    names = full | {name.rpartition("/")[2] for name in full} | {pod.attachment.container_id for pod in node.pods}
    likely = nearest(pattern, sorted(names))
    hint = f"did you mean {likely}?" if likely else "podwire show lists the pods"
    return CniError(Code.UNKNOWN_CONTAINER, f'there is no pod "{pattern}" on this node', hint)


def _address(pod: Pod) -> tuple[object, ...]:
    """Returns the key that sorts addresses by their numbers."""
    addresses = [ip_interface(text).ip for text in pod.addresses[:1]]
    return tuple((address.version, int(address)) for address in addresses) or ((9, 0),)


SORT_KEYS: dict[str, Callable[[Pod], object]] = {
    "network": lambda pod: (pod.network, pod.pod, pod.attachment),
    "pod": lambda pod: (not pod.pod, pod.pod, pod.attachment),
    "address": _address,
    "state": lambda pod: (pod.state in FINE, str(pod.state), pod.pod, pod.attachment),
    "container": lambda pod: pod.attachment,
}


def sort(node: NodeInventory, key: str) -> NodeInventory:
    """Returns the node with its attachments in the order of one of SORT_KEYS."""
    return replace(node, pods=tuple(sorted(node.pods, key=SORT_KEYS[key])))  # type: ignore[arg-type]  # comparable keys
