"""Kubernetes Events about this node or an IPSpace, for what a person must know: `kubectl describe` shows them.

One rule: an Event never delays the agent, and one that cannot be created stops nothing. The agent needs only the right
to create Events, as it changes none. The name of an Event has a digest of its content, so an Event that the cluster
still shows (for an hour by default) is not created again, also not by an agent that restarts again and again.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from agent.api_errors import ApiError, Conflict
from agent.api_object import Document

EVENTS = "/api/v1/namespaces/default/events"  # for objects without a namespace, such as Nodes
COMPONENT = "podwire-agent"

_REPEAT_S = 3600.0
_RETRY_S = 60.0
_MAX_AN_HOUR = 25
_MAX_MESSAGE = 1000  # the server's limit is 1,024 bytes
_MAX_NAME = 200  # of the node, in the Event's name of at most 253 characters


class EventClient(Protocol):
    """The part of a Client that is used here."""

    def create(self, collection: str, document: Document) -> Document:
        """Creates an object."""


class NoEvents:
    """The client of a cluster without an API server: Events are dropped."""

    def create(self, collection: str, document: Document) -> Document:
        """Drops an object."""
        return document


class Subject(NamedTuple):
    """An object other than this agent's Node that an Event is about."""

    api_version: str
    kind: str
    name: str
    uid: str

    @classmethod
    def of_space(cls, name: str, uid: str) -> Subject:
        """Returns an IPSpace object."""
        return cls("podwire.io/v1", "IPSpace", name, uid)


class _Event(NamedTuple):
    reason: str
    message: str
    type: str
    about: Subject | None


class EventRecorder:
    """Creates Events about one node, from a thread of its own after start(). `log` gets what cannot be created.

    `node_uid` is the Node's UID as soon as it is known; without it kubectl finds the Event by the node's name.
    """

    def __init__(
        self,
        client: EventClient,
        node_name: str,
        log: Callable[[str], None],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.node_uid = ""
        self._client, self._node_name, self._log = client, node_name, log
        self._monotonic, self._clock = monotonic, clock
        self._lock = threading.Lock()
        self._not_before: dict[_Event, float] = {}
        self._queue: queue.Queue[_Event | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Ends the thread, after the Events that wait if there is time."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def report(self, reason: str, message: str, *, is_warning: bool = True, about: Subject | None = None) -> None:
        """Queues an Event, by default about the Node; `reason` is a word such as "PodNetworkNotReady".

        The same Event is created at most once an hour.
        """
        event = _Event(reason, message[:_MAX_MESSAGE], "Warning" if is_warning else "Normal", about)
        now = self._monotonic()
        with self._lock:
            self._not_before = {key: end for key, end in self._not_before.items() if end > now}
            if event in self._not_before:
                return
            is_over_limit = len(self._not_before) >= _MAX_AN_HOUR
            if not is_over_limit:
                self._not_before[event] = now + _REPEAT_S
        if is_over_limit:
            self._log(f"no Kubernetes Event, because there were {_MAX_AN_HOUR} in an hour: {reason}: {message}")
        else:
            self._queue.put(event)

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            self._create(event)

    def send_queued(self) -> None:
        """Creates the Events that wait, in the caller's thread, while the recorder's does not run."""
        while not self._queue.empty():
            if (event := self._queue.get()) is not None:
                self._create(event)

    def _create(self, event: _Event) -> None:
        try:
            self._client.create(EVENTS, self._document(event))
        except Conflict:
            pass  # the cluster shows it already
        except ApiError as error:
            self._log(f"no Kubernetes Event {event.reason} ({event.message}): {error}")
            with self._lock:
                self._not_before[event] = self._monotonic() + max(_RETRY_S, error.retry_after_s)

    def _document(self, event: _Event) -> Document:
        # Without a UID the name is used, as kubelet does: kubectl looks for Events with either.
        about = event.about or Subject("v1", "Node", self._node_name, self.node_uid or self._node_name)
        words = event.reason, event.message, event.type, *(event.about or ())
        digest = hashlib.sha256("\0".join(words).encode("utf-8", "replace")).hexdigest()[:16]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock()))
        name = f"{about.name[:_MAX_NAME].rstrip('.-')}.{digest}"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": "default"},
            "involvedObject": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "name": about.name,
                "uid": about.uid,
            },
            "type": event.type,
            "reason": event.reason,
            "message": event.message,
            "source": {"component": COMPONENT, "host": self._node_name},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._node_name[:128],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
