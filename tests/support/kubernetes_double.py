"""A double of the Kubernetes API server: objects, resourceVersions, lists in pages, watches, faults.

One rule: what it answers without a fault is what a real API server answers; tests/cluster/test_kubernetes_contract.py
runs over both. A fault is one answer that goes wrong, for the first request that it matches.
"""

import contextlib
import copy
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.kubernetes_store import BLOCKS, COLLECTIONS, EVENTS, NODES, SPACES, Document, Refusal, Store

__all__ = ["BLOCKS", "EVENTS", "NODES", "Fault", "KubernetesDouble"]


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}  # of rights, by the method


@dataclass
class Fault:
    """A wrong answer to the next `times` requests whose "METHOD path?query" contains `matching`.

    `lost`: executed, then the connection is cut. `cut`: not executed. `half`: the connection is cut in the body's
    middle. `stalled`: no answer. Without these: `status` with `body` and `headers`.
    """

    matching: str = ""
    lost: bool = False
    cut: bool = False
    half: bool = False
    stalled: bool = False
    status: int = 0
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1


class KubernetesDouble(ThreadingHTTPServer):
    """The server: `tokens` maps each valid token to the "verb resource" pairs that it may use, None for all."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, certificates: Path | None = None, address: str = "127.0.0.1") -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, 0), _Handler)
        self.store = Store()
        self.tokens: dict[str, frozenset[str] | None] = {"admin": None}
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.missing_kinds: set[str] = set()  # collections whose custom resource is not defined
        self.bookmark_s = 0.2
        self.generation = 0  # raised by cut_watches()
        self.is_silent = False
        self.is_stopping = False
        self._context: ssl.SSLContext | None = None
        if certificates:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(certificates / "server.pem")
        host, port = self.server_address[:2]
        scheme = "https" if certificates else "http"
        self.url = f"{scheme}://[{host!s}]:{port}" if ":" in address else f"{scheme}://{host!s}:{port}"

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serves a connection; its TLS handshake is in the connection's thread."""
        request.settimeout(600)
        if self._context:
            request = self._context.wrap_socket(request, server_side=True)
        with contextlib.closing(request):
            super().finish_request(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """Logs nothing: clients close connections, and some do not trust the certificate."""

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Serves requests inside the block."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.is_stopping = True
            self.cut_watches()
            self.shutdown()
            thread.join()
            self.server_close()

    def cut_watches(self) -> None:
        """Cuts the connections of all watches in the middle."""
        with self.store.changed:
            self.generation += 1
            self.store.changed.notify_all()

    def fault_of(self, request: str) -> Fault | None:
        """Returns the first fault that matches a request, and counts it."""
        with self.store.changed:
            self.requests.append(request)
            fault = next((one for one in self.faults if one.matching in request), None)
            if fault:
                fault.times -= 1
                if fault.times == 0:
                    self.faults.remove(fault)
            return fault


class _Handler(BaseHTTPRequestHandler):
    server: KubernetesDouble
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet for headers and body
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answers any request."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.fault_of(f"{self.command} {self.path}") or Fault()
        if fault.stalled:
            with self.server.store.changed:
                self.server.store.changed.wait_for(lambda: self.server.is_stopping, 60)
        if fault.stalled or fault.cut:
            self._cut()
        elif fault.status:
            self._send(fault.status, fault.body, fault.headers)
        else:
            self._execute(body, fault)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the names of http.server

    def log_message(self, *_: object) -> None:
        """Logs nothing."""

    def _execute(self, body: bytes, fault: Fault) -> None:
        query = {key: values[-1] for key, values in parse_qs(urlsplit(self.path).query).items()}
        try:
            if query.get("watch"):
                self._watch(query)
                return
            status, answer = self._answer(query, json.loads(body) if body else {})
        except Refusal as refusal:
            status, answer = refusal.status, refusal.document
        data = json.dumps(answer, separators=(",", ":")).encode()
        if fault.lost:
            self._cut()
        else:
            self._send(status, data, {"Content-Type": "application/json"}, half=fault.half)

    def _send(self, status: int, data: bytes, headers: dict[str, str], *, half: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if half else data)
        self.wfile.flush()
        if half:
            self._cut()

    def _cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.connection, socket.SHUT_RDWR)

    def _answer(self, query: dict[str, str], body: Document) -> tuple[int, Document]:
        whole = unquote(urlsplit(self.path).path)
        path = whole.removesuffix("/status") if whole.startswith(SPACES) else whole
        part = whole.removeprefix(path)
        collection = path if path in COLLECTIONS else path.rpartition("/")[0]
        if collection not in COLLECTIONS or collection in self.server.missing_kinds:
            raise Refusal(404, "the server could not find the requested resource")
        is_list = path in COLLECTIONS
        self._authorize(_VERBS.get(self.command) or ("list" if is_list else "get"), collection, part)
        store = self.server.store
        with store.changed:
            if self.command == "POST":
                return 201, self._create(collection, body)
            if is_list:
                return 200, store.page(path, query)
            old = store.objects.get(path)
            if old is None:
                name = path.rpartition("/")[2]
                raise Refusal(404, f'{collection.rpartition("/")[2]} "{name}" not found', name=name)
            if self.command == "GET":
                return 200, old
            if self.command == "PATCH":
                return 200, store.put_part(path, patched(old, body), is_status=bool(part))
            if self.command == "PUT":
                return 200, self._replace(path, collection, old, body)
            store.remove(path)
            return 200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def _authorize(self, verb: str, collection: str, part: str = "") -> None:
        rights = self.server.tokens.get((self.headers["Authorization"] or "").removeprefix("Bearer "), frozenset())
        if not rights and rights is not None:
            raise Refusal(401, "Unauthorized")
        resource = collection.rpartition("/")[2] + part
        if rights is not None and f"{verb} {resource}" not in rights:
            raise Refusal(403, f'{resource} is forbidden: User "agent" cannot {verb} resource "{resource}"')

    def _create(self, collection: str, body: Document) -> Document:
        name = body.get("metadata", {}).get("name") or ""
        path = f"{collection}/{name}"
        if path in self.server.store.objects:
            raise Refusal(409, f'{collection.rpartition("/")[2]} "{name}" already exists', "AlreadyExists", name=name)
        return self.server.store.put_part(path, body, is_status=False)

    def _replace(self, path: str, collection: str, old: Document, body: Document) -> Document:
        pod_cidr = old.get("spec", {}).get("podCIDR")
        if collection == NODES and pod_cidr and pod_cidr != body.get("spec", {}).get("podCIDR"):
            raise Refusal(422, 'spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid')
        return self.server.store.put_part(path, body, is_status=False)

    def _watch(self, query: dict[str, str]) -> None:
        """Sends events until the time is over, the server stops or the watches are cut."""
        server, store, collection = self.server, self.server.store, urlsplit(self.path).path
        if collection in server.missing_kinds:
            raise Refusal(404, "the server could not find the requested resource")
        self._authorize("watch", collection)
        revision = int(query.get("resourceVersion") or 0)
        end = time.monotonic() + float(query.get("timeoutSeconds") or 300)
        with store.changed:
            if revision < store.compacted:
                raise Refusal(410, f"too old resource version: {revision} ({store.compacted})")
            generation = server.generation
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        while (left := end - time.monotonic()) > 0:
            with store.changed:
                events = store.events_after(revision, collection, query)
                if not events and server.generation == generation:
                    store.changed.wait(min(left, server.bookmark_s))
                    events = store.events_after(revision, collection, query)
                revision = max(events[-1][0] if events else store.revision, revision)
            if server.generation != generation:
                self._cut()
                return
            lines = b"".join(line for _, line in events)
            if not lines and query.get("allowWatchBookmarks") == "true":
                lines = _bookmark(collection, revision)
            if lines and not server.is_silent:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(lines), lines))
                self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


def patched(document: Document, operations: Any) -> Document:
    """Returns a copy of an object after a JSON Patch (RFC 6902) of the operations test, add and replace."""
    new = copy.deepcopy(document)
    for operation in operations:
        *parents, key = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        target = new
        for parent in parents:
            target = target.get(parent, {})
        if operation["op"] == "add" or (operation["op"] == "replace" and key in target):
            target[key] = operation["value"]
        elif operation["op"] != "test" or json.dumps(target.get(key), sort_keys=True) != json.dumps(
            operation["value"], sort_keys=True
        ):
            message = f"the server rejected our request due to an error in our request: {operation['path']}"
            raise Refusal(422, message, "Invalid")
    return new


def _bookmark(collection: str, revision: int) -> bytes:
    version, kind = COLLECTIONS[collection]
    metadata = {"resourceVersion": str(revision), "creationTimestamp": None}
    document = {"kind": kind, "apiVersion": version, "metadata": metadata}
    return json.dumps({"type": "BOOKMARK", "object": document}).encode() + b"\n"
