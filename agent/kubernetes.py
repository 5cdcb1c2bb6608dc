"""A client of the Kubernetes API: requests, lists in pages, watches.

One rule: each failure is an ApiError, and its class shows whether the server may have executed the request.

Memory: a page or an event is parsed and dropped before the next one is read. Lists carry no resourceVersion, because
with one the server answers from its cache, in one page. https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import urllib3

from agent.api_answer import Watch, read_document, resource_version_of
from agent.api_errors import (
    ApiError,
    Expired,
    InvalidAnswer,
    NoCredentials,
    TooLarge,
    Unauthorized,
    status_error,
)
from agent.api_object import Document, object_at
from agent.api_server import CurrentFile, Server
from agent.http_connections import Connections

T = TypeVar("T")

SERVICE = "Kubernetes API"  # at the beginning of each error
PAGE_SIZE = 100
CONNECT_TIMEOUT_S = 5.0
# The server's limit for a request is 60 s, but it reports a store that does not answer after 7 s.
READ_TIMEOUT_S = 30.0
# The server sends a bookmark each minute: after this time without one, the connection counts as cut. Kubernetes 1.20
# sends none while no Node changes; there a quiet watch is opened again after this time.
WATCH_SILENCE_S = 90.0
_MAX_RETRY_AFTER_S = 120.0
_RESTARTS = 3  # of a list, when its pages expire
_JSON, _JSON_PATCH = "application/json", "application/json-patch+json"


class Listing(NamedTuple, Generic[T]):
    """The parsed objects of a list, and its resourceVersion, after which a watch continues."""

    items: list[T]
    resource_version: str


def object_path(collection: str, name: str) -> str:
    """Returns the path of an object: collection and quoted name."""
    return f"{collection}/{quote(name, safe='')}"


class ApiClient:
    """A client of one API server; several threads may use it. `token_file` None sends requests without a token."""

    def __init__(
        self,
        server: Server,
        token_file: Path | None,
        *,
        read_timeout_s: float = READ_TIMEOUT_S,
        watch_silence_s: float = WATCH_SILENCE_S,
    ) -> None:
        self._server = server
        self._token = CurrentFile(token_file) if token_file else None
        self._connections = Connections(server.ca_file or server.ca_text)
        self._timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=read_timeout_s)
        self._watch_timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=watch_silence_s)

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Document:
        """Returns an object, or one page of a list."""
        return self._document("GET", _with_query(path, query))

    def create(self, collection: str, document: Document) -> Document:
        """Creates an object (POST) and returns it; raises Conflict if the name exists."""
        return self._document("POST", collection, document)

    def patch(self, path: str, operations: Sequence[Document]) -> Document:
        """Changes an object by a JSON Patch (RFC 6902) and returns it; raises Invalid if one of its tests fails."""
        return self._document("PATCH", path, operations)

    def list_objects(
        self,
        path: str,
        parse: Callable[[Document], T],
        query: Mapping[str, str] | None = None,
        *,
        page_size: int = PAGE_SIZE,
    ) -> Listing[T]:
        """Returns the parsed objects of a list, read in pages; begins again when the pages expire.

        `parse` may raise ValueError for an object that is not of the kind.
        """
        for _ in range(_RESTARTS):
            try:
                return self._list_once(path, parse, query or {}, page_size)
            except Expired as error:
                expired = error
        raise expired

    def _list_once(
        self, path: str, parse: Callable[[Document], T], query: Mapping[str, str], page_size: int
    ) -> Listing[T]:
        items: list[T] = []
        limit, position = page_size, ""
        while True:
            page_query = {**query, "limit": str(limit)} | ({"continue": position} if position else {})
            try:
                page = self.get(path, page_query)
            except TooLarge:
                if limit == 1:
                    raise
                limit = max(1, limit // 4)
                continue
            items += _parsed_items(_described("GET", path), page, parse)
            position = _continue_of(page)
            if not position:
                return Listing(items, resource_version_of(page))

    def watch(self, path: str, resource_version: str, query: Mapping[str, str] | None, *, timeout_s: int) -> Watch:
        """Opens a watch of the changes after a resourceVersion, with bookmarks, which the server ends after a time."""
        options = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout_s)}
        target = _with_query(path, {**(query or {}), **options, "resourceVersion": resource_version})
        return Watch(f"{SERVICE}: watch of {path}", self._response("GET", target, None, self._watch_timeout))

    def forget_connections(self) -> None:
        """Opens new connections from now on: after a change of this node's addresses, answers may not arrive."""
        self._connections.forget()

    def _document(self, method: str, target: str, body: Document | Sequence[Document] | None = None) -> Document:
        response = self._response(method, target, body, self._timeout)
        return read_document(_described(method, target), response)

    def _response(
        self, method: str, target: str, body: Document | Sequence[Document] | None, timeout: urllib3.Timeout
    ) -> urllib3.BaseHTTPResponse:
        """Sends a request and returns the answer if its status is 2xx; else raises ApiError."""
        described = _described(method, target)
        response = self._connections.send(
            described,
            method,
            self._server.url + target,
            body=None if body is None else json.dumps(body, separators=(",", ":")).encode(),
            headers=self._headers(described, _JSON_PATCH if method == "PATCH" else _JSON),
            timeout=timeout,
        )
        if 200 <= response.status < 300:
            return response
        raise self._status_error(described, response)

    def _headers(self, described: str, content_type: str) -> dict[str, str]:
        """Returns the headers of a request, with the present token."""
        headers = {
            "Accept": _JSON,
            "Accept-Encoding": "gzip",
            "Content-Type": content_type,
            "User-Agent": "podwire-agent",
        }
        if self._token:
            try:
                headers["Authorization"] = f"Bearer {_checked_token(self._token.text())}"
            except (OSError, ValueError) as error:
                raise NoCredentials(described, f"the file {self._token.path} cannot be used: {error}") from error
        return headers

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


def _checked_token(text: str) -> str:
    """Returns a token; raises ValueError, without the text, for one that cannot be in a header."""
    if not text.isprintable() or " " in text:
        raise ValueError("it is not a token of one line")
    return text


def _described(method: str, target: str) -> str:
    return f"{SERVICE}: {method} {target.partition('?')[0]}"


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
    position = object_at(page, "metadata").get("continue")
    return position if isinstance(position, str) else ""


def _retry_after_s(response: urllib3.BaseHTTPResponse) -> float:
    """Returns the seconds of Retry-After, limited; Kubernetes sends no dates there."""
    text = response.headers.get("Retry-After", "")
    return min(float(text), _MAX_RETRY_AFTER_S) if text.isdecimal() else 0.0
