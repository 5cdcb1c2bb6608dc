"""Netlink recordings: the messages that a verb of podwire sent, for replay.c to send them again and do nothing else.

One rule: record only where the same messages have the same effect again: for a pod that stays, and after DEL. File
accesses and child processes are not recorded.
"""

from __future__ import annotations

import itertools
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass

from bench.process import Invocation

# write=all: the bytes of each send, in hexadecimal below the call.
_STRACE = ("strace", "-f", "-qq", "-e", "abbrev=none", "-s", "4096", "-e", "write=all", "-o")
_TIMEOUT_S = 60

_CALL = re.compile(r"(\d+) +(?:<\.\.\. )?(\w+)(?: resumed>|\()(.*)")
_HEX = re.compile(r" \| [0-9a-f]+  ((?:[0-9a-f]{2} {1,2}){1,16})")
_PROTOCOLS = {"NETLINK_ROUTE": 0, "NETLINK_NETFILTER": 12, "NETLINK_SOCK_DIAG": 4, "NETLINK_GENERIC": 16}
_BATCH_BEGIN, _HEADERS = 0x10, 20  # linux/netfilter/nfnetlink.h: nlmsghdr and nfgenmsg


@dataclass
class _Send:
    socket: int
    protocol: int
    in_pod: bool
    data: bytes = b""
    answers: int = 0
    errors: int = 0

    def packed(self) -> bytes:
        data = _without_generation(self.data) if self.protocol == _PROTOCOLS["NETLINK_NETFILTER"] else self.data
        head = struct.pack("6I", self.socket, self.protocol, self.in_pod, self.answers, self.errors, len(data))
        return head + data + b"\0" * (-len(data) % 4)


def record(call: Invocation, netns: str, *, only_netfilter: bool = False) -> tuple[bytes, bytes]:
    """Runs a call with strace; returns its recording and its stdout. Raises RuntimeError when the call fails."""
    with tempfile.NamedTemporaryFile("r", prefix="podwire-trace-", errors="replace") as trace:
        argv = [*_STRACE, trace.name, call.program]
        done = subprocess.run(
            argv, input=call.stdin, env=dict(call.env), capture_output=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{call.program} failed while it was recorded: {(done.stdout + done.stderr)!r}")
        return recording(trace, netns, only_netfilter=only_netfilter), done.stdout


def recording(trace: Iterable[str], netns: str, *, only_netfilter: bool = False) -> bytes:
    """Returns the recording of a strace output; `netns` is the path of the pod's namespace."""
    parser = _TraceParser(netns)
    for line in trace:
        parser.feed(line)
    sends = parser.sends
    if only_netfilter:
        sends = [send for send in sends if send.protocol == _PROTOCOLS["NETLINK_NETFILTER"]]
    return struct.pack("2I", parser.netns_fd, len(sends)) + b"".join(send.packed() for send in sends)


class _TraceParser:
    """Collects the netlink sends of a strace output; a key (process, descriptor) identifies a file."""

    def __init__(self, netns: str) -> None:
        self.sends: list[_Send] = []
        self.netns_fd = 0  # the descriptor of the pod's namespace when it was first opened
        self._netns = netns
        self._netns_files: set[tuple[str, str]] = set()
        self._in_pod: set[str] = set()  # processes in the pod's namespace
        self._sockets: dict[tuple[str, str], tuple[int, int, bool]] = {}
        self._numbers = itertools.count()
        self._last: dict[tuple[str, str], _Send] = {}  # by socket
        self._dumped: _Send | None = None  # the send to which the following lines of hexadecimal belong

    def feed(self, line: str) -> None:
        """Reads the next line."""
        if dump := _HEX.match(line):
            if self._dumped:
                self._dumped.data += bytes.fromhex(dump[1])
        elif matched := _CALL.match(line):  # other lines are signals, or "* 20 bytes in buffer 0"
            self._dumped = None
            self._feed_call(*matched.groups())

    def _feed_call(self, process: str, name: str, rest: str) -> None:
        first = process, rest.partition(",")[0].partition(")")[0]
        result = process, rest.rpartition("= ")[2].partition(" ")[0].strip()
        if name == "openat" and f'"{self._netns}"' in rest:
            self._netns_files.add(result)
            self.netns_fd = self.netns_fd or int(result[1])
        elif name == "setns":
            (self._in_pod.add if first in self._netns_files else self._in_pod.discard)(process)
        elif name == "socket" and "AF_NETLINK" in rest:
            protocol = next(number for word, number in _PROTOCOLS.items() if word in rest)
            self._sockets[result] = next(self._numbers), protocol, process in self._in_pod
        elif name == "close":
            self._sockets.pop(first, None)
            self._netns_files.discard(first)
        elif name in ("sendto", "sendmsg") and first in self._sockets:
            self._dumped = self._last[first] = _Send(*self._sockets[first])
            self.sends.append(self._dumped)
        elif name in ("recvfrom", "recvmsg") and first in self._last and "nlmsg_len=" in rest:
            self._last[first].answers += 1
            self._last[first].errors += rest.count("{error=-")


def _without_generation(data: bytes) -> bytes:
    """Returns an nf_tables batch without the generation ID of the rule set, which changes with every transaction."""
    if len(data) < _HEADERS:
        return data
    length, kind = struct.unpack_from("IH", data)
    if kind != _BATCH_BEGIN or length == _HEADERS:
        return data
    return struct.pack("I", _HEADERS) + data[4:_HEADERS] + data[length:]
