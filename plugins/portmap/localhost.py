"""127.0.0.1:hostPort: the setting that lets the kernel route 127.0.0.0/8 to a pod, and a guard for what it opens.

With net.ipv4.conf.<interface>.route_localnet the kernel takes packets for 127.0.0.0/8 from that interface, too: a pod,
or whoever can send frames to the node, reaches what listens on the node's loopback only (CVE-2020-8558). So what
arrives there for 127.0.0.0/8 is dropped, before address translation: the answers to connections from localhost arrive
for the node's own address, and get 127.0.0.1 as their destination only there.

One rule: the guard stands before the setting is on, and the setting is off before the guard is removed. Only the
attachment's own interface is opened (plugins.portmap.pod_route); a bridge stays as it is, since other pods share it.
"""

from __future__ import annotations

import sys

from cni.errors import CniError, Code
from kernel import sysctl
from kernel.netfilter.nft import NftSocket
from plugins.portmap import loopback_guard
from plugins.portmap.loopback_guard import setting
from plugins.portmap.pod_route import WrongRouteError, interface_to
from plugins.portmap.spec import HostPorts

_CURE = 'set "snat" to false: the host port is not served at 127.0.0.1 then'


def ensure(ports: HostPorts, *, unguarded: bool = False) -> None:
    """Forwards 127.0.0.1:hostPort to the pod where that is asked for (snat, IPv4); raises CniError(999), KernelError.

    Where nothing is to be changed that costs some look-ups by netlink. Only where the kernel has no nftables processes
    are run: when the setting is turned on, or was on (the reference makes no guard) while there is no table for it, or
    when it is known that something is missing (`unguarded`). If the node reaches the pod by another interface than the
    pod's, 127.0.0.1 does not serve it; stderr says so, and ADD succeeds like the reference's.
    """
    try:
        interface = interface_to(ports)
    except WrongRouteError as error:
        print(f"portmap: {error.msg}: {error.details}", file=sys.stderr)
        return
    if not interface:
        return
    try:
        if not loopback_guard.ensure_by_nftables(interface) and (
            unguarded or not (_is_on(interface) and loopback_guard.may_be_in_iptables())
        ):
            loopback_guard.ensure_by_iptables(interface)
        _open(interface, is_listed=interface in ports.host_interfaces)
    except CniError as error:
        cure = f"{error.details}; or {_CURE}" if error.details else _CURE
        raise CniError(error.code, f"unable to enable route_localnet: {error.msg}", cure) from error


def check(ports: HostPorts) -> None:
    """Checks that localhost is forwarded to the pod; raises WrongRouteError, CniError(999), KernelError.

    A missing guard is reported on stderr: the reference makes none, and its pods must pass.
    """
    interface = _checked(ports)
    if interface and not loopback_guard.is_there(interface):
        print(
            f"podwire: packets that arrive by {interface} for 127.0.0.0/8 are not dropped: podwire repair sees to it "
            "(and the next ADD, where the kernel has nftables)",
            file=sys.stderr,
        )


def demand(ports: HostPorts) -> None:
    """Checks as `check`, and demands the guard; raises WrongRouteError, CniError(999), KernelError."""
    interface = _checked(ports)
    if interface and not loopback_guard.is_there(interface):
        msg = f"packets that arrive by {interface} for 127.0.0.0/8 are not dropped"
        raise CniError(Code.INTERNAL, msg, "podwire repair or the next ADD sees to it")


def delete(socket: NftSocket, ports: HostPorts) -> None:
    """Closes the pod's own interface and removes its guard, and guards of interfaces that are gone, from nftables.

    Raises KernelError.
    """
    loopback_guard.remove(socket, ports.host_veth, ports.host_interfaces)


def delete_legacy(ports: HostPorts) -> None:
    """Does what `delete` does in iptables-legacy, if the pod's own interface is still open; raises CniError."""
    if ports.host_veth and _is_on(ports.host_veth):
        loopback_guard.remove_legacy(ports.host_veth, ports.host_interfaces)


def gc(socket: NftSocket) -> None:
    """Deletes the guards of interfaces that are gone from nftables; raises KernelError."""
    loopback_guard.remove(socket)


def gc_legacy() -> None:
    """Deletes the guards of interfaces that are gone from iptables-legacy; raises CniError."""
    loopback_guard.remove_legacy()


def _checked(ports: HostPorts) -> str:
    """Returns the interface that needs a guard, "" where none does; raises as `check`.

    The fix makes the guard before it turns the setting on: a command for the setting alone would open the node.
    """
    interface = interface_to(ports)
    if not interface:
        return ""
    name = setting(interface)
    try:
        is_on = sysctl.get(name) == "1" or sysctl.get(setting("all")) == "1"
    except OSError as error:
        msg = f"cannot read net/{name}: {error.strerror}"
        raise CniError(Code.INTERNAL, msg, "is /proc/sys visible here? run CHECK where it is") from error
    if not is_on:
        msg = f"127.0.0.1 does not lead to the pod: net/{name} is off"
        raise CniError(Code.INTERNAL, msg, "podwire repair creates the guard of 127.0.0.0/8 and turns it on")
    return interface


def _open(interface: str, *, is_listed: bool) -> None:
    """Turns route_localnet on; raises CniError(999), which has a command only if prevResult lists the interface."""
    try:
        sysctl.ensure_or_fail(setting(interface), "1", "turn it on")
    except CniError as error:
        if not is_listed:
            error.details = ""
        raise


def _is_on(interface: str) -> bool:
    try:
        return sysctl.get(setting(interface)) == "1"
    except OSError:
        return False
