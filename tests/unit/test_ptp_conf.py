"""The configuration of ptp."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attachment.masquerade.options import MasqueradeOptions
from cni import conf as cni_conf
from cni import gojson
from cni.errors import CniError
from cni.result import DNS
from plugins.ptp.conf import PtpConf, parse
from tests.support.errors import failure_of

IPAM = {"ipam": {"type": "host-local"}}
SCALARS: st.SearchStrategy[object] = st.none() | st.booleans() | st.integers(-2, 70000) | st.text(max_size=5)
VALUES = SCALARS | st.builds(dict) | st.lists(st.just("x"))
KEYS = st.dictionaries(
    st.sampled_from(["mtu", "ipam", "ipMasq", "ipMasqBackend", "nonMasqueradeCIDRs", "nonMasqueradeCluster", "dns"]),
    VALUES,
)


def parse_keys(keys):
    return parse(cni_conf.parse(gojson.dumps({"cniVersion": "1.0.0", "name": "net", "type": "ptp", **keys}).encode()))


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
    assert parse_keys(keys) == expected


@pytest.mark.parametrize("ipam", [{}, {"type": ""}, {"subnet": "10.0.0.0/8"}])
def test_an_ipam_without_a_type_is_refused(ipam):
    """An object "ipam" without a type is an error."""
    with pytest.raises(CniError) as caught:
        parse_keys({"ipam": ipam})
    assert (caught.value.code, caught.value.msg) == (7, "no plugin name provided")


@given(KEYS)
def test_any_configuration_gives_a_value_or_an_error(keys):
    """Any configuration is parsed into a value or causes a CniError with code 7."""
    failure = failure_of(lambda: parse_keys(keys), CniError)
    assert failure is None or failure.code == 7
