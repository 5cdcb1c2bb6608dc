"""The keys of masquerading in bridge and ptp (attachment.masquerade.options)."""

from ipaddress import IPv4Network, IPv6Network

import pytest

from attachment.masquerade import options
from attachment.masquerade.options import MasqueradeOptions
from cni import conf as cni_conf
from cni import gojson
from cni.errors import CniError

IPAM = {"ipam": {"type": "host-local"}}


def netconf(keys):
    return cni_conf.parse(gojson.dumps({"cniVersion": "1.0.0", "name": "net", **keys}).encode())


def refusal(keys):
    with pytest.raises(CniError) as caught:
        options.parse(netconf(keys))
    return caught.value


@pytest.mark.parametrize(
    ("keys", "expected"),
    [(IPAM, MasqueradeOptions("", ())), ({}, None), ({"ipam": {"type": ""}}, None), ({"ipMasq": False}, None)],
)
def test_only_addresses_are_masqueraded(keys, expected):
    """On a network without IPAM there is no masquerading, as with the reference plugins."""
    assert options.parse(netconf({"ipMasq": True, **keys})) == expected


def test_unknown_backends_are_refused():
    """An unknown backend is refused with the reference plugins' text, but only if masquerading is enabled."""
    assert options.parse(netconf({**IPAM, "ipMasq": True, "ipMasqBackend": "nftables"})) == MasqueradeOptions(
        "nftables", ()
    )
    assert options.parse(netconf({**IPAM, "ipMasqBackend": "ebtables"})) is None
    failure = refusal({**IPAM, "ipMasq": True, "ipMasqBackend": "ebtables"})
    assert (failure.code, failure.msg) == (7, 'unknown ipmasq backend "ebtables"')


def test_networks_that_are_not_masqueraded():
    """The key nonMasqueradeCIDRs is a list of networks without host bits; an invalid network is refused."""
    parsed = options.parse(netconf({**IPAM, "ipMasq": True, "nonMasqueradeCIDRs": ["10.1.2.3/8", "fd00::/8"]}))
    assert parsed == MasqueradeOptions("", (IPv4Network("10.0.0.0/8"), IPv6Network("fd00::/8")))
    failure = refusal({"nonMasqueradeCIDRs": ["10.0.0.0"]})
    assert failure.code == 7
    assert failure.msg.startswith('failed to load netconf: "nonMasqueradeCIDRs[0]" ')


@pytest.mark.parametrize(("value", "expected"), [(None, False), (False, False), (True, True)])
def test_networks_of_the_cluster(value, expected):
    """The key nonMasqueradeCluster is false by default."""
    parsed = options.parse(netconf({**IPAM, "ipMasq": True, "nonMasqueradeCluster": value}))
    assert parsed == MasqueradeOptions("", (), expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, False), (False, False), (True, True), ("true", True), (1, True), (0, True), ([], True)],
)
def test_may_be_enabled(value, expected):
    """DEL removes rules of iptables-legacy unless the key is missing or false; a wrong type counts as true."""
    assert options.may_be_enabled(netconf({"ipMasq": value})) is expected
