"""The host's end of the pod's interface, on which both limits stand.

One rule: it is found from inside the sandbox, by the kernel's own link between the two, and must be listed.
"""

from __future__ import annotations

from attachment.sandbox import Sandbox
from cni.errors import CniError, Code
from cni.result import Result
from kernel.link import Link
from kernel.netns import Netns

_VETH_ONLY = "limits need a veth pair: list bandwidth behind bridge, ptp or another plugin that makes one"


def inside(namespace: Netns, ifname: str) -> Link | None:
    """Returns the pod's interface, None when there is none; raises KernelError."""
    with Sandbox(namespace, ifname) as sandbox:
        return sandbox.find_link()


def paired(namespace: Netns, ifname: str, prev_result: Result) -> Link:
    """Returns the pod's interface, an end of a pair; raises CniError(999) in the reference's words, KernelError."""
    if not prev_result.interfaces:
        details = "bandwidth works on what an interface plugin made, which must name the interfaces it made"
        raise CniError(Code.INVALID_NETWORK_CONFIG, "no interfaces provided", details)
    found = inside(namespace, ifname)
    if found is None or found.kind != "veth" or not found.lower:
        what = f"it is {found.kind or 'of no kind'}" if found else f"it is not in {namespace.path}"
        raise CniError(Code.INTERNAL, f"container interface {ifname} has no veth peer: {what}", _VETH_ONLY)
    return found


def listed(outside: Link | None, own: Link, prev_result: Result) -> Link:
    """Returns the host's end of `own`, if it was found and is listed; raises CniError(999) in the reference's words."""
    if outside is None:
        details = "the other end is in a third namespace; bandwidth limits what leads to this host"
        raise CniError(Code.INTERNAL, f"veth peer with index {own.lower} is not in host ns", details)
    if not any(item.name == outside.name and not item.sandbox for item in prev_result.interfaces):
        details = f'it is "{outside.name}", which prevResult does not list as an interface of the host'
        raise CniError(Code.INTERNAL, "no veth peer of container interface found in host ns", details)
    return outside
