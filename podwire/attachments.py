"""The attachments that this node's runtimes know: libcni's result cache, with all that a verb needs to be repeated.

One rule: an attachment is asked about with the configuration it was made with, which the cache keeps; the file in net.d
may have changed since.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from attachment import cache
from attachment.cache import Entry
from attachment.presence import Presence
from cni.conf import Attachment
from cni.errors import CniError, Code
from cni.result import Result, from_json
from podwire import networks
from podwire.networks import Network

UNREAD_FIX = (
    "a running container needs nothing deleted: restart its pod, or run `podwire del NETWORK NETNS --container-id ID` "
    "and `podwire add` with the same arguments, which writes the entry anew; delete the file only if the container is "
    "gone"
)


@dataclass(frozen=True)
class CachedAttachment:
    """One attachment of the cache: where it is, and what it was asked for and got.

    `network` is None when the cache has no configuration that can be read; `result` is the JSON of ADD's result.
    `presence` is what the paths of namespaces prove; node/presences.py also asks the kernel.
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
        """Tells whether its container may be running: nothing proves that its namespace is gone."""
        return self.presence is not Presence.GONE

    @property
    def typed_result(self) -> Result:
        """The result as a value, an empty one when it cannot be read."""
        version = self.result.get("cniVersion") if isinstance(self.result, dict) else None
        try:
            return from_json(self.result, version if isinstance(version, str) else "")
        except CniError:
            return Result()

    @property
    def is_loopback(self) -> bool:
        """Whether it is lo alone: containerd and CRI-O attach each pod to a network of their own for it."""
        return self.network is not None and all(plugin["type"] == "loopback" for plugin in self.network.plugins)

    @property
    def pod(self) -> str:
        """The pod's "namespace/name" as Kubernetes' runtimes tell it, podman's container's name, else ""."""
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
    """Returns the configuration of a network with which its newest attachment was made, None where there is none."""
    made = [one for one in list_cached(cache_dir, network) if one.network]
    return max(made, key=_made_ns).network if made else None


def require_cache(cache_dir: str) -> None:
    """Raises CniError(5) for a cache that cannot be read.

    The default one may be missing, as on a node that never had a pod; a missing one that was named is a mistake.
    """
    directory = results_dir(cache_dir)
    try:
        os.listdir(directory)
    except FileNotFoundError as error:
        if directory != cache.RESULTS_DIR:
            hint = "give the runtime's cache with --cache-dir"
            raise CniError(Code.IO_FAILURE, f"there is no cache: {directory} is missing", hint) from error
    except OSError as error:
        hint = "call it as root" if isinstance(error, PermissionError) else "give the runtime's cache with --cache-dir"
        raise CniError(Code.IO_FAILURE, f"cannot read the cache {directory}: {error.strerror}", hint) from error


def list_unreadable(cache_dir: str, found: Iterable[CachedAttachment], network: str = "") -> list[str]:
    """Returns the paths of the cache's files that are not among `found`, and cannot be read at a second look either.

    They are not readable, truncated, or of the form before CNI 0.8. Runtimes write and remove files meanwhile.
    """
    directory = results_dir(cache_dir)
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    known_paths = {one.path for one in found}
    own = (name for name in names if not name.startswith(".") and (not network or name.startswith(f"{network}-")))
    paths = (path for name in own if (path := os.path.join(directory, name)) not in known_paths)
    return [path for path in paths if read(path) is None and os.path.lexists(path)]


def parse_file_name(path: str, network: str) -> Iterator[Attachment]:
    """Yields each attachment of a network that a file of the cache can be of, by its name: names may contain "-"."""
    head, dash, rest = os.path.basename(path).partition(f"{network}-")
    if head or not dash:
        return
    for position, character in enumerate(rest):
        if character == "-":
            yield Attachment(rest[:position], rest[position + 1 :])


def read(path: str) -> CachedAttachment | None:
    """Reads the attachment of one file; None when it is not there, or cannot be read."""
    found = cache.read_entry(path)
    return _from_entry(found) if found else None


def _from_entry(entry: Entry) -> CachedAttachment:
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


def _made_ns(one: CachedAttachment) -> int:
    try:
        return os.stat(one.path).st_mtime_ns
    except OSError:
        return 0


def _network(entry: Entry) -> Network | None:
    """Returns the configuration that ADD had, which Go writes in base64; its `path` is "" for a list."""
    text = entry.content.get("config")
    try:
        return networks.parse(binascii.a2b_base64(text, strict_mode=True), "") if isinstance(text, str) else None
    except (binascii.Error, ValueError, CniError):
        return None


def _cni_args(pairs: object) -> str:
    """Returns CNI_ARGS as it was; the cache has it as a list of pairs."""
    found = pairs if isinstance(pairs, list) else []
    return ";".join("=".join(map(str, pair)) for pair in found if isinstance(pair, list) and len(pair) == 2)
