"""An IPv6 lease as a value: what a DHCPv6 server granted and what a router advertises; JSON on disk.

Times are as in lease.py: seconds of CLOCK_BOOTTIME, durations in seconds.

Decisions:
- An address from DHCPv6 is a /128: DHCPv6 has no prefix lengths (RFC 8415, section 21.6), and only a router knows which
  prefixes are on the link (RFC 5942). They become routes without gateway.
- An address from SLAAC is the one that the kernel would form. It has its prefix's length, so that the kernel itself
  adds the route to the prefix; if the prefix is not on the link, it is a /128.
- The result's address has no gateway; the default route names the router's link-local address. A plugin replaces the
  missing gateway of a route by the address' gateway, so on-link routes would lead to the router; and a bridge with
  isGateway assigns an address' gateway to itself.
- The settings for name resolution are those of the DHCPv6 server, then those of the router (RFC 8106, section 5.3.1).
"""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Interface, IPv6Network

from cni.address import format_ip
from cni.errors import CniError
from cni.fields import Fields
from cni.result import DNS, Route
from ipam.dhcp.address6 import is_host_address, slaac_address
from ipam.dhcp.lease import read_duration
from ipam.dhcp.options import INFINITE_S
from ipam.dhcp.packet6 import SUCCESS, Association, LeasedAddress, Message
from ipam.dhcp.router_advertisement import Prefix, RouterAdvertisement
from process.values import dataclass

_DEFAULT_ROUTE = IPv6Interface("::/0")


@dataclass(frozen=True)
class Grant:
    """The grant of a DHCPv6 server; `server` is its DUID."""

    address: IPv6Address
    server: bytes
    granted_s: float
    renewal_s: float
    rebinding_s: float
    preferred_s: float
    lifetime_s: float
    dns_servers: tuple[IPv6Address, ...] = ()
    search: tuple[str, ...] = ()

    @property
    def expires_at(self) -> float:
        """The time at which the address must no longer be used."""
        return self.granted_s + self.lifetime_s


@dataclass(frozen=True)
class Lease6:
    """An address and its network; `grant` is None for an address from SLAAC, `advertisement` None without a router.

    The advertisement has only what is still valid.
    """

    address: IPv6Interface
    grant: Grant | None
    advertisement: RouterAdvertisement | None

    @property
    def gateway(self) -> IPv6Address | None:
        """The router's link-local address; None if there is none, or if it can no longer be used as a gateway."""
        advertisement = self.advertisement
        return advertisement.router if advertisement and advertisement.lifetime_s else None

    @property
    def mtu(self) -> int:
        """The link's MTU in bytes, 0 if no router announces it; a larger one than the interface's means nothing."""
        return self.advertisement.mtu if self.advertisement else 0

    @property
    def dns(self) -> DNS:
        """The settings for name resolution."""
        sources = [source for source in (self.grant, self.advertisement) if source]
        servers = dict.fromkeys(format_ip(server) for source in sources for server in source.dns_servers)
        search = dict.fromkeys(name for source in sources for name in source.search)
        return DNS(nameservers=tuple(servers), search=tuple(search))

    @property
    def routes(self) -> tuple[Route, ...]:
        """The routes to the on-link prefixes, without gateway, then the default route.

        The kernel adds the route to the address' prefix itself.
        """
        prefixes = self.advertisement.prefixes if self.advertisement else ()
        on_link = [prefix.network for prefix in prefixes if prefix.on_link and prefix.network != self.address.network]
        routes = [Route(IPv6Interface((network.network_address, network.prefixlen))) for network in on_link]
        return (*routes, *([Route(_DEFAULT_ROUTE, self.gateway)] if self.gateway else ()))

    @property
    def granted_s(self) -> float:
        """The time from which the durations count."""
        return self.grant.granted_s if self.grant else self.advertisement.received_s if self.advertisement else 0.0

    @property
    def lifetime_s(self) -> float:
        """The time for which the address can be used."""
        if self.grant:
            return self.grant.lifetime_s
        prefix = slaac_prefix(self.advertisement, self.address.ip)
        return prefix.valid_s if prefix else 0.0

    @property
    def expires_at(self) -> float:
        """The time at which the address must no longer be used."""
        return self.granted_s + self.lifetime_s

    @property
    def configuration(self) -> tuple[object, ...]:
        """The part that an interface gets: two leases with the same one differ only in times and servers."""
        return self.address, self.routes, self.dns, self.mtu


def usable_address(association: Association | None, present: IPv6Address) -> LeasedAddress | None:
    """Returns the address `present` if the server leaves it, otherwise the first usable one; None without one.

    An association with T1 after T2 is ignored (RFC 8415, section 21.4).
    """
    if association is None or 0 < association.rebinding_s < association.renewal_s:
        return None
    usable = [each for each in association.addresses if _is_usable(each)]
    return next((each for each in usable if each.address == present), next(iter(usable), None))


def grant_of(reply: Message, association: Association, leased: LeasedAddress, sent_at: float) -> Grant:
    """Returns what a server granted by its REPLY to a message sent at `sent_at`.

    T1 and T2 that the server leaves to the client are 50 % and 80 % of the preferred lifetime; so are both if they are
    not in order, T1 <= T2 <= valid lifetime (RFC 8415, section 14.2).
    """
    basis_s = leased.preferred_s or leased.valid_s
    default = basis_s * 0.5, basis_s * 0.8
    times = association.renewal_s or default[0], association.rebinding_s or default[1]
    renewal_s, rebinding_s = times if times[0] <= times[1] <= leased.valid_s else default
    return Grant(
        address=leased.address,
        server=reply.server_id,
        granted_s=sent_at,
        renewal_s=renewal_s,
        rebinding_s=rebinding_s,
        preferred_s=leased.preferred_s,
        lifetime_s=leased.valid_s,
        dns_servers=tuple(server for server in reply.dns_servers if is_host_address(server)),
        search=reply.search,
    )


def _is_usable(leased: LeasedAddress) -> bool:
    return (
        leased.valid_s > 0
        and leased.preferred_s <= leased.valid_s
        and leased.status.code == SUCCESS
        and is_host_address(leased.address)
    )


def dhcp_lease(grant: Grant, advertisement: RouterAdvertisement | None) -> Lease6:
    """Returns the lease of an address from a DHCPv6 server."""
    return Lease6(IPv6Interface((grant.address, 128)), grant, advertisement)


def slaac_lease(advertisement: RouterAdvertisement, link_local: IPv6Address, before: Lease6 | None) -> Lease6 | None:
    """Returns the lease of an autoconfigured address; None if the router advertises no prefix for one.

    The address of `before` stays while its prefix is preferred. Otherwise the address is in the first preferred prefix,
    since a deprecated address is not for new connections (RFC 4862, section 5.5.4); without one nothing changes.
    """
    usable = [prefix for prefix in advertisement.prefixes if prefix.autonomous and prefix.valid_s > 0]
    current = slaac_prefix(advertisement, before.address.ip) if before else None
    preferred = [prefix for prefix in usable if prefix.preferred_s > 0]
    if current is None or current not in preferred:
        current = next(iter([*preferred, *([current] if current else []), *usable]), None)
    if current is None:
        return None
    return Lease6(slaac_address(current.network, link_local, on_link=current.on_link), None, advertisement)


def slaac_prefix(advertisement: RouterAdvertisement | None, address: IPv6Address) -> Prefix | None:
    """Returns the prefix of an autoconfigured address; None if it is not, or no longer, advertised."""
    prefixes = advertisement.prefixes if advertisement else ()
    return next((each for each in prefixes if each.autonomous and address in each.network and each.valid_s), None)


def to_json(lease: Lease6) -> dict[str, object]:
    """Returns the part of a lease file for a lease; an absent duration is infinite."""
    return {
        "address": format_ip(lease.address),
        **({"dhcp": _grant_to_json(lease.grant)} if lease.grant else {}),
        **({"router": _advertisement_to_json(lease.advertisement)} if lease.advertisement else {}),
    }


def from_json(value: object) -> Lease6:
    """Reads what `to_json` returned; raises ValueError for anything else."""
    if not isinstance(value, dict):
        raise ValueError("the IPv6 lease is not a JSON object")
    fields = Fields(value, context="cannot read the IPv6 lease")
    try:
        address = fields.cidr("address")
        if not isinstance(address, IPv6Interface):
            raise fields.error("address", "is missing, or is not of IPv6")
        grant, advertisement = fields.nested("dhcp"), fields.nested("router")
        return Lease6(
            address,
            _grant_from_fields(grant, address.ip) if grant else None,
            _advertisement_from_fields(advertisement) if advertisement else None,
        )
    except CniError as error:
        raise ValueError(error.msg) from error


def _grant_to_json(grant: Grant) -> dict[str, object]:
    return {
        "server": grant.server.hex(),
        "grantedMs": int(grant.granted_s * 1000),
        **_duration("renewalS", grant.renewal_s),
        **_duration("rebindingS", grant.rebinding_s),
        **_duration("preferredS", grant.preferred_s),
        **_duration("lifetimeS", grant.lifetime_s),
        "nameservers": [format_ip(server) for server in grant.dns_servers],
        "search": list(grant.search),
    }


def _grant_from_fields(fields: Fields, address: IPv6Address) -> Grant:
    return Grant(
        address=address,
        server=bytes.fromhex(fields.string("server")),
        granted_s=(fields.integer("grantedMs") or 0) / 1000,
        renewal_s=read_duration(fields, "renewalS"),
        rebinding_s=read_duration(fields, "rebindingS"),
        preferred_s=read_duration(fields, "preferredS"),
        lifetime_s=read_duration(fields, "lifetimeS"),
        dns_servers=tuple(IPv6Address(server) for server in fields.strings("nameservers")),
        search=fields.strings("search"),
    )


def _advertisement_to_json(advertisement: RouterAdvertisement) -> dict[str, object]:
    prefixes = [
        {
            "prefix": format_ip(IPv6Interface((each.network.network_address, each.network.prefixlen))),
            "onLink": each.on_link,
            "autonomous": each.autonomous,
            **_duration("validS", each.valid_s),
            **_duration("preferredS", each.preferred_s),
        }
        for each in advertisement.prefixes
    ]
    return {
        "address": format_ip(advertisement.router),
        "receivedMs": int(advertisement.received_s * 1000),
        "lifetimeS": int(advertisement.lifetime_s),
        "managed": advertisement.managed,
        "other": advertisement.other,
        "mtu": advertisement.mtu,
        "prefixes": prefixes,
        "nameservers": [format_ip(server) for server in advertisement.dns_servers],
        "search": list(advertisement.search),
    }


def _advertisement_from_fields(fields: Fields) -> RouterAdvertisement:
    return RouterAdvertisement(
        router=IPv6Address(fields.string("address")),
        received_s=(fields.integer("receivedMs") or 0) / 1000,
        lifetime_s=float(fields.integer("lifetimeS", minimum=0) or 0),
        managed=fields.boolean("managed"),
        other=fields.boolean("other"),
        mtu=fields.integer("mtu", minimum=0) or 0,
        prefixes=tuple(_prefix_from_fields(each) for each in fields.objects("prefixes")),
        dns_servers=tuple(IPv6Address(server) for server in fields.strings("nameservers")),
        search=fields.strings("search"),
    )


def _prefix_from_fields(fields: Fields) -> Prefix:
    return Prefix(
        network=IPv6Network(fields.string("prefix")),
        on_link=fields.boolean("onLink"),
        autonomous=fields.boolean("autonomous"),
        valid_s=read_duration(fields, "validS"),
        preferred_s=read_duration(fields, "preferredS"),
    )


def _duration(key: str, seconds: float) -> dict[str, object]:
    return {} if seconds == INFINITE_S else {key: int(seconds)}
