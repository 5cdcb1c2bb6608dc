"""The store in Kubernetes: custom resources of the group podwire.io, which deploy/pools/ defines.

One rule: a change is one JSON Patch, which tests the whole value that was read and the object's UID, and no
resourceVersion. The API server applies it to the latest object, and tries again if another writer was faster.

    IPSpace  SPACE                  the space: space_object.py
    IPBlock  SPACE-0a160040-26      a block; labels: space and owner
    IPNode   SPACE-NODEID           an entry; label: space
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from agent.api_answer import BOOKMARK, DELETED, Watch, WatchEvent, resource_version_of
from agent.api_errors import ApiError, Conflict, Expired, NotFound
from agent.api_object import Document, object_at
from agent.kubernetes import SERVICE, ApiClient, Listing, object_path
from agent.pools import documents, space_object
from agent.pools.block_protocol import BlockRecord, SwapOutcome
from agent.pools.space import Space, format_space
from agent.pools.store import (
    BlockNote,
    Entries,
    EntryChanged,
    NodeEntry,
    SpaceChanged,
    Stored,
    StorePosition,
    SwapReply,
    send_swap,
)
from cni.address import Network

T = TypeVar("T")

GROUP = "podwire.io"
SPACE_LABEL, OWNER_LABEL = f"{GROUP}/space", f"{GROUP}/owner"
_CLUSTER = "kubernetes"  # an API server has no ID of its cluster that an agent may read
_PAGE_SIZE = 2000  # of about 1 kB each
_WATCH_S = 300  # the minimum; a random time up to twice that, so that the agents' watches do not end together
_PATHS = {"uid": "/metadata/uid", "generation": "/metadata/generation", "spec": "/spec", "status": "/status"}
_FIX = "apply the custom resources: kubectl apply --kustomize deploy/pools/"


class _Kind(NamedTuple):
    """A kind of custom resource, and how the objects of a space are named in list_problems()."""

    name: str
    collection: str
    key: str


_SPACES = _Kind("IPSpace", f"/apis/{GROUP}/v1/ipspaces", "space")
_BLOCKS = _Kind("IPBlock", f"/apis/{GROUP}/v1/ipblocks", "blocks/")
_NODES = _Kind("IPNode", f"/apis/{GROUP}/v1/ipnodes", "nodes/")


class _Object(NamedTuple):
    """An object of a list: its name, its labels, and the bytes that Stored.raw has."""

    name: str
    labels: Mapping[str, object]
    raw: bytes


class KubernetesStore:
    """The store of one space in Kubernetes: see agent.pools.store.Store for its methods."""

    def __init__(self, client: ApiClient, space: str = "default") -> None:
        self._client, self._space, self._prefix = client, space, f"{space}-"
        self._position = StorePosition()

    @property
    def position(self) -> StorePosition:
        """The position in the latest answer of a list."""
        return self._position

    @property
    def space(self) -> str:
        """The name of the space."""
        return self._space

    def read_space(self) -> Stored[Space | None]:
        """Returns the space in effect, None without one; raises ValueError if it is not valid.

        `raw` is also that of an object without a space in effect; with a `problem` the pools of its spec are refused.
        """
        return space_object.stored_space(self._space, self._raw(_SPACES, self._space))

    def swap_space(self, expected: Stored[Space | None], new: Space) -> SwapReply:
        """Changes the space, as the administrator; its pools are in the spec of the object, too."""
        change = self._request_pools(expected, new)
        if change.outcome is not SwapOutcome.SUCCEEDED:
            return change
        return self._patch_status(change.raw, space_object.status_of(change.raw, new, _time_text()))

    def refuse_pools(self, expected: Stored[Space | None], reason: str, message: str) -> SwapReply:
        """Notes in the object's status why the pools of its spec are refused; the space stays."""
        status = space_object.status_of(expected.raw, expected.value, _time_text(), reason, message)
        return self._patch_status(expected.raw, status)

    def _request_pools(self, expected: Stored[Space | None], new: Space) -> SwapReply:
        """Writes the pools into the spec unless it has them; a new epoch alone leaves a spec that is refused."""
        raw, before = expected.raw, expected.value
        spec = {"pools": format_space(new)["pools"]}
        if not raw:
            labels = {SPACE_LABEL: self._space}
            return send_swap(self._space, lambda: self._create(_SPACES, self._space, spec, labels))
        is_new_epoch = before is not None and before.pools == new.pools and before.epoch != new.epoch
        if is_new_epoch or space_object.requests_pools(raw, new.pools):
            return SwapReply(SwapOutcome.SUCCEEDED, raw=raw)
        return self._patch_space("", raw, {"/spec": spec})

    def _patch_status(self, raw: bytes, status: Document) -> SwapReply:
        return self._patch_space("/status", raw, {"/status": status})

    def _patch_space(self, part: str, raw: bytes, changes: Mapping[str, object]) -> SwapReply:
        path = object_path(_SPACES.collection, self._space) + part
        return send_swap(self._space, lambda: self._patch(_SPACES, path, raw, ("generation", "status"), changes))

    def read_block(self, block: Network) -> Stored[BlockRecord]:
        """Returns a block; FREE without an object."""
        raw = self._raw(_BLOCKS, self._prefix + documents.block_name(block))
        return documents.stored_block(block, raw, _spec_of)

    def list_blocks(self, owner: str = "") -> Mapping[Network, Stored[BlockRecord]]:
        """Returns all blocks that have ever been claimed, or those of one owner that have its label."""
        query = {"labelSelector": f"{SPACE_LABEL}={self._space},{OWNER_LABEL}={owner}"} if owner else {}
        return {
            block: documents.stored_block(block, one.raw, _spec_of)
            for one in self._list(_BLOCKS, query).items
            if (block := documents.block_of_name(one.name.removeprefix(self._prefix)))
            and one.name.startswith(self._prefix)
            and (not owner or documents.names_owner(one.raw, owner, _spec_of))
        }

    def swap_block(self, block: Network, expected: Stored[BlockRecord], new: BlockRecord, note: BlockNote) -> SwapReply:
        """Changes a block; the note is stored with it."""
        spec = documents.format_block(block, new, note)
        name = self._prefix + documents.block_name(block)
        return self._swap(_BLOCKS, name, expected, spec, {OWNER_LABEL: new.owner})

    def read_entry(self, node: str) -> Stored[NodeEntry | None]:
        """Returns the entry of a node."""
        raw = self._raw(_NODES, self._prefix + documents.check_node(node))
        return documents.stored_entry(node, raw, _spec_of) if raw else Stored(None)

    def list_entries(self) -> Entries:
        """Returns the entries of all nodes; selects by name, because a person may have removed a label."""
        listing = self._list(_NODES, {})
        entries = {
            node: documents.stored_entry(node, one.raw, _spec_of)
            for one in listing.items
            if (node := _node_of(one.name, self._prefix))
        }
        return Entries(entries, listing.resource_version)

    def swap_entry(self, node: str, expected: Stored[NodeEntry | None], new: NodeEntry) -> SwapReply:
        """Changes the entry of a node."""
        name = self._prefix + documents.check_node(node)
        return self._swap(_NODES, name, expected, documents.format_entry(new), {})

    def list_problems(self) -> list[str]:
        """Returns a text for each invalid object of the space, also for each with a wrong name."""
        objects: dict[str, bytes] = {}
        for kind in (_BLOCKS, _NODES):
            for one in self._list(kind, {}).items:
                name = one.name.removeprefix(self._prefix)
                is_named = documents.block_of_name(name) if kind is _BLOCKS else _node_of(one.name, self._prefix)
                if (is_named and one.name != name) or one.labels.get(SPACE_LABEL) == self._space:
                    objects[kind.key + name] = one.raw
        refusal = ""
        if raw := self._raw(_SPACES, self._space):
            objects[_SPACES.key] = documents.encode({"spec": space_object.document_in_effect(raw)})
            refusal = space_object.refusal_of(self._space, raw)
        problems = documents.problems_of(objects, _spec_of)
        return [*problems, f"{refusal}; fix: correct its spec"] if refusal else problems

    def watch(self, revision: str) -> KubernetesChanges:
        """Opens two watches after a revision, of the entries and of the space; Expired means: list again.

        First reads the server's resourceVersion. If it is lower, as after a restore, a watch would report no changes,
        so this raises Expired.
        """
        nodes, _, spaces = revision.partition("/")
        after = int(nodes), int(spaces or nodes)
        latest = resource_version_of(_with_fix(lambda: self._client.get(_NODES.collection, {"limit": "1"})))
        if int(latest) < max(after):
            raise Expired(f"{SERVICE}: watch", f"the server is at resourceVersion {latest}, before {max(after)}")
        timeout_s = int(_WATCH_S * (1 + random.random()))
        watches = []
        try:
            queries: tuple[Mapping[str, str], ...] = ({}, {"fieldSelector": f"metadata.name={self._space}"})
            for kind, query, version in zip((_NODES, _SPACES), queries, after, strict=True):
                watches.append(self._client.watch(kind.collection, str(version), query, timeout_s=timeout_s))
        except ApiError:
            for watch in watches:
                watch.close()
            raise
        return KubernetesChanges(watches[0], watches[1], self._prefix, after)

    def _raw(self, kind: _Kind, name: str) -> bytes:
        """Returns the stored form of an object, b"" without one; raises NotFound if the kind does not exist."""
        try:
            return _raw_of(kind, _with_fix(lambda: self._client.get(object_path(kind.collection, name))))
        except NotFound as error:
            if error.name:
                return b""
            raise

    def _list(self, kind: _Kind, query: Mapping[str, str]) -> Listing[_Object]:
        listing = _with_fix(lambda: self._client.list_objects(kind.collection, _object_of, query, page_size=_PAGE_SIZE))
        self._position = StorePosition(_CLUSTER, int(listing.resource_version or 0))
        return listing

    def _swap(
        self, kind: _Kind, name: str, expected: Stored[object], spec: Document, labels: Mapping[str, str]
    ) -> SwapReply:
        """Sets an object's spec if it is the expected one; without an expected value, if there is no object."""
        if expected.problem:
            return SwapReply(SwapOutcome.LOST, expected.problem)
        labels = {SPACE_LABEL: self._space, **labels}
        if expected.raw:
            path, changes = object_path(kind.collection, name), {"/spec": spec, "/metadata/labels": labels}
            return send_swap(name, lambda: self._patch(kind, path, expected.raw, ("spec",), changes))
        return send_swap(name, lambda: self._create(kind, name, spec, labels))

    def _create(self, kind: _Kind, name: str, spec: Document, labels: Mapping[str, str]) -> bytes:
        metadata = {"name": name, "labels": labels}
        document = {"apiVersion": f"{GROUP}/v1", "kind": kind.name, "metadata": metadata, "spec": spec}
        try:
            return _raw_of(kind, _with_fix(lambda: self._client.create(kind.collection, document)))
        except Conflict:
            return b""

    def _patch(self, kind: _Kind, path: str, raw: bytes, tested: Sequence[str], changes: Mapping[str, object]) -> bytes:
        """Changes an object if its UID and the tested parts are those that were read."""
        before = documents.decode(raw)
        operations: list[Document] = [
            {"op": "test", "path": _PATHS[part], "value": before[part]} for part in ("uid", *tested)
        ]
        operations += [{"op": "add", "path": part, "value": value} for part, value in changes.items()]
        try:
            return _raw_of(kind, _with_fix(lambda: self._client.patch(path, operations)))
        except NotFound as error:
            if error.name:
                return b""
            raise
        except Conflict:  # other writers were faster, again and again
            return b""


class KubernetesChanges:
    """An open watch of a space: two watches, of the entries and of the space, and a revision with a part of each."""

    def __init__(self, nodes: Watch, spaces: Watch, prefix: str, after: tuple[int, int]) -> None:
        self._watches, self._prefix = (nodes, spaces), prefix
        self._after = list(after)
        self._events: queue.SimpleQueue[tuple[int, WatchEvent] | ApiError | None] = queue.SimpleQueue()

    @property
    def revision(self) -> str:
        """The revision after which a later watch continues; bookmarks raise it, too."""
        return "/".join(map(str, self._after))

    def __iter__(self) -> Iterator[EntryChanged | SpaceChanged]:
        """Yields the changes when they arrive; ends when one of the watches ends."""
        threads = [threading.Thread(target=self._read, args=(number,), daemon=True) for number in range(2)]
        for thread in threads:
            thread.start()
        try:
            while event := self._events.get():
                if isinstance(event, ApiError):
                    raise event
                if change := self._change_of(*event):
                    yield change
        finally:
            self.close()
            for thread in threads:
                thread.join()

    def close(self) -> None:
        """Ends the iteration, from any thread."""
        for watch in self._watches:
            watch.close()

    def _read(self, number: int) -> None:
        """Puts the events of one watch into the queue, and its end."""
        try:
            for event in self._watches[number]:
                self._events.put((number, event))
        except ApiError as error:
            self._events.put(error)
        else:
            self._events.put(None)

    def _change_of(self, number: int, event: WatchEvent) -> EntryChanged | SpaceChanged | None:
        version = int(event.resource_version or 0)
        if version < self._after[number]:
            cause = f"resourceVersion {version} after {self._after[number]}"
            raise Expired(f"{SERVICE}: watch", cause, status=410)
        self._after[number] = version
        if event.type == BOOKMARK:
            return None
        if number == 1:
            return SpaceChanged(self.revision)
        one = _object_of(event.document)
        node = _node_of(one.name, self._prefix)
        if not node:
            return None
        if event.type == DELETED:
            return EntryChanged(node, None, self.revision)
        entry = documents.stored_entry(node, one.raw, _spec_of)
        return EntryChanged(node, entry.value, self.revision, entry.problem)


def _with_fix(send: Callable[[], T]) -> T:
    """Sends a request; adds the fix to the error for a kind that does not exist."""
    try:
        return send()
    except NotFound as error:
        if error.name:
            raise
        raise NotFound(error.request, error.cause, _FIX, status=error.status, reason=error.reason) from error


def _node_of(name: str, prefix: str) -> str:
    """Returns the node ID in the name of an IPNode of this space, else ""."""
    node = name.removeprefix(prefix)
    return node if node != name and documents.is_node(node) else ""


def _object_of(document: Document) -> _Object:
    metadata = object_at(document, "metadata")
    return _Object(str(metadata.get("name")), object_at(metadata, "labels"), _raw_of(_BLOCKS, document))


def _raw_of(kind: _Kind, document: Document) -> bytes:
    """Returns the stored form of an object: its UID and its spec, which a change tests."""
    if kind is _SPACES:
        return space_object.raw_of(document)
    metadata = document.get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, Mapping) else None
    return documents.encode({"uid": uid, "spec": document.get("spec")})


def _time_text() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _spec_of(raw: bytes) -> Document:
    spec = documents.decode(raw).get("spec")
    if not isinstance(spec, Mapping):
        raise ValueError('"spec" is not an object')
    return spec
