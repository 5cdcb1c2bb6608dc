"""A source of objects of one kind: a list, and a watch of changes. The implementation here reads a Kubernetes API.

agent/pools/entry_source.py has the other implementation, which reads the entries of a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from agent.api_answer import BOOKMARK, DELETED, WatchEvent, resource_version_of
from agent.api_errors import InvalidAnswer
from agent.api_object import Document
from agent.kubernetes import PAGE_SIZE, SERVICE, Listing
from agent.node import Node, parse_node

NODES = "/api/v1/nodes"

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ItemChange(NamedTuple, Generic[T_co]):
    """A change of an object, and the revision of the source. `item` is None if it was deleted.

    With the key "" only the revision has changed.
    """

    key: str
    item: T_co | None
    revision: str


class ItemChanges(Protocol[T_co]):
    """An open watch: iterating ends when the source ends it as requested, or raises ApiError."""

    def __iter__(self) -> Iterator[ItemChange[T_co]]:
        """Yields the changes when they arrive."""

    def close(self) -> None:
        """Ends the iteration, from any thread."""


class ObjectSource(Protocol[T]):
    """A source of objects; its methods raise ApiError. `name` is for messages. Revisions are decimal numbers."""

    name: str

    def key_of(self, item: T) -> str:
        """Returns what distinguishes an object from all others of the source."""

    def list_all(self) -> Listing[T]:
        """Returns all objects and the revision after which a watch continues."""

    def read_revision(self) -> str:
        """Returns the present revision, "" if the source does not know it."""

    def watch(self, revision: str, *, timeout_s: int) -> ItemChanges[T]:
        """Opens a watch; raises Expired for a revision that is too old."""


class WatchedEvents(Protocol):
    """The part of a Watch that is used here."""

    def __iter__(self) -> Iterator[WatchEvent]:
        """Yields the events."""

    def close(self) -> None:
        """Ends the iteration, from any thread."""


class ObjectClient(Protocol):
    """The part of a Client that is used here."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Document:
        """Returns a page."""

    def list_objects(
        self,
        path: str,
        parse: Callable[[Document], T],
        query: Mapping[str, str] | None = None,
        *,
        page_size: int = PAGE_SIZE,
    ) -> Listing[T]:
        """Returns all parsed objects."""

    def watch(
        self, path: str, resource_version: str, query: Mapping[str, str] | None, *, timeout_s: int
    ) -> WatchedEvents:
        """Opens a watch."""


class KubernetesObjects(Generic[T]):
    """The objects of an API server below a path. `parse` may raise ValueError for an object that is not of the kind."""

    def __init__(
        self,
        client: ObjectClient,
        path: str,
        parse: Callable[[Document], T],
        key: Callable[[T], str],
        query: Mapping[str, str] | None = None,
        *,
        page_size: int = PAGE_SIZE,
    ) -> None:
        self.name = f"{SERVICE}: watch of {path}"
        self._client, self._path, self._parse, self._key = client, path, parse, key
        self._query, self._page_size = dict(query or {}), page_size

    def key_of(self, item: T) -> str:
        """Returns the key of an object."""
        return self._key(item)

    def list_all(self) -> Listing[T]:
        """Returns all objects."""
        listing = self._client.list_objects(self._path, self._parse, self._query, page_size=self._page_size)
        if not listing.resource_version:
            raise InvalidAnswer(f"{SERVICE}: GET {self._path}", "the list has no resourceVersion")
        return listing

    def read_revision(self) -> str:
        """Returns the present resourceVersion."""
        return resource_version_of(self._client.get(self._path, {"limit": "1"}))

    def watch(self, revision: str, *, timeout_s: int) -> ItemChanges[T]:
        """Opens a watch of the objects, with bookmarks."""
        return _KubernetesChanges(
            self._client.watch(self._path, revision, self._query, timeout_s=timeout_s), self._change_of
        )

    def _change_of(self, event: WatchEvent) -> ItemChange[T]:
        """Returns the change of an event; raises InvalidAnswer for an event that is not of the kind."""
        if event.type == BOOKMARK:
            return ItemChange("", None, event.resource_version)
        try:
            item = self._parse(event.document)
        except ValueError as error:
            raise InvalidAnswer(self.name, str(error)) from error
        return ItemChange(self._key(item), None if event.type == DELETED else item, event.resource_version)


class _KubernetesChanges(Generic[T]):
    """The changes of a watch."""

    def __init__(self, watch: WatchedEvents, change_of: Callable[[WatchEvent], ItemChange[T]]) -> None:
        self._watch, self._change_of = watch, change_of

    def __iter__(self) -> Iterator[ItemChange[T]]:
        return map(self._change_of, self._watch)

    def close(self) -> None:
        self._watch.close()


def kubernetes_nodes(client: ObjectClient) -> KubernetesObjects[Node]:
    """Returns the Node objects of an API server."""
    return KubernetesObjects(client, NODES, parse_node, lambda node: node.name)
