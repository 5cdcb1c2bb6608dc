"""The keys of masquerading, which bridge and ptp have in common (attachment.masquerade.options)."""

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
    ("keys", "wanted"),
    [(IPAM, MasqueradeOptions("", ())), ({}, None), ({"ipam": {"type": ""}}, None), ({"ipMasq": False}, None)],
)
def test_only_addresses_are_masqueraded(keys, wanted):
    """Masquerading asks for nothing on a network without IPAM, as in the reference."""
    assert options.parse(netconf({"ipMasq": True, **keys})) == wanted


def test_unknown_backends_are_refused():
    """A backend that does not exist is refused with the reference's text, where there is something to masquerade."""
    assert options.parse(netconf({**IPAM, "ipMasq": True, "ipMasqBackend": "nftables"})) == MasqueradeOptions(
        "nftables", ()
    )
    assert options.parse(netconf({**IPAM, "ipMasqBackend": "ebtables"})) is None
    failure = refusal({**IPAM, "ipMasq": True, "ipMasqBackend": "ebtables"})
    assert (failure.code, failure.msg) == (7, 'unknown ipmasq backend "ebtables"')


def test_networks_that_are_not_masqueraded():
    """What is not masqueraded is a list of networks; host bits do not count, and what is no network is told."""
    found = options.parse(netconf({**IPAM, "ipMasq": True, "nonMasqueradeCIDRs": ["10.1.2.3/8", "fd00::/8"]}))
    assert found == MasqueradeOptions("", (IPv4Network("10.0.0.0/8"), IPv6Network("fd00::/8")))
    failure = refusal({"nonMasqueradeCIDRs": ["10.0.0.0"]})
    assert failure.code == 7
    assert failure.msg.startswith('failed to load netconf: "nonMasqueradeCIDRs[0]" ')


@pytest.mark.parametrize(
    ("value", "wanted"), [(None, False), (False, False), (True, True), ("true", True), (1, True), (0, True), ([], True)]
)
def test_rules_may_have_been_made_by_a_better_configuration(value, wanted):
    """DEL looks for rules when the key asks for them in whatever type."""
    assert options.may_be_enabled(netconf({"ipMasq": value})) is wanted
