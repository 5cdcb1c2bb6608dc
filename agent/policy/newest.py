"""With `--network-policy strict`: which revision the policies of a namespace have, as the API server says now.

One rule: a request begins after the ADD for which it is made, so that the policies are at least as new as the pod.
Requests are made in a thread; while it works new questions wait, so pods that start together cause one per namespace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from agent.api_answer import Document, resource_version_of
from agent.api_errors import ApiError
from agent.object_source import ObjectClient
from agent.policy.cluster_objects import POLICIES, Put

_RETRY_S = 1.0
Done = Callable[[int], None]


class NewestPolicies:
    """Asks the API server. Only for the main thread, in which `put` runs a call."""

    def __init__(self, client: ObjectClient, put: Put, log: Callable[[str], None]) -> None:
        self._client, self._put, self._log = client, put, log
        self._waiting: dict[str, list[Done]] = {}  # by namespace
        self._is_asking = False

    def ask(self, namespace: str, done: Done) -> None:
        """Calls `done` with the highest revision of a namespace's policies, 0 without any, once the server answers."""
        self._waiting.setdefault(namespace, []).append(done)
        self._start()

    def _start(self) -> None:
        if self._is_asking or not self._waiting:
            return
        self._is_asking = True
        questions, self._waiting = self._waiting, {}
        threading.Thread(target=self._run, args=(questions,), name="newest-policies", daemon=True).start()

    def _run(self, questions: dict[str, list[Done]]) -> None:
        """Asks for each namespace, in the thread."""
        revisions: dict[str, int] = {}
        try:
            for namespace in questions:
                query = {"fieldSelector": f"metadata.namespace={namespace}"}
                revisions[namespace] = max(self._client.list_objects(POLICIES, _revision_of, query).items, default=0)
        except ApiError as error:
            self._log(f"API server: {error}")
            time.sleep(_RETRY_S)
        finally:
            self._put(partial(self._finish, questions, revisions))

    def _finish(self, questions: dict[str, list[Done]], revisions: dict[str, int]) -> None:
        self._is_asking = False
        for namespace, calls in questions.items():
            for done in calls:
                if namespace in revisions:
                    done(revisions[namespace])
                else:
                    self.ask(namespace, done)
        self._start()


def _revision_of(document: Document) -> int:
    version = resource_version_of(document)
    return int(version) if version.isdecimal() else 0
