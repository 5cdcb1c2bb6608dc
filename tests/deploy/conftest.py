"""Fixtures for the tests of deploy/: a node with an API server, and the agent's image."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pack.release import agent_image as packed
from pack.release import product
from pack.release.product import Product
from tests.support import agent_image, binaries, certificates
from tests.support.agent_container import AgentNode
from tests.support.kubernetes_double import KubernetesDouble
from tests.support.namespaces import Namespace
from tests.support.processes import output


@pytest.fixture(scope="session")
def packed_image(bin_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent's image with the built executable."""
    if not packed.BASES["amd64"].exists():
        binaries.skip_or_fail(f"{packed.BASES['amd64']} is missing: run `make agent-base`")
    directory = tmp_path_factory.mktemp("image")
    layout, _ = packed.write([Product(product.version(), 1_780_000_000, "amd64", bin_dir)], directory)
    return layout


@pytest.fixture(scope="session")
def image(root: None, packed_image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent's image, unpacked."""
    directory = tmp_path_factory.mktemp("unpacked-image")
    agent_image.unpack(packed_image, directory)
    return directory


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a certificate authority (ca.crt) and its certificate for loopback (server.pem)."""
    return certificates.create(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session", autouse=True)
def shared_namespaces(root: None) -> None:
    """Makes /run/netns a shared mount, as `ip netns` and runtimes do: a container receives later namespaces."""
    for command in ("add", "delete"):
        output("ip", "netns", command, "podwire-shared")


@pytest.fixture
def node(image: Path, host: Namespace, tls: Path, tmp_path: Path) -> Iterator[AgentNode]:
    """A node without podwire, two other nodes in its cluster, and the API server on its loopback."""
    with host.entered():
        server = KubernetesDouble(tls)
    with server.running():
        node = AgentNode(tmp_path, image, host, server)
        node.create()
        (tmp_path / "credentials" / "ca.crt").write_bytes((tls / "ca.crt").read_bytes())
        yield node
