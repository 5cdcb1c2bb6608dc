"""A client of etcd's JSON gateway (versions 3.4 and 3.5): endpoints, user and password, errors.

One rule: a read tries every endpoint; a change goes to the next endpoint only if it was certainly not sent. After a
time-out, a cut connection or a server's error it may have been executed: that is OutcomeUnknown.

The gateway has keys and values in base64, and 64-bit numbers as texts: https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/.
It does not read the client's name from its certificate: if etcd has users, a client needs a password as well.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import urllib3

from agent.api_answer import DocumentStream, read_document
from agent.api_errors import (
    ApiError,
    Expired,
    Forbidden,
    Invalid,
    InvalidAnswer,
    NoCredentials,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unauthorized,
    Unreachable,
)
from agent.api_object import Document
from agent.api_server import CurrentFile
from agent.http_connections import ClientCertificate, Connections

T = TypeVar("T")

TIMEOUT_S = 3.0  # of each endpoint; the election of a new leader takes about as long
# etcd reports a watch's progress every 10 to 11 minutes. A member without a leader ends its watches, and the kernel
# ends connections to machines that are off; this time-out is for a member whose process is stopped.
WATCH_SILENCE_S = 720.0
_UNAUTHENTICATED, _FAILED_PRECONDITION = 16, 9
_NEEDS_USER = "set a user and a password file, if this etcd has users"
_FREE_SPACE = (
    "if its space is exceeded: compact and defragment it, or raise --quota-backend-bytes; then `etcdctl alarm disarm`"
)
_Refusal = tuple[type[Refused], str]
# Errors by gRPC code (https://grpc.github.io/grpc/core/md_doc_statuscodes.html): etcd has not executed the
# request. After every other code it may have.
_REFUSALS: Mapping[int, _Refusal] = {
    3: (Invalid, _NEEDS_USER),
    5: (NotFound, ""),
    7: (Forbidden, "grant the user's role the permission to read and write the keys below /podwire/"),
    8: (Refused, _FREE_SPACE),
    _FAILED_PRECONDITION: (Refused, ""),
    11: (Expired, ""),
    12: (NotFound, "use etcd 3.4 or later"),
    _UNAUTHENTICATED: (Unauthorized, "check the user and the password file"),
}
_NO_GATEWAY = "use etcd 3.4 or later, without --enable-grpc-gateway=false"


class User(NamedTuple):
    """A user of etcd; the file with the password is read again when it changes."""

    name: str
    password_file: Path


class EtcdClient:
    """A client of one etcd cluster; several threads may use it.

    Raises ValueError for an endpoint that is no URL, or without the certificate authority that it needs.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        ca: Path | None = None,
        certificate: ClientCertificate | None = None,
        user: User | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        watch_silence_s: float = WATCH_SILENCE_S,
    ) -> None:
        self._endpoints = [_checked_endpoint(endpoint, ca) for endpoint in endpoints]
        if not endpoints:
            raise ValueError("etcd has no endpoint")
        self._connections = Connections(ca or "", certificate, servers=len(endpoints))
        self._user = user.name if user else ""
        self._password = CurrentFile(user.password_file) if user else None
        self._timeout = urllib3.Timeout(connect=timeout_s, read=timeout_s)
        self._watch_timeout = urllib3.Timeout(connect=timeout_s, read=watch_silence_s)
        self._lock = threading.Lock()
        self._token = ""
        self._first = 0  # the endpoint to try first: the last one that answered

    def read(self, method: str, body: Document) -> Document:
        """Returns the answer of the first endpoint that answers a request that changes nothing."""
        return self._try_endpoints((Unreachable, OutcomeUnknown), lambda url: self._call(url, method, body))

    def change(self, method: str, body: Document) -> Document:
        """Returns the answer to a request that is sent at most once."""
        return self._try_endpoints((Unreachable,), lambda url: self._call(url, method, body))

    def watch(self, body: Document) -> DocumentStream:
        """Opens a watch, which ends when its member has no leader."""
        return self._try_endpoints((Unreachable, OutcomeUnknown), lambda url: self._open_watch(url, body))

    def _try_endpoints(self, passed: tuple[type[ApiError], ...], send: Callable[[str], T]) -> T:
        """Sends a request to the endpoints sequentially, as long as the errors are those in `passed`."""
        first, count = self._first, len(self._endpoints)
        for number in range(first, first + count):
            self._first = number % count
            try:
                return send(self._endpoints[self._first])
            except NoCredentials:
                raise
            except passed as error:
                last: ApiError = error
            except OutcomeUnknown:
                self._first = (number + 1) % count  # the next request goes to another member
                raise
        raise last

    def _call(self, url: str, method: str, body: Document) -> Document:
        return self._with_token(url, lambda token: self._document(url, method, body, token))

    def _open_watch(self, url: str, body: Document) -> DocumentStream:
        def send(token: str) -> DocumentStream:
            # With this header etcd ends the watch when the member has no leader: "hasleader" of clientv3.
            headers = _headers(token) | {"Grpc-Metadata-Hasleader": "true"}
            response = self._response(url, "watch", body, headers, self._watch_timeout)
            return DocumentStream(_described(url, "watch"), response)

        return self._with_token(url, send)

    def _with_token(self, url: str, send: Callable[[str], T]) -> T:
        """Sends a request with the user's token; once more with a new one, if etcd refuses it.

        A refused request was not executed. Invalid is "revision of auth store is old": another user has changed.
        """
        token = self._current_token(url)
        try:
            return send(token)
        except (Unauthorized, Invalid):
            if not self._user:
                raise
            with self._lock:
                if self._token == token:
                    self._token = ""
            return send(self._current_token(url))

    def _current_token(self, url: str) -> str:
        """Returns the user's token, a new one if there is none; "" without a user, and while etcd needs none."""
        if self._password is None:
            return ""
        with self._lock:
            if self._token:
                return self._token
            described = _described(url, "auth/authenticate")
            try:
                password = self._password.text()
            except (OSError, ValueError) as error:
                raise NoCredentials(described, f"the file {self._password.path} cannot be used: {error}") from error
            try:
                answer = self._document(url, "auth/authenticate", {"name": self._user, "password": password}, "")
            except Invalid as error:
                self._password.forget()
                fix = f"check the user {self._user} and the file {self._password.path}"
                raise Unauthorized(described, error.cause, fix, status=error.status) from error
            except Refused as error:
                if error.reason == str(_FAILED_PRECONDITION):  # authentication is not enabled
                    return ""
                raise
            token = answer.get("token")
            if not isinstance(token, str):
                raise InvalidAnswer(described, "the answer has no token")
            self._token = token
            return token

    def _document(self, url: str, method: str, body: Document, token: str) -> Document:
        response = self._response(url, method, body, _headers(token), self._timeout)
        return read_document(_described(url, method), response)

    def _response(
        self, url: str, method: str, body: Document, headers: Mapping[str, str], timeout: urllib3.Timeout
    ) -> urllib3.BaseHTTPResponse:
        """Sends a request and returns the answer if its status is 200; else raises ApiError."""
        described = _described(url, method)
        data = json.dumps(body, separators=(",", ":")).encode()
        response = self._connections.send(
            described, "POST", f"{url}/v3/{method}", headers=headers, body=data, timeout=timeout
        )
        if response.status == 200:
            return response
        try:
            document = read_document(described, response)
        except InvalidAnswer:
            document = {}
        raise _status_error(described, response.status, document)


def _status_error(described: str, status: int, document: Document) -> ApiError:
    """Returns the error of an answer: by its gRPC code, and without one, as of a proxy, by its HTTP status."""
    code, message = document.get("code"), document.get("message")
    cause = f"{message if isinstance(message, str) and message else 'no message'} (HTTP {status})"
    if isinstance(code, int) and code in _REFUSALS:
        kind, fix = _REFUSALS[code]
        return kind(described, cause, fix, status=status, reason=str(code))
    if code is None and status == 404:
        return NotFound(described, f"there is no JSON gateway (HTTP {status})", _NO_GATEWAY, status=status)
    if code is None and 300 <= status < 400:
        return InvalidAnswer(described, f"the server redirects (HTTP {status})")
    return OutcomeUnknown(described, cause)


def _checked_endpoint(endpoint: str, ca: Path | None) -> str:
    """Returns the URL of an endpoint; raises ValueError for any other text."""
    try:
        parts = urlsplit(endpoint)
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port and parts.path in ("", "/")
    except ValueError:
        is_valid = False
    if not is_valid or "@" in endpoint or parts.query:
        raise ValueError(f"{endpoint!r} is not an endpoint of etcd; write https://HOST:PORT")
    if parts.scheme == "https" and ca is None:
        raise ValueError(f"endpoint {endpoint} needs the certificate authority of etcd")
    return endpoint.rstrip("/")


def _headers(token: str) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "User-Agent": "podwire-agent"}
    return headers | ({"Authorization": token} if token else {})


def _described(url: str, method: str) -> str:
    return f"etcd {url}: {method}"
