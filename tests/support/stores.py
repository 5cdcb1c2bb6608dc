"""The stores that the contract suite runs over: the double, two versions of etcd, two servers of the Kubernetes API.

One rule: a test gets the same functions for each of them, and a space of its own.
"""

import contextlib
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from agent.api_errors import Conflict, NotFound
from agent.api_object import Document
from agent.kubernetes import ApiClient, object_path
from agent.pools.etcd import EtcdStore
from agent.pools.etcd_client import EtcdClient
from agent.pools.kubernetes_store import SPACE_LABEL, KubernetesStore
from agent.pools.store import Store
from tests.support import manifests
from tests.support.etcd import Etcd
from tests.support.kubernetes_store import POOLS, SPACES
from tests.support.machine import eventually
from tests.support.store_double import StoreDouble

_RBAC = "rbac.authorization.k8s.io"
_COLLECTIONS = {
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "ClusterRole": f"/apis/{_RBAC}/v1/clusterroles",
    "ClusterRoleBinding": f"/apis/{_RBAC}/v1/clusterrolebindings",
}


class StoreServer(NamedTuple):
    """A server: `connect` returns a new client of the space, by another URL if one is given ("" for the double).

    `put` writes an object as a person does ("space", "blocks/0a160040-26", "nodes/ID"), None deletes it; `compact`
    removes the history. One that `has_schema` refuses objects with wrong types; one that `has_transactions` reads the
    space when it changes a block. The first space is `space_changes` changes: Kubernetes has its spec and its status.
    """

    url: str
    connect: Callable[[str], Store]
    put: Callable[[str, bytes | None], None]
    compact: Callable[[], None]
    has_schema: bool = False
    has_transactions: bool = False
    space_changes: int = 1


def double_server() -> StoreServer:
    """Returns the double; all its clients are one object."""
    double = StoreDouble()
    return StoreServer(
        "", lambda _: double, lambda key, raw: double.put_raw(key, raw or b""), double.compact, has_transactions=True
    )


def etcd_server(etcd: Etcd, space: str) -> StoreServer:
    """Returns a space in etcd."""

    def connect(url: str) -> Store:
        return EtcdStore(EtcdClient([url], timeout_s=30), space)  # the machine may be busy

    def put(key: str, raw: bytes | None) -> None:
        etcd.put(f"/podwire/v1/{space}/{key}", raw)

    return StoreServer(etcd.urls[0], connect, put, etcd.compact, has_transactions=True)


def kubernetes_server(
    url: str, client_of: Callable[[str], ApiClient], space: str, compact: Callable[[], None], *, has_schema: bool
) -> StoreServer:
    """Returns a space in Kubernetes; `client_of` returns the administrator's client of a URL."""
    admin = client_of(url)

    def connect(url: str) -> Store:
        return KubernetesStore(client_of(url), space)

    def put(key: str, raw: bytes | None) -> None:
        _put_object(admin, space, key, raw)

    return StoreServer(url, connect, put, compact, has_schema, space_changes=2)


def _put_object(admin: ApiClient, space: str, key: str, raw: bytes | None) -> None:
    """Writes the spec of a custom resource as a person would, the status of a space; None deletes the object."""
    kind, _, rest = key.partition("/")
    document: dict[str, Any] = {"apiVersion": "podwire.io/v1", "metadata": {"name": space}}
    if raw and not rest:
        with contextlib.suppress(Conflict):
            admin.create(SPACES, {**document, "kind": "IPSpace", "spec": {"pools": []}})
        path = f"{object_path(SPACES, space)}/status"
        admin.patch(path, [{"op": "add", "path": "/status", "value": json.loads(raw)}])
        return
    collection = f"/apis/podwire.io/v1/ip{kind if rest else 'spaces'}"
    name = f"{space}-{rest}" if rest else space
    path = object_path(collection, name)
    if raw is None:
        delete(admin, path)
        return
    try:
        replace(admin, path, {**admin.get(path), "spec": json.loads(raw)})
    except NotFound:
        metadata = {"name": name, "labels": {SPACE_LABEL: space}}
        admin.create(
            collection, {**document, "kind": POOLS[collection][1], "metadata": metadata, "spec": json.loads(raw)}
        )


def replace(admin: ApiClient, path: str, document: Document) -> Document:
    """Replaces an object, as people do and agents never do."""
    return admin._document("PUT", path, document)


def delete(admin: ApiClient, path: str) -> Document:
    """Deletes an object, as people do and agents never do."""
    return admin._document("DELETE", path)


def apply(admin: ApiClient, documents: Iterable[dict[str, Any]], *usable: str) -> None:
    """Creates cluster-wide objects that do not exist yet, and waits until `usable` collections can be read."""

    def is_usable(collection: str) -> bool:
        with contextlib.suppress(NotFound):
            admin.get(collection)
            return True
        return False

    for document in documents:
        with contextlib.suppress(Conflict):
            admin.create(_COLLECTIONS[document["kind"]], document)
    assert all(eventually(lambda: is_usable(one), within_s=30) for one in usable)  # noqa: B023


def create_kinds(admin: ApiClient) -> None:
    """Creates the objects of deploy/pools/, once, and waits until the custom resources can be used."""
    apply(admin, manifests.render(manifests.POOLS), *POOLS)


def binding(role: str) -> dict[str, Any]:
    """Returns the object that gives the rights of a role to the group "agents"."""
    return {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{role}-agents"},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "Group", "name": "agents", "apiGroup": _RBAC}],
    }


def apply_pools(admin: ApiClient, spec: dict[str, Any]) -> None:
    """Creates the space "default", or replaces its spec, as `kubectl apply` does."""
    try:
        metadata = {"name": "default"}
        admin.create(SPACES, {"apiVersion": "podwire.io/v1", "kind": "IPSpace", "metadata": metadata, "spec": spec})
    except Conflict:
        admin.patch(f"{SPACES}/default", [{"op": "replace", "path": "/spec", "value": spec}])
