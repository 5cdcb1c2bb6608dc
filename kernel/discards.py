"""Counters of the packets that the kernel has discarded where no rule, route or program takes them.

This module only reads. Source: snmp_counter.rst and xfrm_proc.rst in the kernel's Documentation/networking.
"""

from __future__ import annotations

from contextlib import suppress
from socket import IPPROTO_TCP, IPPROTO_UDP

_NET = "/proc/thread-self/net"  # of the network namespace that this thread has entered
_TTL, _FRAGMENTS = "its TTL or hop limit ended, or its header is wrong", "its fragments could not be put together"
_ADDRESS, _SIZE = "an address that it must not have here", "it is larger than the MTU and must not be cut"
_BACKLOG, _BUFFER = "the program accepts no further connection: its backlog is full", "the program's buffer is full"
_TABLE = "the table of tracked connections is full"
MEANINGS = {
    "IpInHdrErrors": _TTL, "Ip6InHdrErrors": _TTL,
    "IpInAddrErrors": _ADDRESS, "Ip6InAddrErrors": _ADDRESS,
    "IpReasmFails": _FRAGMENTS, "Ip6ReasmFails": _FRAGMENTS,
    "IpFragFails": _SIZE, "Ip6FragFails": _SIZE, "Ip6InTooBigErrors": _SIZE,
    "IpExtInNoRoutes": "there is no route", "Ip6InNoRoutes": "there is no route",
    "TcpExtIPReversePathFilter": "its source is not expected at this interface (rp_filter)",
    "TcpExtListenOverflows": _BACKLOG, "TcpExtTCPReqQFullDrop": _BACKLOG, "TcpExtTCPBacklogDrop": _BUFFER,
    "UdpRcvbufErrors": _BUFFER, "Udp6RcvbufErrors": _BUFFER,
    "conntrack insert_failed": "connection tracking has another connection with these addresses and ports",
    "conntrack drop": _TABLE, "conntrack early_drop": _TABLE,
}  # fmt: skip
_IPSEC = "an IPsec policy or state stops it"
_CONNTRACK = ("drop", "early_drop", "insert_failed")


def meaning_of(name: str) -> str:
    """Returns why the kernel discards what a counter counts."""
    return _IPSEC if name.startswith("Xfrm") else MEANINGS[name]


def concerns(name: str, version: int, protocol: int) -> bool:
    """Returns whether a counter may count a packet of an IP version and a protocol (IPPROTO_*)."""
    if name.startswith(("Ip6", "Udp6")):
        return version == 6 and (protocol == IPPROTO_UDP or not name.startswith("Udp"))
    if name.startswith(("IpIn", "IpReasm", "IpFrag", "IpExt", "TcpExtIPReverse")):
        return version == 4
    if name.startswith("TcpExt"):
        return protocol == IPPROTO_TCP
    return not name.startswith("Udp") or (version == 4 and protocol == IPPROTO_UDP)


def command_for(name: str) -> str:
    """Returns a command that shows a counter, or what increases it."""
    if name.startswith("Xfrm"):
        return "ip xfrm policy; cat /proc/net/xfrm_stat"
    return "conntrack -S" if name.startswith("conntrack") else f"nstat -asz {name}"


def read() -> dict[str, int]:
    """Returns the counters of the current namespace; those that this kernel does not have are left out."""
    counters: dict[str, int] = {}
    for file in ("snmp", "netstat"):
        lines = _lines(file)
        for names, values in zip(lines[::2], lines[1::2], strict=False):
            counters.update(
                zip((names[0].rstrip(":") + name for name in names[1:]), map(int, values[1:]), strict=False)
            )
    for file in ("snmp6", "xfrm_stat"):
        counters.update((words[0], int(words[1])) for words in _lines(file))
    names, *processors = _lines("stat/nf_conntrack") or [[]]
    for name in set(names).intersection(_CONNTRACK):
        counters[f"conntrack {name}"] = sum(int(words[names.index(name)], 16) for words in processors)
    return {name: value for name, value in counters.items() if name in MEANINGS or name.startswith("Xfrm")}


def _lines(name: str) -> list[list[str]]:
    with suppress(OSError), open(f"{_NET}/{name}", encoding="ascii") as file:
        return [line.split() for line in file]
    return []
