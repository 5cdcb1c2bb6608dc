"""Publishes host ports at 127.0.0.1: the sysctl route_localnet, and the guard that it requires.

With net.ipv4.conf.<interface>.route_localnet the kernel routes packets from 127.0.0.1 to a pod. But it then also
accepts packets for 127.0.0.0/8 from that interface: a pod, or a machine on the same link, could reach services on the
node's loopback (CVE-2020-8558). The guard drops such packets before NAT. It does not drop replies to connections from
127.0.0.1: they arrive with the node's address as destination, which NAT changes to 127.0.0.1 only afterwards.

The guard is created before route_localnet is enabled, and deleted after route_localnet is disabled. ADD enables
route_localnet on the interface over which the host reaches the pod. DEL disables it only on the pod's own host veth: on
a bridge it stays enabled, since other pods use the bridge.

The host must reach the pod over an interface of the pod's network: one that prevResult lists on the host. Neither
portmap nor a command that it prints changes a setting of another interface.
"""

from __future__ import annotations

import shlex
import sys

from cni.address import Address
from cni.errors import CniError, Code, internal
from kernel import link, route, sysctl
from kernel.link import IFF_LOOPBACK
from kernel.netfilter.nft import NftSocket
from kernel.rtnl import Socket
from plugins.portmap import loopback_guard
from plugins.portmap.conf import HostPorts
from plugins.portmap.loopback_guard import route_localnet_setting

_FIX = 'set "snat" to false: the host port is then not published at 127.0.0.1'


class WrongRouteError(CniError):
    """The node's route to a pod does not use an interface of the pod's network."""


def ensure(host_ports: HostPorts, *, guard_is_missing: bool = False) -> None:
    """Creates the guard and enables route_localnet, for a pod with IPv4 and "snat".

    Costs a few netlink messages. If the kernel lacks nftables, runs iptables-restore unless the guard probably exists:
    `guard_is_missing` is False, route_localnet is enabled, and iptables has a chain for the guard. If the node's route
    to the pod does not use the pod's interface, prints that to stderr and changes nothing; ADD then succeeds, as with
    the reference plugin. Raises CniError(999), KernelError.
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
            guard_is_missing or not (_is_enabled(interface) and loopback_guard.may_be_in_iptables())
        ):
            loopback_guard.ensure_in_iptables(interface)
        _enable_route_localnet(interface, is_listed=interface in host_ports.host_interfaces)
    except CniError as error:
        fix = f"{error.details}; or {_FIX}" if error.details else _FIX
        raise CniError(error.code, f"unable to enable route_localnet: {error.msg}", fix) from error


def check(host_ports: HostPorts) -> None:
    """Checks that route_localnet is enabled; raises WrongRouteError, CniError(999), KernelError.

    Prints a missing guard to stderr, but succeeds: the reference plugin creates no guard, and CHECK of its pods must
    succeed.
    """
    interface = _check_route_localnet(host_ports)
    if interface and not loopback_guard.exists(interface):
        print(
            f"portmap: the guard of {interface} is missing: packets for 127.0.0.0/8 that arrive there are not dropped; "
            "fix: podwire repair",
            file=sys.stderr,
        )


def check_with_guard(host_ports: HostPorts) -> None:
    """Checks like `check`, but raises if the guard is missing; raises WrongRouteError, CniError(999), KernelError."""
    interface = _check_route_localnet(host_ports)
    if interface and not loopback_guard.exists(interface):
        msg = f"the guard of {interface} is missing: packets for 127.0.0.0/8 that arrive there are not dropped"
        raise internal(msg, "podwire repair")


def delete(socket: NftSocket, host_ports: HostPorts) -> None:
    """Disables route_localnet of the host veth; deletes its guard and stale guards from nftables.

    Raises KernelError.
    """
    loopback_guard.remove(socket, host_ports.host_veth, host_ports.host_interfaces)


def delete_legacy(host_ports: HostPorts) -> None:
    """Deletes from iptables-legacy the guards that `delete` deletes from nftables; raises CniError.

    Does nothing unless route_localnet of the host veth is still enabled.
    """
    if host_ports.host_veth and _is_enabled(host_ports.host_veth):
        loopback_guard.remove_legacy(host_ports.host_veth, host_ports.host_interfaces)


def gc(socket: NftSocket) -> None:
    """Deletes the guards of missing interfaces from nftables; raises KernelError."""
    loopback_guard.remove(socket)


def gc_legacy() -> None:
    """Deletes the guards of missing interfaces from iptables-legacy; raises CniError."""
    loopback_guard.remove_legacy()


def get_interface_to_pod(host_ports: HostPorts) -> str:
    """Returns the interface of the node's route to the pod; "" if host ports are not published at 127.0.0.1.

    Also returns "" if there is no route, and for a route over the loopback to an address of the host: it needs no
    sysctl, and a guard there would drop the host's own packets. Accepts any interface if prevResult lists none on the
    host, as with third-party plugins. Raises WrongRouteError with the fix, KernelError.
    """
    if not (host_ports.snat and 4 in host_ports.addresses and host_ports.mappings_for(4)):
        return ""
    address = host_ports.addresses[4].ip
    with Socket() as socket:
        interface = route.get_interface_to(socket, address)
        if interface is None or interface.flags & IFF_LOOPBACK:
            return ""
        if not host_ports.host_interfaces or interface.name in host_ports.host_interfaces:
            return interface.name
        name, expected = interface.name, " or ".join(f'"{name}"' for name in host_ports.host_interfaces)
        msg = f'127.0.0.1 is not forwarded to the pod: the node reaches {address} over "{name}", not over {expected}'
        raise WrongRouteError(Code.INTERNAL, msg, _route_fix(socket, host_ports, address))


def _check_route_localnet(host_ports: HostPorts) -> str:
    """Checks that route_localnet is enabled; returns the interface that needs a guard, "" if none does.

    The fix is a repair, which creates the guard first: setting only the sysctl would expose the node's loopback.
    Raises the same errors as `check`.
    """
    interface = get_interface_to_pod(host_ports)
    if not interface:
        return ""
    name = route_localnet_setting(interface)
    try:
        is_enabled = sysctl.get(name) == "1" or sysctl.get(route_localnet_setting("all")) == "1"
    except OSError as error:
        msg = f"cannot read net/{name}: {error.strerror}"
        raise internal(msg, "run CHECK in a mount namespace where /proc/sys is mounted") from error
    if not is_enabled:
        msg = f"127.0.0.1 is not forwarded to the pod: net/{name} is off"
        raise internal(msg, "podwire repair creates the guard of 127.0.0.0/8, then enables the sysctl")
    return interface


def _enable_route_localnet(interface: str, *, is_listed: bool) -> None:
    """Enables route_localnet; raises CniError(999), with a command as fix only if prevResult lists the interface."""
    try:
        sysctl.ensure_or_fail(route_localnet_setting(interface), "1", "turn it on")
    except CniError as error:
        if not is_listed:
            error.details = ""
        raise


def _is_enabled(interface: str) -> bool:
    try:
        return sysctl.get(route_localnet_setting(interface)) == "1"
    except OSError:
        return False


def _route_fix(socket: Socket, host_ports: HostPorts, address: Address) -> str:
    """Returns the fix: if another program's route comes first, the command that deletes that route.

    A route wider than the pod's subnet, such as the default route, is used only because the connected route of the
    pod's network is missing: it must not be deleted. Nor must the connected route of another interface.
    """
    links = link.get(socket, *map(link.by_name_request, host_ports.host_interfaces))
    if missing := [name for name, item in zip(host_ports.host_interfaces, links, strict=True) if item is None]:
        return f'"{missing[0]}" does not exist: remove the container and create it again'
    foreign = route.get_matching(socket, address)
    if foreign is None or foreign.dst.network.prefixlen < host_ports.addresses[4].network.prefixlen:
        return (
            f"the route of the pod's network is missing, or another one comes first (see: ip route get {address}); "
            "remove the container and create it again"
        )
    (interface,) = link.get(socket, link.by_index_request(foreign.index))
    if foreign.is_connected:
        network = f"the network {foreign.dst.network} of {interface.name if interface else 'another interface'}"
        return f"the pod range overlaps {network}: configure another range, and create the pods again"
    words = [f"ip route delete {foreign.dst.network}"]
    words += [f"via {foreign.gw}"] if foreign.gw else []
    words += [f"dev {shlex.quote(interface.name)}"] if interface else []
    words += [f"table {foreign.table}"] if foreign.table != route.TABLE_MAIN else []
    words += [f"metric {foreign.metric}"] if foreign.metric else []
    return " ".join(words)
