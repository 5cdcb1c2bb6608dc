"""The kernel's objects of this node's pods: interfaces of the host and of every network namespace, and rate limits.

Namespaces are identified by descriptors of their own, because an interface index or a name alone proves
nothing. Without root podwire cannot enter other namespaces, but still knows which host veths have their peer there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property

from attachment import host_access, host_routes
from attachment.host_routes import RouteOwner
from attachment.sandbox import Sandbox
from cni.address import Address, Cidr
from cni.errors import CniError
from kernel import address, device, htb, link
from kernel.link import Link
from kernel.netns import NAMED, Netns, list_named
from kernel.rtnl import Socket
from podwire.output import plural

_BATCH = 64  # namespaces opened in parallel: a process may have 1024 descriptors


@dataclass(frozen=True)
class NetworkNamespace:
    """A network namespace: its path, and its nsid in the host's namespace (None: the host has no peer in it).

    `links` are by name, None if the namespace could not be entered; `addresses` are by interface index.
    """

    path: str
    nsid: int | None
    links: Mapping[str, Link] | None = None
    addresses: Mapping[int, tuple[Cidr, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Kernel:
    """The host's links, its addresses by interface index, the namespaces by path, and rate limits.

    `limits` are in bytes/s, by interface index. `host_links` are those of `hostAccess`, with the owners of the routes
    through each (attachment/host_routes.py). `unseen` describes what could not be read. `altnames` are those of the
    host's links, with the link's name.
    """

    links: tuple[Link, ...] = ()
    addresses: Mapping[int, tuple[Cidr, ...]] = field(default_factory=dict)
    namespaces: Mapping[str, NetworkNamespace] = field(default_factory=dict)
    limits: Mapping[int, int] = field(default_factory=dict)
    host_links: Mapping[Link, frozenset[RouteOwner]] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()
    altnames: Mapping[str, str] = field(default_factory=dict)

    def real_name(self, name: str) -> str:
        """Returns the name of the host's link that a configuration refers to by its name or an altname."""
        return self.altnames.get(name, name)

    @cached_property
    def by_name(self) -> Mapping[str, Link]:
        """The host's links by name."""
        return {link.name: link for link in self.links}

    @cached_property
    def by_index(self) -> Mapping[int, Link]:
        """The host's links by index."""
        return {link.index: link for link in self.links}

    @cached_property
    def interfaces_by_address(self) -> Mapping[Address, list[tuple[NetworkNamespace, str]]]:
        """The interfaces that have each address, as (namespace, ifname), without those of the host."""
        users: dict[Address, list[tuple[NetworkNamespace, str]]] = {}
        for namespace in {namespace.path: namespace for namespace in self.namespaces.values()}.values():
            names = {link.index: link.name for link in (namespace.links or {}).values()}
            for index, addresses in namespace.addresses.items():
                for item in addresses:
                    users.setdefault(item.ip, []).append((namespace, names.get(index, "")))
        return users

    def host_veth(self, namespace: NetworkNamespace, ifname: str, names: Iterable[str] = ()) -> Link | None:
        """Returns the host's end of the veth pair that ends at `ifname` in a namespace, None if there is none.

        For a namespace that could not be entered: the only host veth with its peer there, among `names` if any.
        """
        if namespace.links is None:
            candidates = [veth for veth in self.host_veths_of(namespace) if veth.name in names or not names]
            return candidates[0] if len(candidates) == 1 else None
        container_veth = namespace.links.get(ifname)
        if container_veth is None or container_veth.kind != "veth" or not container_veth.iflink:
            return None
        peer = self.by_index.get(container_veth.iflink)
        is_pair = peer is not None and peer.kind == "veth" and peer.iflink == container_veth.index
        return peer if peer and is_pair and peer.iflink_nsid == namespace.nsid else None

    def host_veths_of(self, namespace: NetworkNamespace) -> list[Link]:
        """Returns the host veths whose peer is in a namespace."""
        if namespace.nsid is None:
            return []
        return [link for link in self.links if link.kind == "veth" and link.iflink_nsid == namespace.nsid]

    def namespace_behind(self, host_veth: Link) -> NetworkNamespace | None:
        """Returns the namespace of a veth's peer, None if it is unknown."""
        if host_veth.iflink_nsid is None:
            return None
        return next(
            (namespace for namespace in self.namespaces.values() if namespace.nsid == host_veth.iflink_nsid), None
        )

    @property
    def has_hidden_namespaces(self) -> bool:
        """Whether there may be pods in namespaces that were not read.

        Without a veth into another namespace, podwire itself may be running in a namespace other than the host's.
        """
        unentered = any(namespace.links is None for namespace in self.namespaces.values())
        has_peers = any(link.kind == "veth" and link.iflink_nsid is not None for link in self.links)
        return unentered or not has_peers or _has_hidden_peers(self.links, self.addresses, self.namespaces.values())


def read_kernel(paths: Iterable[str]) -> Kernel:
    """Reads the host's interfaces, and those of the namespaces at `paths` and of all that have a name or a process."""
    unseen: list[str] = []
    try:
        with Socket() as host:
            devices, addresses = device.list_all(host), _addresses(host)
            links = tuple(item.link for item in devices)
            try:
                limits = htb.list_limits(host)
            except CniError as error:
                limits = {}
                unseen.append(f"limits: {error.msg}")
            host_links = _host_links(host, links)
            by_inode, aliases, hidden = _list_paths(paths)
            read = list(_read_namespaces(host, list(by_inode.values())))
    except CniError as error:
        return Kernel(unseen=(f"the kernel's interfaces: {error.msg}", *unseen))
    if unentered := sum(namespace.links is None for namespace in read):
        unseen.append(f"the interfaces in {unentered} network namespaces: root is needed")
    if _has_hidden_peers(links, addresses, read):
        reason = f": no permission to inspect {plural(hidden, 'process')}" if hidden else " from here"
        unseen.append(f"network namespaces of veth peers of this host cannot be seen{reason}")
    by_path = {namespace.path: namespace for namespace in read}
    namespaces = by_path | {path: by_path[first] for path, first in aliases.items() if first in by_path}
    altnames = {name: item.link.name for item in devices for name in item.altnames}
    return Kernel(links, addresses, namespaces, limits, host_links, tuple(unseen), altnames)


def _host_links(host: Socket, links: Iterable[Link]) -> dict[Link, frozenset[RouteOwner]]:
    host_links = [item for item in links if host_access.is_host_link(item)]
    owners = host_routes.list_owners(host) if host_links else {}
    return {item: frozenset(owners.get(item.index, ())) for item in host_links}


def _addresses(socket: Socket) -> dict[int, tuple[Cidr, ...]]:
    return {index: tuple(item.address for item in assigned) for index, assigned in address.list_by_link(socket).items()}


def _has_hidden_peers(
    links: Iterable[Link], addresses: Mapping[int, tuple[Cidr, ...]], namespaces: Iterable[NetworkNamespace]
) -> bool:
    """Returns whether the peer of a veth that may be a pod's is in none of `namespaces`."""
    nsids = {namespace.nsid for namespace in namespaces}
    hidden = (link for link in links if link.kind == "veth" and link.iflink_nsid not in (None, *nsids))
    return any(not _is_uplink(link, addresses.get(link.index, ())) for link in hidden)


def _is_uplink(veth: Link, addresses: Iterable[Cidr]) -> bool:
    """Returns whether a veth is the uplink of a host that is itself a container (kind, LXC): it has a subnet.

    A pod's host veth is the port of a bridge, or (ptp) has gateway addresses without a subnet.
    """
    routable = (item for item in addresses if not item.ip.is_link_local)
    return not veth.master and any(item.network.prefixlen < item.ip.max_prefixlen for item in routable)


def _list_paths(paths: Iterable[str]) -> tuple[dict[int, str], dict[str, str], int]:
    """Returns one path for each other namespace, by inode; aliases; the number of processes that may not be traced.

    The aliases map each of `paths` to the path that is used for the same namespace.
    """
    this_inode = os.stat("/proc/self/ns/net").st_ino
    by_inode: dict[int, str] = {}
    aliases = {}
    for path in paths:
        if (inode := _inode(path)) and inode != this_inode:
            aliases[path] = by_inode.setdefault(inode, path)
    hidden = 0
    for path in (f"{NAMED}/{name}" for name in list_named()):
        if (inode := _inode(path)) and inode != this_inode:
            by_inode.setdefault(inode, path)
    for pid in (name for name in os.listdir("/proc") if name.isdecimal()):
        path = f"/proc/{pid}/ns/net"
        inode = _inode(path)
        hidden += inode < 0
        if inode > 0 and inode != this_inode:
            by_inode.setdefault(inode, path)
    return by_inode, aliases, hidden


def _inode(path: str) -> int:
    """Returns the inode of the namespace at a path, 0 if there is none, -1 without the rights to read it."""
    try:
        status = os.stat(path)
        return status.st_ino if status.st_dev == os.stat("/proc/self/ns/net").st_dev else 0
    except PermissionError:
        return -1
    except (OSError, ValueError):
        return 0


def _read_namespaces(host: Socket, paths: list[str]) -> Iterator[NetworkNamespace]:
    for start in range(0, len(paths), _BATCH):
        with ExitStack() as stack:
            opened = []
            for path in paths[start : start + _BATCH]:
                try:
                    opened.append(stack.enter_context(Netns(path)))
                except CniError:  # deleted meanwhile, or no rights
                    continue
            nsids = link.get_namespace_ids(host, opened)
            for netns, nsid in zip(opened, nsids, strict=True):
                yield _read_namespace(netns, nsid)


def _read_namespace(netns: Netns, nsid: int | None) -> NetworkNamespace:
    try:
        with Sandbox(netns, "") as sandbox:
            links = {each.name: each for each in link.list_all(sandbox.socket)}
            return NetworkNamespace(netns.path, nsid, links, _addresses(sandbox.socket))
    except CniError:
        return NetworkNamespace(netns.path, nsid)
