"""The host veth of the pod, where both limits are set.

One rule: the kernel reports the host veth as the peer of the container veth, and prevResult must list it.
"""

from __future__ import annotations

from attachment.sandbox import Sandbox
from cni.errors import internal, invalid_conf
from cni.result import Result
from kernel.link import Link
from kernel.netns import Netns

_VETH_ONLY = "limits need a veth pair: list bandwidth after bridge, ptp or another plugin that creates one"


def get_container_link(namespace: Netns, ifname: str) -> Link | None:
    """Returns the pod's interface, None if it does not exist; raises KernelError."""
    with Sandbox(namespace, ifname) as sandbox:
        return sandbox.find_link()


def get_container_veth(namespace: Netns, ifname: str, prev_result: Result) -> Link:
    """Returns the pod's interface if it is a veth, otherwise raises CniError (the reference plugin's texts).

    Raises KernelError, CniError(7) if prevResult lists no interfaces, and CniError(999) for another kind of interface.
    """
    if not prev_result.interfaces:
        details = "bandwidth limits an interface that an earlier plugin of the list created and returned in its result"
        raise invalid_conf("no interfaces provided", details)
    link = get_container_link(namespace, ifname)
    if link is None or link.kind != "veth" or not link.iflink:
        state = f"it is {link.kind or 'of no kind'}" if link else f"it is not in {namespace.path}"
        raise internal(f"container interface {ifname} has no veth peer: {state}", _VETH_ONLY)
    return link


def check_host_veth(host_veth: Link | None, container_veth: Link, prev_result: Result) -> Link:
    """Returns `host_veth`; raises CniError(999) if it is missing or prevResult does not list it.

    The texts are the reference plugin's.
    """
    if host_veth is None:
        details = "the other end is in a third namespace; bandwidth limits only pods connected to this host"
        raise internal(f"veth peer with index {container_veth.iflink} is not in host ns", details)
    if not any(item.name == host_veth.name and not item.sandbox for item in prev_result.interfaces):
        details = f'it is "{host_veth.name}", which prevResult does not list as an interface of the host'
        raise internal("no veth peer of container interface found in host ns", details)
    return host_veth
