"""Asks the API server for the current revision of a namespace's policies; for `--network-policy strict`.

One rule: the request to the API server starts after the ADD that needs it, so the policies are at least as new as the
pod. Requests run in a thread. Callers that arrive meanwhile wait for the next one, so pods that start together cause
one request for each namespace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from agent.api_answer import resource_version_of
from agent.api_errors import ApiError
from agent.api_object import Document
from agent.object_source import ObjectClient
from agent.policy.cluster_objects import POLICIES, CallInMain

_RETRY_S = 1.0
Done = Callable[[int], None]


class NewestPolicies:
    """Requests revisions in a thread. Only the main thread may use it; `call_in_main` runs a call there."""

    def __init__(self, client: ObjectClient, call_in_main: CallInMain, log: Callable[[str], None]) -> None:
        self._client, self._call_in_main, self._log = client, call_in_main, log
        self._callers: dict[str, list[Done]] = {}  # by namespace
        self._is_running = False

    def request_revision(self, namespace: str, done: Done) -> None:
        """Calls `done` with the highest revision of a namespace's policies (0: none) when the server has answered."""
        self._callers.setdefault(namespace, []).append(done)
        self._start()

    def _start(self) -> None:
        if self._is_running or not self._callers:
            return
        self._is_running = True
        callers, self._callers = self._callers, {}
        threading.Thread(target=self._run, args=(callers,), name="newest-policies", daemon=True).start()

    def _run(self, callers: dict[str, list[Done]]) -> None:
        """Requests the revision of each namespace, in the thread; after an error, passes those that it has."""
        revisions: dict[str, int] = {}
        try:
            for namespace in callers:
                query = {"fieldSelector": f"metadata.namespace={namespace}"}
                revisions[namespace] = max(self._client.list_objects(POLICIES, _revision_of, query).items, default=0)
        except ApiError as error:
            self._log(f"API server: {error}")
            time.sleep(_RETRY_S)
        finally:
            self._call_in_main(partial(self._finish, callers, revisions))

    def _finish(self, callers: dict[str, list[Done]], revisions: dict[str, int]) -> None:
        self._is_running = False
        for namespace, calls in callers.items():
            for done in calls:
                if namespace in revisions:
                    done(revisions[namespace])
                else:
                    self.request_revision(namespace, done)
        self._start()


def _revision_of(document: Document) -> int:
    version = resource_version_of(document)
    return int(version) if version.isdecimal() else 0
