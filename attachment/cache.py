"""Reads libcni's result cache: the attachments that a runtime knows, and whether their containers may be running.

podwire never writes to the cache. A container counts as no longer running only with proof (presence.py). libcni before
1.2 (containerd 1.6, podman 4) does not store "netns": there the namespace is read from the result.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from attachment.host_veth import host_veth
from attachment.presence import HostInterfaces, Presence, get_presence
from cni import gojson
from cni.address import Address
from cni.conf import Attachment
from cni.errors import CniError
from cni.result import Interface, from_json
from process import files
from process.values import dataclass, field

RESULTS_DIR = "/var/lib/cni/results"


@dataclass(frozen=True)
class CacheEntry:
    """A cached attachment: its network, its namespace path ("" if unknown), and the content of its file."""

    path: str
    network: str
    attachment: Attachment
    netns: str
    content: Mapping[str, object] = field(repr=False)

    @property
    def result(self) -> object:
        """The cached result of ADD, None without one."""
        return self.content.get("result")

    @property
    def presence(self) -> Presence:
        """Whether the container's network namespace exists; each access looks it up."""
        on_host = _host_interfaces(self.result, self.attachment.ifname)
        return get_presence(self.netns, on_host, lambda: _namespaces(os.path.dirname(self.path)))

    @property
    def may_be_running(self) -> bool:
        """Whether the container may be running: nothing proves that its namespace was deleted."""
        return self.presence is not Presence.GONE


def read_entries(directory: str = RESULTS_DIR, network: str = "") -> Iterator[CacheEntry]:
    """Yields the cached attachments of `network`, or ("") of all networks, ordered by file name.

    Skips unreadable files and files of an old format (the bare result); without a directory there are none.
    """
    for name in _names(directory, network):
        entry = read_entry(f"{directory}/{name}")
        if entry and network in ("", entry.network):
            yield entry


def read_entry(path: str) -> CacheEntry | None:
    """Reads one file of the cache; None if it is missing, unreadable or of an old format."""
    try:
        value = gojson.loads(files.read(path, gojson.MAX_BYTES))
    except (OSError, ValueError):
        return None
    if not isinstance(value, dict) or not value.get("networkName"):
        return None
    attachment = Attachment(str(value.get("containerId")), str(value.get("ifName")))
    netns = str(value.get("netns") or "") or _netns_in_result(value.get("result"), attachment.ifname)
    return CacheEntry(path, str(value.get("networkName")), attachment, netns, value)


@dataclass(frozen=True)
class ResultCache:
    """The cached attachments of `network`, with the paths of their namespaces ("" if unknown).

    A `network` of "" means all networks; an attachment with an `ifname` of "", in the methods, any interface of the
    container.
    """

    network: str
    netns_paths: Mapping[Attachment, str]
    _files: frozenset[str]
    _results: Mapping[Attachment, object] = field(default_factory=dict)
    _directories: tuple[str, ...] = (RESULTS_DIR,)

    @classmethod
    def read(cls, network: str, directory: str = RESULTS_DIR, *others: str) -> ResultCache:
        """Reads `<directory>/<network>-<container id>-<ifname>` of every attachment; without a directory it is empty.

        Files are matched by their content, since names may contain "-"; attachments of unreadable and old files count
        as running.
        """
        directories = (directory, *others)
        names = frozenset(name for one in directories for name in _names(one, network))
        netns_paths = {}
        results = {}
        for entry in (entry for one in directories for entry in read_entries(one, network)):
            # Of attachments with the same name in several networks (`network` ""), one that may be running wins.
            if entry.attachment not in netns_paths or entry.may_be_running:
                netns_paths[entry.attachment] = entry.netns
                results[entry.attachment] = entry.result
        return cls(network, netns_paths, names, results, directories)

    def list_other_addresses(self, attachment: Attachment) -> frozenset[Address]:
        """Returns the known addresses of the container's other interfaces that may be running."""
        addresses: set[Address] = set()
        for other in self.netns_paths:
            is_other_interface = other.container_id == attachment.container_id and other.ifname != attachment.ifname
            if is_other_interface and self._may_be_running(other):
                addresses.update(_addresses(self._results.get(other)))
        return frozenset(addresses)

    def is_gone(self, attachment: Attachment) -> bool:
        """Returns whether the container is proven to be no longer running.

        Proof: the cache has this network but not this attachment, or the attachment's namespace was deleted.
        """
        cached = self._cached(attachment)
        if cached:
            return not any(map(self._may_be_running, cached))
        return bool(self.netns_paths) and not self.has_file(attachment)

    def has_file(self, attachment: Attachment) -> bool:
        """Returns whether a file name matches the attachment; the file may be unreadable."""
        if self.network and attachment.ifname:
            return f"{self.network}-{attachment.container_id}-{attachment.ifname}" in self._files
        return any(self._is_of(attachment, name) for name in self._files)

    def namespace_is_gone(self, attachment: Attachment) -> bool:
        """Returns whether the attachment is cached and its namespace proven to be deleted."""
        cached = self._cached(attachment)
        return bool(cached) and not any(map(self._may_be_running, cached))

    def is_running(self, attachment: Attachment) -> bool:
        """Returns whether the attachment is cached and its namespace exists."""
        return any(self._presence(known) in (Presence.HERE, Presence.ELSEWHERE) for known in self._cached(attachment))

    def _cached(self, attachment: Attachment) -> list[Attachment]:
        if attachment.ifname:
            return [attachment] if attachment in self.netns_paths else []
        return [known for known in self.netns_paths if known.container_id == attachment.container_id]

    def _may_be_running(self, known: Attachment) -> bool:
        return self._presence(known) is not Presence.GONE

    def _presence(self, known: Attachment) -> Presence:
        on_host = _host_interfaces(self._results.get(known), known.ifname)
        return get_presence(self.netns_paths[known], on_host, lambda: _namespaces(*self._directories))

    def _is_of(self, attachment: Attachment, name: str) -> bool:
        """Returns whether a file name may be the attachment's."""
        suffix = f"-{attachment.container_id}-{attachment.ifname}"
        return name.startswith(self.network + suffix) if self.network else suffix in name


def read_addresses(network: str, attachment: Attachment, directory: str = RESULTS_DIR) -> tuple[Address, ...]:
    """Returns the cached addresses of one attachment, () if it is not cached; reads one file."""
    entry = read_entry(f"{directory}/{network}-{attachment.container_id}-{attachment.ifname}")
    if entry is None or (entry.network, entry.attachment) != (network, attachment):
        return ()
    return tuple(_addresses(entry.result))


def _names(directory: str, network: str) -> list[str]:
    prefix = network and f"{network}-"
    try:
        return sorted(name for name in os.listdir(directory) if name.startswith(prefix))
    except OSError:
        return []


def _addresses(result: object) -> list[Address]:
    """Returns the addresses of a cached result, parsed by its cniVersion; [] if it cannot be parsed."""
    version = result.get("cniVersion") if isinstance(result, dict) else None
    try:
        return [ip.address.ip for ip in from_json(result, version if isinstance(version, str) else "").ips]
    except CniError:
        return []


def _netns_in_result(result: object, ifname: str) -> str:
    """Returns the interface's namespace path in a cached result, "" without one.

    Plugins for virtual machines store other values than paths there.
    """
    interfaces = result.get("interfaces") if isinstance(result, dict) else None
    for item in interfaces if isinstance(interfaces, list) else []:
        sandbox = item.get("sandbox") if isinstance(item, dict) and item.get("name") == ifname else None
        if isinstance(sandbox, str) and sandbox.startswith("/"):
            return sandbox
    return ""


def _namespaces(*directories: str) -> Iterator[str]:
    """Yields the namespace path of each cached attachment of all networks."""
    return (entry.netns for directory in directories for entry in read_entries(directory))


def _host_interfaces(result: object, ifname: str) -> HostInterfaces:
    """Returns the host veth of the container's interface, and its bridge, as a cached result lists them."""
    return HostInterfaces(*host_veth(_interfaces(result), ifname))


def _interfaces(result: object) -> Iterator[Interface]:
    """Yields the named interfaces of a cached result of any version, even of one that `from_json` would refuse."""
    interfaces = result.get("interfaces") if isinstance(result, dict) else None
    for item in interfaces if isinstance(interfaces, list) else []:
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            yield Interface(item["name"], str(item.get("mac")), sandbox=str(item.get("sandbox") or ""))
