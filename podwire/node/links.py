"""What the kernel has of this node's pods: interfaces here and in every network namespace that can be found, limits.

One rule: it is looked at through descriptors of the namespaces themselves: an index or a name alone proves nothing.
Without root other namespaces cannot be entered; which of the host's interfaces lead into them is told all the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property

from attachment.sandbox import Sandbox
from cni.address import Address, Interface
from cni.errors import CniError
from kernel import address, htb, link
from kernel.link import Link
from kernel.netns import NAMED, Netns
from kernel.rtnl import Socket

_AT_ONCE = 64  # descriptors, of which a process may have 1024


@dataclass(frozen=True)
class NetworkNamespace:
    """One network namespace: its path, the host's number for it (None: nothing of the host leads there).

    `links` by name, None where it could not be entered; `addresses` by the index of their interface.
    """

    path: str
    nsid: int | None
    links: Mapping[str, Link] | None = None
    addresses: Mapping[int, tuple[Interface, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Kernel:
    """The host's links and addresses, the namespaces by path, limits in bytes/s by the interface that has them.

    `unseen` says in words what could not be looked at.
    """

    links: tuple[Link, ...] = ()
    addresses: Mapping[int, tuple[Interface, ...]] = field(default_factory=dict)
    namespaces: Mapping[str, NetworkNamespace] = field(default_factory=dict)
    limits: Mapping[int, int] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, Link]:
        """The host's links by name."""
        return {own.name: own for own in self.links}

    @cached_property
    def by_index(self) -> Mapping[int, Link]:
        """The host's links by index."""
        return {own.index: own for own in self.links}

    @cached_property
    def interfaces_by_address(self) -> Mapping[Address, list[tuple[NetworkNamespace, str]]]:
        """Where each address is configured in other namespaces than the host's: namespace and interface."""
        found: dict[Address, list[tuple[NetworkNamespace, str]]] = {}
        for inside in {inside.path: inside for inside in self.namespaces.values()}.values():
            names = {own.index: own.name for own in (inside.links or {}).values()}
            for index, addresses in inside.addresses.items():
                for item in addresses:
                    found.setdefault(item.ip, []).append((inside, names.get(index, "")))
        return found

    def host_veth(self, inside: NetworkNamespace, ifname: str, told: Iterable[str] = ()) -> Link | None:
        """Returns the host's end of a veth in a namespace; one that cannot be entered is asked for by the host's ends.

        Of several that lead there it is the one of those that are `told` then.
        """
        if inside.links is None:
            ends = [own for own in self.host_veths_of(inside) if own.name in told or not told]
            return ends[0] if len(ends) == 1 else None
        own = inside.links.get(ifname)
        found = self.by_index.get(own.lower) if own and own.kind == "veth" and own.lower else None
        leads = own and found and found.kind == "veth" and found.lower == own.index
        return found if leads and found and found.lower_nsid == inside.nsid else None

    def host_veths_of(self, inside: NetworkNamespace) -> list[Link]:
        """Returns the host's ends of veths into a namespace."""
        if inside.nsid is None:
            return []
        return [own for own in self.links if own.kind == "veth" and own.lower_nsid == inside.nsid]

    def namespace_behind(self, own: Link) -> NetworkNamespace | None:
        """Returns the namespace in which a veth's other end is, None where that was not found."""
        if own.lower_nsid is None:
            return None
        return next((inside for inside in self.namespaces.values() if inside.nsid == own.lower_nsid), None)

    @property
    def has_hidden_namespaces(self) -> bool:
        """Tells whether there may be pods' namespaces into which we did not look.

        Where no veth leads anywhere this may not be the pods' host at all, but some other namespace.
        """
        unentered = any(inside.links is None for inside in self.namespaces.values())
        leading = any(own.kind == "veth" and own.lower_nsid is not None for own in self.links)
        return unentered or not leading or _leads_elsewhere(self.links, self.addresses, self.namespaces.values())


def read_kernel(paths: Iterable[str]) -> Kernel:
    """Looks at the host, at the namespaces at `paths` and at all that have a name or a process."""
    unseen: list[str] = []
    try:
        with Socket() as host:
            links, addresses = tuple(link.list_all(host)), _addresses(host)
            try:
                limits = htb.list_limits(host)
            except CniError as error:
                limits = {}
                unseen.append(f"limits: {error.msg}")
            by_inode, aliases, hidden = _namespaces(paths)
            found = list(_insides(host, list(by_inode.values())))
    except CniError as error:
        return Kernel(unseen=(f"the kernel's interfaces: {error.msg}", *unseen))
    if unentered := sum(inside.links is None for inside in found):
        unseen.append(f"the inside of {unentered} network namespaces: that needs root")
    if _leads_elsewhere(links, addresses, found):
        reason = f": we have no rights to trace {hidden} process(es)" if hidden else " from here"
        unseen.append(f"network namespaces that interfaces of this host lead to cannot be seen{reason}")
    own = {inside.path: inside for inside in found}
    namespaces = own | {path: own[first] for path, first in aliases.items() if first in own}
    return Kernel(links, addresses, namespaces, limits, tuple(unseen))


def _addresses(socket: Socket) -> dict[int, tuple[Interface, ...]]:
    return {index: tuple(item.address for item in found) for index, found in address.list_by_link(socket).items()}


def _leads_elsewhere(
    links: Iterable[Link], addresses: Mapping[int, tuple[Interface, ...]], found: Iterable[NetworkNamespace]
) -> bool:
    """Returns whether a veth that may be a pod's leads into a namespace that is none of those `found`."""
    numbers = {inside.nsid for inside in found}
    hidden = (own for own in links if own.kind == "veth" and own.lower_nsid not in (None, *numbers))
    return any(not _is_uplink(own, addresses.get(own.index, ())) for own in hidden)


def _is_uplink(own: Link, addresses: Iterable[Interface]) -> bool:
    """Returns whether a veth is the uplink of a host that is a container itself (kind, LXC): it has a subnet.

    A pod's veth is a port of a bridge, or (ptp) has gateway addresses without a subnet.
    """
    routable = (item for item in addresses if not item.ip.is_link_local)
    return not own.master and any(item.network.prefixlen < item.ip.max_prefixlen for item in routable)


def _namespaces(paths: Iterable[str]) -> tuple[dict[int, str], dict[str, str], int]:
    """Returns a path for each namespace but our own, by inode, and for each of `paths` the one that stands for it.

    The last is the number of processes that we have no rights to trace, so that their namespaces are not known.
    """
    own = os.stat("/proc/self/ns/net").st_ino
    found: dict[int, str] = {}
    aliases = {}
    for path in paths:
        if (inode := _inode(path)) and inode != own:
            aliases[path] = found.setdefault(inode, path)
    try:
        named = sorted(os.listdir(NAMED))
    except OSError:
        named = []
    hidden = 0
    for path in (f"{NAMED}/{name}" for name in named):
        if (inode := _inode(path)) and inode != own:
            found.setdefault(inode, path)
    for pid in (name for name in os.listdir("/proc") if name.isdecimal()):
        path = f"/proc/{pid}/ns/net"
        inode = _inode(path)
        hidden += inode < 0
        if inode > 0 and inode != own:
            found.setdefault(inode, path)
    return found, aliases, hidden


def _inode(path: str) -> int:
    """Returns the number of the namespace at a path, 0 where there is none, -1 where we may not know."""
    try:
        status = os.stat(path)
        return status.st_ino if status.st_dev == os.stat("/proc/self/ns/net").st_dev else 0
    except PermissionError:
        return -1
    except (OSError, ValueError):
        return 0


def _insides(host: Socket, paths: list[str]) -> Iterator[NetworkNamespace]:
    for start in range(0, len(paths), _AT_ONCE):
        with ExitStack() as stack:
            opened = []
            for path in paths[start : start + _AT_ONCE]:
                try:
                    opened.append(stack.enter_context(Netns(path)))
                except CniError:  # gone since, or not for us
                    continue
            numbers = link.get_namespace_ids(host, opened)
            for namespace, number in zip(opened, numbers, strict=True):
                yield _inside(namespace, number)


def _inside(namespace: Netns, number: int | None) -> NetworkNamespace:
    try:
        with Sandbox(namespace, "") as sandbox:
            links = {own.name: own for own in link.list_all(sandbox.socket)}
            return NetworkNamespace(namespace.path, number, links, _addresses(sandbox.socket))
    except CniError:
        return NetworkNamespace(namespace.path, number)
