"""127.0.0.1:hostPort: the sysctl that lets the kernel route 127.0.0.0/8 to a pod, and the guard it requires.

With net.ipv4.conf.<interface>.route_localnet the kernel also accepts packets for 127.0.0.0/8 from that interface: a
pod, or any machine that can send frames to the node, could reach services on the node's loopback (CVE-2020-8558). So
the guard drops such packets before address translation. Answers to connections from localhost pass it: they arrive for
the node's own address, which becomes 127.0.0.1 only in address translation.

One rule: the guard is created before the sysctl is turned on, and removed after it is turned off. It is
turned on for the interface by which the host reaches the pod (plugins.portmap.pod_route), and off again only for the
pod's own veth: a bridge stays on, since other pods share it.
"""

from __future__ import annotations

import sys

from cni.errors import CniError, Code
from kernel import sysctl
from kernel.netfilter.nft import NftSocket
from plugins.portmap import loopback_guard
from plugins.portmap.loopback_guard import route_localnet_setting
from plugins.portmap.pod_route import WrongRouteError, get_interface_to_pod
from plugins.portmap.spec import HostPorts

_FIX = 'set "snat" to false: the host port is then not served at 127.0.0.1'


def ensure(host_ports: HostPorts, *, unguarded: bool = False) -> None:
    """Forwards 127.0.0.1:hostPort to the pod if it has IPv4 and "snat"; raises CniError(999), KernelError.

    If nothing is to change, this costs a few netlink messages. Runs programs only if the kernel has no nftables, and
    then only if the sysctl is off, or if it is on without a table for the guard (the reference creates none), or if the
    caller knows that the guard is missing (`unguarded`). If the node's route to the pod uses another interface than the
    pod's, prints that 127.0.0.1 does not serve the pod, and succeeds like the reference.
    """
    try:
        interface = get_interface_to_pod(host_ports)
    except WrongRouteError as error:
        print(f"portmap: {error.msg}: {error.details}", file=sys.stderr)
        return
    if not interface:
        return
    try:
        if not loopback_guard.ensure_in_nftables(interface) and (
            unguarded or not (_is_on(interface) and loopback_guard.may_be_in_iptables())
        ):
            loopback_guard.ensure_in_iptables(interface)
        _open(interface, is_listed=interface in host_ports.host_interfaces)
    except CniError as error:
        fix = f"{error.details}; or {_FIX}" if error.details else _FIX
        raise CniError(error.code, f"unable to enable route_localnet: {error.msg}", fix) from error


def check(host_ports: HostPorts) -> None:
    """Checks that localhost is forwarded to the pod; raises WrongRouteError, CniError(999), KernelError.

    Only prints that the guard is missing: the reference creates none, and its pods must pass.
    """
    interface = _check_sysctl(host_ports)
    if interface and not loopback_guard.exists(interface):
        print(
            f"podwire: packets that arrive by {interface} for 127.0.0.0/8 are not dropped: podwire repair sees to it "
            "(and the next ADD, where the kernel has nftables)",
            file=sys.stderr,
        )


def check_with_guard(host_ports: HostPorts) -> None:
    """Checks like `check`, but raises if the guard is missing; raises WrongRouteError, CniError(999), KernelError."""
    interface = _check_sysctl(host_ports)
    if interface and not loopback_guard.exists(interface):
        msg = f"packets that arrive by {interface} for 127.0.0.0/8 are not dropped"
        raise CniError(Code.INTERNAL, msg, "podwire repair or the next ADD sees to it")


def delete(socket: NftSocket, host_ports: HostPorts) -> None:
    """Turns route_localnet of the host veth off and deletes its guard and stale guards from nftables.

    Raises KernelError.
    """
    loopback_guard.remove(socket, host_ports.host_veth, host_ports.host_interfaces)


def delete_legacy(host_ports: HostPorts) -> None:
    """Deletes the same from iptables-legacy if route_localnet of the host veth is still on; raises CniError."""
    if host_ports.host_veth and _is_on(host_ports.host_veth):
        loopback_guard.remove_legacy(host_ports.host_veth, host_ports.host_interfaces)


def gc(socket: NftSocket) -> None:
    """Deletes the guards of interfaces that do not exist from nftables; raises KernelError."""
    loopback_guard.remove(socket)


def gc_legacy() -> None:
    """Deletes the guards of interfaces that do not exist from iptables-legacy; raises CniError."""
    loopback_guard.remove_legacy()


def _check_sysctl(host_ports: HostPorts) -> str:
    """Checks the sysctl; returns the interface that needs a guard, "" if none does; raises like `check`.

    The fix is a repair, which creates the guard first: turning only the sysctl on would expose the node's loopback.
    """
    interface = get_interface_to_pod(host_ports)
    if not interface:
        return ""
    name = route_localnet_setting(interface)
    try:
        is_on = sysctl.get(name) == "1" or sysctl.get(route_localnet_setting("all")) == "1"
    except OSError as error:
        msg = f"cannot read net/{name}: {error.strerror}"
        raise CniError(Code.INTERNAL, msg, "is /proc/sys visible here? run CHECK where it is") from error
    if not is_on:
        msg = f"127.0.0.1 is not forwarded to the pod: net/{name} is off"
        raise CniError(Code.INTERNAL, msg, "podwire repair creates the guard of 127.0.0.0/8 and turns it on")
    return interface


def _open(interface: str, *, is_listed: bool) -> None:
    """Turns route_localnet on; raises CniError(999), with a command as fix only if prevResult lists the interface."""
    try:
        sysctl.ensure_or_fail(route_localnet_setting(interface), "1", "turn it on")
    except CniError as error:
        if not is_listed:
            error.details = ""
        raise


def _is_on(interface: str) -> bool:
    try:
        return sysctl.get(route_localnet_setting(interface)) == "1"
    except OSError:
        return False
