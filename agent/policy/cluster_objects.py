"""Follows the cluster's pods, namespaces and policies, and passes them to the selection in the main thread.

One rule: what cannot be read isolates. A policy that no API server would accept counts as one that allows nothing, and
is reported by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from agent.api_answer import Document
from agent.object_source import KubernetesObjects, ObjectClient
from agent.object_watch import Changed, Deleted, Failed, ObjectEvent, ObjectWatch, Recovered, Synced
from agent.policy.objects import Policy, closed_policy, parse_namespace, parse_pod, parse_policy
from agent.policy.selection import PolicySelection
from process.loop import now

PODS, NAMESPACES = "/api/v1/pods", "/api/v1/namespaces"
POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
_PAGE_SIZE = 500
_LASTING_S = 60.0  # a watch that fails for less time misses nothing that matters

T = TypeVar("T")
Put = Callable[[Callable[[], None]], None]


class ListedPolicy(NamedTuple):
    """A policy, and what is wrong with its object."""

    policy: Policy
    problem: str = ""


def parse_listed(document: Document) -> ListedPolicy:
    """Returns the policy of an object, also of one that is not valid; raises ValueError without names."""
    try:
        return ListedPolicy(parse_policy(document))
    except ValueError as error:
        return ListedPolicy(closed_policy(document), str(error))


class ClusterObjects:
    """The three watches. `put` runs a call in the main thread, `on_change` is called there after each change."""

    def __init__(
        self,
        client: ObjectClient,
        selection: PolicySelection,
        put: Put,
        on_change: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        self._selection = selection
        self._unreadable: dict[str, str] = {}

        def follow(
            path: str,
            parse: Callable[[Document], T],
            key: Callable[[T], str],
            set_item: Callable[[T], None],
            remove: Callable[[str], None],
        ) -> _Follower[T]:
            source = KubernetesObjects(client, path, parse, key, page_size=_PAGE_SIZE)
            return _Follower(source, put, set_item, remove, on_change, log)

        pods = follow(
            PODS,
            parse_pod,
            lambda pod: f"{pod.namespace}/{pod.name}",
            selection.set_pod,
            lambda key: selection.remove_pod(*key.split("/")),
        )
        namespaces = follow(
            NAMESPACES, parse_namespace, lambda one: one.name, selection.set_namespace, selection.remove_namespace
        )
        policies = follow(POLICIES, parse_listed, _key_of_policy, self._set_policy, self._remove_policy)
        self._policies = policies.watch
        self._followers = (pods, namespaces, policies)

    def start(self) -> None:
        """Starts the watches."""
        for follower in self._followers:
            follower.watch.start()

    def stop(self) -> None:
        """Ends the watches."""
        for follower in self._followers:
            follower.watch.stop()

    def reconnect(self) -> None:
        """Opens the watches again: after a change of this node's addresses answers may not arrive."""
        for follower in self._followers:
            follower.watch.reconnect()

    def are_alive(self) -> bool:
        """Returns whether the threads run."""
        return all(follower.watch.is_alive() for follower in self._followers)

    @property
    def are_synced(self) -> bool:
        """Whether all three kinds have been listed."""
        return all(follower.is_synced for follower in self._followers)

    @property
    def policies_revision(self) -> int:
        """The revision up to which the policies' watch has put its events."""
        return self._policies.revision

    def problems(self) -> Iterator[str]:
        """Yields what keeps the policies from being known."""
        for follower in self._followers:
            yield follower.problem
        yield from (f"{problem}: it allows nothing until it is corrected" for problem in self._unreadable.values())

    def _set_policy(self, listed: ListedPolicy) -> None:
        self._selection.set_policy(listed.policy)
        self._unreadable.pop(_key_of_policy(listed), None)
        if listed.problem:
            self._unreadable[_key_of_policy(listed)] = listed.problem

    def _remove_policy(self, key: str) -> None:
        self._selection.remove_policy(*key.split("/"))
        self._unreadable.pop(key, None)


class _Follower(Generic[T]):
    """One watch, whose events become calls of `set_item` and `remove` in the main thread."""

    def __init__(
        self,
        source: KubernetesObjects[T],
        put: Put,
        set_item: Callable[[T], None],
        remove: Callable[[str], None],
        on_change: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        self.watch = ObjectWatch(source, lambda event: put(partial(self._handle, event)))
        self.is_synced = False
        self._set, self._remove, self._on_change, self._log = set_item, remove, on_change, log
        self._key_of = source.key_of
        self._keys: set[str] = set()
        self._failure, self._failed_s = "", 0.0

    @property
    def problem(self) -> str:
        """Why the objects are not known, "" if they are."""
        is_lasting = self._failure and (not self.is_synced or now() - self._failed_s > _LASTING_S)
        return self._failure if is_lasting else ""

    def _handle(self, event: ObjectEvent[T]) -> None:
        if isinstance(event, Failed):
            self._log(f"API server: {event.error}")
            self._failed_s = self._failed_s if self._failure else now()
            self._failure = str(event.error)
        else:
            self._failure = ""
        if isinstance(event, Synced):
            for key in self._keys - event.items.keys():
                self._remove(key)
            for item in event.items.values():
                self._set(item)
            self._keys, self.is_synced = set(event.items), True
        elif isinstance(event, Changed):
            self._set(event.item)
            self._keys.add(self._key_of(event.item))
        elif isinstance(event, Deleted):
            self._remove(event.key)
            self._keys.discard(event.key)
        if not isinstance(event, Recovered):
            self._on_change()


def _key_of_policy(listed: ListedPolicy) -> str:
    return f"{listed.policy.namespace}/{listed.policy.name}"
