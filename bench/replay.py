"""Recorded conversations: what a verb of ours said over netlink, for replay.c to say it again and nothing else.

One rule: only where the same words have the same effect again: on a pod that stays, and after DEL. What ours reads and
writes in files, and a process that it starts, is not in it.
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

# write=all: what is sent, in hexadecimal below each call.
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


def recorded(call: Invocation, netns: str, *, only_netfilter: bool = False) -> tuple[bytes, bytes]:
    """Runs a call and returns what it said, for replay.c, and its stdout; RuntimeError when it fails."""
    with tempfile.NamedTemporaryFile("r", prefix="podwire-trace-", errors="replace") as trace:
        argv = [*_STRACE, trace.name, call.program]
        done = subprocess.run(
            argv, input=call.stdin, env=dict(call.env), capture_output=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{call.program} failed while it was recorded: {(done.stdout + done.stderr)!r}")
        return recording(trace, netns, only_netfilter=only_netfilter), done.stdout


def recording(trace: Iterable[str], netns: str, *, only_netfilter: bool = False) -> bytes:
    """Returns what the lines of strace tell, `netns` being the path that leads to the pod; all of it or netfilter's."""
    sends: list[_Send] = []
    pods: set[tuple[str, str]] = set()  # process and descriptor of the pod's namespace
    inside: set[str] = set()  # processes that are there
    sockets: dict[tuple[str, str], tuple[int, int, bool]] = {}
    made = itertools.count()
    last: dict[tuple[str, str], _Send] = {}
    growing: _Send | None = None
    descriptor = 0  # of the pod, the first time
    for line in trace:
        if dump := _HEX.match(line):
            if growing:
                growing.data += bytes.fromhex(dump[1])
            continue
        matched = _CALL.match(line)
        if not matched:
            continue  # "* 20 bytes in buffer 0", a signal
        process, name, rest = matched.groups()
        growing = None
        first = process, rest.partition(",")[0].partition(")")[0]
        result = process, rest.rpartition("= ")[2].partition(" ")[0].strip()
        if name == "openat" and f'"{netns}"' in rest:
            pods.add(result)
            descriptor = descriptor or int(result[1])
        elif name == "setns":
            (inside.add if first in pods else inside.discard)(process)
        elif name == "socket" and "AF_NETLINK" in rest:
            protocol = next(number for word, number in _PROTOCOLS.items() if word in rest)
            sockets[result] = next(made), protocol, process in inside
        elif name == "close":
            sockets.pop(first, None)
            pods.discard(first)
        elif name in ("sendto", "sendmsg") and first in sockets:
            growing = last[first] = _Send(*sockets[first])
            sends.append(growing)
        elif name in ("recvfrom", "recvmsg") and first in last and "nlmsg_len=" in rest:
            last[first].answers += 1
            last[first].errors += rest.count("{error=-")
    if only_netfilter:
        sends = [send for send in sends if send.protocol == _PROTOCOLS["NETLINK_NETFILTER"]]
    return struct.pack("2I", descriptor, len(sends)) + b"".join(send.packed() for send in sends)


def _without_generation(data: bytes) -> bytes:
    """Returns a batch of nf_tables without the number of the rules' generation, which is another the next time."""
    if len(data) < _HEADERS:
        return data
    length, kind = struct.unpack_from("IH", data)
    if kind != _BATCH_BEGIN or length == _HEADERS:
        return data
    return struct.pack("I", _HEADERS) + data[4:_HEADERS] + data[length:]
