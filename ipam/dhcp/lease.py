"""An IPv4 lease as a value: read from a server's ACK, stored as JSON.

Times are seconds of CLOCK_BOOTTIME, which counts the time that the machine sleeps; so a stored lease also has the boot
ID, and the times of another boot mean nothing. Durations are in seconds, infinite for a lease without an end.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface

from cni.address import parse_mac
from cni.errors import CniError
from cni.fields import Fields
from cni.result import DNS, IPConfig, Result, Route
from cni.result import from_json as result_from_json
from ipam.dhcp import options
from ipam.dhcp.options import INFINITE_S
from ipam.dhcp.packet import Malformed, Message
from process.values import dataclass

_NO_MASK = "DHCP option Subnet Mask not found in DHCPACK"  # text of the reference


class UnusableLeaseError(Exception):
    """An ACK without what a lease needs; `lease` is what to release, None if even that is unknown."""

    def __init__(self, problem: str, lease: Lease | None = None) -> None:
        super().__init__(problem)
        self.lease = lease


@dataclass(frozen=True)
class Lease:
    """The grant of a server: address with prefix, server, gateway, routes, DNS, MTU in bytes (0: not set), times."""

    address: IPv4Interface
    server: IPv4Address
    gateway: IPv4Address | None
    routes: tuple[Route, ...]
    dns: DNS
    mtu: int
    granted_s: float
    renewal_s: float
    rebinding_s: float
    lifetime_s: float
    server_mac: str = ""  # of the last answer: the server's, or the relay's

    @property
    def expires_at(self) -> float:
        """The time at which the address must no longer be used."""
        return self.granted_s + self.lifetime_s

    @property
    def configuration(self) -> tuple[object, ...]:
        """The part that an interface gets: two leases with the same one differ only in times and servers."""
        return self.address, self.gateway, self.routes, self.dns, self.mtu


def lease_from_ack(message: Message, sent_at: float, before: Lease | None) -> Lease:
    """Returns the lease of an ACK to a request sent at `sent_at`; `before` is the renewed lease.

    A renewing server may leave out what does not change: the mask and the server are then taken from `before`. Raises
    UnusableLeaseError.
    """
    received = message.options
    server = options.server_identifier(received) or (before.server if before else None)
    if server is None or not options.is_host_address(message.yiaddr):
        raise UnusableLeaseError("the server's DHCPACK has no address, or does not identify the server")
    if message.yiaddr == server:
        raise UnusableLeaseError(f"DHCPACK: the address {server} is the server's")
    try:
        times = options.lease_times(received)
        prefix = options.subnet_prefix(received)
    except Malformed as error:
        leased = IPv4Interface((message.yiaddr, 32))
        unusable = Lease(leased, server, None, (), DNS(), 0, sent_at, renewal_s=0, rebinding_s=0, lifetime_s=0)
        raise UnusableLeaseError(f"DHCPACK: {error}", unusable) from error
    if prefix is None and before is not None:
        prefix = before.address.network.prefixlen
    lease = Lease(
        address=IPv4Interface((message.yiaddr, 32 if prefix is None else prefix)),
        server=server,
        gateway=next(iter(options.routers(received)), None),
        routes=options.routes(received),
        dns=options.dns(received),
        mtu=options.interface_mtu(received),
        granted_s=sent_at,
        renewal_s=times.renewal_s,
        rebinding_s=times.rebinding_s,
        lifetime_s=times.lifetime_s,
    )
    if prefix is None:
        raise UnusableLeaseError(_NO_MASK, lease)
    return lease


def to_json(lease: Lease) -> dict[str, object]:
    """Returns the part of a lease file for a lease; an absent duration is infinite."""
    ip = IPConfig(lease.address, lease.gateway)
    durations = {"renewal": lease.renewal_s, "rebinding": lease.rebinding_s, "lifetime": lease.lifetime_s}
    return {
        "server": str(lease.server),
        "serverMAC": lease.server_mac,
        "mtu": lease.mtu,
        "grantedMs": int(lease.granted_s * 1000),
        **{f"{name}S": int(value) for name, value in durations.items() if value != INFINITE_S},
        "result": Result(ips=(ip,), routes=lease.routes, dns=lease.dns).to_json("1.1.0"),
    }


def from_json(value: object) -> Lease:
    """Reads what `to_json` returned; raises ValueError for anything else."""
    if not isinstance(value, dict):
        raise ValueError("the IPv4 lease is not a JSON object")
    fields = Fields(value, context="cannot read the IPv4 lease")
    try:
        return _lease_from_fields(fields, result_from_json(fields.raw("result"), "1.1.0"))
    except CniError as error:
        raise ValueError(error.msg) from error


def _lease_from_fields(fields: Fields, result: Result) -> Lease:
    address, server = result.ips[0].address if result.ips else None, fields.ip("server")
    if not isinstance(address, IPv4Interface) or not isinstance(server, IPv4Address):
        raise fields.error("server", "or the address is missing")
    gateway, server_mac = result.ips[0].gateway, fields.string("serverMAC")
    if server_mac:
        parse_mac(server_mac)
    return Lease(
        address=address,
        server=server,
        gateway=gateway if isinstance(gateway, IPv4Address) else None,
        routes=result.routes,
        dns=result.dns,
        mtu=fields.integer("mtu") or 0,
        granted_s=(fields.integer("grantedMs") or 0) / 1000,
        renewal_s=read_duration(fields, "renewalS"),
        rebinding_s=read_duration(fields, "rebindingS"),
        lifetime_s=read_duration(fields, "lifetimeS"),
        server_mac=server_mac,
    )


def read_duration(fields: Fields, key: str) -> float:
    """Returns a duration in seconds, INFINITE_S without the key."""
    seconds = fields.integer(key, minimum=0)
    return INFINITE_S if seconds is None else float(seconds)
