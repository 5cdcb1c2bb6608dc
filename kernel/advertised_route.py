"""IPv6 default routes that the kernel learned by router advertisement (accept_ra)."""

from __future__ import annotations

from kernel import system

PATH = "/proc/net/ipv6_route"
# Its words: destination, its prefix length, source, its prefix length, next hop, ..., flags (linux/ipv6_route.h), name.
_DEFAULT, _RTF_ADDRCONF = ["0" * 32, "00"], 0x40000


def list_interfaces() -> list[str]:
    """Returns the interfaces of these routes, none if the kernel has no IPv6; raises another OSError."""
    try:
        with open(system.current.path(PATH), encoding="ascii", errors="replace") as file:
            lines = [words for line in file if (words := line.split())[:2] == _DEFAULT and len(words) >= 10]
    except FileNotFoundError:
        return []
    return list(dict.fromkeys(words[9] for words in lines if int(words[8], 16) & _RTF_ADDRCONF))
