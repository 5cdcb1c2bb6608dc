"""Injects faults into netlink requests: runs podwire's sources in this process, with other sockets.

One rule: the kernel receives and answers all requests without a fault; it does not receive a refused one, and it
executes a request whose answer is lost.
"""

import contextlib
import errno
import io
import json
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cni import skel
from kernel import system
from kernel.system import System
from podwire.main import PLUGINS
from tests.support import binaries
from tests.support.chained import Chain
from tests.support.invocation import Outcome, environment
from tests.support.namespaces import Namespace
from tests.support.streams import MemoryStdin

_HEADER = struct.Struct("=IHHII")
_NETLINK_NETFILTER = 12  # linux/netlink.h
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11  # linux/netfilter/nfnetlink.h
_ERROR, _ACK, _DUMP, _DUMP_INTR = 2, 0x4, 0x300, 0x10  # linux/netlink.h


@dataclass
class Disturbance:
    """The fault of the `number`th request (from 1) of this process, on any socket.

    "refused": the answer is `errno`; "lost": executed, but the answer does not fit (ENOBUFS); "interrupted": its dump
    is flagged as inconsistent, once; "incomplete": and lacks its first message. `seen` has the type of each request,
    and whether it is a dump.
    """

    number: int = 0
    how: str = ""
    errno: int = 0
    seen: list[tuple[int, bool]] = field(default_factory=list)

    def __str__(self) -> str:
        name = errno.errorcode[self.errno] if self.errno else ""
        return f"request {self.number} ({self.seen[self.number - 1][0]:#x}) {self.how} {name}"


class _Message(NamedTuple):
    """One request of a batch."""

    kind: int
    number: int
    dumps: bool
    acknowledged: bool
    data: bytes


class _Socket(socket.socket):
    """A socket with a fault."""

    disturbance: Disturbance

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._forged: list[bytes] = []
        self._lost = self._interrupted = False

    def send(self, data: Any, flags: int = 0, /) -> int:
        fault, messages = self.disturbance, _messages(data)
        in_batch = self.proto == _NETLINK_NETFILTER and messages[0].kind == _BATCH_BEGIN
        refused = None
        for message in messages:
            if not (in_batch and message.kind == _BATCH_END):
                fault.seen.append((message.kind, message.dumps))
                if len(fault.seen) == fault.number:
                    self._lost = fault.how == "lost"
                    self._interrupted = fault.how in ("interrupted", "incomplete")
                    refused = message if fault.how == "refused" else None
        if refused:
            self._forged.append(_answer(refused, fault.errno))
            if not in_batch:
                messages.remove(refused)
            else:  # the whole transaction is refused; its other requests are answered unless the first one is refused
                rest = [] if refused is messages[0] else messages
                self._forged += [_answer(item, 0) for item in rest if item.acknowledged and item is not refused]
                messages = []
        if messages:
            super().send(b"".join(message.data for message in messages), flags)
        return len(data)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        if self._forged:
            return self._forged.pop(0)
        if self._lost:
            self._lost = False
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        data = super().recv(size, flags)
        if self._interrupted:
            self._interrupted = False
            if self.disturbance.how == "incomplete":
                data = data[len(_messages(data)[0].data) :]
            length, kind, kinds, *rest = _HEADER.unpack_from(data)
            data = _HEADER.pack(length, kind, kinds | _DUMP_INTR, *rest) + data[_HEADER.size :]
        return data


class Sources(Chain):
    """The chain of plugins, run from the sources in this process; `before` a verb is its disturbance."""

    def run(
        self, plugin: str, command: str, pod: Namespace, prev_result: object = None, *before: Any, **keys: Any
    ) -> Outcome:
        """Runs one verb: with a disturbance from the sources, without one the built plugin."""
        if not before:
            return super().run(plugin, command, pod, prev_result, **keys)
        names = {
            "CNI_CONTAINERID": pod.name,
            "CNI_NETNS": pod.path,
            "CNI_IFNAME": "lo" if plugin == "loopback" else "eth0",
        }
        env = environment(command, CNI_PATH=str(binaries.directory()), **names)
        stdin = MemoryStdin(json.dumps(self.config(plugin, prev_result, **keys)).encode())
        stdout, stderr = io.BytesIO(), io.StringIO()
        with self.host.entered(), disturbed(*before), contextlib.redirect_stderr(stderr):
            status = skel.run(PLUGINS[plugin], env, stdin, stdout, about="", delegates=PLUGINS)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        return Outcome(status, stdout.getvalue(), stderr.getvalue())


@contextlib.contextmanager
def disturbed(disturbance: Disturbance) -> Iterator[None]:
    """Runs a block in which netlink sockets have a fault."""
    with system.replaced(_DisturbedSystem(disturbance)):
        yield


class _DisturbedSystem(System):
    """The running system, but for its netlink sockets."""

    def __init__(self, disturbance: Disturbance) -> None:
        self._socket = type("Disturbed", (_Socket,), {"disturbance": disturbance})

    def open_socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        if family != socket.AF_NETLINK:
            return super().open_socket(family, kind, protocol)
        opened: socket.socket = self._socket(family, kind, protocol)
        return opened


def _messages(data: bytes) -> list[_Message]:
    messages = []
    offset = 0
    while offset < len(data):
        length, kind, flags, number, _ = _HEADER.unpack_from(data, offset)
        end = offset + ((length + 3) & ~3)
        messages.append(_Message(kind, number, flags & _DUMP == _DUMP, bool(flags & _ACK), data[offset:end]))
        offset = end
    return messages


def _answer(request: _Message, number: int) -> bytes:
    head = _HEADER.pack(36, _ERROR, 0, request.number, 0)
    return head + struct.pack("=i", -number) + request.data[: _HEADER.size]
