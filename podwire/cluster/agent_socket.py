"""Requests to podwire-agent over its Unix socket: HTTP/1.0 with JSON.

One rule: an incomplete answer is an error. This is a small client of its own because the executable contains no HTTP
library: it sends one request per connection, and needs no redirects, encodings or TLS on a socket that only root can
use.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from shlex import quote

from cni.errors import CniError, Code

SOCKET = "/run/podwire/agent.sock"
_LIMIT_S = 120.0  # between two parts of an answer; the agent reads up to some 30,000 objects of the store
_MAX_BYTES = 256 << 20
_CHUNK = 1 << 16
_OK, _MISSING, _UNAVAILABLE = 200, 404, 503
_FEATURES = {"pools": ("pools", "--store"), "policy": ("network policies", "--network-policy")}
_RUN = "does podwire-agent run here? systemctl status podwire-agent; kubectl --namespace podwire get pods -o wide"


class StoreError(CniError):
    """The agent answered that the store does not answer."""


def get(path: str, page: str) -> Mapping[str, object]:
    """Returns the JSON object of a page; raises CniError(5) without an agent, StoreError, CniError(4)."""
    return _request(path, page, f"GET {page} HTTP/1.0\r\n\r\n".encode(), _LIMIT_S)


def post(path: str, action: str, document: Mapping[str, object], *, limit_s: float = _LIMIT_S) -> Mapping[str, object]:
    """Runs an action of the agent, and returns its answer; raises as `get`, CniError(4) for a refused change."""
    body = json.dumps(document).encode()
    head = f"POST {action} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return _request(path, action, head.encode() + body, limit_s)


def _request(path: str, page: str, request: bytes, limit_s: float) -> Mapping[str, object]:
    status, body = _split(path, _exchange(path, request, limit_s))
    try:
        document: object = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if status == _OK and isinstance(document, dict):
        return document
    if isinstance(document, dict) and isinstance(msg := document.get("msg"), str):
        details = document.get("details")
        hint = details if isinstance(details, str) else ""
        if status == _UNAVAILABLE:
            raise StoreError(Code.TRY_AGAIN_LATER, msg, hint)
        raise CniError(Code.INVALID_ENVIRONMENT, msg, hint)
    if status == _MISSING:
        feature, option = _FEATURES[page.split("/")[1]]
        raise CniError(
            Code.INVALID_ENVIRONMENT,
            f"podwire-agent at {path} has no {feature}",
            f"it runs without {option}, or is older than this tool: check its options and its version",
        )
    raise CniError(Code.IO_FAILURE, f"{path}: unexpected answer with HTTP status {status}", _other(path))


def _exchange(path: str, request: bytes, limit_s: float) -> bytes:
    """Sends a request and returns everything until the agent closes the connection."""
    parts: list[bytes] = []
    size = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(limit_s)
        try:
            connection.connect(path)
            connection.sendall(request)
            while part := connection.recv(_CHUNK):
                parts.append(part)
                size += len(part)
                if size > _MAX_BYTES:
                    raise CniError(Code.IO_FAILURE, f"{path}: the answer is too large", _other(path))
        except OSError as error:
            raise _unreachable(path, error, limit_s) from error
    return b"".join(parts)


def _split(path: str, answer: bytes) -> tuple[int, bytes]:
    """Returns the status and the body of an answer; raises CniError(5) if it is incomplete."""
    if not answer:
        msg = f"podwire-agent at {path} closed the connection without an answer"
        raise CniError(Code.IO_FAILURE, msg, "it has ended, or is busy with other requests: run the command again")
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ", 2)
    if not words[0].startswith(b"HTTP/1.") or not words[1:] or not words[1].isdigit() or len(words[1]) != 3:
        raise CniError(Code.IO_FAILURE, f"{path}: the answer is not HTTP", _other(path))
    lengths = [value.strip() for key, _, value in (line.partition(b":") for line in lines) if _is_length(key)]
    if lengths != [b"%d" % len(body)]:
        msg = f"podwire-agent at {path} closed the connection in the middle of its answer"
        raise CniError(Code.IO_FAILURE, msg, "it has ended: check its log, and run the command again")
    return int(words[1]), body


def _is_length(key: bytes) -> bool:
    return key.strip().lower() == b"content-length"


def _unreachable(path: str, error: OSError, limit_s: float) -> CniError:
    if isinstance(error, PermissionError):
        return CniError(Code.INVALID_ENVIRONMENT, f"no permission for podwire-agent's socket {path}", "run it as root")
    if isinstance(error, TimeoutError):
        msg = f"podwire-agent at {path} does not answer within {limit_s:.0f} s"
        return CniError(Code.IO_FAILURE, msg, "check its log; it may have made the change: run the command again")
    if isinstance(error, FileNotFoundError):
        return CniError(Code.IO_FAILURE, f"podwire-agent's socket {path} does not exist", f"{_RUN}; or set --socket")
    if isinstance(error, ConnectionRefusedError):
        return CniError(Code.IO_FAILURE, f"no program listens on {path}", _RUN)
    return CniError(Code.IO_FAILURE, f"{path}: {error.strerror or error}", _other(path))


def _other(path: str) -> str:
    return f"does it belong to podwire-agent? ss -xlp src {quote(path)}"
