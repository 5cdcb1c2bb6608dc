"""The result of an ADD as values, and its JSON in the shape of every version of the specification.

Inside podwire a result is always of the newest shape; versions exist only in `to_json` and `from_json`.
"""

from __future__ import annotations

from ipaddress import IPv4Interface

from cni.address import Address, Cidr, format_ip
from cni.errors import invalid_conf
from cni.fields import Fields
from cni.versions import at_least, family
from process.values import dataclass

_DECODE = "failed to decode result"


@dataclass(frozen=True)
class Interface:
    """An interface of an attachment; `sandbox` is its namespace path, "" on the host; `mtu` in bytes, 0 unset."""

    name: str
    mac: str = ""
    mtu: int = 0
    sandbox: str = ""
    socket_path: str = ""
    pci_id: str = ""


@dataclass(frozen=True)
class IPConfig:
    """An address with its prefix (host bits kept); `interface` is an index into Result.interfaces."""

    address: Cidr
    gateway: Address | None = None
    interface: int | None = None


@dataclass(frozen=True)
class Route:
    """A route; `mtu` and `advmss` in bytes, 0 unset; None leaves table and scope to the kernel."""

    dst: Cidr
    gw: Address | None = None
    mtu: int = 0
    advmss: int = 0
    priority: int = 0
    table: int | None = None
    scope: int | None = None


@dataclass(frozen=True)
class DNS:
    """The settings for name resolution."""

    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.nameservers or self.domain or self.search or self.options)

    @classmethod
    def from_fields(cls, fields: Fields) -> DNS:
        """Reads a `dns` object of a result or configuration; CniError(7) for wrong types."""
        return cls(
            nameservers=fields.strings("nameservers"),
            domain=fields.string("domain"),
            search=fields.strings("search"),
            options=fields.strings("options"),
        )

    def to_json(self) -> dict[str, object]:
        """Returns the object with its empty members left out, sorted by key."""
        return _filled(
            domain=self.domain,
            nameservers=list(self.nameservers),
            options=list(self.options),
            search=list(self.search),
        )


@dataclass(frozen=True)
class Result:
    """An attachment: its interfaces, addresses, routes and DNS settings (specification, section "Success")."""

    interfaces: tuple[Interface, ...] = ()
    ips: tuple[IPConfig, ...] = ()
    routes: tuple[Route, ...] = ()
    dns: DNS = DNS()

    def to_json(self, version: str, *, is_passed_on: bool = False) -> dict[str, object]:
        """Returns the result in the shape of `version` ("" is 0.1.0).

        Raises CniError(7) when that version cannot hold it: a result of 0.1.0 or 0.2.0 consists of addresses. A chained
        plugin passes a prevResult without any on.
        """
        if at_least(version, "1.0.0"):
            return _to_v1(self, version)
        if at_least(version, "0.3.0"):
            return _to_v03(self, version)
        if not (self.ips or is_passed_on):
            raise invalid_conf(
                "cannot convert: no valid IP addresses",
                f"a result of CNI version {version or '0.1.0'} consists of addresses; use cniVersion 0.3.0 or later",
            )
        return _to_v02(self, version or "0.1.0")

    def converted(self, version: str) -> Result:
        """Returns the result without what `version` cannot express."""
        return self if at_least(version, "1.0.0") else from_json(self.to_json(version), version)


def from_json(obj: object, version: str) -> Result:
    """Reads a result printed as `version`, the version of the configuration it belongs to.

    A result without cniVersion is taken as of that version; null is an empty result.
    Raises CniError(7) for a result of another family of versions or of wrong types (reference: code 999).
    """
    if obj is None:
        return Result()
    if not isinstance(obj, dict):
        raise invalid_conf(f"{_DECODE}: it is not a JSON object")
    fields = Fields(obj, context=_DECODE)
    names = family(version)
    if names is None:
        raise invalid_conf(f'unsupported CNI result version "{version}"')
    actual = fields.string("cniVersion") or version
    if actual not in names:
        listed = " ".join(name or '""' for name in names)
        raise invalid_conf(f'result type supports [{listed}] but unmarshalled CNIVersion is "{actual}"')
    if "0.2.0" in names:
        return _from_v02(fields)
    return Result(
        interfaces=tuple(_interface(item) for item in fields.objects("interfaces")),
        ips=tuple(_ip(item) for item in fields.objects("ips")),
        routes=tuple(_route(item) for item in fields.objects("routes")),
        dns=DNS.from_fields(fields.section("dns")),
    )


def route_from_fields(fields: Fields) -> Route:
    """Reads one route of a configuration (host-local's and static's `routes`); CniError(7) for wrong types."""
    return _route(fields)


def _required(fields: Fields, key: str) -> Cidr:
    value = fields.cidr(key)
    if value is None:
        raise fields.error(key, "is missing")
    return value


def _interface(fields: Fields) -> Interface:
    return Interface(
        name=fields.string("name"),
        mac=fields.string("mac"),
        mtu=fields.integer("mtu") or 0,
        sandbox=fields.string("sandbox"),
        socket_path=fields.string("socketPath"),
        pci_id=fields.string("pciID"),
    )


def _ip(fields: Fields) -> IPConfig:
    return IPConfig(_required(fields, "address"), fields.ip("gateway"), fields.integer("interface"))


def _route(fields: Fields) -> Route:
    limit = (1 << 32) - 1
    return Route(
        dst=_required(fields, "dst"),
        gw=fields.ip("gw"),
        mtu=fields.integer("mtu", minimum=0, maximum=limit) or 0,
        advmss=fields.integer("advmss", minimum=0, maximum=limit) or 0,
        priority=fields.integer("priority", minimum=0, maximum=limit) or 0,
        table=fields.integer("table", minimum=0, maximum=limit),
        scope=fields.integer("scope", minimum=0, maximum=255),
    )


def _filled(**items: object) -> dict[str, object]:
    """Drops unset members (Go's omitempty): empty strings and lists, zeros of plain fields, None."""
    return {key: value for key, value in items.items() if value}


def _to_v1(result: Result, version: str) -> dict[str, object]:
    """Prints 1.0.0 and 1.1.0: keys sorted on every level, an empty dns left out, no `version` in ips."""
    interfaces = [
        _filled(mac=i.mac, mtu=i.mtu)
        | {"name": i.name}
        | _filled(pciID=i.pci_id, sandbox=i.sandbox, socketPath=i.socket_path)
        for i in result.interfaces
    ]
    ips = [{"address": format_ip(ip.address), **_gateway(ip), **_index(ip)} for ip in result.ips]
    routes = [dict(sorted(_route_json(route).items())) for route in result.routes]
    body = _filled(interfaces=interfaces, ips=ips, routes=routes)
    dns = {"dns": result.dns.to_json()} if result.dns else {}
    return {"cniVersion": version, **dns, **body}


def _to_v03(result: Result, version: str) -> dict[str, object]:
    """Prints 0.3.0 to 0.4.0: interfaces reduced to name, mac, sandbox; the address family in ips; dns always there."""
    interfaces = [{"name": i.name, **_filled(mac=i.mac, sandbox=i.sandbox)} for i in result.interfaces]
    ips = [
        {
            "version": "4" if isinstance(ip.address, IPv4Interface) else "6",
            **_index(ip),
            "address": format_ip(ip.address),
            **_gateway(ip),
        }
        for ip in result.ips
    ]
    routes = [_route_json(route) for route in result.routes]
    body = _filled(interfaces=interfaces, ips=ips, routes=routes)
    return {"cniVersion": version, **body, "dns": result.dns.to_json()}


def _to_v02(result: Result, version: str) -> dict[str, object]:
    """Prints 0.1.0 and 0.2.0: the first address of each family with its routes (dst and gw only)."""
    body: dict[str, object] = {"cniVersion": version}
    for key, is_v4 in (("ip4", True), ("ip6", False)):
        ip = next((ip for ip in result.ips if isinstance(ip.address, IPv4Interface) is is_v4), None)
        if ip is not None:
            selected = [route for route in result.routes if isinstance(route.dst, IPv4Interface) is is_v4]
            routes: list[object] = [
                {"dst": format_ip(r.dst), **({"gw": format_ip(r.gw)} if r.gw else {})} for r in selected
            ]
            body[key] = {"ip": format_ip(ip.address), **_gateway(ip), **_filled(routes=routes)}
    return {**body, "dns": result.dns.to_json()}


def _from_v02(fields: Fields) -> Result:
    ips: list[IPConfig] = []
    routes: list[Route] = []
    for key in ("ip4", "ip6"):
        block = fields.nested(key)
        if block is not None:
            ips.append(IPConfig(_required(block, "ip"), block.ip("gateway")))
            routes += [Route(_required(item, "dst"), item.ip("gw")) for item in block.objects("routes")]
    return Result(ips=tuple(ips), routes=tuple(routes), dns=DNS.from_fields(fields.section("dns")))


def _gateway(ip: IPConfig) -> dict[str, object]:
    return {"gateway": format_ip(ip.gateway)} if ip.gateway else {}


def _index(ip: IPConfig) -> dict[str, object]:
    return {} if ip.interface is None else {"interface": ip.interface}


def _route_json(route: Route) -> dict[str, object]:
    optional = {"table": route.table, "scope": route.scope}  # a zero of these two is a value, so it is printed
    return {
        "dst": format_ip(route.dst),
        **({"gw": format_ip(route.gw)} if route.gw else {}),
        **_filled(mtu=route.mtu, advmss=route.advmss, priority=route.priority),
        **{key: value for key, value in optional.items() if value is not None},
    }
