"""IPv6 default routes that the kernel learned by router advertisement.

With IPv6 forwarding and accept_ra 1 the kernel deletes them, and ignores further advertisements; with 2 it keeps them.
"""

from __future__ import annotations

from contextlib import suppress

from kernel import sysctl, system

PATH = "/proc/net/ipv6_route"
# Its words: destination, its prefix length, source, its prefix length, next hop, ..., flags (linux/ipv6_route.h), name.
_DEFAULT, _RTF_ADDRCONF = ["0" * 32, "00"], 0x40000


def setting_of(interface: str) -> str:
    """Returns the name of the setting accept_ra of an interface."""
    return f"ipv6/conf/{interface}/accept_ra"


def list_endangered() -> list[str]:
    """Returns the interfaces of these routes whose accept_ra is 1; raises OSError."""
    endangered = []
    for interface in _list_interfaces():
        with suppress(FileNotFoundError):  # the interface was deleted meanwhile
            if sysctl.get(setting_of(interface)) == "1":
                endangered.append(interface)
    return endangered


def _list_interfaces() -> list[str]:
    """Returns the interfaces of these routes, none if the kernel has no IPv6; raises another OSError."""
    try:
        with open(system.current.path(PATH), encoding="ascii", errors="replace") as file:
            lines = [words for line in file if (words := line.split())[:2] == _DEFAULT and len(words) >= 10]
    except FileNotFoundError:
        return []
    return list(dict.fromkeys(words[9] for words in lines if int(words[8], 16) & _RTF_ADDRCONF))
