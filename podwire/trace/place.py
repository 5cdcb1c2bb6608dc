"""Places: the network namespaces that a packet passes. Pods, the node, and "outside".

Nothing is started in a pod: sockets are opened inside its namespace, and used from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from types import TracebackType
from typing import Self, TypeVar

from cni.address import Address
from kernel import address, link, neighbour
from kernel.bridge_state import LinkSettings, read_link_settings
from kernel.link import IFF_LOOPBACK, Link
from kernel.netfilter.packet import Packet
from kernel.netns import Netns, entered
from kernel.rtnl import Socket
from podwire.predictions import routing
from podwire.predictions.routing import Choice, Fib

POD, NODE, EXTERNAL = "pod", "node", "outside"
Returned = TypeVar("Returned")


class Place:
    """A network namespace: `kind` is POD, NODE or OUTSIDE; `netns` is None for the node. A context manager.

    What it reads of the kernel it reads once; `forget` discards that.
    """

    def __init__(self, kind: str, name: str, netns: Netns | None = None) -> None:
        self.kind = kind
        self.name = name
        self.netns = netns
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def __str__(self) -> str:
        return self.name

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
    def links(self) -> dict[int, Link]:
        """The interfaces by index."""
        return {each.index: each for each in link.list_all(self.socket)}

    @cached_property
    def names(self) -> dict[int, str]:
        """The names of the interfaces by index."""
        return {index: each.name for index, each in self.links.items()}

    @cached_property
    def addresses(self) -> dict[Address, Link]:
        """The interface of each address."""
        assigned = address.list_by_link(self.socket)
        return {
            item.address.ip: self.links[index]
            for index, items in assigned.items()
            if index in self.links
            for item in items
        }

    def links_with(self, item: Address) -> list[Link]:
        """Returns the interfaces that have an address: with ptp, each host veth has the gateway's."""
        assigned = address.list_by_link(self.socket)
        indexes = [index for index, items in assigned.items() if any(each.packed == item.packed for each in items)]
        return [self.links[index] for index in indexes if index in self.links]

    @cached_property
    def fib(self) -> Fib:
        """The policy rules and the routes."""
        return routing.read_fib(self.socket)

    def route(self, packet: Packet) -> Choice:
        """Returns the kernel's choice for a packet; raises KernelError."""
        arriving = self.link(packet.iif) if packet.iif else None
        return routing.ask_kernel(self.socket, self.fib.look_up(packet), packet, arriving.index if arriving else 0)

    @cached_property
    def link_settings(self) -> LinkSettings:
        """The settings of bridges and their ports."""
        return read_link_settings(self.socket)

    def neighbour(self, index: int, of: Address) -> neighbour.Entry | None:
        """Returns the present neighbour entry of an address on an interface, None without one."""
        entries = neighbour.list_entries(self.socket)
        return next((one for one in entries if (one.ifindex, one.address) == (index, of) and not one.is_proxy), None)

    def link(self, name: str) -> Link | None:
        """Returns an interface by its name, None without one."""
        return next((each for each in self.links.values() if each.name == name), None)

    def has(self, item: Address) -> bool:
        """Returns whether an interface has an address; all of 127.0.0.0/8 are those of lo."""
        return item in self.addresses or item.is_loopback

    def address_on_network(self, version: int) -> Address | None:
        """Returns an address of the namespace that others can use, None without one."""
        usable = (
            item
            for item, each in self.addresses.items()
            if item.version == version and not (item.is_link_local or each.flags & IFF_LOOPBACK)
        )
        return next(usable, None)

    def forget(self) -> None:
        """Discards what was read, since it may have changed."""
        for name in ("links", "names", "addresses", "fib", "link_settings"):
            self.__dict__.pop(name, None)
