"""Results in the shape of every version (cni.result)."""

import json
from ipaddress import IPv4Interface, ip_address, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni import gojson, versions
from cni.errors import CniError
from cni.result import DNS, Interface, IPConfig, Result, Route, from_json
from tests.support.errors import error_of, failure_of
from tests.unit.test_cni_gojson import JSON_VALUES

WHOLE = Result(
    interfaces=(
        Interface("cni0", "aa:bb:cc:dd:ee:ff"),
        Interface("eth0", "02:00:00:00:00:01", 1400, "/run/netns/x", "/run/sock", "0000:00:1f.6"),
    ),
    ips=(
        IPConfig(ip_interface("10.1.2.5/24"), ip_address("10.1.2.1"), 1),
        IPConfig(ip_interface("10.9.9.9/32"), None, 0),
        IPConfig(ip_interface("fd00::5/64"), ip_address("fd00::1"), 1),
    ),
    routes=(
        Route(ip_interface("0.0.0.0/0"), ip_address("10.1.2.1"), 1300, 1200, 5, 0, 253),
        Route(ip_interface("::/0")),
    ),
    dns=DNS(("10.1.2.1",), "local", ("a", "b"), ("ndots:1",)),
)

DNS_JSON = {"nameservers": ["10.1.2.1"], "domain": "local", "search": ["a", "b"], "options": ["ndots:1"]}
ROUTES_JSON = [
    {"dst": "0.0.0.0/0", "gw": "10.1.2.1", "mtu": 1300, "advmss": 1200, "priority": 5, "table": 0, "scope": 253},
    {"dst": "::/0"},
]

BRIDGE_JSON = {"name": "cni0", "mac": "aa:bb:cc:dd:ee:ff"}
POD_JSON = {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/x"}
IPS_JSON = [
    {"interface": 1, "address": "10.1.2.5/24", "gateway": "10.1.2.1"},
    {"interface": 0, "address": "10.9.9.9/32"},
    {"interface": 1, "address": "fd00::5/64", "gateway": "fd00::1"},
]
SHAPES = {
    "0.2.0": {
        "ip4": {"ip": "10.1.2.5/24", "gateway": "10.1.2.1", "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.2.1"}]},
        "ip6": {"ip": "fd00::5/64", "gateway": "fd00::1", "routes": [{"dst": "::/0"}]},
        "dns": DNS_JSON,
    },
    "0.4.0": {
        "interfaces": [BRIDGE_JSON, POD_JSON],
        "ips": [{"version": version, **ip} for version, ip in zip("446", IPS_JSON, strict=True)],
        "routes": ROUTES_JSON,
        "dns": DNS_JSON,
    },
    "1.1.0": {
        "interfaces": [
            BRIDGE_JSON,
            {**POD_JSON, "mtu": 1400, "socketPath": "/run/sock", "pciID": "0000:00:1f.6"},
        ],
        "ips": IPS_JSON,
        "routes": ROUTES_JSON,
        "dns": DNS_JSON,
    },
}
SHAPES |= {"": SHAPES["0.2.0"], "0.1.0": SHAPES["0.2.0"]}
SHAPES |= {"0.3.0": SHAPES["0.4.0"], "0.3.1": SHAPES["0.4.0"], "1.0.0": SHAPES["1.1.0"]}


@pytest.mark.parametrize("version", sorted(SHAPES))
def test_each_version_has_its_shape(version):
    """A result has the shape of the requested version; before 1.0.0 its keys have the specification's order."""
    printed, expected = WHOLE.to_json(version), {"cniVersion": version or "0.1.0", **SHAPES[version]}
    assert printed == expected
    assert version >= "1" or list(printed) == list(expected)


@pytest.mark.parametrize(
    ("obj", "version", "msg"),
    [
        ({"cniVersion": "0.4.0"}, "1.0.0", 'result type supports [1.0.0 1.1.0] but unmarshalled CNIVersion is "0.4.0"'),
        ({"cniVersion": "1.0.0"}, "0.3.0", "result type supports [0.3.0 0.3.1 0.4.0] but unmarshalled"),
        ({"cniVersion": "0.3.0"}, "", 'result type supports ["" 0.1.0 0.2.0] but unmarshalled CNIVersion is "0.3.0"'),
        ({}, "2.0.0", 'unsupported CNI result version "2.0.0"'),
        ([], "1.0.0", "failed to decode result: it is not a JSON object"),
        ({"cniVersion": 1}, "1.0.0", 'failed to decode result: "cniVersion" must be a string, not a number'),
        ({"ips": [{"gateway": "10.1.2.1"}]}, "1.0.0", 'failed to decode result: "ips[0].address" is missing'),
        ({"ip4": {}}, "0.2.0", 'failed to decode result: "ip4.ip" is missing'),
        ({"routes": [{"dst": "10.0.0.0"}]}, "1.0.0", 'failed to decode result: "routes[0].dst" is not an address with'),
        ({"routes": [{"dst": "::/0", "scope": 256}]}, "1.0.0", 'failed to decode result: "routes[0].scope" must be'),
    ],
)
def test_invalid_results_are_refused(obj, version, msg):
    """A result of another family of versions, or of wrong types, is refused, and the message names the place."""
    error = error_of(lambda: from_json(obj, version), CniError)
    assert (error.code, error.msg[: len(msg)]) == (7, msg)


ADDRESSES = st.ip_addresses().filter(lambda ip: ip.version == 4 or not ip.ipv4_mapped)
NETWORKS = ADDRESSES.flatmap(lambda ip: st.integers(0, ip.max_prefixlen).map(lambda bits: ip_interface((ip, bits))))
NUMBERS = st.integers(0, (1 << 32) - 1)
TEXT = st.text(max_size=8)
INDEX = st.none() | st.integers(-1, 9)
LINKS = st.builds(Interface, TEXT, TEXT, st.integers(0, 65535), TEXT, TEXT, TEXT)
IPS = st.builds(IPConfig, NETWORKS, st.none() | ADDRESSES, INDEX)
SCOPES = st.none() | st.integers(0, 255)
ROUTES = st.builds(Route, NETWORKS, st.none() | ADDRESSES, *[NUMBERS] * 3, st.none() | NUMBERS, SCOPES)
TEXTS = st.lists(TEXT, max_size=2).map(tuple)
PARTS = [st.lists(part, max_size=size).map(tuple) for part, size in ((LINKS, 3), (IPS, 4), (ROUTES, 4))]
RESULTS = st.builds(Result, *PARTS, st.builds(DNS, TEXTS, TEXT, TEXTS, TEXTS))


@given(RESULTS, st.sampled_from(["", *versions.SUPPORTED]))
def test_printed_result_is_parsed_to_the_converted_one(result, version):
    """A result that is printed and parsed equals `converted`, and printing that again changes nothing."""
    old = version in versions.FAMILIES[0]
    if old and not result.ips:
        with pytest.raises(CniError, match="no valid IP addresses"):
            result.converted(version)
        return
    text = gojson.dumps(result.to_json(version), indent=4)
    back = from_json(json.loads(text), version)
    assert back == result.converted(version) == back.converted(version)
    assert gojson.dumps(back.to_json(version), indent=4) == text
    if not old:
        assert (back.ips, back.routes, back.dns) == (result.ips, result.routes, result.dns)
    if version >= "1":
        assert back == result


@given(RESULTS, st.sampled_from(["0.2.0", "0.4.0"]))
def test_first_shape_has_one_address_of_each_family(result, over):
    """0.2.0 has the first IPv4 and IPv6 address with the routes of their families, even after a conversion."""
    if not result.ips:
        return
    body = result.converted("0.4.0").to_json("0.2.0") if over == "0.4.0" else result.to_json("0.2.0")
    for key, is_v4 in (("ip4", True), ("ip6", False)):
        ips = [ip for ip in result.ips if isinstance(ip.address, IPv4Interface) is is_v4]
        routes = [str(route.dst) for route in result.routes if isinstance(route.dst, IPv4Interface) is is_v4]
        assert (key in body) == bool(ips)
        if ips:
            assert body[key]["ip"] == str(ips[0].address)
            assert [route["dst"] for route in body[key].get("routes", [])] == routes


@given(
    st.dictionaries(st.sampled_from(["cniVersion", "interfaces", "ips", "routes", "dns", "ip4", "ip6"]), JSON_VALUES)
    | JSON_VALUES,
    st.sampled_from(["", "7", *versions.SUPPORTED]),
)
def test_any_object_is_parsed_or_refused(obj, version):
    """No JSON value causes another error in the reader than code 7."""
    error = failure_of(lambda: from_json(obj, version), CniError)
    assert error is None or error.code == 7
