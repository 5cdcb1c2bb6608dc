"""The keys of masquerading in bridge and ptp (attachment.masquerade.options)."""

from functools import partial
from ipaddress import IPv4Network, IPv6Network

import pytest

from attachment.masquerade import options
from attachment.masquerade.options import MasqueradeOptions
from cni.errors import CniError
from tests.support.errors import error_of
from tests.support.netconf import netconf

IPAM = {"ipam": {"type": "host-local"}}


def parse(keys):
    return options.parse(netconf("bridge", keys))


def refusal(keys):
    return error_of(partial(parse, keys), CniError)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [(IPAM, MasqueradeOptions("", ())), ({}, None), ({"ipam": {"type": ""}}, None), ({"ipMasq": False}, None)],
)
def test_only_addresses_are_masqueraded(keys, expected):
    """On a network without IPAM there is no masquerading, as with the reference plugins."""
    assert parse({"ipMasq": True, **keys}) == expected


def test_unknown_backends_are_refused():
    """An unknown backend is refused with the reference plugins' text, but only if masquerading is enabled."""
    assert parse({**IPAM, "ipMasq": True, "ipMasqBackend": "nftables"}) == MasqueradeOptions("nftables", ())
    assert parse({**IPAM, "ipMasqBackend": "ebtables"}) is None
    failure = refusal({**IPAM, "ipMasq": True, "ipMasqBackend": "ebtables"})
    assert (failure.code, failure.msg) == (7, 'unknown ipmasq backend "ebtables"')


def test_networks_that_are_not_masqueraded():
    """The key nonMasqueradeCIDRs is a list of networks without host bits; an invalid network is refused."""
    parsed = parse({**IPAM, "ipMasq": True, "nonMasqueradeCIDRs": ["10.1.2.3/8", "fd00::/8"]})
    assert parsed == MasqueradeOptions("", (IPv4Network("10.0.0.0/8"), IPv6Network("fd00::/8")))
    failure = refusal({"nonMasqueradeCIDRs": ["10.0.0.0"]})
    assert failure.code == 7
    assert failure.msg.startswith('failed to load netconf: "nonMasqueradeCIDRs[0]" ')


@pytest.mark.parametrize(("value", "expected"), [(None, False), (False, False), (True, True)])
def test_networks_of_the_cluster(value, expected):
    """The key nonMasqueradeCluster is false by default."""
    parsed = parse({**IPAM, "ipMasq": True, "nonMasqueradeCluster": value})
    assert parsed == MasqueradeOptions("", (), expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, False), (False, False), (True, True), ("true", True), (1, True), (0, True), ([], True)],
)
def test_may_be_enabled(value, expected):
    """DEL removes rules of iptables-legacy unless the key is missing or false; a wrong type counts as true."""
    assert options.may_be_enabled(netconf("bridge", {"ipMasq": value})) is expected
