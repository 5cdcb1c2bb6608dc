"""A client of the Kubernetes API: requests, lists in pages, watches.

One rule: each failure is an ApiError, and its class shows whether the server may have executed the request. A request
is sent once: only the caller can decide to repeat it. Redirects are not followed, proxies of the environment not used.

Memory: a page or an event is parsed and dropped before the next one is read. Lists carry no resourceVersion, because
with one the server answers from its cache, in one page. https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError, SSLError
from urllib3.util.ssl_match_hostname import CertificateError

from agent.api_answer import Document, Watch, read_document, resource_version_of
from agent.api_errors import (
    ApiError,
    Expired,
    InvalidAnswer,
    NoCredentials,
    OutcomeUnknown,
    TooLarge,
    Unauthorized,
    Unreachable,
    Untrusted,
    status_error,
)
from agent.api_server import CurrentFile, Server

T = TypeVar("T")

PAGE_SIZE = 100
CONNECT_TIMEOUT_S = 5.0
# The server's limit for a request is 60 s, but it reports a store that does not answer after 7 s.
READ_TIMEOUT_S = 30.0
# The server sends a bookmark each minute: after this time without one, the connection counts as cut. Kubernetes 1.20
# sends none while no Node changes; there a quiet watch is opened again after this time.
WATCH_SILENCE_S = 90.0
_MAX_RETRY_AFTER_S = 120.0
_RESTARTS = 3  # of a list, when its pages expire
_JSON = "application/json"
_IS_URLLIB3_2 = hasattr(urllib3, "BaseHTTPResponse")  # Debian 12 has 1.26


class Listing(NamedTuple, Generic[T]):
    """The parsed objects of a list, and its resourceVersion, after which a watch continues."""

    items: list[T]
    resource_version: str


def object_path(collection: str, name: str) -> str:
    """Returns the path of an object: collection and quoted name."""
    return f"{collection}/{quote(name, safe='')}"


class Client:
    """A client of one API server; several threads may use it. `token_file` None sends requests without a token."""

    def __init__(
        self,
        server: Server,
        token_file: Path | None,
        *,
        user_agent: str = "podwire-agent",
        read_timeout_s: float = READ_TIMEOUT_S,
        watch_silence_s: float = WATCH_SILENCE_S,
    ) -> None:
        self._server = server
        self._token = CurrentFile(token_file) if token_file else None
        self._ca = CurrentFile(server.ca_file) if server.ca_file else None
        self._user_agent = user_agent
        self._timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=read_timeout_s)
        self._watch_timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=watch_silence_s)
        self._lock = threading.Lock()
        self._connections: tuple[str, urllib3.PoolManager] | None = None

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Document:
        """Returns an object, or one page of a list."""
        return self._document("GET", _with_query(path, query))

    def create(self, collection: str, document: Document) -> Document:
        """Creates an object (POST) and returns it; raises Conflict if the name exists."""
        return self._document("POST", collection, document)

    def replace(self, path: str, document: Document) -> Document:
        """Replaces an object (PUT); raises Conflict if its resourceVersion or UID is not that of `document`."""
        return self._document("PUT", path, document)

    def delete(self, path: str, *, uid: str = "", resource_version: str = "") -> Document:
        """Deletes an object; raises Conflict if its UID or resourceVersion is another one."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": {key: value for key, value in preconditions.items() if value},
        }
        return self._document("DELETE", path, options)

    def list_objects(
        self, path: str, parse: Callable[[Document], T], query: Mapping[str, str] | None = None
    ) -> Listing[T]:
        """Returns the parsed objects of a list, read in pages; begins again when the pages expire.

        `parse` may raise ValueError for an object that is not of the kind.
        """
        for _ in range(_RESTARTS):
            try:
                return self._list_once(path, parse, query or {})
            except Expired as error:
                expired = error
        raise expired

    def _list_once(self, path: str, parse: Callable[[Document], T], query: Mapping[str, str]) -> Listing[T]:
        items: list[T] = []
        limit, position = PAGE_SIZE, ""
        while True:
            page_query = {**query, "limit": str(limit)} | ({"continue": position} if position else {})
            try:
                page = self.get(path, page_query)
            except TooLarge:
                if limit == 1:
                    raise
                limit = max(1, limit // 4)
                continue
            items += _parsed_items(f"GET {path}", page, parse)
            position = _continue_of(page)
            if not position:
                return Listing(items, resource_version_of(page))

    def watch(self, path: str, resource_version: str, query: Mapping[str, str] | None, *, timeout_s: int) -> Watch:
        """Opens a watch of the changes after a resourceVersion, with bookmarks, which the server ends after a time."""
        options = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout_s)}
        target = _with_query(path, {**(query or {}), **options, "resourceVersion": resource_version})
        return Watch(f"watch of {path}", self._response("GET", target, None, self._watch_timeout))

    def forget_connections(self) -> None:
        """Opens new connections from now on: after a change of this node's addresses, answers may not arrive."""
        with self._lock:
            self._connections = None

    def _document(self, method: str, target: str, body: Document | None = None) -> Document:
        response = self._response(method, target, body, self._timeout)
        return read_document(_described(method, target), response)

    def _response(
        self, method: str, target: str, body: Document | None, timeout: urllib3.Timeout
    ) -> urllib3.BaseHTTPResponse:
        """Sends a request and returns the answer if its status is 2xx; else raises ApiError."""
        described = _described(method, target)
        connections, headers = self._connect(described)
        try:
            response = connections.request(
                method,
                self._server.url + target,
                body=None if body is None else json.dumps(body, separators=(",", ":")).encode(),
                headers=headers,
                timeout=timeout,
                redirect=False,
                retries=False,
                preload_content=False,
            )
        except (HTTPError, OSError) as error:
            raise self._connection_error(described, error) from error
        if 200 <= response.status < 300:
            return response
        raise self._status_error(described, response)

    def _connect(self, described: str) -> tuple[urllib3.PoolManager, dict[str, str]]:
        """Returns the connections that trust the present certificate authority, and the headers with the token."""
        headers = {"Accept": _JSON, "Accept-Encoding": "gzip", "Content-Type": _JSON, "User-Agent": self._user_agent}
        file = self._ca
        try:
            with self._lock:
                ca = self._ca.text() if self._ca else self._server.ca_text
                if self._connections is None or self._connections[0] != ca:
                    self._connections = ca, _new_connections(ca)
                file = self._token
                if self._token:
                    headers["Authorization"] = f"Bearer {_checked_token(self._token.text())}"
                return self._connections[1], headers
        except (OSError, ValueError) as error:
            name = f"the file {file.path}" if file else "the kubeconfig's certificate authority"
            raise NoCredentials(described, f"{name} cannot be used: {error}") from error

    def _connection_error(self, described: str, error: Exception) -> ApiError:
        url = self._server.url
        certificate_errors = ssl.SSLCertVerificationError | CertificateError
        if isinstance(error, SSLError) and isinstance(error.args[0], certificate_errors):
            fix = f"use the certificate authority of the cluster, not that of {self._ca_name()}"
            return Untrusted(described, f"the certificate of {url} is not trusted: {error}", fix)
        if isinstance(error, ConnectTimeoutError | NewConnectionError):
            fix = "check that the API server runs, and the address and port"
            return Unreachable(described, f"no connection to {url}: {error}", fix)
        if isinstance(error, ReadTimeoutError):
            return OutcomeUnknown(described, f"{url} has sent no answer in time")
        return OutcomeUnknown(described, f"the connection to {url} was cut before an answer: {error}")

    def _ca_name(self) -> str:
        return str(self._ca.path) if self._ca else "the kubeconfig"

    def _status_error(self, described: str, response: urllib3.BaseHTTPResponse) -> ApiError:
        """Returns the error of an answer that is no success; reads its Status object."""
        if 300 <= response.status < 400:
            response.close()
            location = response.headers.get("Location", "")
            return InvalidAnswer(described, f"{self._server.url} redirects to {location!r} (HTTP {response.status})")
        try:
            document = read_document(described, response)
        except InvalidAnswer:
            document = {}
        error = status_error(described, response.status, document, _retry_after_s(response))
        if isinstance(error, Unauthorized) and self._token:
            self._token.forget()
        return error


def _new_connections(ca: str) -> urllib3.PoolManager:
    """Returns a pool that trusts one certificate authority, not those of the system, which would take 10 MiB."""
    context = ssl.create_default_context(cadata=ca)
    # Python 3.13 refuses certificates without a key identifier, which many clusters have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    # urllib3 1.26 passes no IP address to OpenSSL as the name of a server; without the flag it compares names itself.
    context.check_hostname = _IS_URLLIB3_2
    # Debian's urllib3 otherwise also trusts the authorities in /etc/ssl, and fails without that file.
    return urllib3.PoolManager(num_pools=1, maxsize=2, ssl_context=context, ca_certs=None)


def _checked_token(text: str) -> str:
    """Returns a token; raises ValueError, without the text, for one that cannot be in a header."""
    if not text.isprintable() or " " in text:
        raise ValueError("it is not a token of one line")
    return text


def _described(method: str, target: str) -> str:
    return f"{method} {target.partition('?')[0]}"


def _with_query(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _parsed_items(described: str, page: Document, parse: Callable[[Document], T]) -> list[T]:
    items = page.get("items")
    if not isinstance(items, list):
        raise InvalidAnswer(described, f"the answer is no list of objects: kind {page.get('kind')!r}")
    try:
        return [parse(item) for item in items if isinstance(item, Mapping)]
    except ValueError as error:
        raise InvalidAnswer(described, str(error)) from error


def _continue_of(page: Document) -> str:
    metadata = page.get("metadata")
    position = metadata.get("continue") if isinstance(metadata, Mapping) else None
    return position if isinstance(position, str) else ""


def _retry_after_s(response: urllib3.BaseHTTPResponse) -> float:
    """Returns the seconds of Retry-After, limited; Kubernetes sends no dates there."""
    text = response.headers.get("Retry-After", "")
    return min(float(text), _MAX_RETRY_AFTER_S) if text.isdecimal() else 0.0
