"""The node's route to a pod, which must use the pod's own interface.

One rule: the pod's own interfaces are those that prevResult lists on the host. Neither portmap nor a command
that it prints changes a setting of any other interface.
"""

from __future__ import annotations

import shlex

from cni.address import Address
from cni.errors import CniError, Code
from kernel import link, route
from kernel.link import IFF_LOOPBACK
from kernel.rtnl import Socket
from plugins.portmap.spec import HostPorts


class WrongRouteError(CniError):
    """The node's route to a pod does not use the pod's own interface."""


def get_interface_to_pod(host_ports: HostPorts) -> str:
    """Returns the pod's interface in the node's route to it; "" if 127.0.0.1 is not served, or without a route.

    If prevResult lists no interface on the host, as with third-party plugins, any interface is accepted. An address of
    the host itself, routed over the loopback, needs no sysctl; a guard there would cut the host off.
    Raises WrongRouteError with the fix, KernelError.
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
        msg = f'127.0.0.1 is not forwarded to the pod: the node reaches {address} by "{name}", not by {expected}'
        raise WrongRouteError(Code.INTERNAL, msg, _fix(socket, host_ports, address))


def _fix(socket: Socket, host_ports: HostPorts, address: Address) -> str:
    """Returns the fix: the command that deletes a foreign route to the pod or its subnet, if one comes first.

    A wider route, such as the default route, is used only because the pod's own is missing. It must not be deleted, nor
    must the connected route of a host interface.
    """
    links = link.get(socket, *map(link.by_name_request, host_ports.host_interfaces))
    if missing := [name for name, item in zip(host_ports.host_interfaces, links, strict=True) if item is None]:
        return f'"{missing[0]}" is gone: remove the container and create it again'
    foreign = route.get_matching(socket, address)
    if foreign is None or foreign.dst.network.prefixlen < host_ports.addresses[4].network.prefixlen:
        return (
            f"the pod's own route is missing or another one comes first: ip route get {address}; "
            "remove the container and create it again"
        )
    (by,) = link.get(socket, link.by_index_request(foreign.index))
    if foreign.is_connected:
        network = f"the network {foreign.dst.network} of {by.name if by else 'another interface'}"
        return f"the range of the pods overlaps {network}: give the pods another range, and create them again"
    words = [f"ip route delete {foreign.dst.network}"]
    words += [f"via {foreign.gw}"] if foreign.gw else []
    words += [f"dev {shlex.quote(by.name)}"] if by else []
    words += [f"table {foreign.table}"] if foreign.table != route.TABLE_MAIN else []
    words += [f"metric {foreign.metric}"] if foreign.metric else []
    return " ".join(words)
