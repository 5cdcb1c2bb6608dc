"""The stores that the contract suite runs over: the double, two versions of etcd, two servers of the Kubernetes API.

One rule: a test gets the same functions for each of them, and a space of its own.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from agent.api_errors import Conflict, NotFound
from agent.kubernetes import Client, object_path
from agent.pools.etcd import EtcdStore
from agent.pools.etcd_client import EtcdClient
from agent.pools.kubernetes_store import SPACE_LABEL, kubernetes_store
from agent.pools.store import Store
from tests.support import manifests
from tests.support.etcd import Etcd
from tests.support.store_double import StoreDouble


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
    url: str, client_of: Callable[[str], Client], space: str, compact: Callable[[], None], *, has_schema: bool
) -> StoreServer:
    """Returns a space in Kubernetes; `client_of` returns the administrator's client of a URL."""
    admin = client_of(url)

    def connect(url: str) -> Store:
        return kubernetes_store(client_of(url), space)

    def put(key: str, raw: bytes | None) -> None:
        put_object(admin, space, key, raw)

    return StoreServer(url, connect, put, compact, has_schema, space_changes=2)


def put_object(admin: Client, space: str, key: str, raw: bytes | None) -> None:
    """Writes the spec of a custom resource as a person would; None deletes the object."""
    kind, _, rest = key.partition("/")
    if raw and not rest:
        put_space(admin, space, json.loads(raw))
        return
    collection = f"/apis/podwire.io/v1/ip{kind if rest else 'spaces'}"
    name = f"{space}-{rest}" if rest else space
    path = object_path(collection, name)
    old: dict[str, Any] = {}
    with contextlib.suppress(NotFound):
        old = dict(admin.get(path))
    if raw is None:
        admin.delete(path)
    elif old:
        admin.replace(path, {**old, "spec": json.loads(raw)})
    else:
        kind_name = {"blocks": "IPBlock", "nodes": "IPNode", "space": "IPSpace"}[kind]
        metadata = {"name": name, "labels": {SPACE_LABEL: space}}
        document = {"apiVersion": "podwire.io/v1", "kind": kind_name, "metadata": metadata, "spec": json.loads(raw)}
        admin.create(collection, document)


def put_space(admin: Client, space: str, effect: dict[str, Any]) -> None:
    """Writes a space in effect into the status of an IPSpace, without the checks of the agents."""
    collection = "/apis/podwire.io/v1/ipspaces"
    document = {"apiVersion": "podwire.io/v1", "kind": "IPSpace", "metadata": {"name": space}, "spec": {"pools": []}}
    with contextlib.suppress(Conflict):
        admin.create(collection, document)
    path = f"{object_path(collection, space)}/status"
    admin.patch(path, [{"op": "add", "path": "/status", "value": effect}])


def create_kinds(admin: Client) -> None:
    """Creates the objects of deploy/pools/, once, and waits until the custom resources can be used."""
    for document in manifests.render(manifests.POOLS):
        collection = {
            "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        }[document["kind"]]
        with contextlib.suppress(Conflict):
            admin.create(collection, document)
    end = time.monotonic() + 30
    for kind in ("spaces", "blocks", "nodes"):
        while True:
            with contextlib.suppress(NotFound):
                admin.get(f"/apis/podwire.io/v1/ip{kind}")
                break
            assert time.monotonic() < end
            time.sleep(0.1)


def bind_group(admin: Client, group: str) -> None:
    """Gives the agents' rights of deploy/pools/ to a group."""
    api_group = "rbac.authorization.k8s.io"
    with contextlib.suppress(Conflict):
        admin.create(
            f"/apis/{api_group}/v1/clusterrolebindings",
            {
                "metadata": {"name": f"podwire-pools-{group}"},
                "roleRef": {"apiGroup": api_group, "kind": "ClusterRole", "name": "podwire-pools"},
                "subjects": [{"kind": "Group", "name": group, "apiGroup": api_group}],
            },
        )
