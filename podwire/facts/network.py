"""The network of one namespace - the node's, a pod's - as its kernel has it: each part is read once, when first used.

Nothing here changes anything. A part that cannot be read raises its error when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Self, TypeVar

from cni.address import Address
from cni.errors import CniError
from kernel import address, device, neighbour, queues, sockets_table, sysctl
from kernel.address import AssignedAddress
from kernel.bridge_state import LinkSettings, read_link_settings
from kernel.fib import FibRoute
from kernel.link import IFF_LOOPBACK, Link
from kernel.netfilter.packet import Packet
from kernel.netfilter.ruleset import Ruleset, read_ruleset
from kernel.netns import Netns, entered
from kernel.queues import Queue
from kernel.rtnl import Socket
from kernel.sockets_table import ListeningSocket
from podwire.predictions import routing
from podwire.predictions.routing import Choice, Fib

Returned = TypeVar("Returned")


class NetworkFacts:
    """The facts of a namespace, None for the one that this program runs in. A context manager.

    `forget` discards what was read of the kernel, since it may have changed.
    """

    def __init__(self, netns: Netns | None = None) -> None:
        self.netns = netns
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Runs the block in the namespace: sockets and /proc/sys/net files that it opens belong to it."""
        if self.netns is None:
            yield
            return
        with entered(self.netns):
            yield

    def call(self, function: Callable[[], Returned]) -> Returned:
        """Calls a function in the namespace."""
        with self.entered():
            return function()

    @cached_property
    def socket(self) -> Socket:
        """A netlink socket in the namespace."""
        return self._stack.enter_context(self.call(Socket))

    @cached_property
    def devices(self) -> tuple[device.Device, ...]:
        """The interfaces with their other names."""
        return tuple(device.list_all(self.socket))

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The interfaces."""
        return tuple(one.link for one in self.devices)

    @cached_property
    def names(self) -> Mapping[int, str]:
        """The names of the interfaces by index."""
        return {one.index: one.name for one in self.links}

    @cached_property
    def _by_index(self) -> Mapping[int, Link]:
        return {one.index: one for one in self.links}

    @cached_property
    def _by_name(self) -> Mapping[str, Link]:
        by_altname = {name: one.link for one in self.devices for name in one.altnames}
        return {**by_altname, **{one.name: one for one in self.links}}

    def link(self, name: str) -> Link | None:
        """Returns the interface of a name or altname, None if there is none."""
        return self._by_name.get(name)

    def link_of(self, index: int) -> Link | None:
        """Returns the interface with an index, None if there is none."""
        return self._by_index.get(index)

    @cached_property
    def addresses(self) -> Mapping[int, tuple[AssignedAddress, ...]]:
        """The addresses by interface index."""
        assigned = address.list_by_link(self.socket)
        return {index: tuple(items) for index, items in assigned.items()}

    @cached_property
    def links_by_address(self) -> Mapping[Address, list[Link]]:
        """The interfaces of each address: with ptp, each host veth has the gateway's."""
        links: dict[Address, list[Link]] = {}
        for index, items in self.addresses.items():
            for item in items:
                links.setdefault(item.address.ip, []).extend(self.links_at([index]))
        return links

    def links_at(self, indexes: Iterable[int]) -> list[Link]:
        """Returns the interfaces with these indexes, without those that are gone."""
        return [one for index in indexes if (one := self.link_of(index))]

    def has(self, item: Address) -> bool:
        """Returns whether an interface has an address; all of 127.0.0.0/8 are those of lo."""
        return item in self.links_by_address or item.is_loopback

    def usable_address(self, version: int) -> Address | None:
        """Returns an address of the namespace that others can use, None without one."""
        usable = (
            item
            for item, links in self.links_by_address.items()
            if item.version == version and not item.is_link_local and any(not one.flags & IFF_LOOPBACK for one in links)
        )
        return next(usable, None)

    @cached_property
    def link_settings(self) -> LinkSettings:
        """The settings of bridges and their ports."""
        return read_link_settings(self.socket)

    @cached_property
    def queues(self) -> Mapping[int, Sequence[Queue]]:
        """The queues by interface index."""
        return queues.list_queues(self.socket)

    @cached_property
    def neighbours(self) -> tuple[neighbour.NeighbourEntry, ...]:
        """The neighbour entries."""
        return tuple(neighbour.list_entries(self.socket))

    @cached_property
    def forwarding(self) -> tuple[neighbour.ForwardingEntry, ...]:
        """The entries of the bridges' forwarding databases."""
        return tuple(neighbour.list_forwarding(self.socket))

    @cached_property
    def fib(self) -> Fib:
        """The policy rules and the routes, of every type."""
        return routing.read_fib(self.socket)

    def route(self, packet: Packet) -> Choice:
        """Returns the kernel's choice for a packet; raises KernelError."""
        arriving = self.link(packet.iif) if packet.iif else None
        return routing.ask_kernel(self.socket, self.fib.look_up(packet), packet, arriving.index if arriving else 0)

    def describe(self, route: FibRoute | None) -> str:
        """Returns a route as `ip route` prints it."""
        return route.describe(self.names) if route else ""

    @cached_property
    def ruleset(self) -> Ruleset:
        """The rules of the packet filter in nftables; raises CniError."""
        return self.call(read_ruleset)

    def sysctl(self, name: str) -> str | None:
        """Returns a setting below /proc/sys/net as it is now, None if the kernel has none of this name."""
        try:
            return self.call(lambda: sysctl.get(name))
        except (OSError, CniError):
            return None

    def sysctl_number(self, name: str) -> int | None:
        """Returns a setting as a number, None if it is no number or does not exist."""
        value = self.sysctl(name) or ""
        return int(value) if value.isdigit() else None

    def is_bridge_filtered(self, version: int) -> bool:
        """Returns whether frames between ports of a bridge pass the rules of an IP version (br_netfilter)."""
        return self.sysctl(f"bridge/bridge-nf-call-ip{'6' if version == 6 else ''}tables") == "1"

    def list_listeners(self, protocols: Collection[int]) -> list[ListeningSocket]:
        """Returns the sockets that wait for packets of these protocols (IPPROTO_*); raises OSError."""
        return self.call(lambda: list(sockets_table.list_listeners(protocols)))

    def forget(self) -> None:
        """Discards what was read, since it may have changed."""
        for name, member in vars(NetworkFacts).items():
            if isinstance(member, cached_property) and name != "socket":
                self.__dict__.pop(name, None)
