"""Follows the cluster's pods, namespaces and policies, and passes them to the selection in the main thread.

One rule: an object that no API server would accept allows no connection, and is reported by name. An unreadable policy
counts as one that allows nothing; an unreadable pod or namespace counts as absent, so no rule matches it, and ADD of
the pod waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from agent.api_object import Document
from agent.object_source import KubernetesObjects, ObjectClient
from agent.object_watch import Changed, Deleted, Failed, ObjectEvent, ObjectWatch, Recovered, Synced
from agent.policy.objects import (
    ClusterPod,
    Namespace,
    Policy,
    deny_all_policy,
    names_of,
    parse_namespace,
    parse_pod,
    parse_policy,
)
from agent.policy.selection import PolicySelection
from process.loop import now

PODS, NAMESPACES = "/api/v1/pods", "/api/v1/namespaces"
POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
_PAGE_SIZE = 500
_REPORT_AFTER_S = 60.0  # a watch that fails for a shorter time is not reported

T = TypeVar("T", bound=ClusterPod | Namespace | Policy)
CallInMain = Callable[[Callable[[], None]], None]


class Unreadable(NamedTuple):
    """An object that no API server would accept."""

    namespace: str
    name: str
    problem: str
    document: Document


class ClusterObjects:
    """The three watches. `call_in_main` runs a call in the main thread; `on_change` is called there after a change."""

    def __init__(
        self,
        client: ObjectClient,
        selection: PolicySelection,
        call_in_main: CallInMain,
        on_change: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        calls = (call_in_main, on_change, log)
        pods = _Follower(client, PODS, parse_pod, selection.set_pod, selection.remove_pod, None, *calls)
        namespaces = _Follower(
            client,
            NAMESPACES,
            parse_namespace,
            selection.set_namespace,
            lambda _, name: selection.remove_namespace(name),
            None,
            *calls,
        )
        self._policies = _Follower(
            client, POLICIES, parse_policy, selection.set_policy, selection.remove_policy, deny_all_policy, *calls
        )
        self._followers = (pods, namespaces, self._policies)
        self.watches = (pods.watch, namespaces.watch, self._policies.watch)

    @property
    def are_synced(self) -> bool:
        """Whether all three kinds have been listed."""
        return all(follower.is_synced for follower in self._followers)

    @property
    def policies_revision(self) -> int:
        """The revision of the last event that the policies' watch has passed to the main thread."""
        return self._policies.watch.revision

    def problems(self) -> Iterator[str]:
        """Yields why objects are unknown, or may be out of date."""
        for follower in self._followers:
            yield from follower.problems()


class _Follower(Generic[T]):
    """One watch, whose events become calls of `set_item` and `remove` in the main thread.

    `substitute` returns the value that replaces an unreadable object; without it, the object counts as absent.
    """

    def __init__(
        self,
        client: ObjectClient,
        path: str,
        parse: Callable[[Document], T],
        set_item: Callable[[T], None],
        remove: Callable[[str, str], None],
        substitute: Callable[[Document], T] | None,
        call_in_main: CallInMain,
        on_change: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        def read(document: Document) -> T | Unreadable:
            try:
                return parse(document)
            except ValueError as error:
                return Unreadable(*names_of(document), str(error), document)

        source = KubernetesObjects(client, path, read, _key_of, page_size=_PAGE_SIZE)
        self.watch = ObjectWatch(source, lambda event: call_in_main(partial(self._handle, event)))
        self.is_synced = False
        self._set, self._remove, self._substitute = set_item, remove, substitute
        self._on_change, self._log = on_change, log
        self._keys: set[str] = set()
        self._unreadable: dict[str, str] = {}
        self._failure, self._failed_s = "", 0.0

    def problems(self) -> Iterator[str]:
        """Yields why some or all of the objects are unknown, or may be out of date."""
        if self._failure and (not self.is_synced or now() - self._failed_s > _REPORT_AFTER_S):
            yield self._failure
        effect = "it allows nothing" if self._substitute else "no rule matches it"
        yield from (f"{problem}: {effect} until it is corrected" for problem in self._unreadable.values())

    def _handle(self, event: ObjectEvent[T | Unreadable]) -> None:
        if isinstance(event, Failed):
            self._log(f"API server: {event.error}")
            self._failed_s = self._failed_s if self._failure else now()
            self._failure = str(event.error)
        else:
            self._failure = ""
        if isinstance(event, Synced):
            for key in self._keys - event.items.keys():
                self._delete(key)
            for item in event.items.values():
                self._replace(item)
            self.is_synced = True
        elif isinstance(event, Changed):
            self._replace(event.item)
        elif isinstance(event, Deleted):
            self._delete(event.key)
        if not isinstance(event, Recovered):
            self._on_change()

    def _replace(self, item: T | Unreadable) -> None:
        key = _key_of(item)
        self._keys.add(key)
        self._unreadable.pop(key, None)
        if not isinstance(item, Unreadable):
            self._set(item)
            return
        self._unreadable[key] = item.problem
        if self._substitute:
            self._set(self._substitute(item.document))
        else:
            self._remove(item.namespace, item.name)

    def _delete(self, key: str) -> None:
        self._keys.discard(key)
        self._unreadable.pop(key, None)
        self._remove(*key.split("/"))


def _key_of(item: ClusterPod | Namespace | Policy | Unreadable) -> str:
    return f"{item.namespace}/{item.name}"
