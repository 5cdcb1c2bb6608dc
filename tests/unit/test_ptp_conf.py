"""The configuration of ptp."""

import pytest

from attachment.masquerade.options import MasqueradeOptions
from cni.result import DNS
from plugins.ptp.conf import PtpConf
from tests.support.netconf import parse, refusal

IPAM = {"ipam": {"type": "host-local"}}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, PtpConf("", None, 0, False, None)),
        (IPAM, PtpConf("host-local", None, 0, False, None)),
        (
            {"MTU": 1400, "IPAM": {"Type": "x"}, "IpMasq": True},
            PtpConf("x", MasqueradeOptions("", ()), 1400, False, None),
        ),
        ({"mtu": "auto"}, PtpConf("", None, 0, True, None)),
        ({"ipMasq": True}, PtpConf("", None, 0, False, None)),
        ({"dns": {}}, PtpConf("", None, 0, False, None)),
        ({"dns": {"options": []}}, PtpConf("", None, 0, False, DNS())),
        ({"dns": {"domain": "x"}}, PtpConf("", None, 0, False, DNS(domain="x"))),
        ({"ipam": None, "mtu": None, "dns": None}, PtpConf("", None, 0, False, None)),
    ],
)
def test_values(keys, expected):
    """Keys are read in any case; a missing key and null have the default."""
    assert parse("ptp", keys) == expected


@pytest.mark.parametrize("ipam", [{}, {"type": ""}, {"subnet": "10.0.0.0/8"}])
def test_an_ipam_without_a_type_is_refused(ipam):
    """An object "ipam" without a type is an error."""
    failure = refusal("ptp", {"ipam": ipam})
    assert (failure.code, failure.msg) == (7, "no plugin name provided")
