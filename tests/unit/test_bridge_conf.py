"""The configuration of bridge as a value (plugins.bridge.conf)."""

from dataclasses import replace

import pytest

from cni.result import DNS
from plugins.bridge.conf import BridgeConf, PortVlans
from tests.support.netconf import parse, refusal

DEFAULTS = BridgeConf(
    bridge="cni0",
    ipam_type="",
    is_gateway=False,
    is_default_gateway=False,
    force_address=False,
    masquerade=None,
    mtu=0,
    mtu_auto=False,
    hairpin=False,
    promisc=False,
    isolated=False,
    vlans=PortVlans(),
    mac_spoof_check=False,
    bridge_netfilter=None,
    network_policy=False,
    dad=False,
    container_interface_down=False,
    mac=b"",
    dns=DNS(),
)


def parse_keys(keys, **env):
    return parse("bridge", keys, **env)


@pytest.mark.parametrize(
    "keys", [{}, dict.fromkeys(("bridge", "mtu", "ipam", "dns", "vlan", "bridgeNetfilter")), {"mtu": 0}, {"x": [1]}]
)
def test_defaults(keys):
    """Missing keys and null have the defaults of the page; unknown keys are ignored."""
    assert parse_keys(keys) == DEFAULTS


@pytest.mark.parametrize(
    ("keys", "field", "value"),
    [
        ({"bridge": "br-ünï"}, "bridge", "br-ünï"),
        ({"isGateway": True}, "is_gateway", True),
        ({"forceAddress": True}, "force_address", True),
        ({"mtu": 9000}, "mtu", 9000),
        ({"mtu": 68}, "mtu", 68),
        ({"mtu": 65535}, "mtu", 65535),
        ({"mtu": "auto"}, "mtu_auto", True),
        ({"bridgeNetfilter": True}, "bridge_netfilter", True),
        ({"bridgeNetfilter": False}, "bridge_netfilter", False),
        ({"hairpinMode": True}, "hairpin", True),
        ({"promiscMode": True}, "promisc", True),
        ({"portIsolation": True}, "isolated", True),
        ({"enabledad": True}, "dad", True),
        ({"disableContainerInterface": True}, "container_interface_down", True),
        ({"ipam": {"type": "host-local"}}, "ipam_type", "host-local"),
        ({"dns": {"domain": "example.org"}}, "dns", DNS(domain="example.org")),
        ({"runtimeConfig": {"mac": "02-00-00-00-00-01"}}, "mac", bytes.fromhex("020000000001")),
        ({"ISGATEWAY": True}, "is_gateway", True),
        ({"Ipam": {"TYPE": "host-local"}}, "ipam_type", "host-local"),
        ({"RuntimeConfig": {"MAC": "02:00:00:00:00:01"}}, "mac", bytes.fromhex("020000000001")),
    ],
)
def test_each_key_sets_its_field(keys, field, value):
    """Each key, in any case, sets its field and no other."""
    assert parse_keys(keys) == replace(DEFAULTS, **{field: value})


def test_a_default_gateway_is_a_gateway():
    """With isDefaultGateway, isGateway is true whether it is missing or false."""
    for keys in ({}, {"isGateway": False}):
        assert parse_keys({"isDefaultGateway": True, **keys}) == replace(
            DEFAULTS, is_gateway=True, is_default_gateway=True
        )


INVALID: dict[str, list[object]] = {
    "mtu": [1500.5, 1e3, 67, -1, 65536, 1 << 80],
    "bridge": ["", "a" * 128, "ü" * 64, "a/b", "a:b", "a b", ".", ".."],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in INVALID.items() for value in values])
def test_invalid_values_are_refused(key, value):
    """A value out of range is refused with code 7 and the key; nothing is converted."""
    failure = refusal("bridge", {key: value})
    assert failure.code == 7
    assert failure.msg.startswith(f'failed to load netconf: "{key}" ')


@pytest.mark.parametrize(
    ("keys", "path"), [({"dns": {"search": [7]}}, "dns.search[0]"), ({"args": {"cni": []}}, "args.cni")]
)
def test_invalid_nested_types_are_reported_with_their_path(keys, path):
    """The error for a wrong type in an object has the whole path of the key."""
    assert f'"{path}"' in refusal("bridge", keys).msg


SIMULTANEOUSLY = "minID and maxID should be configured simultaneously"
ONE, TWO, THREE = ("02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03")


@pytest.mark.parametrize("runtime", [None, "", ONE])
@pytest.mark.parametrize("args", [None, "", TWO])
@pytest.mark.parametrize("environment", [None, THREE])
def test_precedence_of_macs(runtime, args, environment):
    """The MAC is runtimeConfig's, else that of args.cni, else that of CNI_ARGS; empty texts do not count."""
    keys = {"runtimeConfig": {"mac": runtime}, "args": {"cni": {"mac": args}}}
    env = {"CNI_ARGS": f"MAC={environment}"} if environment else {}
    expected = runtime or args or environment or ""
    assert parse_keys(keys, **env).mac == bytes.fromhex(expected.replace(":", ""))


MULTICAST, TOO_LONG = "01:00:5e:00:00:01", "02:00:00:00:00:00:00:01"


@pytest.mark.parametrize(
    "mac", ["rubbish", "02:00:00:00:00", "02:00:00:00:00:0g", MULTICAST, "00:00:00:00:00:00", TOO_LONG]
)
def test_unusable_macs_are_refused(mac):
    """Text that is no MAC, a multicast MAC, zero, and other lengths than Ethernet's are refused with Go's text."""
    failure = refusal("bridge", {"runtimeConfig": {"mac": mac}})
    assert (failure.code, failure.msg) == (7, f"address {mac}: invalid MAC address")


@pytest.mark.parametrize(
    ("keys", "vlans", "filtering"),
    [
        ({}, PortVlans(), False),
        ({"vlan": 0}, PortVlans(), False),
        ({"vlan": 100}, PortVlans(100), True),
        ({"vlan": 4094, "preserveDefaultVlan": True}, PortVlans(4094, keep_default=True), True),
        ({"vlanTrunk": []}, PortVlans(0, ()), True),
        ({"vlanTrunk": [{}]}, PortVlans(0, ()), True),
        (
            {"vlanTrunk": [{"id": 300}, {"id": 101}, {"minID": 200, "maxID": 203}]},
            PortVlans(0, (101, 200, 201, 202, 203, 300)),
            True,
        ),
        ({"vlanTrunk": [{"minID": 4, "maxID": 4, "id": 3}, {"id": 4}]}, PortVlans(0, (3, 4)), True),
        ({"vlan": 5, "vlanTrunk": [{"id": 1}, {"id": 4094}]}, PortVlans(5, (1, 4094)), True),
    ],
)
def test_vlans(keys, vlans, filtering):
    """VLANs are one access VLAN and a sorted trunk, in which IDs and ranges may be mixed and repeated."""
    parsed_vlans = parse_keys(keys).vlans
    assert (parsed_vlans, parsed_vlans.filtering) == (vlans, filtering)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        *(({"vlan": vid}, f"invalid VLAN ID {vid} (must be between 0 and 4094)") for vid in (-1, 4095)),
        ({"vlanTrunk": [{"minID": 0, "maxID": 10}]}, "incorrect trunk minID parameter"),
        ({"vlanTrunk": [{"minID": 4095, "maxID": 9}]}, "incorrect trunk minID parameter"),
        ({"vlanTrunk": [{"minID": 9, "maxID": 0}]}, "incorrect trunk maxID parameter"),
        ({"vlanTrunk": [{"minID": 1, "maxID": 4095}]}, "incorrect trunk maxID parameter"),
        ({"vlanTrunk": [{"id": 4095}]}, "incorrect trunk id parameter"),
        ({"vlanTrunk": [{"minID": 20, "maxID": 10}]}, "minID is greater than maxID in trunk parameter"),
        ({"vlanTrunk": [{"maxID": 10}]}, f"{SIMULTANEOUSLY}, minID is missing"),
        ({"vlanTrunk": [{"minID": 10}]}, f"{SIMULTANEOUSLY}, maxID is missing"),
        ({"vlanTrunk": [{"id": 0}]}, "incorrect trunk id parameter"),
    ],
)
def test_invalid_vlans_are_refused(keys, text):
    """Invalid VLAN IDs are refused with code 7, the reference's text, and the key in the details."""
    failure = refusal("bridge", keys)
    assert (failure.code, failure.msg) == (7, text)
    assert f'"{next(iter(keys))}' in failure.details
