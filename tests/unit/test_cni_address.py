"""Addresses are parsed as by Go's net package (cni.address)."""

from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface, ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cni.address import as_network, format_ip, format_mac, host_cidr, parse_cidr, parse_ip, parse_mac, with_prefix
from tests.support.errors import failure_of


@pytest.mark.parametrize(
    ("parse", "text", "printed"),
    [
        (parse_ip, "10.1.2.3", "10.1.2.3"),
        (parse_ip, "FD00:0:0::00AB", "fd00::ab"),
        (parse_ip, "::ffff:10.1.2.3", "10.1.2.3"),
        (parse_ip, "::ffff:a01:203", "10.1.2.3"),
        (parse_ip, "::", "::"),
        (parse_cidr, "10.1.2.5/24", "10.1.2.5/24"),
        (parse_cidr, "0.0.0.0/0", "0.0.0.0/0"),
        (parse_cidr, "FD00::5/64", "fd00::5/64"),
        (parse_cidr, "::/0", "::/0"),
        (parse_cidr, "::ffff:10.1.2.5/120", "10.1.2.5/24"),
        (parse_mac, "AA:bb:0c:dd:ee:ff", "aa:bb:0c:dd:ee:ff"),
        (parse_mac, "aa-bb-0c-dd-ee-ff", "aa:bb:0c:dd:ee:ff"),
        (parse_mac, "aabb.0cdd.eeff", "aa:bb:0c:dd:ee:ff"),
        (parse_mac, "02:00:5e:10:00:00:00:01", "02:00:5e:10:00:00:00:01"),
        (parse_mac, "0000.0000.fe80." + "0000." * 6 + "0001", "00:00:00:00:fe:80:" + "00:" * 13 + "01"),
    ],
)
def test_addresses_are_printed_in_canonical_form(parse, text, printed):
    """All notations of IP, with or without a prefix length, and of hardware addresses are printed in one form."""
    address = parse(text)
    assert (format_mac(address) if isinstance(address, bytes) else str(address)) == printed


INVALID = {
    parse_cidr: [
        *("10.1.2.5", "10.1.2.5/", "10.1.2.5/33", "10.1.2.5/-1", "10.1.2.5/+4", "10.1.2.5/24/", "10.1.2.5/2²"),
        *("10.1.2.5/255.255.255.0", "fd00::/129", "::ffff:10.1.2.5/95", "/24", "", "fe80::1%lo/64"),
    ],
    parse_mac: [
        *("", "aa:bb:cc:dd:ee", "aa:bb:cc:dd:ee:f", "aa:bb:cc-dd:ee:ff", "aabbccddeeff", "aabb.ccdd"),
        "g0:bb:cc:dd:ee:ff",
    ],
}


@pytest.mark.parametrize(("parse", "text"), [(parse, text) for parse, texts in INVALID.items() for text in texts])
def test_invalid_addresses_are_refused(parse, text):
    """Zones, foreign digits, netmasks and other lengths are refused, as by Go."""
    with pytest.raises(ValueError, match="invalid MAC address" if parse is parse_mac else r"."):
        parse(text)


@given(st.ip_addresses(), st.integers(0, 128))
def test_printed_prefix_is_parsed_to_the_same(address, bits):
    """A printed address with a prefix length is parsed to the same, including host bits."""
    if isinstance(address, IPv4Address):
        bits //= 4
    elif address.ipv4_mapped:
        bits = 128
    text = f"{address}/{bits}"
    assert parse_cidr(str(parse_cidr(text))) == parse_cidr(text)
    assert isinstance(address, IPv6Address) or str(parse_cidr(text)) == text


@given(st.sampled_from([6, 8, 20]).flatmap(lambda size: st.binary(min_size=size, max_size=size)))
def test_printed_hardware_address_is_parsed_to_the_same(mac):
    """A printed hardware address is parsed to the same."""
    assert parse_mac(format_mac(mac)) == mac


@given(st.text() | st.text(alphabet="0123456789abcdefF:.-/%"))
def test_any_text_is_an_address_or_a_value_error(text):
    """No text causes another exception in a parser."""
    for parse in (parse_cidr, parse_mac):
        error = failure_of(partial(parse, text), ValueError)
        assert error is None or str(error)


OCTETS = st.lists(st.integers(0, 260).map(str) | st.sampled_from(["", "01", "0x1", "٣", "1 ", "\0"]), max_size=5)
GROUPS = st.lists(st.integers(0, 0x10FFF).map("{:x}".format) | st.sampled_from(["", "", "FfFf", "1.2.3.4"]), max_size=9)


def standard(text):
    """Parses an address with the standard library; returns IPv4 for an IPv4-mapped one, refuses zones."""
    if "%" in text:
        raise ValueError(text)
    address = ip_address(text)
    return getattr(address, "ipv4_mapped", None) or address


def outcome(call, *arguments):
    """Returns everything observable of an address, "refused" for a ValueError."""
    try:
        address = call(*arguments)
    except ValueError:
        return "refused"
    network = getattr(address, "network", None)
    hosts = list(network.hosts()) if network and network.num_addresses < 3 else None
    return type(address), str(address), hash(address), address, network, hosts, getattr(address, "netmask", None)


@given(
    st.ip_addresses().map(str)
    | OCTETS.map(".".join)
    | GROUPS.map(":".join)
    | st.text(":.0f%/", max_size=9)
    | st.text(max_size=5)
)
@example("::ffff:0:1.2.3.4")
@example("1:2:3:4:5:6:7::")
@example("fe80::1%eth0")
@example("10.1.2.03")
@example("10.1.2.3 ")
def test_parse_ip_agrees_with_the_standard_library(text):
    """The C library accepts and refuses the same texts as Python's ipaddress; what this prints is accepted."""
    assert outcome(parse_ip, text) == outcome(standard, text)


@given(st.ip_addresses(), st.integers(-2, 130))
def test_with_prefix_agrees_with_the_standard_library(address, bits):
    """Everything observable and all attributes are equal, and a prefix length that is too large is refused."""
    assert outcome(with_prefix, address, bits) == outcome(ip_interface, f"{address}/{bits}")
    assert outcome(host_cidr, address) == outcome(ip_interface, address)
    assert outcome(as_network, address) == outcome(ip_network, address)
    assert as_network(network := ip_network(address)) is network
    fast = with_prefix(address, max(0, min(bits, address.max_prefixlen)))
    slow = type(fast)((int(address), fast.network.prefixlen))
    for one, other in ((fast, slow), (fast.network, slow.network)):
        assert {**vars(one), "hosts": 0, "network": 0} == {**vars(other), "hosts": 0, "network": 0}
    assert getattr(fast, "_scope_id", None) is None


@given(st.ip_addresses() | st.integers(0, 1 << 50).map(IPv6Address) | GROUPS.map(":".join), st.integers(0, 128))
@example(IPv6Address(0x1_0000), 0)
@example(IPv6Address(0xFFFF_0102_0304), 0)
@example(IPv6Address(0xFFFF), 0)
def test_format_ip_agrees_with_str(address, bits):
    """The C library prints the same text as str(), with a prefix length and without."""
    if isinstance(address, str):
        try:
            address = IPv6Address(address)
        except ValueError:
            return
    assert format_ip(address) == str(address)
    whole = with_prefix(address, min(bits, address.max_prefixlen))
    assert format_ip(whole) == str(whole)
