"""Netlink sockets: blocking, several requests in one send, errors that name the request.

A verb opens one socket per namespace and passes it on. pyroute2's IPRoute is not used: it runs a private asyncio loop
and takes half a millisecond per message.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from _podwire import messages

from kernel import system
from kernel.errors import KernelError
from kernel.owned_socket import OwnedSocket
from kernel.wire import Pairs, decode, encode
from process import record
from process.values import dataclass

# linux/netlink.h
NLM_F_REQUEST, NLM_F_ACK, NLM_F_ECHO, NLM_F_ROOT, NLM_F_MATCH = 0x1, 0x4, 0x8, 0x100, 0x200
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
NLM_F_DUMP = NLM_F_ROOT | NLM_F_MATCH
_NLM_F_MULTI, _NLM_F_DUMP_INTR, _NLM_F_CAPPED, _NLM_F_ACK_TLVS = 0x2, 0x10, 0x100, 0x200
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_SOL_NETLINK = 270
# asm-generic/socket.h: (SO_*BUFFORCE, SO_*BUF); the former needs the host's CAP_NET_ADMIN and has no upper limit.
_SEND_BUFFER, _RECEIVE_BUFFER = (32, socket.SO_SNDBUF), (33, socket.SO_RCVBUF)
_NETNS_COOKIE = 71  # asm-generic/socket.h
_ADD_MEMBERSHIP, _CAP_ACK, _EXT_ACK, _GET_STRICT_CHK = 1, 10, 11, 12
_ATTR_MSG = 1  # NLMSGERR_ATTR_MSG

_HEADER_BYTES, _CODE = 16, struct.Struct("=i")
_ATTRIBUTE = struct.Struct("=HH")
_RECEIVE_BYTES = 1 << 17
_ANSWER_BYTES = 8192  # receive buffer that the largest answer uses, that of a link: two pages, with kernel overhead
_ANSWERS_THAT_FIT = 64  # in a receive buffer of the default size, net.core.rmem_default
_SUBSCRIBING = "subscribe to changes of links and addresses"
_DUMP_TRIES = 10  # a dump takes about a millisecond; a change in that time makes it incomplete


class Request(NamedTuple):
    """A netlink request as a value, which can be compared and sent.

    `description` names the action in errors ('set "veth3f2a" up'). `kind` is the message class. `flags` are NLM_F_*
    without REQUEST, `values` the fields of the fixed struct. An errno in `ignore` counts as success. A `silent` request
    is answered only if the kernel refuses it. `body_filter` gets the bytes of each answer and returns whether to decode
    it. `details` returns text added to the log entry; it is called only when changes are recorded.
    """

    description: str
    kind: type[object]
    type: int
    flags: int = NLM_F_ACK
    values: Mapping[str, int] = MappingProxyType({})
    attributes: Pairs = ()
    ignore: tuple[int, ...] = ()
    silent: bool = False
    body_filter: Callable[[bytes], object] | None = None
    details: Callable[[], str] | None = None

    def describe(self) -> str:
        """Returns the description with its details, for the log of changes."""
        details = self.details() if self.details else ""
        return f"{self.description} {details}" if details else self.description

    def encode(self, sequence: int) -> bytes:
        """Returns the message's bytes."""
        return encode(self.kind, (self.type, self.flags | NLM_F_REQUEST, sequence), self.values, self.attributes)


@dataclass
class _Answer:
    messages: list[Any]
    complete: bool
    error: KernelError | None = None
    interrupted: bool = False


class Socket(OwnedSocket):
    """A netlink socket in the namespace that is current when it is created, and that it keeps alive. A context manager.

    `protocol` is a NETLINK_* number (linux/netlink.h). `refuses_all` is True for a protocol whose kernel side answers a
    whole send without CAP_NET_ADMIN by one refusal of the first request. Raises KernelError.
    """

    refuses_all = False

    def __init__(self, protocol: int = socket.NETLINK_ROUTE) -> None:
        try:
            self._socket = system.current.open_socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        except OSError as error:
            raise KernelError("open a netlink socket", error.errno or 0) from error
        self._sequence = 0
        for option in (_CAP_ACK, _EXT_ACK, _GET_STRICT_CHK):
            try:
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
            except OSError:  # kernels before 4.3, 4.12, 4.20: longer answers, fewer explanations, unfiltered dumps
                continue

    def get_namespace_cookie(self) -> int:
        """Returns the ID of the socket's namespace, unique during this boot; 0 before Linux 5.14."""
        try:
            return int.from_bytes(self._socket.getsockopt(socket.SOL_SOCKET, _NETNS_COOKIE, 8), sys.byteorder)
        except OSError:
            return 0

    def bind_port(self) -> int:
        """Returns the socket's port ID, by which notifications name the sender of a request."""
        if not self._socket.getsockname()[0]:
            self._socket.bind((0, 0))
        port: int = self._socket.getsockname()[0]
        return port

    def enlarge_receive_buffer(self, size: int) -> None:
        """Enlarges the receive buffer to `size` bytes, without privilege at most to net.core.rmem_max."""
        self._enlarge(_RECEIVE_BUFFER, size)

    def subscribe(self, *groups: int) -> None:
        """Subscribes to multicast groups (RTNLGRP_*, linux/rtnetlink.h), once; use a separate socket.

        Raises KernelError.
        """
        try:
            self._socket.bind((0, 0))  # gets a port ID from the kernel: an unbound socket receives no notifications
            for group in groups:
                self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        except OSError as error:
            raise KernelError(_SUBSCRIBING, error.errno or 0) from error

    def change(self, *requests: Request, then: Sequence[Request] = ()) -> list[Any]:
        """Sends requests that change something, in one send; returns the answers of the `then` requests as get() does.

        The kernel executes the requests in order, and continues after a failure. Raises KernelError for the first
        failure whose errno is not in the request's `ignore`. Records the changes that succeeded; a dry run records all
        and sends none. The `then` requests read, and follow in the same send.
        """
        if record.is_dry_run():
            record.note_change(*(request.describe() for request in requests))
            return self.get(*then)
        answers = self._talk((*requests, *then), changes=len(requests))
        acknowledgements, objects = answers[: len(requests)], answers[len(requests) :]
        if record.is_recording():
            record.note_change(
                *(sent.describe() for sent, answer in zip(requests, acknowledgements, strict=True) if not answer.error)
            )
        _raise_refused(requests, acknowledgements)
        return _objects(then, objects)

    def send(self, *requests: Request) -> None:
        """Sends requests as change() does, without recording them: for probes, rollback, and callers that record.

        Raises KernelError.
        """
        _raise_refused(requests, self._talk(requests, changes=len(requests)))

    def get(self, *requests: Request) -> list[Any]:
        """Sends requests for one object each, in one send; returns their answers, None for a missing object.

        An object is missing if the errno is in the request's `ignore`. One of the requests may be a dump, whose answer
        is a list of messages. Raises KernelError.
        """
        return _objects(requests, self._talk(requests))

    def dump(self, request: Request, *, merge_key: Callable[[Any], object] | None = None) -> list[Any]:
        """Sends one dump request and returns all messages; raises KernelError.

        If an object changes during a dump, the dump may be incomplete. With `merge_key`, which returns the identity of
        an entry, an incomplete dump is repeated; after 10 incomplete dumps their union is returned.
        """
        seen: dict[object, Any] = {}
        for _ in range(_DUMP_TRIES):
            (answer,) = self._talk([request])
            if answer.error and answer.error.errno not in request.ignore:
                raise answer.error
            if not (merge_key and answer.interrupted):
                return answer.messages
            seen.update((merge_key(message), message) for message in answer.messages)
        return list(seen.values())

    def wait_notifications(self, kind: type[Any], timeout_s: float) -> list[tuple[int, Any]] | None:
        """Waits for notifications of the subscribed groups; returns (type, message) pairs, None on timeout.

        An empty list means that notifications were lost (ENOBUFS): read the current state. Raises KernelError.
        """
        if not wait_readable([self.fileno()], timeout_s):
            return None
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise KernelError(_SUBSCRIBING, error.errno or 0) from error
            return []
        return [(number, decode(kind, body)) for number, _, _, body in messages(data)]

    def _talk(self, requests: Sequence[Request], *, changes: int = 0) -> list[_Answer]:
        """Sends all requests at once and reads until each has its answer; raises KernelError when the socket fails.

        The first `changes` requests change something.
        """
        try:
            return self._converse(requests, changes)
        except OSError as error:
            raise KernelError(requests[0].description, error.errno or 0) from error

    def _converse(self, requests: Sequence[Request], changes: int) -> list[_Answer]:
        """Sends the requests and collects the answers; raises OSError, KernelError.

        The first `changes` requests ask for no acknowledgement; if all are changes, the last one does. The kernel
        answers in order, so the refusals of earlier requests have arrived when the last answer arrives. If it refuses
        the batch as a whole, it answers only the first request: transactions, and sockets with `refuses_all`.
        """
        if not requests:
            return []
        count = len(requests)
        if (
            count > _ANSWERS_THAT_FIT
            and (answered := sum(not request.silent for request in requests)) > _ANSWERS_THAT_FIT
        ):
            # The kernel queues all answers during the send, and drops those that exceed the buffer (ENOBUFS).
            buffer_bytes = self._enlarge(_RECEIVE_BUFFER, answered * _ANSWER_BYTES)
            if buffer_bytes < answered * _ANSWER_BYTES and not self.refuses_all:
                return self._talk_in_halves(requests, changes)
        if changes == count:
            changes = 0 if requests[-1].silent else count - 1
        first = self._sequence + 1
        self._sequence += count
        parts, answers = [], []
        for number, request in enumerate(requests):
            unacknowledged = number < changes
            flags = (request.flags & ~NLM_F_ACK if unacknowledged else request.flags) | NLM_F_REQUEST
            header = request.type, flags, first + number
            parts.append(encode(request.kind, header, request.values, request.attributes))
            answers.append(_Answer([], unacknowledged or request.silent))
        if not self._send(b"".join(parts)):
            if self.refuses_all or count == 1:
                raise KernelError(requests[0].description, errno.EMSGSIZE)
            return self._talk_in_halves(requests, changes)
        return self._receive_answers(requests, answers, first)

    def _receive_answers(self, requests: Sequence[Request], answers: list[_Answer], first: int) -> list[_Answer]:
        """Receives messages until all answers are complete; returns the answers. Raises OSError.

        `first` is the sequence number of the first request. If the kernel refused the batch as a whole, each request
        gets the answer of the first.
        """
        awaited = [answer for answer in answers if not answer.complete]
        while awaited:
            for kind, flags, sequence, body in messages(self._receive()):
                number = sequence - first
                if 0 <= number < len(requests):
                    _add_message(answers[number], requests[number], kind, flags, body)
            while awaited and awaited[-1].complete:  # the last is answered last
                awaited.pop()
            refused = answers[0].error
            if refused and (requests[0].silent or (self.refuses_all and refused.errno == errno.EPERM)):
                return [answers[0]] * len(answers)
        return answers

    def _talk_in_halves(self, requests: Sequence[Request], changes: int) -> list[_Answer]:
        """Splits the batch when an unprivileged socket's buffer is too small."""
        middle = len(requests) // 2
        answers = self._talk(requests[:middle], changes=min(changes, middle))
        return answers + self._talk(requests[middle:], changes=max(changes - middle, 0))

    def _send(self, data: bytes) -> bool:
        """Sends data in one piece; returns False, with nothing sent, when it exceeds the kernel's limit."""
        for tries_left in (1, 0):
            try:
                self._socket.send(data)
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    raise
                if tries_left:
                    self._enlarge(_SEND_BUFFER, 2 * len(data))
            else:
                return True
        return False

    def _enlarge(self, which: tuple[int, int], size: int) -> int:
        """Enlarges a buffer to `size` bytes, without privilege at most to net.core.[wr]mem_max; returns its size."""
        forced, limited = which
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, forced, size)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, limited, size)
        return self._socket.getsockopt(socket.SOL_SOCKET, limited)

    def _receive(self) -> bytes:
        """Receives one datagram; raises OSError, with ENOBUFS when the kernel dropped answers.

        On ENOBUFS it discards the queued answers. Until they are read the kernel queues no others, and later requests,
        such as those of undo functions, would wait for ever.
        """
        try:
            return self._socket.recv(_RECEIVE_BYTES)
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                with suppress(BlockingIOError):
                    while True:
                        self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
            raise


def _raise_refused(requests: Sequence[Request], answers: Sequence[_Answer]) -> None:
    for request, answer in zip(requests, answers, strict=True):
        if answer.error and answer.error.errno not in request.ignore:
            raise answer.error


def _objects(requests: Sequence[Request], answers: Sequence[_Answer]) -> list[Any]:
    _raise_refused(requests, answers)
    return [
        answer.messages if request.flags & NLM_F_DUMP == NLM_F_DUMP else answer.messages[0] if answer.messages else None
        for request, answer in zip(requests, answers, strict=True)
    ]


def wait_readable(descriptors: list[int], timeout_s: float) -> list[int]:
    """Waits until some of `descriptors` are readable or closed by the other side; returns those, [] on timeout."""
    return system.current.wait_readable(descriptors, timeout_s)


class Deadline:
    """A moment `timeout_s` seconds from now."""

    def __init__(self, timeout_s: float) -> None:
        self._end = time.monotonic() + timeout_s

    def remaining_s(self) -> float:
        """Returns the remaining seconds, 0 after the deadline."""
        return max(0.0, self._end - time.monotonic())


def _add_message(answer: _Answer, request: Request, kind: int, flags: int, body: bytes) -> None:
    if flags & _NLM_F_DUMP_INTR:
        answer.interrupted = True
    if kind in (_NLMSG_ERROR, _NLMSG_DONE):
        (code,) = _CODE.unpack_from(body, _HEADER_BYTES) if len(body) >= _HEADER_BYTES + _CODE.size else (0,)
        if code:
            answer.error = KernelError(request.description, -code, _explanation(flags, body))
        answer.complete = True
        return
    if request.body_filter is None or request.body_filter(body):
        answer.messages.append(decode(request.kind, body))
    if not flags & _NLM_F_MULTI and not request.flags & NLM_F_ACK:
        answer.complete = True


def _explanation(flags: int, body: bytes) -> str:
    """Returns the kernel's message from an extended acknowledgement (linux/netlink.h, enum nlmsgerr_attrs)."""
    if not flags & _NLM_F_ACK_TLVS:
        return ""
    offset = _HEADER_BYTES + 4 + _HEADER_BYTES
    if not flags & _NLM_F_CAPPED and len(body) >= offset:  # the whole request is echoed
        offset += max(0, struct.unpack_from("=I", body, _HEADER_BYTES + 4)[0] - _HEADER_BYTES)
    while offset + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, offset)
        if kind == _ATTR_MSG:
            return body[offset + 4 : offset + length].rstrip(b"\0").decode("utf-8", "replace")
        offset += max(4, (length + 3) & ~3)
    return ""
