"""With `--network-policy strict`: which revision the policies of a namespace have, as the API server says now.

One rule: a request begins after the ADD for which it is made, so that the policies are at least as new as the pod. It
is made in a thread; requests of pods that wait together are one for each namespace.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping

from agent.api_answer import Document, resource_version_of
from agent.api_errors import ApiError
from agent.object_source import ObjectClient
from agent.policy.cluster_objects import POLICIES

_RETRY_S = 1.0
Done = Callable[[int], None]


class NewestPolicies:
    """The thread. Each question is answered by a call of its `done`, in the thread, with the highest revision."""

    def __init__(self, client: ObjectClient, log: Callable[[str], None]) -> None:
        self._client, self._log = client, log
        self._questions: queue.SimpleQueue[tuple[str, Done] | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="newest-policies", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Returns whether the thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ends the thread, after its present request or with the process."""
        self._stopped.set()
        self._questions.put(None)

    def ask(self, namespace: str, done: Done) -> None:
        """Asks for the revision of a namespace's policies, 0 without any."""
        self._questions.put((namespace, done))

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            waiting: dict[str, list[Done]] = {question[0]: [question[1]]}
            for _ in range(self._questions.qsize()):
                if (other := self._questions.get()) is None:
                    return
                waiting.setdefault(other[0], []).append(other[1])
            self._answer(waiting)

    def _answer(self, waiting: Mapping[str, list[Done]]) -> None:
        for namespace, calls in waiting.items():
            revision = self._read(namespace)
            for done in calls:
                done(revision)

    def _read(self, namespace: str) -> int:
        """Returns the highest revision of a namespace's policies; asks again until the server answers."""
        while not self._stopped.is_set():
            try:
                query = {"fieldSelector": f"metadata.namespace={namespace}"}
                listing = self._client.list_objects(POLICIES, _revision_of, query)
                return max(listing.items, default=0)
            except ApiError as error:
                self._log(f"API server: {error}")
                self._stopped.wait(_RETRY_S)
        return 0


def _revision_of(document: Document) -> int:
    version = resource_version_of(document)
    return int(version) if version.isdecimal() else 0
