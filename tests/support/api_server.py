"""A Kubernetes API server that answers requests for a node: HTTPS with a cluster's certificate authority and a token.

One rule: a request without the token gets Kubernetes' refusal and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# A dual-stack cluster's object, shortened; `managedFields` contains the name podCIDR, too.
NODE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": "worker-1",
        "labels": {"kubernetes.io/hostname": "worker-1", "kubernetes.io/os": "linux"},
        "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        "managedFields": [{"manager": "kube-controller-manager", "fieldsV1": {"f:spec": {"f:podCIDR": {}}}}],
    },
    "spec": {"podCIDR": "10.244.3.0/24", "podCIDRs": ["10.244.3.0/24", "fd00:10:244:3::/64"]},
    "status": {
        "addresses": [{"type": "InternalIP", "address": "192.0.2.10"}, {"type": "Hostname", "address": "worker-1"}],
        "conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}],
    },
}
REFUSAL = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "Unauthorized", "code": 401}


class ApiServer(ThreadingHTTPServer):
    """Gives `answers` in order, the last one again and again; created in the node's network namespace."""

    daemon_threads = True
    token = "eyJhbGciOiJSUzI1NiJ9.podwire.signature"

    def __init__(self, certificates: Path, address: str, answers: Sequence[tuple[int, object]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, 0), _Handler)
        self.answers = [*answers]
        self.requested_paths: list[str] = []
        self.known_token = self.token
        self.arguments = ""
        self.ca = (certificates / "ca.crt").read_text()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.pem")
        self.socket = context.wrap_socket(self.socket, server_side=True)
        host, port = self.server_address[:2]
        self.env = {"KUBERNETES_SERVICE_HOST": str(host), "KUBERNETES_SERVICE_PORT_HTTPS": str(port)}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Serves requests inside the block."""
        thread = threading.Thread(target=self.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()
            self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Logs nothing: a client that does not trust the certificate closes the connection."""


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer

    def do_GET(self) -> None:
        """Sends the next answer, or the refusal."""
        server = self.server
        server.requested_paths.append(self.path)
        server.arguments += " ".join(path.read_text(errors="replace") for path in _command_lines())
        status, body = server.answers[0] if len(server.answers) == 1 else server.answers.pop(0)
        if self.headers["Authorization"] != f"Bearer {server.known_token}":
            status, body = 401, REFUSAL
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


def _command_lines() -> Iterator[Path]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            path.read_bytes()
            yield path
