"""libcni's result cache: which attachments of a network a runtime knows, and whether their containers may be running.

One rule: it is read only, and a container counts as gone only with proof (presence.py).

The libcni of containerd 1.6 and podman 4 (before 1.2) keeps no "netns": there the result tells the namespace.
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
class Entry:
    """One cached attachment: its network and namespace path ("" where unknown), and all that the file holds."""

    path: str
    network: str
    attachment: Attachment
    netns: str
    content: Mapping[str, object] = field(repr=False)

    @property
    def result(self) -> object:
        """The result of ADD as it is cached, None when there is none."""
        return self.content.get("result")

    @property
    def presence(self) -> Presence:
        """Whether the container's network namespace exists; looked up anew each time."""
        end = _host_end(self.result, self.attachment.ifname)
        return get_presence(self.netns, end, lambda: _namespaces(os.path.dirname(self.path)))

    @property
    def may_be_running(self) -> bool:
        """Tells whether the container may be running: nothing proves that its namespace is gone."""
        return self.presence is not Presence.GONE


def read_entries(directory: str = RESULTS_DIR, network: str = "") -> Iterator[Entry]:
    """Yields what the cache holds, of `network` or ("") of all, in the order of the files' names.

    A file of an old format (the bare result), or one that cannot be read, is left out; no directory has none.
    """
    for name in _names(directory, network):
        found = read_entry(f"{directory}/{name}")
        if found and network in ("", found.network):
            yield found


def read_entry(path: str) -> Entry | None:
    """Reads one file of the cache; None when it is not there, cannot be read, or is of an old format."""
    try:
        value = gojson.loads(files.read(path, gojson.MAX_BYTES))
    except (OSError, ValueError):
        return None
    if not isinstance(value, dict) or not value.get("networkName"):
        return None
    attachment = Attachment(str(value.get("containerId")), str(value.get("ifName")))
    netns = str(value.get("netns") or "") or _sandbox(value.get("result"), attachment.ifname)
    return Entry(path, str(value.get("networkName")), attachment, netns, value)


@dataclass(frozen=True)
class ResultCache:
    """The cached attachments of `network`, with the paths of their namespaces ("" where the cache has none).

    A `network` of "" stands for all of them.
    """

    network: str
    sandboxes: Mapping[Attachment, str]
    _files: frozenset[str]
    _results: Mapping[Attachment, object] = field(default_factory=dict)
    _directory: str = RESULTS_DIR

    @classmethod
    def read(cls, network: str, directory: str = RESULTS_DIR) -> ResultCache:
        """Reads `<directory>/<network>-<container id>-<ifname>` of every attachment; no directory is an empty cache.

        Files are matched by what they contain, since names may contain "-"; unreadable and old ones count as alive.
        """
        names = frozenset(_names(directory, network))
        sandboxes = {}
        results = {}
        for found in read_entries(directory, network):
            # On several networks (of all that were asked for) it lives if it lives on one, whichever is read first.
            if found.attachment not in sandboxes or found.may_be_running:
                sandboxes[found.attachment] = found.netns
                results[found.attachment] = found.result
        return cls(network, sandboxes, names, results, directory)

    def list_other_addresses(self, attachment: Attachment) -> frozenset[Address]:
        """Returns the addresses of the container's other interfaces that may live, as far as they are known."""
        found: set[Address] = set()
        for other in self.sandboxes:
            same = other.container_id == attachment.container_id and other.ifname != attachment.ifname
            if same and self._lives(other):
                found.update(_addresses(self._results.get(other)))
        return frozenset(found)

    def is_gone(self, attachment: Attachment) -> bool:
        """Tells whether the container surely does not live any more; an `ifname` of "" stands for any.

        It is gone when the cache knows this network but not this attachment, or when its namespace is proven gone.
        """
        cached = self._cached(attachment)
        if cached:
            return not any(map(self._lives, cached))
        return bool(self.sandboxes) and not self.has_file(attachment)

    def has_file(self, attachment: Attachment) -> bool:
        """Tells whether there is a file of the attachment's by its name, although it may not be readable."""
        if self.network and attachment.ifname:
            return f"{self.network}-{attachment.container_id}-{attachment.ifname}" in self._files
        return any(self._is_of(attachment, name) for name in self._files)

    def namespace_is_gone(self, attachment: Attachment) -> bool:
        """Tells whether the cache knows the attachment, and its namespace is proven gone; "" as above."""
        cached = self._cached(attachment)
        return bool(cached) and not any(map(self._lives, cached))

    def is_running(self, attachment: Attachment) -> bool:
        """Tells whether the cache names a namespace of the attachment that surely exists; "" as above."""
        return any(self._presence(known) in (Presence.HERE, Presence.ELSEWHERE) for known in self._cached(attachment))

    def _cached(self, attachment: Attachment) -> list[Attachment]:
        if attachment.ifname:
            return [attachment] if attachment in self.sandboxes else []
        return [known for known in self.sandboxes if known.container_id == attachment.container_id]

    def _lives(self, known: Attachment) -> bool:
        return self._presence(known) is not Presence.GONE

    def _presence(self, known: Attachment) -> Presence:
        end = _host_end(self._results.get(known), known.ifname)
        return get_presence(self.sandboxes[known], end, lambda: _namespaces(self._directory))

    def _is_of(self, attachment: Attachment, name: str) -> bool:
        """Tells whether a file may be the attachment's, by its name alone."""
        own = f"-{attachment.container_id}-{attachment.ifname}"
        return name.startswith(self.network + own) if self.network else own in name


def read_addresses(network: str, attachment: Attachment, directory: str = RESULTS_DIR) -> tuple[Address, ...]:
    """Returns the addresses of one attachment, none when it is not known; costs one file."""
    found = read_entry(f"{directory}/{network}-{attachment.container_id}-{attachment.ifname}")
    if found is None or (found.network, found.attachment) != (network, attachment):
        return ()
    return tuple(_addresses(found.result))


def _names(directory: str, network: str) -> list[str]:
    prefix = network and f"{network}-"
    try:
        return sorted(name for name in os.listdir(directory) if name.startswith(prefix))
    except OSError:
        return []


def _addresses(result: object) -> list[Address]:
    """Returns the addresses of a cached result, which is of the version it names; none of one that cannot be read."""
    version = result.get("cniVersion") if isinstance(result, dict) else None
    try:
        return [ip.address.ip for ip in from_json(result, version if isinstance(version, str) else "").ips]
    except CniError:
        return []


def _sandbox(result: object, ifname: str) -> str:
    """Returns the path of the namespace that a cached result tells of the interface, "" if it tells none.

    Plugins for virtual machines have other things there than paths.
    """
    interfaces = result.get("interfaces") if isinstance(result, dict) else None
    for item in interfaces if isinstance(interfaces, list) else []:
        found = item.get("sandbox") if isinstance(item, dict) and item.get("name") == ifname else None
        if isinstance(found, str) and found.startswith("/"):
            return found
    return ""


def _namespaces(directory: str) -> Iterator[str]:
    """Yields the path of the namespace of each attachment in the cache, of all networks."""
    return (attached.netns for attached in read_entries(directory))


def _host_end(result: object, ifname: str) -> HostInterfaces:
    """Returns the host veth of the container's interface, and its bridge, as a cached result lists them."""
    return HostInterfaces(*host_veth(_interfaces(result), ifname))


def _interfaces(result: object) -> Iterator[Interface]:
    """Yields the named interfaces of a cached result of any version, even of one that `from_json` would refuse."""
    interfaces = result.get("interfaces") if isinstance(result, dict) else None
    for item in interfaces if isinstance(interfaces, list) else []:
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            yield Interface(item["name"], str(item.get("mac")), sandbox=str(item.get("sandbox") or ""))
