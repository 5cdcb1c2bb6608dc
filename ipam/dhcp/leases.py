"""The leases of an interface, of either IP version: the routes that they need, and the result of ADD."""

from __future__ import annotations

from collections.abc import Collection

from cni.result import DNS, IPConfig, Result, Route
from ipam.dhcp.lease import Lease
from ipam.dhcp.lease6 import Lease6
from process.values import replace

AnyLease = Lease | Lease6


def routes_of(lease: AnyLease, priority: int) -> tuple[Route, ...]:
    """Returns a lease's routes with a metric; without one (the kernel's) if `priority` is 0."""
    return tuple(replace(route, priority=priority) for route in lease.routes) if priority else lease.routes


def without_time(lease: AnyLease) -> AnyLease:
    """Returns a lease that was lost: its lifetime is 0, so that a daemon which reads it asks the servers for it."""
    if isinstance(lease, Lease):
        return replace(lease, renewal_s=0.0, rebinding_s=0.0, lifetime_s=0.0)
    grant = lease.grant and replace(lease.grant, renewal_s=0.0, rebinding_s=0.0, preferred_s=0.0, lifetime_s=0.0)
    return replace(lease, grant=grant, advertisement=lease.advertisement if grant else None)


def result_of(leases: Collection[AnyLease], priority: int, *, with_dns: bool) -> Result:
    """Returns the result of ADD with the leases in their order; `priority` as in routes_of (spec: dhcp, section 4).

    lease6.py explains why an IPv6 address has no gateway in the result.
    """
    settings = [lease.dns for lease in leases] if with_dns else []
    return Result(
        ips=tuple(IPConfig(lease.address, lease.gateway if isinstance(lease, Lease) else None) for lease in leases),
        routes=tuple(route for lease in leases for route in routes_of(lease, priority)),
        dns=DNS(
            nameservers=tuple(dict.fromkeys(server for dns in settings for server in dns.nameservers)),
            domain=next((dns.domain for dns in settings if dns.domain), ""),
            search=tuple(dict.fromkeys(name for dns in settings for name in dns.search)),
        ),
    )
