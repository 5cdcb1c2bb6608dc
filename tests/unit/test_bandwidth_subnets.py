"""Subnets of bandwidth: their configuration (plugins.bandwidth.conf) and their filters (kernel.htb)."""

import struct
from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.htb import selector
from kernel.traffic import ADDRESS_FILTERS_MAX
from plugins.bandwidth.subnets import Subnets
from tests.support.netconf import parse, refusal

RATE = {"ingressRate": 8000, "ingressBurst": 8000}
TEN, FD = ip_network("10.0.0.0/8"), ip_network("fd00:1::/32")
UNSHAPED, SHAPED = {"unshapedSubnets": ["10.0.0.0/8"]}, {"shapedSubnets": ["fd00:1::/32"]}
BOTH = "unshapedSubnets and shapedSubnets cannot be both specified, one of them should be discarded"
ADDRESSES = {4: st.integers(0, (1 << 32) - 1).map(IPv4Address), 6: st.integers(0, (1 << 128) - 1).map(IPv6Address)}
NETWORKS = st.sampled_from([4, 6]).flatmap(
    lambda version: st.builds(
        lambda address, bits: ip_network((address, bits), strict=False),
        ADDRESSES[version],
        st.integers(0, 32 if version == 4 else 128),
    )
)


def with_runtime(keys, runtime):
    return keys if runtime is None else {**keys, "runtimeConfig": {"bandwidth": runtime}}


def parsed(keys, runtime=None):
    return parse("bandwidth", with_runtime(keys, runtime))


@pytest.mark.parametrize(
    ("keys", "runtime", "subnets"),
    [
        (RATE, None, Subnets()),
        ({**RATE, "unshapedSubnets": [], "shapedSubnets": None}, None, Subnets()),
        ({**RATE, **UNSHAPED, "shapedSubnets": []}, None, Subnets((TEN,))),
        ({**RATE, **SHAPED}, None, Subnets((FD,), only=True)),
        ({**RATE, "UNSHAPEDSUBNETS": ["10.9.9.9/8", "fd00:1::9/32", "10.0.0.0/8"]}, None, Subnets((TEN, FD))),
        ({}, {**RATE, **SHAPED}, Subnets((FD,), only=True)),
        (UNSHAPED, RATE, Subnets((TEN,))),
        (UNSHAPED, {**RATE, **SHAPED}, Subnets((FD,), only=True)),
        (UNSHAPED, {**RATE, "shapedSubnets": []}, Subnets((TEN,))),
        ({**RATE, **UNSHAPED}, {**RATE, **SHAPED}, Subnets((TEN,))),
        (RATE, {**RATE, **SHAPED}, Subnets()),
        (UNSHAPED, None, Subnets((TEN,))),
    ],
)
def test_runtime_subnets_override_the_configured_ones(keys, runtime, subnets):
    """The runtime's subnets override the configuration's if its rates apply; an empty list counts as none."""
    assert parsed(keys, runtime).subnets == subnets


def test_subnets_do_not_disable_the_runtimes_rates():
    """Subnets alone limit nothing, and those of the configuration do not disable the runtime's rates."""
    assert not parsed({**UNSHAPED}).has_limits
    assert parsed(UNSHAPED, RATE).ingress == parsed(RATE).ingress is not None


@pytest.mark.parametrize(
    ("keys", "runtime", "msg"),
    [
        ({**UNSHAPED, **SHAPED}, None, BOTH),
        ({}, {**RATE, **UNSHAPED, **SHAPED}, BOTH),
        ({"unshapedSubnets": ["10.0.0.0/8", "hello"]}, None, '"unshapedSubnets[1]" is not a subnet: "hello"'),
        ({}, {"shapedSubnets": ["10.0.0.1"]}, '"runtimeConfig.bandwidth.shapedSubnets[0]" is not a subnet: "10.0.0.1"'),
        ({"shapedSubnets": [""]}, None, '"shapedSubnets[0]" is not a subnet: ""'),
        ({"shapedSubnets": ["10.0.0.0/33"]}, None, '"shapedSubnets[0]" is not a subnet: "10.0.0.0/33"'),
        ({"shapedSubnets": "10.0.0.0/8"}, None, '"shapedSubnets" must be a list, not a string'),
        (
            {"shapedSubnets": [f"10.0.{number >> 8}.{number & 255}/32" for number in range(ADDRESS_FILTERS_MAX + 1)]},
            None,
            f'"shapedSubnets" must not have more than {ADDRESS_FILTERS_MAX} subnets, not {ADDRESS_FILTERS_MAX + 1}',
        ),
    ],
)
def test_invalid_subnets_are_refused(keys, runtime, msg):
    """The message has the path of the invalid key."""
    failure = refusal("bandwidth", with_runtime(keys, runtime))
    assert (failure.code, bool(failure.details)) == (7, True)
    assert failure.msg.removeprefix("failed to parse network configuration: ") == msg


def matches(rule, packet):
    """Returns whether the kernel (cls_u32) matches: each key's word of the packet, masked, equals the key's value."""
    _, _, count = rule[:3]
    keys = [struct.unpack("=4s4sii", rule[at : at + 16]) for at in range(16, len(rule), 16)]
    assert len(keys) == count
    words = [(packet[at : at + 4], mask, value) for mask, value, at, _ in keys]
    return all(
        bytes(a & m for a, m in zip(word, mask, strict=True)) == bytes(v & m for v, m in zip(value, mask, strict=True))
        for word, mask, value in words
    )


def header(source, destination):
    """Returns an IP header with these addresses; its other bits are ones."""
    addresses = source.packed + destination.packed
    if source.version == 4:
        return b"\x4f" + b"\xff" * 11 + addresses
    return b"\x6f" + b"\xff" * 7 + addresses


@given(NETWORKS, st.data())
def test_selector_matches_its_network(network, data):
    """A packet matches if its source, or destination, is in the network, whatever the other address is."""
    in_network = st.integers(0, network.num_addresses - 1).map(lambda number: network[number])
    addresses = [data.draw(in_network | ADDRESSES[4] | ADDRESSES[6])]
    addresses.append(
        data.draw(
            ADDRESSES[addresses[0].version] | (in_network if addresses[0].version == network.version else st.nothing())
        )
    )
    packet = header(*addresses)
    for source, address in ((True, addresses[0]), (False, addresses[1])):
        assert matches(selector(network, source=source), packet) == (address in network)


def test_arp_matches_no_subnet():
    """ARP is in no subnet, not even in that of all addresses."""
    arp = bytes.fromhex("0001080006040001") + b"\xff" * 32
    for text in ("0.0.0.0/0", "::/0"):
        assert not matches(selector(ip_network(text), source=True), arp)
