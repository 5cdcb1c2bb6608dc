"""Fixtures for the tests of deploy/: a node's directories, and the containers that run with them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import api_server, container, manifests
from tests.support.api_server import ApiServer
from tests.support.namespaces import Namespace
from tests.support.processes import output

CURL_IMAGE = {"/usr": Path("/usr"), "/etc/ssl": Path("/etc/ssl")}


@dataclass(frozen=True)
class Node:
    """A node's directories, the volumes of the DaemonSet's pod, and the node's network."""

    path: Path
    podwire: Path
    host: Namespace

    @property
    def bin_dir(self) -> Path:
        """The node's /opt/cni/bin."""
        return self.path / "bin"

    @property
    def net_d(self) -> Path:
        """The node's /etc/cni/net.d."""
        return self.path / "net-d"

    @property
    def volumes(self) -> dict[str, Path]:
        """The pod's volumes by name."""
        names = [volume["name"] for volume in manifests.pod(manifests.INSTALL)["volumes"]]
        return {name: self.path / name for name in names}

    def run(self, name: str, *, directory: Path = manifests.INSTALL, env: dict[str, str] | None = None) -> Any:
        """Runs an init container of the pod that a directory defines, until it ends."""
        pod = manifests.pod(directory)
        (spec,) = (one for one in pod["initContainers"] if one["name"] == name)
        image = CURL_IMAGE if "command" in spec else {"/podwire": self.podwire}
        with self.host.entered():
            return container.run(pod, spec, image, self.volumes, env=env)

    def fetch_node_object(self, server: ApiServer) -> Any:
        """Runs the container that reads the node's object from the API server."""
        self.path.joinpath("credentials", "ca.crt").write_text(server.ca)
        self.path.joinpath("credentials", "token").write_text(server.token)
        return self.run("node", env={**server.env, "NODE_NAME": api_server.NODE["metadata"]["name"]})

    def write_node_object(self, node: dict[str, Any]) -> None:
        """Writes a Node object to the file of that container."""
        path = self.path / "node" / "node.json"
        path.write_text(json.dumps(node))
        os.chown(path, 65534, 65534)


@pytest.fixture
def node(bin_dir: Path, host: Namespace, tmp_path: Path) -> Node:
    """A node without podwire, with the node's object in the volume for it."""
    node = Node(tmp_path, bin_dir / "podwire", host)
    tmp_path.chmod(0o755)
    for path in node.volumes.values():
        path.mkdir()
    (tmp_path / "node").chmod(0o777)  # the mode of an emptyDir of kubelet
    (config_map,) = (one for one in manifests.render(manifests.INSTALL) if one["kind"] == "ConfigMap")
    for name, text in config_map["data"].items():
        (tmp_path / "network" / name).write_text(text)
    node.write_node_object(api_server.NODE)
    return node


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a certificate authority (ca.crt) and its certificate for 127.0.0.1 and ::1 (server.pem)."""
    directory = tmp_path_factory.mktemp("certificates")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    paths = [str(directory / name) for name in ("ca.key", "ca.crt", "server.key", "server.crt")]
    output("openssl", "req", "-x509", *key, "-subj", "/CN=cluster", "-keyout", paths[0], "-out", paths[1])
    names = ("-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1,IP:::1")
    output(
        "openssl",
        "req",
        "-x509",
        *key,
        *names,
        "-CA",
        paths[1],
        "-CAkey",
        paths[0],
        "-keyout",
        paths[2],
        "-out",
        paths[3],
    )
    (directory / "server.pem").write_text(Path(paths[2]).read_text() + Path(paths[3]).read_text())
    return directory


@pytest.fixture
def serve(host: Namespace, certificates: Path) -> Iterator[Any]:
    """A function that starts an API server on the node's loopback: `serve(address, *answers)`."""
    with contextlib.ExitStack() as stack:

        def start(address: str, *answers: tuple[int, object]) -> ApiServer:
            with host.entered():
                server = ApiServer(certificates, address, answers)
            stack.enter_context(server.running())
            return server

        yield start
