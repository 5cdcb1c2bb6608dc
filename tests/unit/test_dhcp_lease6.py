"""IPv6 leases (ipam.dhcp.lease6): the CNI result, the lease file, the choice of an address."""

from __future__ import annotations

import json
from ipaddress import IPv6Address, IPv6Interface, IPv6Network

import pytest

from cni.result import DNS, IPConfig, Route
from ipam.dhcp import lease6
from ipam.dhcp.address6 import link_local_address, slaac_address
from ipam.dhcp.lease import INFINITE
from ipam.dhcp.lease6 import Grant, dhcp_lease, slaac_lease
from ipam.dhcp.leases import result_of
from ipam.dhcp.router_advertisement import Prefix, RouterAdvertisement
from process.values import replace

LINK_LOCAL, ROUTER = IPv6Address("fe80::ff:fe00:1"), IPv6Address("fe80::1")
ADDRESS, NAME_SERVER, SECOND = (IPv6Address(f"2001:db8:1::{part}") for part in ("7", "53", "54"))
NETWORK, FURTHER = IPv6Network("2001:db8:1::/64"), IPv6Network("2001:db8:2::/64")
PREFIX = Prefix(NETWORK, True, True, 7200.0, 3600.0)
ON_LINK = Prefix(FURTHER, True, False, INFINITE, INFINITE)
ADVERTISED = RouterAdvertisement(
    ROUTER, 0.0, 1800.0, True, False, 1400, (PREFIX, ON_LINK), (NAME_SERVER, SECOND), ("a.b",)
)
GRANT = Grant(ADDRESS, b"\0\3server", 0.0, 50.0, 80.0, 100.0, 200.0, (SECOND,), ("c.d", "a.b"))
DEFAULT, ROUTE, FURTHER_ROUTE = IPv6Interface("::/0"), IPv6Interface(NETWORK), IPv6Interface(FURTHER)


def slaac(advertisement=ADVERTISED, before=None):
    return slaac_lease(advertisement, LINK_LOCAL, before)


def advertised(*prefixes):
    return replace(ADVERTISED, prefixes=prefixes)


def test_addresses_of_an_interface():
    """Addresses are the kernel's: EUI-64, also of interfaces that share a MAC; with the length of an on-link prefix."""
    mac = bytes.fromhex("024211223344")
    assert link_local_address(mac) == IPv6Address("fe80::42:11ff:fe22:3344")
    assert link_local_address(mac, 1) == IPv6Address("fe80::242:1100:122:3344")
    link_local = link_local_address(bytes.fromhex("020000000001"))
    assert slaac_address(NETWORK, link_local, on_link=True) == IPv6Interface("2001:db8:1::ff:fe00:1/64")
    assert slaac_address(NETWORK, link_local, on_link=False) == IPv6Interface("2001:db8:1::ff:fe00:1/128")


def test_result_of_dhcp():
    """A DHCPv6 address is a /128 with routes to the on-link prefixes, and the router's link-local gateway."""
    result = result_of([dhcp_lease(GRANT, ADVERTISED)], 0, with_dns=True)
    assert result.ips == (IPConfig(IPv6Interface(f"{ADDRESS}/128")),)
    assert result.routes == (Route(ROUTE), Route(FURTHER_ROUTE), Route(DEFAULT, ROUTER))
    assert result.dns == DNS((str(SECOND), str(NAME_SERVER)), "", ("c.d", "a.b"))


def test_result_of_slaac():
    """An autoconfigured address needs no route to its prefix, with which it expires; routes have the metric."""
    lease = slaac(replace(ADVERTISED, received_s=50.0))
    assert lease is not None
    assert (lease.expires_at, dhcp_lease(GRANT, ADVERTISED).expires_at) == (7250, 200)
    result = result_of([lease], 7, with_dns=False)
    assert result.ips == (IPConfig(IPv6Interface("2001:db8:1::ff:fe00:1/64")),)
    assert result.routes == (Route(FURTHER_ROUTE, priority=7), Route(DEFAULT, ROUTER, priority=7))
    assert result.dns == DNS()


def test_result_without_router():
    """Without a router, or with one that is no gateway, there is no default route."""
    alone = dhcp_lease(GRANT, None)
    assert (alone.routes, alone.mtu, alone.dns) == ((), 0, DNS((str(SECOND),), "", ("c.d", "a.b")))
    no_gateway = dhcp_lease(GRANT, replace(ADVERTISED, lifetime_s=0.0))
    assert (no_gateway.routes, no_gateway.mtu) == ((Route(ROUTE), Route(FURTHER_ROUTE)), 1400)


@pytest.mark.parametrize(
    ("prefixes", "expected"),
    [
        ((), None),
        ((ON_LINK,), None),
        ((replace(PREFIX, on_link=False),), "2001:db8:1::ff:fe00:1/128"),
        ((replace(PREFIX, preferred_s=0.0),), "2001:db8:1::ff:fe00:1/64"),
        ((replace(PREFIX, preferred_s=0.0), replace(PREFIX, network=FURTHER)), "2001:db8:2::ff:fe00:1/64"),
    ],
)
def test_choice_of_a_prefix(prefixes, expected):
    """The address is in the first preferred prefix for autoconfiguration, or in a deprecated one."""
    lease = slaac(advertised(*prefixes))
    assert (str(lease.address) if lease else None) == expected


def test_address_stays():
    """The address stays while its prefix is preferred, and when no other prefix is."""
    before = slaac(advertised(PREFIX))
    other = replace(PREFIX, network=FURTHER)
    deprecated = replace(PREFIX, preferred_s=0.0)
    assert before is not None
    cases = (other, PREFIX), (deprecated, replace(other, preferred_s=0.0)), (deprecated, other), (other,)
    leases = [slaac(advertised(*prefixes), before) for prefixes in cases]
    assert [lease is not None and lease.address == before.address for lease in leases] == [True, True, False, False]


@pytest.mark.parametrize(
    "lease",
    [
        dhcp_lease(GRANT, ADVERTISED),
        dhcp_lease(replace(GRANT, renewal_s=INFINITE, rebinding_s=INFINITE, preferred_s=INFINITE), None),
        slaac(),
    ],
)
def test_json(lease):
    """A lease that is stored and read is the same."""
    assert lease6.from_json(json.loads(json.dumps(lease6.to_json(lease)))) == lease


@pytest.mark.parametrize(
    "changes",
    [
        *({"address": "192.0.2.1/24"}, {"address": None}, {"dhcp": {"server": "x"}}, {"dhcp": {"nameservers": ["x"]}}),
        *(
            {"router": router}
            for router in (1, {"address": "x"}, {"address": "fe80::1", "prefixes": [{"prefix": "x"}]})
        ),
    ],
)
def test_unreadable(changes):
    """Other content raises ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011 - the texts differ
        lease6.from_json({**lease6.to_json(dhcp_lease(GRANT, ADVERTISED)), **changes})
    with pytest.raises(ValueError, match="object"):
        lease6.from_json([])


def test_difference():
    """Two leases differ if they configure an interface differently; times and servers do not matter."""
    lease = dhcp_lease(GRANT, ADVERTISED)
    later = replace(GRANT, granted_s=9.0, lifetime_s=1.0, server=b"x")
    assert lease.configuration == dhcp_lease(later, replace(ADVERTISED, received_s=9.0, lifetime_s=1.0)).configuration
    assert lease.configuration != dhcp_lease(replace(GRANT, address=SECOND), ADVERTISED).configuration
    for changes in ({"lifetime_s": 0.0}, {"mtu": 1300}, {"prefixes": (PREFIX,)}, {"dns_servers": ()}):
        assert lease.configuration != dhcp_lease(GRANT, replace(ADVERTISED, **changes)).configuration
