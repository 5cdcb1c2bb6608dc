"""A node for `podwire test` and `podwire trace`: a dual-stack bridge network with host ports, pods, and an uplink.

One rule: the node is complete, as a runtime leaves it, so that without a fault every path is in order.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.support.doctor_node import DoctorNode
from tests.support.namespaces import Namespace
from tests.support.publishing import connect, disable_dad

BRIDGE = "cnip0"
HOST_PORT, UDP_PORT = 8080, 5353
_BRIDGE = {"type": "bridge", "bridge": BRIDGE, "isDefaultGateway": True, "ipMasq": True, "ipMasqBackend": "nftables"}
_BRIDGE |= {"hairpinMode": True, "enabledad": False}
_CHAINED = (
    {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True, "backend": "nftables"},
    {"type": "bandwidth", "capabilities": {"bandwidth": True}},
)
_PORTS = [
    {"hostPort": HOST_PORT, "containerPort": 80, "protocol": "tcp"},
    {"hostPort": UDP_PORT, "containerPort": 53, "protocol": "udp"},
]


class PacketNode(DoctorNode):
    """The node: `attach_pod` attaches a pod, the first with host ports."""

    def __init__(self, host: Namespace, directory: Path, client: Namespace | None = None) -> None:
        super().__init__(host, directory)
        self.client = client
        disable_dad(host)
        if client is not None:
            disable_dad(client)
            connect(host, client)
            host.ip("route", "add", "default", "via", "192.0.2.2")
            host.ip("-6", "route", "add", "default", "via", "2001:db8::2")

    def attach_pod(
        self, pod: Namespace, *, ports: bool = False, limits: dict[str, int] | None = None, **bridge_keys: Any
    ) -> str:
        """Attaches a pod; returns the name of its host veth."""
        ranges = [[{"subnet": "10.22.0.0/24"}], [{"subnet": "fd00:22::/64"}]]
        ipam = {"type": "host-local", "ranges": ranges, "dataDir": str(self.directory / "leases")}
        plugins = [{**_BRIDGE, "ipam": ipam, **bridge_keys}, *_CHAINED]
        network = self.add_network({"cniVersion": "1.0.0", "name": "packets", "plugins": plugins})
        if ports:
            network = network.with_capabilities(portMappings=_PORTS)
        if limits:
            network = network.with_capabilities(**network.capability_args, bandwidth=limits)
        disable_dad(pod)
        pod.ip("link", "set", "lo", "up")
        result = self.attach(network, pod)
        return next(str(one["name"]) for one in result["interfaces"] if one["name"].startswith("veth"))

    def trace(self, *arguments: str, **options: Any) -> dict[str, Any]:
        """Runs `podwire trace --json` and returns its document; its exit status must agree."""
        return self._document({"lost": 1}, "trace", *arguments, **options)

    def test(self, *arguments: str, **options: Any) -> dict[str, Any]:
        """Runs `podwire test --json` and returns its document."""
        return self._document({}, "test", *arguments, **options)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts the tool on the node, as `podwire` does; the caller ends it."""
        line, variables = self.command_line(*arguments)
        with self.host.entered():
            return subprocess.Popen(line, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def _document(self, statuses: dict[str, int], *arguments: str, **options: Any) -> dict[str, Any]:
        done = self.podwire(*arguments, "--json", **options)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.stdout, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        assert "code" not in document, document
        if "outcome" in document:
            assert done.returncode == statuses.get(document["outcome"], 0), document
        return document
