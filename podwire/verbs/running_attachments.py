"""Finds the running attachments of a network before GC removes everything else.

The cache is not the only evidence. It is written after the last plugin's ADD, and a second runtime may have
another cache: attachments with a new address, or one configured in a namespace, are kept, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from attachment import presence
from attachment.presence import Presence
from cni.conf import Attachment
from cni.errors import CniError, Code
from podwire import attachments
from podwire.attachments import CachedAttachment
from podwire.layers import Layer, describe_caches
from podwire.node import records
from podwire.node.inspection import read_snapshot
from podwire.node.model import AttachmentState
from podwire.node.records import Directories
from podwire.node.snapshot import Snapshot
from podwire.output import plural

_RUNNING = {Presence.HERE, Presence.ELSEWHERE}


@dataclass(frozen=True)
class RunningAttachments:
    """The running attachments of `network`: the kernel's state is read once, files at each listing.

    `forced` are containers that the operator declares to be no longer running.
    """

    snapshot: Snapshot
    places: Directories
    network: str
    forced: frozenset[str] = frozenset()

    @classmethod
    def read(cls, places: Directories, network: str, forced: Iterable[str] = ()) -> RunningAttachments:
        """Reads the node's state; raises CniError(4) for a forced container that is running or has no attachment."""
        running = cls(read_snapshot(places, rules=False), places, network, frozenset(forced))
        for name in sorted(running.forced):
            running._require_forcible(name)
        return running

    def presence(self, one: CachedAttachment) -> Presence:
        """Returns whether an attachment's namespace exists, by its path and the kernel's interfaces."""
        return self.snapshot.presences.by_file.get(one.path, one.presence)

    def is_gone(self, one: CachedAttachment) -> bool:
        """Returns whether GC removes an attachment: proven to be no longer running, or forced."""
        return self.presence(one) is Presence.GONE or self._is_forced(one)

    def valid(self) -> list[Attachment]:
        """Returns the attachments that GC must keep."""
        unlisted = self.unlisted()  # before the cache, which gets their entries at the end of ADD
        known = attachments.list_cached(self.places.layers, self.network)
        kept = {one.attachment for one in known if one.presence in _RUNNING or not self.is_gone(one)}
        return sorted({*kept, *unlisted})

    def unlisted(self) -> list[Attachment]:
        """Returns the running attachments that are not in the cache."""
        fresh = replace(self.snapshot, records=records.read_records(self.places))
        pods = (pod for pod in fresh.pods if pod.network == self.network and pod.state is AttachmentState.NO_CACHE)
        return sorted(pod.attachment for pod in pods if not pod.leaked and pod.attachment.ifname)

    def require_proof(self) -> None:
        """Raises CniError(5) if nothing proves whether an attachment is running, unless `forced` names containers."""
        attached = (item for item in self.snapshot.records.cached if item.network_name == self.network and item.netns)
        unproven_owners = [item for item in attached if self.presence(item) is Presence.UNKNOWN]
        if not unproven_owners or self.forced:
            return
        first = unproven_owners[0]
        number = plural(len(unproven_owners), "attachment")
        where = f'{number} of "{self.network}" may be running: {first.netns} is missing here'
        hidden = self.snapshot.presences.hidden_ports(self.network)
        if first.presence is Presence.GONE and hidden:
            why = f"but the peer of {hidden[0].name} is in a network namespace that cannot be seen from here"
        else:
            why = f"and nothing proves that it is gone: {presence.get_obstacle() or 'it cannot be looked up'}"
        hint = "run it on the node itself, not in a container; --force ID removes those of a stopped container"
        raise CniError(Code.IO_FAILURE, f"{where}, {why}", hint)

    def _require_forcible(self, container_id: str) -> None:
        """Raises CniError(4) for a container that is proven to be running, or that the cache does not know."""
        cached = [item for item in self.snapshot.records.cached if item.network_name == self.network]
        judged = {self.presence(item) for item in cached if item.attachment.container_id == container_id}
        if not judged:
            msg = f'--force: the cache knows no container {container_id} of "{self.network}"'
            raise CniError(Code.INVALID_ENVIRONMENT, msg, "podwire show --json lists the containers with their IDs")
        if judged & _RUNNING:
            msg = f"--force: container {container_id} is running: its network namespace or its veth exists"
            raise CniError(Code.INVALID_ENVIRONMENT, msg, "have its runtime remove it")

    def _is_forced(self, one: CachedAttachment) -> bool:
        return one.attachment.container_id in self.forced


def require_witness(known: Sequence[CachedAttachment], layers: Iterable[Layer], network: str) -> None:
    """Raises CniError(5) for caches without any attachment of the network, which may be the wrong ones."""
    if not known:
        hint = (
            "set the runtime's cache with --cache-dir; if the network has no running pod: --all; to release only the "
            f"addresses of containers that are proven to be gone: podwire ipam free --gone {network}"
        )
        raise CniError(Code.IO_FAILURE, f'the cache {describe_caches(layers)} knows no attachment of "{network}"', hint)


def is_unchanged(one: CachedAttachment) -> bool:
    """Returns whether the cache's entry is unchanged: a runtime may have deleted or recreated the attachment."""
    current = attachments.read(one.path)
    return current is not None and (current.attachment, current.presence) == (one.attachment, one.presence)
