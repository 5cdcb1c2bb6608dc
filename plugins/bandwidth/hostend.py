"""The host's end of the pod's interface, on which both limits stand.

One rule: it is found from inside the sandbox, by the kernel's own link between the two, and must be listed.
"""

from __future__ import annotations

from cni.errors import CniError, Code
from cni.result import Result
from kernel import link
from kernel.configure import Sandbox
from kernel.link import Link
from kernel.netns import Netns
from kernel.rtnl import Socket

_VETH_ONLY = "limits need a veth pair: list bandwidth behind bridge, ptp or another plugin that makes one"


def listed(host: Socket, namespace: Netns, ifname: str, prev_result: Result) -> Link:
    """Returns the host's end; raises CniError(999) in the reference's words, KernelError."""
    if not prev_result.interfaces:
        details = "bandwidth works on what an interface plugin made, which must name the interfaces it made"
        raise CniError(Code.INVALID_NETWORK_CONFIG, "no interfaces provided", details)
    with Sandbox(namespace, ifname) as sandbox:
        inside = sandbox.find()
    if inside is None or inside.kind != "veth" or not inside.lower:
        what = f"it is {inside.kind or 'of no kind'}" if inside else f"it is not in {namespace.path}"
        raise CniError(Code.INTERNAL, f"container interface {ifname} has no veth peer: {what}", _VETH_ONLY)
    outside = link.other_end(host, inside, namespace)
    if outside is None:
        details = "the other end is in a third namespace; bandwidth limits what leads to this host"
        raise CniError(Code.INTERNAL, f"veth peer with index {inside.lower} is not in host ns", details)
    if not any(item.name == outside.name and not item.sandbox for item in prev_result.interfaces):
        details = f'it is "{outside.name}", which prevResult does not list as an interface of the host'
        raise CniError(Code.INTERNAL, "no veth peer of container interface found in host ns", details)
    return outside


def find(host: Socket, namespace: Netns, ifname: str) -> Link | None:
    """Returns the host's end, None when there is none; raises KernelError."""
    with Sandbox(namespace, ifname) as sandbox:
        inside = sandbox.find()
    return inside and link.other_end(host, inside, namespace)
