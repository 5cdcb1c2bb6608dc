"""What is inside a pod's network namespace: links, addresses, routes, neighbours, rules, settings, listeners.

Cost: about ten dumps and five files for each namespace; the rules are read only if it has any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from cni.errors import CniError
from kernel import address, link, neighbour, sockets_table, sysctl
from kernel.address import AssignedAddress
from kernel.link import Link
from kernel.neighbour import Entry
from kernel.netfilter.ruleset import Ruleset, read_ruleset
from kernel.netns import Netns, entered
from kernel.rtnl import Socket
from kernel.sockets_table import Listener
from podwire.predictions.routing import Fib, read_fib
from process.values import dataclass

_SETTINGS = ("ipv4/ip_default_ttl", "ipv4/icmp_echo_ignore_all", "ipv4/ip_local_port_range")
_LINK_SETTINGS = ("ipv4/conf/{}/arp_ignore", "ipv4/neigh/{}/mcast_solicit", "ipv6/conf/{}/disable_ipv6")


@dataclass(frozen=True)
class Interior:
    """The state of a pod's namespace; `addresses` by ifindex."""

    links: tuple[Link, ...]
    addresses: dict[int, list[AssignedAddress]]
    fib: Fib
    neighbours: tuple[Entry, ...]
    ruleset: Ruleset
    settings: dict[str, str]
    listeners: tuple[Listener, ...]

    @property
    def names(self) -> dict[int, str]:
        """The names of the interfaces by index."""
        return {one.index: one.name for one in self.links}

    def link(self, name: str) -> Link | None:
        """Returns the interface of a name, None without one."""
        return next((one for one in self.links if one.name == name), None)


def read_interior(netns: str, ifname: str, protocols: Collection[int]) -> Interior:
    """Reads the namespace at a path: settings of the interface `ifname`, listeners of `protocols`.

    Raises CniError, OSError.
    """
    with Netns(netns) as namespace, entered(namespace), Socket() as socket:
        links = tuple(link.list_all(socket))
        return Interior(
            links,
            {one.index: list(address.list_on_link(socket, one)) for one in links if one.name in (ifname, "lo")},
            read_fib(socket),
            tuple(neighbour.list_entries(socket)),
            read_ruleset(),
            _read_settings(ifname),
            tuple(sockets_table.list_listeners(protocols)),
        )


def _read_settings(ifname: str) -> dict[str, str]:
    names = [*_SETTINGS, *(name.format(ifname) for name in _LINK_SETTINGS)]
    return {name: value for name in names if (value := _setting(sysctl.get, name)) is not None}


def _setting(read: Callable[[str], str], name: str) -> str | None:
    try:
        return read(name)
    except (OSError, CniError):
        return None
