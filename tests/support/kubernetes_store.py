"""The objects of the double of the Kubernetes API server: resourceVersions, pages of lists, the history of changes."""

import copy
import json
import threading
import uuid
from typing import Any

Document = dict[str, Any]
NODES, EVENTS = "/api/v1/nodes", "/api/v1/namespaces/default/events"
# Of all namespaces: the objects' paths are here NAMESPACE.NAME below these.
PODS, POLICIES = "/api/v1/pods", "/apis/networking.k8s.io/v1/networkpolicies"
NAMESPACES = "/api/v1/namespaces"
BLOCKS = "/apis/podwire.example/v1/blocks"
POOLS = {
    f"/apis/podwire.io/v1/ip{kind.lower()}s": ("podwire.io/v1", f"IP{kind}") for kind in ("Space", "Block", "Node")
}
COLLECTIONS = {
    NODES: ("v1", "Node"),
    EVENTS: ("v1", "Event"),
    PODS: ("v1", "Pod"),
    NAMESPACES: ("v1", "Namespace"),
    POLICIES: ("networking.k8s.io/v1", "NetworkPolicy"),
    BLOCKS: ("podwire.example/v1", "Block"),
    **POOLS,
}
SPACES = "/apis/podwire.io/v1/ipspaces"  # the kind with the subresource "status", whose default is {}
_CODES = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


class Refusal(Exception):  # noqa: N818 - an answer
    """A request that the server refuses, with its status and reason."""

    def __init__(self, status: int, message: str, reason: str = "", *, name: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.document = {
            "kind": "Status",
            "details": {"name": name} if name else {},
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason or _CODES[status],
            "code": status,
        }


class Store:
    """Objects by path, and the history of their changes since the last compaction."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.revision = 100
        self.compacted = 0
        self.objects: dict[str, Document] = {}
        self.history: list[tuple[int, str, str, bytes]] = []  # revision, type, path, event line
        self._pages: dict[str, tuple[int, list[Document], int]] = {}

    def put(self, path: str, document: Document) -> Document:
        """Stores an object as a client's PUT would, or creates it; returns it with its new resourceVersion."""
        with self.changed:
            old = self.objects.get(path)
            new = copy.deepcopy(document)
            metadata = new.setdefault("metadata", {})
            metadata.setdefault("name", path.rpartition("/")[2])
            if path.startswith(SPACES):
                generation = old["metadata"]["generation"] if old else 0
                has_same_spec = old is not None and old.get("spec") == new.get("spec")
                metadata["generation"] = generation + (not has_same_spec)
                new.setdefault("status", {})
            metadata["uid"] = old["metadata"]["uid"] if old else metadata.get("uid") or str(uuid.uuid4())
            self.revision += 1
            metadata["resourceVersion"] = str(self.revision)
            self.objects[path] = new
            self._record("MODIFIED" if old else "ADDED", path, new)
            return new

    def put_part(self, path: str, document: Document, *, is_status: bool) -> Document:
        """Stores what a request to an object may change: its status by the path of the status, else all but that."""
        old = self.objects.get(path, {})
        if is_status:
            return self.put(path, {**old, "status": document.get("status", {})})
        return self.put(path, {**document, "status": old.get("status", {})} if path.startswith(SPACES) else document)

    def remove(self, path: str) -> Document:
        """Deletes an object, which must exist."""
        with self.changed:
            self.revision += 1
            last = copy.deepcopy(self.objects.pop(path))
            last["metadata"]["resourceVersion"] = str(self.revision)
            self._record("DELETED", path, last)
            return last

    def _record(self, kind: str, path: str, document: Document) -> None:
        line = json.dumps({"type": kind, "object": document}, separators=(",", ":")).encode() + b"\n"
        self.history.append((self.revision, kind, path, line))
        self.changed.notify_all()

    def compact(self) -> None:
        """Forgets the history: lists and watches of older resourceVersions are refused with 410."""
        with self.changed:
            self.compacted = self.revision
            self.history.clear()

    def backup(self) -> tuple[int, dict[str, Document]]:
        """Returns a copy of all objects, for restore()."""
        return self.revision, copy.deepcopy(self.objects)

    def restore(self, backup: tuple[int, dict[str, Document]]) -> None:
        """Goes back to a backup, with its resourceVersion."""
        with self.changed:
            self.revision, self.objects = backup[0], copy.deepcopy(backup[1])
            self.history.clear()
            self.compacted = 0

    def page(self, collection: str, query: dict[str, str]) -> Document:
        """Returns a list, or a part of it with `limit` and `continue`; all parts show one moment."""
        with self.changed:
            if position := query.get("continue"):
                revision, objects, start = self._pages.get(position, (0, [], 0))
                if revision < self.compacted or not revision:
                    raise Refusal(410, "The provided continue parameter is too old to display a consistent list")
            else:
                revision, start = self.revision, 0
                objects = [
                    document
                    for path, document in sorted(self.objects.items())
                    if self.matches(path, collection, query, document) and self.has_labels(document, query)
                ]
            end = start + int(query.get("limit") or len(objects) or 1)
            metadata: Document = {"resourceVersion": str(revision)}
            if end < len(objects):
                metadata |= {"continue": f"{revision}-{end}-{collection}", "remainingItemCount": len(objects) - end}
                self._pages[metadata["continue"]] = (revision, objects, end)
            version, kind = COLLECTIONS[collection]
            return {"kind": f"{kind}List", "apiVersion": version, "metadata": metadata, "items": objects[start:end]}

    @staticmethod
    def matches(path: str, collection: str, query: dict[str, str], document: Document) -> bool:
        """Returns whether an object is in a collection, and has the name or the node of its field selector."""
        if path.rpartition("/")[0] != collection:
            return False
        field, _, value = query.get("fieldSelector", "").partition("=")
        if field == "spec.nodeName":
            return bool(document.get("spec", {}).get("nodeName") == value)
        if field == "metadata.namespace":
            return bool(document["metadata"].get("namespace") == value)
        return value in ("", path.rpartition("/")[2])

    @staticmethod
    def has_labels(document: Document, query: dict[str, str]) -> bool:
        """Returns whether an object has the labels of a selector, such as "a=1,b=2"."""
        labels = document["metadata"].get("labels") or {}
        pairs = [pair.partition("=") for pair in query.get("labelSelector", "").split(",") if pair]
        return all(labels.get(key) == value for key, _, value in pairs)

    def events_after(self, revision: int, collection: str, query: dict[str, str]) -> list[tuple[int, bytes]]:
        """Returns the changes of a collection after a revision; the caller holds `changed`."""
        newer: list[tuple[int, bytes]] = []
        for number, _, path, line in reversed(self.history):
            if number <= revision:
                break
            if self.matches(path, collection, query, json.loads(line)["object"]):
                newer.append((number, line))
        return newer[::-1]
