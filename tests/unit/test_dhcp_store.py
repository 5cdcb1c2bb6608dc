"""dhcp's leases: their files (ipam.dhcp.store), which are read as they were written; IPv6 leases (lease6)."""

import json
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, IPv6Network

import pytest

from cni.result import DNS, IPConfig, Route
from ipam.dhcp import lease6
from ipam.dhcp.address6 import link_local_address, slaac_address
from ipam.dhcp.lease import Lease
from ipam.dhcp.lease6 import Grant, dhcp_lease, slaac_lease
from ipam.dhcp.leases import result_of
from ipam.dhcp.options import INFINITE_S
from ipam.dhcp.record import LeaseOwner, LeaseRecord, Target, from_json, to_json
from ipam.dhcp.router_advertisement import Prefix, RouterAdvertisement
from ipam.dhcp.store import LeaseStore, UnreadableLease
from process.values import replace

LINK_LOCAL, ROUTER = IPv6Address("fe80::ff:fe00:1"), IPv6Address("fe80::1")
ADDRESS, NAME_SERVER, SECOND = (IPv6Address(f"2001:db8:1::{part}") for part in ("7", "53", "54"))
NETWORK, FURTHER = IPv6Network("2001:db8:1::/64"), IPv6Network("2001:db8:2::/64")
PREFIX = Prefix(NETWORK, True, True, 7200.0, 3600.0)
ON_LINK = Prefix(FURTHER, True, False, INFINITE_S, INFINITE_S)
ADVERTISED = RouterAdvertisement(
    ROUTER, 0.0, 1800.0, True, False, 1400, (PREFIX, ON_LINK), (NAME_SERVER, SECOND), ("a.b",)
)
GRANT = Grant(ADDRESS, b"\0\3server", 0.0, 50.0, 80.0, 100.0, 200.0, (SECOND,), ("c.d", "a.b"))
DEFAULT, ROUTE, FURTHER_ROUTE = IPv6Interface("::/0"), IPv6Interface(NETWORK), IPv6Interface(FURTHER)
LEASE = Lease(
    address=IPv4Interface("10.25.0.7/24"),
    server=IPv4Address("10.25.0.1"),
    gateway=IPv4Address("10.25.0.1"),
    routes=(Route(IPv4Interface("0.0.0.0/0"), IPv4Address("10.25.0.1")),),
    dns=DNS(("10.25.0.53",), "example.org", ("a.org",)),
    mtu=1400,
    granted_s=1000.25,
    renewal_s=1800.0,
    rebinding_s=3150.0,
    lifetime_s=3600.0,
    server_mac="02:00:00:00:00:01",
)
TARGET = Target(2, "02:00:00:00:00:02", 4711, "br0", shares_mac=True)
OWNER = LeaseOwner("net", "c1", "eth0", "/run/netns/c1", "K8S_POD_NAME=web", b'{"name": "net"}')
RECORD = LeaseRecord(OWNER, TARGET, "boot", LEASE, None)


def slaac(advertisement=ADVERTISED, before=None):
    return slaac_lease(advertisement, LINK_LOCAL, before)


def advertised(*prefixes):
    return replace(ADVERTISED, prefixes=prefixes)


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        replace(RECORD, ipv4=replace(LEASE, renewal_s=INFINITE_S, rebinding_s=INFINITE_S, lifetime_s=INFINITE_S)),
        replace(RECORD, ipv4=replace(LEASE, gateway=None, routes=(), dns=DNS(), mtu=0, server_mac="")),
        replace(RECORD, owner=replace(OWNER, container_id="c" * 256)),
        replace(RECORD, ipv6=dhcp_lease(GRANT, ADVERTISED)),
        replace(RECORD, ipv4=None, ipv6=dhcp_lease(replace(GRANT, renewal_s=INFINITE_S, preferred_s=INFINITE_S), None)),
        replace(RECORD, ipv6=slaac()),
    ],
)
def test_lease_file_is_read_as_it_was_written(record, tmp_path):
    """A lease is the same after it was written and read; the file can be read only by root, and has no draft."""
    store = LeaseStore(str(tmp_path))
    store.write(record)
    assert list(store.read_all()) == [record]
    assert list(store.read_all("net")) == [record]
    assert list(store.read_all("other")) == []
    (file,) = (tmp_path / "net").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert store.note_release(*record.owner.key)
    assert store.must_release(record)
    store.delete(*record.owner.key)
    assert list(tmp_path.iterdir()) == []


def test_text_that_is_not_utf8_is_stored(tmp_path):
    """Bytes that are not UTF-8, in the configuration or in CNI_ARGS, do not prevent the lease from being stored."""
    store = LeaseStore(str(tmp_path))
    written, stored = (("A=\udcff", b'{"x": "\xff"}'), ("A=?", '{"x": "\ufffd"}'.encode()))
    store.write(replace(RECORD, owner=replace(OWNER, args=written[0], stdin=written[1])))
    assert list(store.read_all()) == [replace(RECORD, owner=replace(OWNER, args=stored[0], stdin=stored[1]))]


def test_release_without_a_lease_is_not_noted(tmp_path):
    """Without a lease there is nothing to note, and no directory is created."""
    assert not LeaseStore(str(tmp_path / "none")).note_release("net", "c1", "eth0")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"ipv4": 1}', b'{"ipv4": {"server": "x"}}', b"\xff", None]
)
def test_other_files_are_reported(content, tmp_path):
    """A file with any other content, and a directory, are UnreadableLease; other leases are read."""
    store = LeaseStore(str(tmp_path))
    store.write(RECORD)
    bad = tmp_path / "net" / "bad:eth0.json"
    if content is None:
        bad.mkdir()
    else:
        bad.write_bytes(content)
    unreadable, record = store.read_all()
    assert record == RECORD
    assert isinstance(unreadable, UnreadableLease)
    assert unreadable.path == str(bad)


@pytest.mark.parametrize(
    ("section", "changed"),
    [
        *((None, {"containerID": name}) for name in ("../../evil", "c\0")),
        *((None, {"ifname": "x/../y"}), ("interface", {"mac": "zz"}), ("ipv4", {"serverMAC": "zz"})),
    ],
)
def test_lease_file_with_unusable_values(section, changed):
    """A file with a name that leaves the directory, or with no MAC address, is refused when it is read."""
    stored = json.loads(json.dumps(to_json(RECORD)))
    assert from_json(stored) == RECORD
    (stored[section] if section else stored).update(changed)
    with pytest.raises(ValueError, match=r"invalid|contains"):
        from_json(stored)


def test_drafts_of_a_killed_daemon_are_deleted(tmp_path):
    """A draft is deleted, and so is the directory of a network without leases."""
    store = LeaseStore(str(tmp_path))
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "c1:eth0.json.tmp").write_text("{")
    store.delete_drafts()
    assert list(tmp_path.iterdir()) == []


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
