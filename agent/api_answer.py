"""Reads the answers of the Kubernetes API and of etcd: one JSON document, or a watch with one JSON document a line.

One rule: an answer of any size and content takes limited memory and ends in a document or in an ApiError.
"""

from __future__ import annotations

import contextlib
import json
import socket
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import urllib3
from urllib3.exceptions import HTTPError

from agent.api_errors import InvalidAnswer, OutcomeUnknown, TooLarge, status_error
from agent.api_object import Document, object_at

# The store refuses objects of more than 1.5 MiB. A page that is larger is requested again with fewer objects.
MAX_DOCUMENT_BYTES = 4 << 20
_READ_BYTES = 64 << 10
_GZIP = 31  # zlib's window bits for gzip
_SHOWN_BYTES = 80  # of an answer that is no JSON
BOOKMARK, DELETED, ERROR = "BOOKMARK", "DELETED", "ERROR"


class WatchEvent(NamedTuple):
    """A change of an object (ADDED, MODIFIED, DELETED), or a BOOKMARK, which carries only a new resourceVersion."""

    type: str
    document: Document

    @property
    def resource_version(self) -> str:
        """The object's resourceVersion: a later watch continues after it."""
        return resource_version_of(self.document)


class DocumentStream:
    """The JSON documents of an answer that goes on, one a line; iterating ends when the server ends it as requested.

    Raises OutcomeUnknown for a cut or silent connection.
    """

    def __init__(self, request: str, response: urllib3.BaseHTTPResponse) -> None:
        self.request, self._response = request, response

    def __iter__(self) -> Iterator[Document]:
        """Yields the documents when they arrive."""
        try:
            for line in _lines(self.request, self._response):
                yield parse_document(self.request, line)
        except (HTTPError, OSError, ValueError, AttributeError) as error:  # the last two: close() of another thread
            raise OutcomeUnknown(self.request, f"the connection was cut: {error}") from error
        finally:
            self._response.close()

    def close(self) -> None:
        """Ends the answer, also from another thread: its iterator then raises OutcomeUnknown or ends."""
        connection = self._response.connection
        if isinstance(sock := getattr(connection, "sock", None), socket.socket):
            with contextlib.suppress(OSError):
                # Not SSLSocket's method: it also ends TLS, and the reading thread would see the encrypted bytes.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


class Watch:
    """The events of one watch of the Kubernetes API; iterating ends when the server ends the watch as requested.

    Raises OutcomeUnknown for a cut or silent connection, Expired when the resourceVersion is too old.
    """

    def __init__(self, request: str, response: urllib3.BaseHTTPResponse) -> None:
        self._stream = DocumentStream(request, response)

    def __iter__(self) -> Iterator[WatchEvent]:
        """Yields the events when they arrive."""
        for document in self._stream:
            yield self._event(document)

    def _event(self, event: Document) -> WatchEvent:
        request = self._stream.request
        kind, document = event.get("type"), event.get("object")
        if not isinstance(kind, str) or not isinstance(document, Mapping):
            raise InvalidAnswer(request, f"{shown(json.dumps(event).encode())} is no event of a watch")
        if kind == ERROR:
            status = document.get("code")
            raise status_error(request, status if isinstance(status, int) else 0, document)
        return WatchEvent(kind, document)

    def close(self) -> None:
        """Ends the watch, also from another thread: its iterator then raises OutcomeUnknown or ends."""
        self._stream.close()


def read_document(request: str, response: urllib3.BaseHTTPResponse) -> Document:
    """Returns the JSON document of an answer of at most MAX_DOCUMENT_BYTES; raises OutcomeUnknown, InvalidAnswer."""
    data = bytearray()
    try:
        for part in _decoded(response):
            data += part
            if len(data) > MAX_DOCUMENT_BYTES:
                response.close()
                raise TooLarge(request, f"the answer is larger than {MAX_DOCUMENT_BYTES >> 20} MiB")
        response.release_conn()
    except (HTTPError, OSError) as error:
        response.close()
        raise OutcomeUnknown(request, f"the connection was cut in the middle of the answer: {error}") from error
    except zlib.error as error:
        response.close()
        raise InvalidAnswer(request, f"the answer is damaged: {error}") from error
    return parse_document(request, data)


def parse_document(request: str, data: bytes | bytearray) -> Document:
    """Returns a JSON object; raises InvalidAnswer for anything else, such as the HTML of a proxy."""
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        fix = "set the address of the server itself, not of a proxy or a web server"
        raise InvalidAnswer(request, f"the answer is not JSON: {shown(data)}", fix) from error
    if not isinstance(document, dict):
        raise InvalidAnswer(request, f"the answer is no JSON object: {shown(data)}")
    return document


def resource_version_of(document: Document) -> str:
    """Returns `metadata.resourceVersion` of an object or a list, "" without one."""
    version = object_at(document, "metadata").get("resourceVersion")
    return version if isinstance(version, str) else ""


def _decoded(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yields the body; unpacks gzip in steps, so that a small answer cannot become a large one in memory."""
    if response.headers.get("Content-Encoding", "").lower() != "gzip":
        yield from response.stream(_READ_BYTES, decode_content=False)
        return
    decoder = zlib.decompressobj(_GZIP)
    for part in response.stream(_READ_BYTES, decode_content=False):
        packed = part
        while packed:
            yield decoder.decompress(packed, _READ_BYTES)
            packed = decoder.unconsumed_tail
    yield decoder.flush()
    if not decoder.eof:
        raise zlib.error("its end is missing")


def _lines(request: str, response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yields the lines of a body; the last one has no end if the connection was cut, and is dropped."""
    rest = bytearray()
    for part in response.stream(_READ_BYTES, decode_content=False):
        start = 0
        while (end := part.find(b"\n", start)) >= 0:
            yield bytes(rest + part[start:end])
            rest.clear()
            start = end + 1
        rest += part[start:]
        if len(rest) > MAX_DOCUMENT_BYTES:
            raise TooLarge(request, f"an event is larger than {MAX_DOCUMENT_BYTES >> 20} MiB")


def shown(data: bytes | bytearray) -> str:
    """Returns the beginning of an answer, for a message."""
    return repr(bytes(data[:_SHOWN_BYTES]).decode("utf-8", "replace"))
