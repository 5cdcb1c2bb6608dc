"""The listening sockets of this network namespace, from /proc/net, and the processes that have them open."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from ipaddress import ip_address
from typing import NamedTuple

from cni.address import Address
from process import files

_MOST_BYTES = 64 << 20
_LISTEN, _UNCONNECTED = "0A", "07"  # TCP_LISTEN, TCP_CLOSE (net/tcp_states.h)
_TABLES = (("tcp", 6, _LISTEN), ("tcp6", 6, _LISTEN), ("udp", 17, _UNCONNECTED), ("udp6", 17, _UNCONNECTED))
_WORD = 4


class ListeningSocket(NamedTuple):
    """A socket that waits for packets; `protocol` is IPPROTO_*, `inode` identifies it in /proc/PID/fd."""

    protocol: int
    address: Address
    port: int
    inode: int


def list_listeners(protocols: Collection[int]) -> Iterator[ListeningSocket]:
    """Yields the listening TCP sockets and the UDP sockets without a peer, of `protocols` (IPPROTO_*); raises OSError.

    The kernel searches its whole table for each file, in about a millisecond.
    """
    for name, protocol, state in _TABLES:
        if protocol not in protocols:
            continue
        try:
            text = files.read(f"/proc/thread-self/net/{name}", _MOST_BYTES).decode("ascii", "replace")
        except FileNotFoundError:
            continue
        for line in text.splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == state:
                host, _, port = words[1].partition(":")
                yield ListeningSocket(protocol, _address(host), int(port, 16), int(words[9]))


def find_processes(inodes: Iterable[int]) -> dict[int, tuple[int, str]]:
    """Returns PID and name of a process that has each socket open, for those that are visible; searches /proc."""
    desired = {f"socket:[{inode}]": inode for inode in inodes}
    processes: dict[int, tuple[int, str]] = {}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        if len(processes) == len(desired):
            break
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    inode = desired.get(os.readlink(f"/proc/{pid}/fd/{name}"))
                    if inode is not None and inode not in processes:
                        processes[inode] = (
                            int(pid),
                            files.read(f"/proc/{pid}/comm", 64).decode("utf-8", "replace").strip(),
                        )
    return processes


def _address(text: str) -> Address:
    """Returns an address that /proc shows as 32-bit words in the processor's order."""
    data = bytes.fromhex(text)
    address = ip_address(b"".join(data[at : at + _WORD][::-1] for at in range(0, len(data), _WORD)))
    return getattr(address, "ipv4_mapped", None) or address
