"""The resolvers of a pod: the name servers in the resolv.conf of a process in its network namespace."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address

from cni.address import Address

_RESOLV_CONF = "/etc/resolv.conf"
_MOST_BYTES, _MOST_RESOLVERS = 1 << 14, 3  # resolv.conf(5): MAXNS


@lru_cache(maxsize=1)
def processes_by_namespace() -> dict[int, list[str]]:
    """Returns the processes of each network namespace, by its inode."""
    processes: dict[int, list[str]] = {}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            processes.setdefault(os.stat(f"/proc/{pid}/ns/net").st_ino, []).append(pid)
    return processes


def list_resolvers(netns: str, *, of_node: bool = True) -> list[Address] | None:
    """Returns the name servers of a pod, None if no process with a resolv.conf runs in it.

    A process with the node's file counts only without others, and with `of_node`: it may be a tool that was started in
    the namespace, or the hypervisor of the pod.
    """
    texts: dict[tuple[int, int], str] = {}
    with suppress(OSError):
        for pid in processes_by_namespace().get(os.stat(netns).st_ino, []):
            with suppress(OSError):
                about = os.stat(path := f"/proc/{pid}/root{_RESOLV_CONF}")
                texts.setdefault((about.st_dev, about.st_ino), _read(path))
    with suppress(OSError):
        about = os.stat(_RESOLV_CONF)
        text = texts.pop((about.st_dev, about.st_ino), "")
        if not texts:
            return (_name_servers(text) or None) if of_node else None
    return list(dict.fromkeys(address for text in texts.values() for address in _name_servers(text))) if texts else None


def _read(path: str) -> str:
    """Reads a file that a container may have replaced: not a FIFO, and not all of a large one."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return os.read(descriptor, _MOST_BYTES).decode("utf-8", "replace")
        finally:
            os.close(descriptor)
    return ""


def _name_servers(text: str) -> list[Address]:
    addresses: list[Address] = []
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            with suppress(ValueError):
                addresses.append(ip_address(words[1].partition("%")[0]))
    return addresses[:_MOST_RESOLVERS]
