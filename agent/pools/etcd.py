"""The store in etcd: a key for each object, below the space's prefix.

One rule: a change is one transaction, which compares the value of the key with the bytes that were read.

    /podwire/v1/SPACE/blocks/0a160040-26   a block
    /podwire/v1/SPACE/nodes/NODEID         an entry
    /podwire/v1/SPACE/space                the space: one watch of a range has the entries and the space
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from agent.api_answer import DocumentStream
from agent.api_errors import Expired, InvalidAnswer, Refused, TooLarge
from agent.api_object import Document
from agent.http_connections import ClientCertificate
from agent.pools import documents
from agent.pools.block_protocol import BlockRecord, SwapOutcome
from agent.pools.etcd_client import EtcdClient, User
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

_BLOCKS, _NODES, _SPACE = "blocks/", "nodes/", "space"
_PAGE_SIZE = 5000  # keys; after an answer that is too large the page is requested again with fewer keys
_RESTARTS = 3  # of a list, when its revision is compacted
_NO_KEYS: list[object] = []


def etcd_store(
    endpoints: Sequence[str],
    *,
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
    user: str = "",
    password_file: Path | None = None,
    space: str = "default",
) -> EtcdStore:
    """Returns the store of a space in etcd; raises ValueError for endpoints that it cannot use.

    A client certificate comes with its key, and a user with a password file.
    """
    certificate = ClientCertificate(cert, key) if cert and key else None
    account = User(user, password_file) if password_file else None
    return EtcdStore(EtcdClient(endpoints, ca, certificate, account), space)


class _Answer(NamedTuple):
    """The keys of a range, and the position of the answer."""

    values: dict[str, bytes]
    position: StorePosition


class EtcdStore:
    """The store of one space in etcd: see agent.pools.store.Store for its methods."""

    def __init__(self, client: EtcdClient, space: str) -> None:
        self._client, self._space = client, space
        self._prefix = f"/podwire/v1/{space}/"
        self._position = StorePosition()

    @property
    def position(self) -> StorePosition:
        """The position in the latest answer of a list."""
        return self._position

    def read_space(self) -> Stored[Space | None]:
        """Returns the space, None without one; raises ValueError if it is not valid."""
        return documents.stored_space(self._space, self._value(_SPACE))

    def swap_space(self, expected: Stored[Space | None], new: Space) -> SwapReply:
        """Changes the space, as the administrator."""
        return self._swap(_SPACE, expected, format_space(new))

    def read_block(self, block: Network) -> Stored[BlockRecord]:
        """Returns a block; FREE without an object."""
        return documents.stored_block(block, self._value(_BLOCKS + documents.block_name(block)))

    def list_blocks(self, owner: str = "") -> Mapping[Network, Stored[BlockRecord]]:
        """Returns all blocks that have ever been claimed, or those of one owner."""
        answer = self._range(_BLOCKS)
        self._position = answer.position
        return {
            block: documents.stored_block(block, raw)
            for name, raw in answer.values.items()
            if (block := documents.block_of_name(name.removeprefix(_BLOCKS)))
            and (not owner or documents.names_owner(raw, owner))
        }

    def swap_block(self, block: Network, expected: Stored[BlockRecord], new: BlockRecord, note: BlockNote) -> SwapReply:
        """Changes a block, and reads the space in the same transaction; the note is stored with it."""
        name = _BLOCKS + documents.block_name(block)
        return self._swap(name, expected, documents.format_block(block, new, note), reads_space=True)

    def read_entry(self, node: str) -> Stored[NodeEntry | None]:
        """Returns the entry of a node."""
        raw = self._value(_NODES + documents.check_node(node))
        return documents.stored_entry(node, raw) if raw else Stored(None)

    def list_entries(self) -> Entries:
        """Returns the entries of all nodes."""
        answer = self._range(_NODES)
        self._position = answer.position
        entries = {
            node: documents.stored_entry(node, raw)
            for name, raw in answer.values.items()
            if documents.is_node(node := name.removeprefix(_NODES))
        }
        return Entries(entries, str(answer.position.revision))

    def swap_entry(self, node: str, expected: Stored[NodeEntry | None], new: NodeEntry) -> SwapReply:
        """Changes the entry of a node."""
        return self._swap(_NODES + documents.check_node(node), expected, documents.format_entry(new))

    def list_problems(self) -> list[str]:
        """Returns a text for each invalid object of the space, also for each with a wrong name."""
        return documents.problems_of(self._range("").values)

    def watch(self, revision: str) -> EtcdChanges:
        """Opens a watch of the entries and the space after a revision; Expired means: list again.

        First reads the revision of the store. If it is lower, as after a restore, a watch would report no changes, so
        this raises Expired. The read also raises the typed errors of a missing permission and of an expired token; from
        a watch they are only a text.
        """
        after = int(revision)
        position = self._range(_SPACE).position
        if position.revision < after or position.cluster != (self._position.cluster or position.cluster):
            raise Expired("etcd: watch", f"the store is another one: {position} after {self._position}", status=410)
        request = {
            "key": self._key(_NODES),
            "range_end": self._key(_SPACE + "\0"),
            "start_revision": str(after + 1),
            "progress_notify": True,
        }
        return EtcdChanges(self._client.watch({"create_request": request}), self._prefix, after)

    def _key(self, name: str) -> str:
        return _encoded(self._prefix + name)

    def _value(self, name: str) -> bytes:
        return self._range(name).values.get(name, b"")

    def _range(self, name: str) -> _Answer:
        """Returns the value of one name, or for "" and "blocks/" of all names with this prefix, at one revision.

        Begins again when that revision is compacted.
        """
        key = self._prefix + name
        end = key[:-1] + "0" if key.endswith("/") else key + "\0"  # "0" follows "/"
        for _ in range(_RESTARTS):
            try:
                return self._range_once(key, end)
            except Expired as error:
                expired = error
        raise expired

    def _range_once(self, first: str, end: str) -> _Answer:
        values: dict[str, bytes] = {}
        position, limit = None, _PAGE_SIZE
        while True:
            body: dict[str, object] = {"key": _encoded(first), "range_end": _encoded(end), "limit": str(limit)}
            if position:
                body["revision"] = str(position.revision)
            try:
                page = self._client.read("kv/range", body)
            except TooLarge:
                if limit == 1:
                    raise
                limit = max(1, limit // 4)
                continue
            position = position or _position_of(page)
            for key, value in _values_of(page):
                values[key.removeprefix(self._prefix)] = value
                first = key + "\0"
            if page.get("more") is not True:
                return _Answer(values, position)

    def _swap(self, name: str, expected: Stored[object], document: Document, *, reads_space: bool = False) -> SwapReply:
        """Sets a key if its value is equal to the expected one; without an expected value, if there is no key."""
        if expected.problem:
            return SwapReply(SwapOutcome.LOST, expected.problem)
        key, raw = self._key(name), documents.encode(document)
        compare = {"key": key, "result": "EQUAL"}
        if expected.raw:
            compare |= {"target": "VALUE", "value": b64encode(expected.raw).decode()}
        else:
            compare |= {"target": "VERSION", "version": "0"}
        put = {"key": key, "value": b64encode(raw).decode()}
        requests: list[object] = [{"request_put": put}]
        if reads_space:
            requests.append({"request_range": {"key": self._key(_SPACE)}})
        answers: list[Document] = []

        def send() -> bytes:
            answers.append(self._client.change("kv/txn", {"compare": [compare], "success": requests}))
            return raw if answers[0].get("succeeded") is True else b""

        change = send_swap(name, send)
        is_read = reads_space and change.outcome is SwapOutcome.SUCCEEDED
        return change._replace(space=_space_of(answers[0])) if is_read else change


class EtcdChanges:
    """An open watch of a space."""

    def __init__(self, stream: DocumentStream, prefix: str, revision: int) -> None:
        self._stream, self._prefix, self._revision = stream, prefix, revision

    def __iter__(self) -> Iterator[EntryChanged | SpaceChanged]:
        """Yields the changes when they arrive."""
        for document in self._stream:
            result = document.get("result")
            if not isinstance(result, Mapping):
                raise InvalidAnswer(self._stream.request, f"the watch has failed: {document.get('error')}")
            self._refuse_end(result)
            events = result.get("events", _NO_KEYS)
            for event in events if isinstance(events, list) else _NO_KEYS:
                if change := self._change_of(event):
                    yield change
            if result.get("created") is not True:  # that answer has the latest revision, but its events come later
                self._revision = max(self._revision, _position_of(result).revision)

    def close(self) -> None:
        """Ends the iteration, from any thread."""
        self._stream.close()

    def _refuse_end(self, result: Document) -> None:
        """Raises the error of a watch that etcd ends."""
        if result.get("canceled") is True:
            if "compact_revision" in result:
                cause = f"revision {self._revision} is compacted, up to {result['compact_revision']}"
                raise Expired(self._stream.request, cause, status=410)
            raise Refused(self._stream.request, f"etcd has ended the watch: {result.get('cancel_reason')}")

    def _change_of(self, event: object) -> EntryChanged | SpaceChanged | None:
        pair = event.get("kv") if isinstance(event, Mapping) else None
        if not isinstance(event, Mapping) or not isinstance(pair, Mapping):
            raise InvalidAnswer(self._stream.request, "an event has no key")
        name = _decoded(pair.get("key")).decode(errors="surrogateescape").removeprefix(self._prefix)
        revision = str(pair.get("mod_revision"))
        node = name.removeprefix(_NODES)
        if name == _SPACE:
            return SpaceChanged(revision)
        if not name.startswith(_NODES) or not documents.is_node(node):
            return None
        if event.get("type") == "DELETE":
            return EntryChanged(node, None, revision)
        entry = documents.stored_entry(node, _decoded(pair.get("value", "")))
        return EntryChanged(node, entry.value, revision, entry.problem)


def _position_of(answer: Document) -> StorePosition:
    header = answer.get("header")
    cluster, revision = map(header.get, ("cluster_id", "revision")) if isinstance(header, Mapping) else (None, None)
    if not isinstance(cluster, str) or not isinstance(revision, str) or not revision.isdecimal():
        raise InvalidAnswer("etcd", "the answer has no revision")
    return StorePosition(cluster, int(revision))


def _space_of(answer: Document) -> Space | None:
    """Returns the space that a transaction has read after its change; None if the answer has no valid one."""
    responses = answer.get("responses", _NO_KEYS)
    last = responses[-1] if isinstance(responses, list) and responses else None
    page = last.get("response_range") if isinstance(last, Mapping) else None
    try:
        values = [raw for _, raw in _values_of(page)] if isinstance(page, Mapping) else []
        return documents.stored_space("", values[0]).value if values else None
    except (InvalidAnswer, ValueError):
        return None


def _values_of(page: Document) -> Iterator[tuple[str, bytes]]:
    pairs = page.get("kvs", _NO_KEYS)
    for pair in pairs if isinstance(pairs, list) else _NO_KEYS:
        if not isinstance(pair, Mapping):
            raise InvalidAnswer("etcd: kv/range", "the answer has an invalid key")
        yield _decoded(pair.get("key")).decode(errors="surrogateescape"), _decoded(pair.get("value", ""))


def _encoded(key: str) -> str:
    return b64encode(key.encode(errors="surrogateescape")).decode()


def _decoded(text: object) -> bytes:
    try:
        return b64decode(text, validate=True) if isinstance(text, str) else b""
    except binascii.Error as error:
        raise InvalidAnswer("etcd", f"the answer is not in base64: {error}") from error
