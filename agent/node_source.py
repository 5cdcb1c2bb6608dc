"""A source of nodes: a list, and a watch of changes. The implementation here reads the Kubernetes API's Nodes.

agent/pools/entry_source.py has the other implementation, which reads the entries of a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from agent.api_answer import BOOKMARK, DELETED, Document, WatchEvent, resource_version_of
from agent.api_errors import InvalidAnswer
from agent.kubernetes import SERVICE, Listing
from agent.node import Node, parse_node

NODES = "/api/v1/nodes"
_WATCH = f"{SERVICE}: watch of {NODES}"


class NodeChange(NamedTuple):
    """A change of a node, and the revision of the source. `node` is None if it was deleted.

    With the name "" only the revision has changed.
    """

    name: str
    node: Node | None
    revision: str


class NodeChanges(Protocol):
    """An open watch: iterating ends when the source ends it as requested, or raises ApiError."""

    def __iter__(self) -> Iterator[NodeChange]:
        """Yields the changes when they arrive."""

    def close(self) -> None:
        """Ends the iteration, from any thread."""


class NodeSource(Protocol):
    """A source of nodes; its methods raise ApiError. `name` is for messages. Revisions are decimal numbers."""

    name: str

    def list_nodes(self) -> Listing[Node]:
        """Returns all nodes and the revision after which a watch continues."""

    def read_revision(self) -> str:
        """Returns the present revision, "" if the source does not know it."""

    def watch(self, revision: str, *, timeout_s: int) -> NodeChanges:
        """Opens a watch; raises Expired for a revision that is too old."""


class WatchedEvents(Protocol):
    """The part of a Watch that is used here."""

    def __iter__(self) -> Iterator[WatchEvent]:
        """Yields the events."""

    def close(self) -> None:
        """Ends the iteration, from any thread."""


class NodeClient(Protocol):
    """The part of a Client that is used here."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Document:
        """Returns a page."""

    def list_objects(
        self, path: str, parse: Callable[[Document], Node], query: Mapping[str, str] | None = None
    ) -> Listing[Node]:
        """Returns all parsed objects."""

    def watch(
        self, path: str, resource_version: str, query: Mapping[str, str] | None, *, timeout_s: int
    ) -> WatchedEvents:
        """Opens a watch."""


class KubernetesNodes:
    """The Node objects of an API server."""

    name = _WATCH

    def __init__(self, client: NodeClient) -> None:
        self._client = client

    def list_nodes(self) -> Listing[Node]:
        """Returns all Nodes."""
        listing = self._client.list_objects(NODES, parse_node)
        if not listing.resource_version:
            raise InvalidAnswer(f"{SERVICE}: GET {NODES}", "the list has no resourceVersion")
        return listing

    def read_revision(self) -> str:
        """Returns the present resourceVersion."""
        return resource_version_of(self._client.get(NODES, {"limit": "1"}))

    def watch(self, revision: str, *, timeout_s: int) -> NodeChanges:
        """Opens a watch of the Nodes, with bookmarks."""
        return _KubernetesChanges(self._client.watch(NODES, revision, None, timeout_s=timeout_s))


class _KubernetesChanges:
    """The changes of a watch of Nodes."""

    def __init__(self, watch: WatchedEvents) -> None:
        self._watch = watch

    def __iter__(self) -> Iterator[NodeChange]:
        return map(_change_of, self._watch)

    def close(self) -> None:
        self._watch.close()


def _change_of(event: WatchEvent) -> NodeChange:
    """Returns the change of an event; raises InvalidAnswer for an event that is no Node."""
    if event.type == BOOKMARK:
        return NodeChange("", None, event.resource_version)
    try:
        node = parse_node(event.document)
    except ValueError as error:
        raise InvalidAnswer(_WATCH, str(error)) from error
    return NodeChange(node.name, None if event.type == DELETED else node, event.resource_version)
