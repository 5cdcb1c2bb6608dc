"""Reads libcni's result cache: every attachment of this node's runtimes, with what is needed to repeat a verb.

Verbs use the configuration that ADD had, which the cache keeps; the file in net.d may have changed since.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from attachment import cache
from attachment.cache import CacheEntry
from attachment.presence import Presence
from cni.conf import Attachment
from cni.errors import CniError, Code
from cni.result import Result, from_json
from podwire import networks
from podwire.lint.known import CONFINED
from podwire.networks import Network

UNREAD_FIX = (
    "if the container is running, do not delete the file: create its pod again, or run `podwire del NETWORK NETNS "
    "--container-id ID` and `podwire add` with the same arguments, which writes the entry again; delete the file only "
    "if the container is no longer running"
)


@dataclass(frozen=True)
class CachedAttachment:
    """An attachment of the cache: its file, namespace, configuration, arguments and result.

    `network` is None if the cache has no readable configuration; `result` is the JSON of ADD's result. `presence` is
    what the paths of namespaces prove; node/presences.py also reads the kernel's interfaces.
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
    def is_loopback(self) -> bool:
        """Whether its network only sets up lo: containerd and CRI-O attach each pod to such a network."""
        return self.network is not None and all(plugin["type"] == "loopback" for plugin in self.network.plugins)

    @property
    def is_confined(self) -> bool:
        """Whether no packet leaves the pod by its interface, lo or a dummy: other pods may have the same addresses."""
        return self.network is not None and self.network.plugins[0]["type"] in CONFINED

    @property
    def pod(self) -> str:
        """The pod's "namespace/name" (Kubernetes), the container's name (podman), or ""."""
        pairs = dict(pair.partition("=")[::2] for pair in self.cni_args.split(";"))
        name = pairs.get("K8S_POD_NAME", "")
        namespace = pairs.get("K8S_POD_NAMESPACE", "")
        return f"{namespace}/{name}" if namespace and name else name


def results_dir(cache_dir: str) -> str:
    """Returns the directory of the cache in which libcni has a file for each attachment."""
    return os.path.join(cache_dir, "results")


def list_cached(cache_dir: str, network: str = "") -> Iterator[CachedAttachment]:
    """Yields the attachments of `network`, or ("") of all, in the order of their files' names."""
    for entry in cache.read_entries(results_dir(cache_dir), network):
        yield _from_entry(entry)


def get_network(cache_dir: str, network: str) -> Network | None:
    """Returns the configuration that the newest attachment of a network had; None if there is none."""
    cached = [one for one in list_cached(cache_dir, network) if one.network]
    return max(cached, key=age_key).network if cached else None


def age_key(one: CachedAttachment) -> tuple[int, str]:
    """Returns a key by which attachments are in the order of their ADDs."""
    try:
        return os.stat(one.path).st_mtime_ns, one.path
    except OSError:
        return 0, one.path


def require_cache(cache_dir: str) -> None:
    """Raises CniError(5) for a cache that cannot be read.

    The default directory may be missing, as on a node without pods yet; a missing --cache-dir is a mistake.
    """
    directory = results_dir(cache_dir)
    try:
        os.listdir(directory)
    except FileNotFoundError as error:
        if directory != cache.RESULTS_DIR:
            hint = "set the runtime's cache with --cache-dir"
            raise CniError(Code.IO_FAILURE, f"the cache {directory} does not exist", hint) from error
    except OSError as error:
        hint = (
            "run podwire as root" if isinstance(error, PermissionError) else "set the runtime's cache with --cache-dir"
        )
        raise CniError(Code.IO_FAILURE, f"cannot read the cache {directory}: {error.strerror}", hint) from error


def list_unreadable(cache_dir: str, cached: Iterable[CachedAttachment], network: str = "") -> list[str]:
    """Returns the paths of the cache's files that are not among `cached` and still cannot be read now.

    They are unreadable, truncated, or in the format before CNI 0.8. Runtimes may write and remove files meanwhile.
    """
    directory = results_dir(cache_dir)
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    known_paths = {one.path for one in cached}
    candidates = (
        name for name in names if not name.startswith(".") and (not network or name.startswith(f"{network}-"))
    )
    paths = (path for name in candidates if (path := os.path.join(directory, name)) not in known_paths)
    return [path for path in paths if read(path) is None and os.path.lexists(path)]


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
    return _from_entry(entry) if entry else None


def _from_entry(entry: CacheEntry) -> CachedAttachment:
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
