"""IPv6 addresses of a pod's interface: the link-local address, and the address of stateless autoconfiguration (SLAAC).

One rule: an address is the one that the kernel would form by its default, modified EUI-64 (addr_gen_mode 0). So a pod
that also accepts router advertisements itself has one address, not two.
"""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Interface, IPv6Network

SLAAC_PREFIX_BITS = 64  # RFC 4291, section 2.5.1: the interface identifier has the other 64 bits
LINK_LOCAL = IPv6Network("fe80::/10")
NO_ADDRESS = IPv6Address(0)

_UNIVERSAL_BIT = 0x02
_LINK_LOCAL_PREFIX = b"\xfe\x80" + bytes(6)
_LOOPBACK = IPv6Address(1)
_MULTICAST = 0xFF
_IPV4_MAPPED = bytes(10) + b"\xff\xff"


def link_local_address(mac: bytes, device_id: int = 0) -> IPv6Address:
    """Returns the link-local address of an interface; `device_id` is its dev_id in sysfs.

    Only ipvlan interfaces have a device ID: they share their master's MAC address, so the kernel replaces the middle of
    the identifier by the device ID, and leaves the universal bit (addrconf_ifid_eui48 in include/net/addrconf.h).
    """
    first, middle = mac[0] ^ _UNIVERSAL_BIT, b"\xff\xfe"
    if device_id:
        first, middle = mac[0], device_id.to_bytes(2, "big")
    return IPv6Address(_LINK_LOCAL_PREFIX + bytes((first,)) + mac[1:3] + middle + mac[3:6])


def slaac_address(prefix: IPv6Network, link_local: IPv6Address, *, on_link: bool) -> IPv6Interface:
    """Returns the address in a prefix of 64 bits with the interface identifier of a link-local address.

    The kernel forms both by one function, so this is right for ipvlan, and after a change of the MAC address, too. The
    address has the length of its prefix only if the prefix is on the link; otherwise the kernel adds no route to the
    prefix (RFC 4861, section 6.3.4), and the length is 128.
    """
    identifier = int(link_local) & ((1 << 64) - 1)
    return IPv6Interface((int(prefix.network_address) | identifier, SLAAC_PREFIX_BITS if on_link else 128))


def is_link_local(address: IPv6Address) -> bool:
    """Returns whether an address is a link-local unicast address."""
    return address in LINK_LOCAL


def is_host_address(address: IPv6Address) -> bool:
    """Returns whether an address can be that of a host beyond the link.

    It is not unspecified, loopback, multicast, link-local or a mapped IPv4 address.
    """
    packed = address.packed
    return not (
        address in (NO_ADDRESS, _LOOPBACK)
        or packed[0] == _MULTICAST
        or packed.startswith(_IPV4_MAPPED)
        or is_link_local(address)
    )
