"""The node's route to a pod, which must lead over the pod's own interface.

One rule: the pod's own interfaces are those that prevResult lists on the host. No setting of any other interface is
changed, neither by portmap nor by a command that it prints.
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
    """The node's route to a pod does not lead over the pod's own interface."""


def interface_to(ports: HostPorts) -> str:
    """Returns the pod's interface by which the node reaches it; "" where 127.0.0.1 is not served, or there is no route.

    If prevResult lists no interface on the host, as with third-party plugins, it is the interface of the route. An
    address of the host itself, routed over the loopback, needs no setting; a guard there would cut the host off.
    Raises WrongRouteError with the fix, KernelError.
    """
    if not (ports.snat and 4 in ports.addresses and ports.of(4)):
        return ""
    address = ports.addresses[4].ip
    with Socket() as socket:
        found = route.get_interface_to(socket, address)
        if found is None or found.flags & IFF_LOOPBACK:
            return ""
        if not ports.host_interfaces or found.name in ports.host_interfaces:
            return found.name
        own = " or ".join(f'"{name}"' for name in ports.host_interfaces)
        msg = f'127.0.0.1 does not lead to the pod: the node reaches {address} by "{found.name}", not by {own}'
        raise WrongRouteError(Code.INTERNAL, msg, _fix(socket, ports, address))


def _fix(socket: Socket, ports: HostPorts, address: Address) -> str:
    """Returns the fix: if a foreign route to the pod or its subnet comes first, the command that deletes that route.

    A wider route, the default route say, is used only because the pod's own is missing. It is not to be deleted; nor is
    the route to the network that an interface of the host is in.
    """
    links = link.get(socket, *map(link.by_name_request, ports.host_interfaces))
    if missing := [name for name, found in zip(ports.host_interfaces, links, strict=True) if found is None]:
        return f'"{missing[0]}" is gone: remove the container and create it again'
    foreign = route.get_matching(socket, address)
    if foreign is None or foreign.dst.network.prefixlen < ports.addresses[4].network.prefixlen:
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
