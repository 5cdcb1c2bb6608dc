"""The private node of a self-test: this process's namespaces, a namespace outside of it, and links between the two."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from ipaddress import ip_interface

from kernel import address, child_link, link, private_node
from kernel.link import Link, VethEnd
from kernel.netns import Netns, entered
from kernel.rtnl import Socket
from kernel.unnamed_netns import create_unnamed, set_loopback_up

BIN_DIR = "/run/podwire-selftest"
STORE = "/var/lib/cni"
_EMPTY = ("/run", STORE)  # private and writable inside; all other files are read-only
_SETTINGS_OF_IPV6 = "/proc/sys/net/ipv6"


@dataclass(frozen=True)
class PrivateNode:
    """The node, entered: `home` is its network namespace, `fabric` that of the network around it."""

    home: Netns
    fabric: Netns
    uplinks: dict[str, Link] = field(default_factory=dict)

    @classmethod
    def enter(cls, names: tuple[str, ...]) -> PrivateNode:
        """Moves this process into the node, on which this executable has the `names`; raises CniError."""
        private_node.enter(*_EMPTY)
        os.mkdir(BIN_DIR)
        for name in names:  # whatever hides the path of the executable in here
            os.symlink(f"/proc/{os.getpid()}/exe", f"{BIN_DIR}/{name}")
        fabric = create_unnamed()
        with entered(fabric):
            set_loopback_up()
        return cls(Netns("/proc/self/ns/net"), fabric)

    @property
    def has_ipv6(self) -> bool:
        """Whether the kernel was booted with IPv6."""
        return os.path.isdir(_SETTINGS_OF_IPV6)

    def add_uplink(self, name: str, *outer: str, inner: tuple[str, ...] = (), master: str = "") -> None:
        """Creates a link of the node to the outside, with addresses at both ends.

        `master`: a bridge of the node, created with the link. A link of that name is kept. Raises KernelError.
        """
        if name not in self.uplinks:
            with Socket() as socket:
                bridge = _create_bridge(socket, master) if master else 0
                ends = VethEnd(name, link.random_mac()), VethEnd(name, link.random_mac())
                socket.change(link.create_veth_request(*ends, self.fabric, master=bridge, mtu=0))
                self.uplinks[name] = self._with_addresses(socket, name, inner)
            with entered(self.fabric), Socket() as socket:
                self._with_addresses(socket, name, outer)

    def add_outer_vlan(self, uplink: str, vlan: int, cidr: str) -> None:
        """Creates a VLAN device on the outer end of an uplink; raises KernelError."""
        with entered(self.fabric), Socket() as socket:
            (parent,) = link.get(socket, link.by_name_request(uplink))
            if parent:
                name = f"{uplink}.{vlan}"
                socket.change(child_link.create_request("vlan", name, parent, None, [("IFLA_VLAN_ID", vlan)]))
                self._with_addresses(socket, name, (cidr,))

    def list_links(self) -> set[str]:
        """Returns the names of the node's links; raises KernelError."""
        with Socket() as socket:
            return {one.name for one in link.list_all(socket)}

    def list_reservations(self, network: str) -> list[str]:
        """Returns the addresses of a network that host-local has reserved."""
        try:
            names = os.listdir(f"{STORE}/networks/{network}")
        except FileNotFoundError:  # a network without host-local
            return []
        return sorted(name for name in names if not name.startswith(("last_reserved_ip", "lock")))

    def _with_addresses(self, socket: Socket, name: str, cidrs: tuple[str, ...]) -> Link:
        """Brings a link up and adds addresses; returns it."""
        (one,) = link.get(socket, link.by_name_request(name))
        if one is None:
            raise RuntimeError(f"{name} was created and does not exist")
        socket.change(link.set_request(one, up=True))
        for cidr in map(ip_interface, cidrs):
            if cidr.version == 4 or self.has_ipv6:
                socket.change(address.add_request(one, cidr, dad=False))
        return one


def _create_bridge(socket: Socket, name: str) -> int:
    socket.change(link.create_bridge_request(name, link.random_mac(), 0))
    (bridge,) = link.get(socket, link.by_name_request(name))
    return bridge.index if bridge else 0
