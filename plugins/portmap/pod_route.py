"""The node's route to a pod, which must use an interface of the pod's network.

The interfaces of the pod's network are those that prevResult lists on the host. Neither portmap nor a
command that it prints changes a setting of another interface.
"""

from __future__ import annotations

import shlex

from cni.address import Address
from cni.errors import CniError, Code
from kernel import link, route
from kernel.link import IFF_LOOPBACK
from kernel.rtnl import Socket
from plugins.portmap.conf import HostPorts


class WrongRouteError(CniError):
    """The node's route to a pod does not use an interface of the pod's network."""


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
        raise WrongRouteError(Code.INTERNAL, msg, _fix(socket, host_ports, address))


def _fix(socket: Socket, host_ports: HostPorts, address: Address) -> str:
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
