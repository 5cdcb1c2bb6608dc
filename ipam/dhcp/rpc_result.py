"""The result of a call as a value of Go's type, which is that of CNI 1.0.0 and later (Go: types100.Result).

A pointer to zero cannot be sent (gob.py): table 0, scope 0 and interface 0 of a result arrive as unset.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from cni.address import Address, Cidr, with_prefix
from cni.result import DNS, Interface, IPConfig, Result, Route
from ipam.dhcp.gob import BYTES, INT, STRING, MalformedGob, SliceType, Struct, StructType, Value

_LARGEST_UINT32 = (1 << 32) - 1

# The names of types and fields are Go's (a pointer's type has none); a receiver ignores fields that it does not know.
_STRINGS = SliceType("[]string", STRING)
_IP_NET = StructType("IPNet", (("IP", BYTES), ("Mask", BYTES)))
_INTERFACE = StructType(
    "",
    (("Name", STRING), ("Mac", STRING), ("Mtu", INT), ("Sandbox", STRING), ("SocketPath", STRING), ("PciID", STRING)),
)
_IP_CONFIG = StructType("", (("Interface", INT), ("Address", _IP_NET), ("Gateway", BYTES)))
_ROUTE = StructType(
    "",
    (
        ("Dst", _IP_NET),
        ("GW", BYTES),
        ("MTU", INT),
        ("AdvMSS", INT),
        ("Priority", INT),
        ("Table", INT),
        ("Scope", INT),
    ),
)
_DNS = StructType("DNS", (("Nameservers", _STRINGS), ("Domain", STRING), ("Search", _STRINGS), ("Options", _STRINGS)))
# CNIVersion is never sent: a client then uses the newest version that it knows, and could not convert a newer one.
RESULT = StructType(
    "Result",
    (
        ("CNIVersion", STRING),
        ("Interfaces", SliceType("[]*types100.Interface", _INTERFACE)),
        ("IPs", SliceType("[]*types100.IPConfig", _IP_CONFIG)),
        ("Routes", SliceType("[]*types.Route", _ROUTE)),
        ("DNS", _DNS),
    ),
)


def to_struct(result: Result) -> Struct:
    """Returns a result as a value of the type RESULT."""
    dns = result.dns
    interfaces: list[Value] = [
        Struct(
            {
                "Name": item.name,
                "Mac": item.mac,
                "Mtu": item.mtu,
                "Sandbox": item.sandbox,
                "SocketPath": item.socket_path,
                "PciID": item.pci_id,
            }
        )
        for item in result.interfaces
    ]
    ips: list[Value] = [
        Struct({"Interface": ip.interface, "Address": _ip_net(ip.address), "Gateway": _packed(ip.gateway)})
        for ip in result.ips
    ]
    return Struct(
        {
            "Interfaces": interfaces,
            "IPs": ips,
            "Routes": [_route_struct(route) for route in result.routes],
            "DNS": Struct(
                {
                    "Nameservers": [*dns.nameservers],
                    "Domain": dns.domain,
                    "Search": [*dns.search],
                    "Options": [*dns.options],
                }
            ),
        }
    )


def from_struct(value: Struct) -> Result:
    """Returns a received result; raises Malformed."""
    dns = value.struct("DNS")
    return Result(
        interfaces=tuple(_interface(item) for item in value.structs("Interfaces")),
        ips=tuple(
            IPConfig(_cidr(item, "Address"), _address(item.data("Gateway")), _optional(item, "Interface", 1 << 16))
            for item in value.structs("IPs")
        ),
        routes=tuple(_route(item) for item in value.structs("Routes")),
        dns=DNS(
            tuple(dns.texts("Nameservers")), dns.text("Domain"), tuple(dns.texts("Search")), tuple(dns.texts("Options"))
        ),
    )


def _route_struct(route: Route) -> Struct:
    return Struct(
        {
            "Dst": _ip_net(route.dst),
            "GW": _packed(route.gw),
            "MTU": route.mtu,
            "AdvMSS": route.advmss,
            "Priority": route.priority,
            "Table": route.table,
            "Scope": route.scope,
        }
    )


def _ip_net(cidr: Cidr) -> Struct:
    return Struct({"IP": cidr.packed, "Mask": cidr.netmask.packed})


def _packed(address: Address | None) -> bytes:
    return address.packed if address else b""


def _interface(value: Struct) -> Interface:
    return Interface(
        name=value.text("Name"),
        mac=value.text("Mac"),
        mtu=_optional(value, "Mtu", _LARGEST_UINT32) or 0,
        sandbox=value.text("Sandbox"),
        socket_path=value.text("SocketPath"),
        pci_id=value.text("PciID"),
    )


def _route(value: Struct) -> Route:
    return Route(
        dst=_cidr(value, "Dst"),
        gw=_address(value.data("GW")),
        mtu=_optional(value, "MTU", _LARGEST_UINT32) or 0,
        advmss=_optional(value, "AdvMSS", _LARGEST_UINT32) or 0,
        priority=_optional(value, "Priority", _LARGEST_UINT32) or 0,
        table=_optional(value, "Table", _LARGEST_UINT32),
        scope=_optional(value, "Scope", 255),
    )


def _optional(value: Struct, name: str, maximum: int) -> int | None:
    number = value.integer(name)
    if not 0 <= number <= maximum:
        raise MalformedGob(f"{name} {number} is not between 0 and {maximum}")
    return number or None


def _address(data: bytes) -> Address | None:
    """Returns an address; Go stores an IPv4 address in 4 bytes or, mapped to IPv6, in 16."""
    if len(data) == 16:
        address = IPv6Address(data)
        return address.ipv4_mapped or address
    if len(data) not in (0, 4):
        raise MalformedGob(f"an address of {len(data)} bytes")
    return IPv4Address(data) if data else None


def _cidr(value: Struct, name: str) -> Cidr:
    net = value.struct(name)
    address, mask = _address(net.data("IP")), net.data("Mask")
    if address is None:
        raise MalformedGob(f"{name} is missing")
    width = address.max_prefixlen
    bits = int.from_bytes(mask).bit_count() - (8 * len(mask) - width)  # a mask of an IPv4 address may have 16 bytes
    if len(mask) not in (4, 16) or 8 * len(mask) < width or not 0 <= bits <= width:
        raise MalformedGob(f"{name} has a mask of {len(mask)} bytes")
    netmask = ((1 << 8 * len(mask)) - 1) ^ ((1 << width - bits) - 1)
    if int.from_bytes(mask) != netmask:
        raise MalformedGob(f"{name} has the mask {mask.hex()}, which is no prefix")
    return with_prefix(address, bits)
