"""The netlink conversation: a plain blocking socket, several requests in one send, errors with the request's name.

One rule: one socket per namespace, opened once and passed on. pyroute2's IPRoute does this on a private asyncio loop
at half a millisecond a message, which is why it is not used.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self

from _podwire import messages

from kernel.errors import KernelError
from kernel.wire import Pairs, decode, encode
from process import record
from process.signals import unblocked
from process.values import dataclass

# linux/netlink.h
NLM_F_REQUEST, NLM_F_ACK, NLM_F_ECHO, NLM_F_ROOT, NLM_F_MATCH = 0x1, 0x4, 0x8, 0x100, 0x200
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
NLM_F_DUMP = NLM_F_ROOT | NLM_F_MATCH
_NLM_F_MULTI, _NLM_F_DUMP_INTR, _NLM_F_CAPPED, _NLM_F_ACK_TLVS = 0x2, 0x10, 0x100, 0x200
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_SOL_NETLINK = 270
# asm-generic/socket.h: with CAP_NET_ADMIN of the host beyond net.core.[wr]mem_max; then what does without.
_SEND_BUFFER, _RECEIVE_BUFFER = (32, socket.SO_SNDBUF), (33, socket.SO_RCVBUF)
_NETNS_COOKIE = 71  # asm-generic/socket.h
_ADD_MEMBERSHIP, _CAP_ACK, _EXT_ACK, _GET_STRICT_CHK = 1, 10, 11, 12
_ATTR_MSG = 1  # NLMSGERR_ATTR_MSG

_HEADER_BYTES, _CODE = 16, struct.Struct("=i")
_ATTRIBUTE = struct.Struct("=HH")
_RECEIVE_BYTES = 1 << 17
_ANSWER_BYTES = 8192  # what the kernel takes at most for an answer (a link's, in two pages), with its own books on it
_ANSWERS_THAT_FIT = 64  # with the kernel's default, net.core.rmem_default
_SUBSCRIBING = "get news of links and addresses"
_DUMP_TRIES = 10  # each is spoilt by a change within the millisecond that it takes


class Request(NamedTuple):
    """One netlink request as a value: built, compared in a test, sent once.

    `doing` names it in errors, `flags` are NLM_F_* beyond REQUEST, `values` the fixed struct, `ignore` the errnos that
    mean it was already so. A `silent` one is answered only when it is refused. Of the answers only those are decoded
    whose bytes are `wanted`. `more` finds what is told of a change beside `doing`, when somebody asks.
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
        """Returns what is done in the words of a record: an error says less."""
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


class Socket:
    """A netlink socket in the namespace that was current when it was made. A context manager.

    `protocol` is a NETLINK_* number (linux/netlink.h), NETLINK_ROUTE unless given. `refuses_all` tells that who lacks
    CAP_NET_ADMIN is told so at the first request of a send, and nothing of the others. Raises KernelError.
    """

    refuses_all = False

    def __init__(self, protocol: int = socket.NETLINK_ROUTE) -> None:
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        except OSError as error:
            raise KernelError("open a netlink socket", error.errno or 0) from error
        self._sequence = 0
        for option in (_CAP_ACK, _EXT_ACK, _GET_STRICT_CHK):
            try:
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
            except OSError:  # kernels before 4.3, 4.12, 4.20: longer answers, less told, unfiltered dumps
                continue

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket; it holds its namespace until then."""
        self._socket.close()

    def fileno(self) -> int:
        """Returns the file descriptor, for poll."""
        return self._socket.fileno()

    def get_namespace_cookie(self) -> int:
        """Returns the number of the socket's namespace, which no other of this boot has; 0 before Linux 5.14."""
        try:
            return int.from_bytes(self._socket.getsockopt(socket.SOL_SOCKET, _NETNS_COOKIE, 8), sys.byteorder)
        except OSError:
            return 0

    def subscribe(self, group: int) -> None:
        """Joins a multicast group (RTNLGRP_*, linux/rtnetlink.h) on a socket of its own; raises KernelError."""
        try:
            self._socket.bind((0, 0))  # an unbound socket has the kernel's own port number, and the kernel skips itself
            self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        except OSError as error:
            raise KernelError(_SUBSCRIBING, error.errno or 0) from error

    def change(self, *requests: Request, then: Sequence[Request] = ()) -> list[Any]:
        """Sends requests that change something, in one send and in order; each is tried whatever became of others.

        Raises KernelError for the first refused one whose errno it does not ignore. Those that changed something are
        noted; when it is only planned, nothing is sent. `then` is asked for behind them in the same send, as by `get`.
        """
        if record.is_dry_run():
            record.change(*(request.describe() for request in requests))
            return self.get(*then)
        answers = self._talk((*requests, *then), changes=len(requests))
        told, objects = answers[: len(requests)], answers[len(requests) :]
        if record.is_recording():
            record.change(*(sent.describe() for sent, answer in zip(requests, told, strict=True) if not answer.error))
        _raise_refused(requests, told)
        return _objects(then, objects)

    def send(self, *requests: Request) -> None:
        """Sends requests as `change` does, and notes nothing: they are refused or taken back, or the caller's to note.

        Raises KernelError.
        """
        _raise_refused(requests, self._talk(requests, changes=len(requests)))

    def get(self, *requests: Request) -> list[Any]:
        """Sends requests for one object each, in one send; returns the messages, None where errno is ignored.

        One of them may be a dump, whose messages are a list. Raises KernelError.
        """
        return _objects(requests, self._talk(requests))

    def dump(self, request: Request, *, merge_key: Callable[[Any], object] | None = None) -> list[Any]:
        """Sends one dump request and returns all messages; raises KernelError.

        When something changes in the midst of a dump, entries may be missing. With `merge_key`, which names an entry,
        it is repeated then; if that goes on for ever, what was in any of the attempts is returned.
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
        """Waits for news of the subscribed groups; returns (type, message) pairs, None when time ran out.

        An empty list means that news were lost (ENOBUFS): look for yourself. Raises KernelError.
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
        """Sends all requests at once and reads until each has its answer; KernelError when that fails itself.

        The first ones, as many as `changes` says, change something.
        """
        try:
            return self._converse(requests, changes)
        except OSError as error:
            raise KernelError(requests[0].description, error.errno or 0) from error

    def _converse(self, requests: Sequence[Request], changes: int) -> list[_Answer]:
        """Does so; raises OSError, KernelError.

        The success of changes is told by the answer to the last request: the kernel has told before what it refuses.
        What is refused as a whole is answered at its first request only: a transaction, whose first request is silent
        otherwise, and everything by a socket that `refuses_all`.
        """
        if not requests:
            return []
        count = len(requests)
        if (
            count > _ANSWERS_THAT_FIT
            and (answered := sum(not request.silent for request in requests)) > _ANSWERS_THAT_FIT
        ):
            # All of them wait until the send is through; what does not fit is lost (ENOBUFS).
            room = self._enlarge(_RECEIVE_BUFFER, answered * _ANSWER_BYTES)
            if room < answered * _ANSWER_BYTES and not self.refuses_all:
                return self._talk_in_halves(requests, changes)
        if changes == count:
            changes = 0 if requests[-1].silent else count - 1
        first = self._sequence + 1
        self._sequence += count
        parts, answers = [], []
        for number, request in enumerate(requests):
            untold = number < changes
            flags = (request.flags & ~NLM_F_ACK if untold else request.flags) | NLM_F_REQUEST
            header = request.type, flags, first + number
            parts.append(encode(request.kind, header, request.values, request.attributes))
            answers.append(_Answer([], untold or request.silent))
        if not self._send(b"".join(parts)):
            if self.refuses_all or count == 1:
                raise KernelError(requests[0].description, errno.EMSGSIZE)
            return self._talk_in_halves(requests, changes)
        awaited = [answer for answer in answers if not answer.complete]
        while awaited:
            for kind, flags, sequence, body in messages(self._receive()):
                number = sequence - first
                if 0 <= number < count:
                    _take(answers[number], requests[number], kind, flags, body)
            while awaited and awaited[-1].complete:  # the last is answered last
                awaited.pop()
            refused = answers[0].error
            if refused and (requests[0].silent or (self.refuses_all and refused.errno == errno.EPERM)):
                return [answers[0]] * len(answers)
        return answers

    def _talk_in_halves(self, requests: Sequence[Request], changes: int) -> list[_Answer]:
        """Does so where the kernel's limits for who has no privilege on the host do not let it be done at once."""
        middle = len(requests) // 2
        before = self._talk(requests[:middle], changes=min(changes, middle))
        return before + self._talk(requests[middle:], changes=max(changes - middle, 0))

    def _send(self, data: bytes) -> bool:
        """Sends data at once; returns False when the kernel does not let that be, and then nothing is sent."""
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
        """Gives a buffer room for `size` bytes, or in a user namespace what the host lets it have; returns its room."""
        forced, own = which
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, forced, size)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, own, size)
        return self._socket.getsockopt(socket.SOL_SOCKET, own)

    def _receive(self) -> bytes:
        """Returns what is there to be read; raises OSError, with ENOBUFS when answers were lost.

        Then the others are thrown away: until the kernel sees them all read it keeps no further answer, and who asks
        again, as undo steps do, would wait for ever.
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
    """Waits until one of `descriptors` can be read (or has ended) and returns those; empty when time ran out."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    ready = poll.poll(0)
    if not ready and timeout_s:
        with unblocked():
            ready = poll.poll(timeout_s * 1000)
    return [descriptor for descriptor, _ in ready]


class Deadline:
    """A moment `timeout_s` seconds from now."""

    def __init__(self, timeout_s: float) -> None:
        self._end = time.monotonic() + timeout_s

    def remaining_s(self) -> float:
        """Returns the seconds left, 0 when it has passed."""
        return max(0.0, self._end - time.monotonic())


def _take(answer: _Answer, request: Request, kind: int, flags: int, body: bytes) -> None:
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
    """Returns the kernel's own words from an extended acknowledgement (linux/netlink.h, enum nlmsgerr_attrs)."""
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
