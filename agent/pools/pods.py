"""Follows the pods of this node, for the keys of their sticky addresses: a list, then a watch, and a list again.

One rule: a pod counts as gone only if a list or an event said so. While the API server does not answer, the pods stay.

Source: the Kubernetes API, core/v1 Pod.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from agent.api_answer import BOOKMARK, DELETED, Document, Watch
from agent.api_errors import ApiError
from agent.kubernetes import ApiClient

_PODS = "/api/v1/pods"
ANNOTATION = "podwire.io/sticky-key"
_VIRTUAL_MACHINE = ("vm.kubevirt.io/name", "kubevirt.io/domain")  # labels of the pod in which a machine runs
_NAME = re.compile(r"[-A-Za-z0-9._]{1,63}")
_ENDED = ("Succeeded", "Failed")
_WATCH_S = 300  # at least; up to twice that, so that the agents do not list together
_FIRST_DELAY_S, _MAX_DELAY_S = 1.0, 60.0


class PodKey(NamedTuple):
    """A pod that has, or waits for, an address: its name ("team-a/db-0") and key, "" if its annotation is not valid."""

    name: str
    key: str
    has_address: bool


def parse_pod(document: Document) -> PodKey:
    """Returns a pod's key; raises ValueError for an object that is no pod.

    The key is the pod's name, which a StatefulSet gives to the next pod, too; for a virtual machine of KubeVirt the
    machine's name, and with the annotation podwire.io/sticky-key its value.
    """
    metadata, spec, status = (_object(document, key) for key in ("metadata", "spec", "status"))
    namespace, name = metadata.get("namespace"), metadata.get("name")
    if not isinstance(namespace, str) or not isinstance(name, str):
        raise ValueError("it has no name")
    annotations, labels = _object(metadata, "annotations"), _object(metadata, "labels")
    has_address = spec.get("hostNetwork") is not True and status.get("phase") not in _ENDED
    key = f"{namespace}/{name}"
    machine = next((value for label in _VIRTUAL_MACHINE if (value := labels.get(label))), None)
    if (chosen := annotations.get(ANNOTATION)) is not None:
        key = f"{namespace}/{chosen}" if isinstance(chosen, str) and _NAME.fullmatch(chosen) else ""
    elif machine is not None:
        key = f"{namespace}/vm:{machine}"  # no pod's name has a colon
    return PodKey(f"{namespace}/{name}", key, has_address)


class PodWatch:
    """Reports the pods of the node `name` to `put`, from a thread of its own: each one's name and key.

    `fail` gets the reason while the API server does not list them, "" when it does again.
    """

    def __init__(
        self, client: ApiClient, name: str, put: Callable[[Mapping[str, str]], None], fail: Callable[[str], None]
    ) -> None:
        self._client, self._put, self._fail = client, put, fail
        self._query = {"fieldSelector": f"spec.nodeName={name}"}
        self._pods: dict[str, str] = {}
        self._failures = 0
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._open: Watch | None = None
        self._thread = threading.Thread(target=self._run, name="pod-watch", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Returns whether the thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ends the thread: at once during a watch or a delay, else after the present request or with the process."""
        self._stopped.set()
        self.reconnect()

    def reconnect(self) -> None:
        """Ends the watch, and lists again."""
        with self._lock:
            if self._open:
                self._open.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._list_and_watch()
                delay_s = random.random() * _FIRST_DELAY_S
            except (ApiError, ValueError) as error:
                self._failures += 1
                self._fail(f"the pods of this node, which have sticky addresses, are not known: {error}")
                delay_s = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(self._failures - 1, 10))
                delay_s *= 0.5 + random.random() / 2
            self._stopped.wait(delay_s)

    def _list_and_watch(self) -> None:
        listing = self._client.list_objects(_PODS, parse_pod, self._query)
        self._pods = {pod.name: pod.key for pod in listing.items if pod.has_address}
        self._put(self._pods)
        self._fail("")
        self._failures = 0
        timeout_s = int(_WATCH_S * (1 + random.random()))
        watch = self._client.watch(_PODS, listing.resource_version, self._query, timeout_s=timeout_s)
        with self._lock:
            self._open = watch
            if self._stopped.is_set():
                watch.close()
        try:
            for event in watch:
                if event.type != BOOKMARK:
                    self._apply(parse_pod(event.document), is_deleted=event.type == DELETED)
        finally:
            with self._lock:
                self._open = None
            watch.close()

    def _apply(self, pod: PodKey, *, is_deleted: bool) -> None:
        before = dict(self._pods)
        self._pods.pop(pod.name, None)
        if pod.has_address and not is_deleted:
            self._pods[pod.name] = pod.key
        if self._pods != before:
            self._put(self._pods)


def _object(document: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}
