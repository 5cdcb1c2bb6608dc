"""Reads libcni's result cache: every attachment of this node's runtimes, with what is needed to repeat a verb.

Verbs use the configuration that ADD had, which the cache keeps; the file in net.d may have changed since.
"""

from __future__ import annotations

import binascii
import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from attachment import cache
from attachment.cache import CacheEntry
from attachment.presence import Presence
from cni.conf import Attachment
from cni.errors import CniError, Code
from cni.result import Result, from_json
from podwire import multus, networks
from podwire.layers import RUNTIME, Layer, describe_caches
from podwire.lint.known import CONFINED
from podwire.networks import Network

UNREAD_FIX = (
    "if the container is running, do not delete the file: create its pod again, or run `podwire del NETWORK NETNS "
    "--container-id ID` and `podwire add` with the same arguments, which writes the entry again; delete the file only "
    "if the container is no longer running"
)
MISSING_DELEGATES_FIX = "set Multus' cache with --cache-dir, or delete and create the pod again"
_KERNEL_METRICS = {4: 0, 6: 1024}  # of a route without "priority"
_CACHE_HINT = "set the runtime's cache with --cache-dir"


@dataclass(frozen=True)
class CachedAttachment:
    """An attachment of the cache: its file, namespace, configuration, arguments and result.

    `network` is None if the cache has no readable configuration; `result` is the JSON of ADD's result. `presence` is
    what the paths of namespaces prove; node/presences.py also reads the kernel's interfaces. `layer` recorded it.
    """

    path: str
    network_name: str
    attachment: Attachment
    netns: str
    presence: Presence
    network: Network | None = None
    cni_args: str = ""
    capability_args: Mapping[str, object] = field(default_factory=dict)
    result: object = None
    layer: Layer = RUNTIME

    @property
    def may_be_running(self) -> bool:
        """Whether the container may be running: nothing proves that its namespace no longer exists."""
        return self.presence is not Presence.GONE

    @cached_property
    def typed_result(self) -> Result:
        """The result as a value; an empty one if it cannot be read."""
        version = self.result.get("cniVersion") if isinstance(self.result, dict) else None
        try:
            return from_json(self.result, version if isinstance(version, str) else "")
        except CniError:
            return Result()

    @property
    def host_interfaces(self) -> list[str]:
        """The names of the host's interfaces in its result: bridges and host veths."""
        return [interface.name for interface in self.typed_result.interfaces if not interface.sandbox]

    @property
    def is_loopback(self) -> bool:
        """Whether its network only sets up lo: containerd and CRI-O attach each pod to such a network."""
        return self.network is not None and self.network.is_loopback

    @property
    def is_of_multus(self) -> bool:
        """Whether its network is Multus itself; the attachment of a delegate then describes the same interface."""
        return self.network is not None and multus.find_multus(self.network.plugins) is not None

    @property
    def needs_file(self) -> bool:
        """Whether a file of net.d should define its network: it is neither lo's, nor one that Multus runs."""
        return not (self.is_loopback or self.layer.source)

    @property
    def is_confined(self) -> bool:
        """Whether no packet leaves the pod by its interface, lo or a dummy: other pods may have the same addresses."""
        return self.network is not None and self.network.plugins[0]["type"] in CONFINED

    def default_metric(self, version: int) -> int | None:
        """Returns the lowest metric of its result's default routes of an IP version, None without one."""
        to_all = (route for route in self.typed_result.routes if not route.dst.network.prefixlen)
        metrics = (route.priority or _KERNEL_METRICS[version] for route in to_all if route.dst.version == version)
        return min(metrics, default=None)

    @property
    def pod(self) -> str:
        """The pod's "namespace/name" (Kubernetes), the container's name (podman), or ""."""
        pairs = dict(pair.partition("=")[::2] for pair in self.cni_args.split(";"))
        name = pairs.get("K8S_POD_NAME", "")
        namespace = pairs.get("K8S_POD_NAMESPACE", "")
        return f"{namespace}/{name}" if namespace and name else name


def list_cached(layers: Sequence[Layer], network: str = "") -> list[CachedAttachment]:
    """Returns the attachments of `network`, or ("") of all, in the order of the layers and of their files' names.

    Each interface is listed once: an attachment of Multus is left out if Multus' cache has that of its delegate.
    """
    cached = _read_all(layers, network)
    if not any(one.is_of_multus for one in cached):
        return cached
    of_delegates = {one.attachment for one in (_read_all(layers) if network else cached) if not one.is_of_multus}
    return [one for one in cached if not (one.is_of_multus and one.attachment in of_delegates)]


def _read_all(layers: Iterable[Layer], network: str = "") -> list[CachedAttachment]:
    return [_from_entry(entry, layer) for layer in layers for entry in cache.read_entries(layer.results_dir, network)]


def get_network(layers: Sequence[Layer], network: str) -> Network | None:
    """Returns the configuration that the newest attachment of a network had; None if there is none.

    Without an attachment, that with which Multus began an ADD, which may have been killed.
    """
    cached = [one for one in list_cached(layers, network) if one.network]
    return max(cached, key=age_key).network if cached else list_begun(layers).get(network)


def list_begun(layers: Iterable[Layer]) -> dict[str, Network]:
    """Returns the networks of pods that Multus began to attach, by name; the ADD may have been killed since."""
    begun: dict[str, Network] = {}
    for layer in layers:
        for text in multus.list_saved(layer.cache_dir) if layer.source else ():
            with suppress(ValueError, CniError):
                network = networks.parse(text, "")
                begun[network.name] = network
    return begun


def find_network(conf_dir: str, layers: Sequence[Layer], name: str) -> Network:
    """Returns a network of net.d, else of the caches, which have podman's default one, Multus' and removed ones.

    Raises CniError(7) if there is none.
    """
    try:
        return networks.get_network(conf_dir, name)
    except CniError:
        network = get_network(layers, name)
        if network is None:
            raise
        return network


def age_key(one: CachedAttachment) -> tuple[int, str]:
    """Returns a key by which attachments are in the order of their ADDs."""
    try:
        return os.stat(one.path).st_mtime_ns, one.path
    except OSError:
        return 0, one.path


def require_caches(layers: Iterable[Layer]) -> None:
    """Raises CniError(5) for a cache that cannot be read.

    The default directory and Multus' may be missing, as on a node without pods yet; a missing --cache-dir is a mistake.
    """
    for layer in layers:
        directory = layer.results_dir
        try:
            os.listdir(directory)
        except FileNotFoundError as error:
            if directory != cache.RESULTS_DIR and not layer.source:
                raise CniError(Code.IO_FAILURE, f"the cache {directory} does not exist", _CACHE_HINT) from error
        except OSError as error:
            hint = "run podwire as root" if isinstance(error, PermissionError) else _CACHE_HINT
            raise CniError(Code.IO_FAILURE, f"cannot read the cache {directory}: {error.strerror}", hint) from error


def require_existing(layers: Sequence[Layer]) -> None:
    """Raises CniError(5) if a cache cannot be read, or no runtime's exists: its attachments would count as garbage.

    Multus' cache does not have the pods of the time before Multus.
    """
    require_caches(layers)
    runtimes = [layer for layer in layers if not layer.source] or layers
    if not any(os.path.isdir(layer.results_dir) for layer in runtimes):
        hint = f"without the cache every attachment would count as garbage; {_CACHE_HINT}"
        msg = f"cannot read the cache {describe_caches(runtimes)}: {os.strerror(errno.ENOENT)}"
        raise CniError(Code.IO_FAILURE, msg, hint)


def list_unreadable(layers: Iterable[Layer], cached: Iterable[CachedAttachment], network: str = "") -> list[str]:
    """Returns the paths of the caches' files that are not among `cached` and still cannot be read now.

    They are unreadable, truncated, or in the format before CNI 0.8. Runtimes may write and remove files meanwhile.
    """
    known_paths = {one.path for one in cached}
    names = [(layer.results_dir, name) for layer in layers for name in _list_names(layer.results_dir)]
    chosen = (pair for pair in names if not network or pair[1].startswith(f"{network}-"))
    paths = (path for pair in chosen if (path := os.path.join(*pair)) not in known_paths)
    return [path for path in paths if read(path) is None and os.path.lexists(path)]


def describe_missing_delegates(known: Iterable[CachedAttachment]) -> list[str]:
    """Returns a description of the containers that Multus attached, but whose networks no cache has; [] for none."""
    ids = [one.attachment.container_id for one in known if one.is_of_multus and one.may_be_running]
    more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
    return [f"the networks of container {ids[0]}{more}: Multus attached it, and its cache has no entry"] if ids else []


def _list_names(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except OSError:
        return []


def parse_file_name(path: str, network: str) -> Iterator[Attachment]:
    """Yields each attachment that a file name of the cache may stand for: names may contain "-"."""
    head, dash, rest = os.path.basename(path).partition(f"{network}-")
    if head or not dash:
        return
    for position, character in enumerate(rest):
        if character == "-":
            yield Attachment(rest[:position], rest[position + 1 :])


def read(path: str) -> CachedAttachment | None:
    """Reads the attachment of one file; None if it does not exist or cannot be read."""
    entry = cache.read_entry(path)
    return _from_entry(entry, Layer(os.path.dirname(os.path.dirname(path)))) if entry else None


def _from_entry(entry: CacheEntry, layer: Layer) -> CachedAttachment:
    capability_args = entry.content.get("capabilityArgs")
    return CachedAttachment(
        entry.path,
        entry.network,
        entry.attachment,
        entry.netns,
        entry.presence,
        _network(entry),
        _cni_args(entry.content.get("cniArgs")),
        capability_args if isinstance(capability_args, dict) else {},
        entry.result,
        layer,
    )


def _network(entry: CacheEntry) -> Network | None:
    """Returns the configuration that ADD had (base64 in the file); None if it cannot be read."""
    text = entry.content.get("config")
    try:
        return networks.parse(binascii.a2b_base64(text, strict_mode=True), "") if isinstance(text, str) else None
    except (binascii.Error, ValueError, CniError):
        return None


def _cni_args(pairs: object) -> str:
    """Returns CNI_ARGS as text, from the cache's list of pairs."""
    items = pairs if isinstance(pairs, list) else []
    return ";".join("=".join(map(str, pair)) for pair in items if isinstance(pair, list) and len(pair) == 2)
