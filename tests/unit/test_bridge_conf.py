"""The configuration of bridge as a value (plugins.bridge.conf)."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni import args as cni_args
from cni import conf as cni_conf
from cni.errors import CniError
from cni.result import DNS
from plugins.bridge.conf import BridgeConf, ipam_type, parse, refuse_addressless_version, refuse_unsupported
from tests.support.errors import failure_of

DEFAULTS = BridgeConf(
    bridge="cni0",
    ipam_type="",
    is_gateway=False,
    is_default_gateway=False,
    force_address=False,
    mtu=0,
    hairpin=False,
    promisc=False,
    isolated=False,
    dad=False,
    container_interface_down=False,
    mac=b"",
    dns=DNS(),
)
ENV = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "cid",
    "CNI_NETNS": "/run/netns/pod",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": "/opt/cni/bin",
}


def netconf(keys):
    return cni_conf.parse(json.dumps({"cniVersion": "1.1.0", "name": "net", "type": "bridge", **keys}).encode())


def parsed(keys, **env):
    return parse(cni_args.from_env(ENV | env), netconf(keys))


def error(keys, **env):
    with pytest.raises(CniError) as caught:
        parsed(keys, **env)
    return caught.value


@pytest.mark.parametrize(
    "keys", [{}, {"bridge": None, "mtu": None, "ipam": None, "dns": None, "vlan": None}, {"x": [1]}]
)
def test_defaults(keys):
    """Absent keys and null have the defaults of the README; unknown keys are ignored."""
    assert parsed(keys) == DEFAULTS


@pytest.mark.parametrize(
    ("keys", "field", "value"),
    [
        ({"bridge": "br-ünï"}, "bridge", "br-ünï"),
        ({"isGateway": True}, "is_gateway", True),
        ({"forceAddress": True}, "force_address", True),
        ({"mtu": 9000}, "mtu", 9000),
        ({"mtu": 68}, "mtu", 68),
        ({"mtu": 65535}, "mtu", 65535),
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
    """Each key, in any case, sets its own field and no other."""
    assert parsed(keys) == replace(DEFAULTS, **{field: value})


def test_a_default_gateway_is_a_gateway():
    """With isDefaultGateway isGateway need not be given, and false does not take it back."""
    for keys in ({}, {"isGateway": False}):
        assert parsed({"isDefaultGateway": True, **keys}) == replace(DEFAULTS, is_gateway=True, is_default_gateway=True)


BOOLEANS = (
    "isGateway",
    "isDefaultGateway",
    "forceAddress",
    "hairpinMode",
    "promiscMode",
    "portIsolation",
    "enabledad",
    "disableContainerInterface",
)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in BOOLEANS for value in ("true", 1, [], {})),
        *(("mtu", value) for value in ("1500", True, 1500.5, 1e3, [1500], 67, -1, 65536, 1 << 80)),
        *(("bridge", value) for value in (7, True, [], {}, "", "a" * 16, "ü" * 8, "a/b", "a:b", "a b", ".", "..")),
        *((key, value) for key in ("ipam", "dns", "args", "runtimeConfig") for value in ("text", 7, True, [])),
    ],
)
def test_wrong_types_and_values_are_told(key, value):
    """A value of a wrong type or out of range is refused with code 7, naming the key; nothing is converted."""
    failure = error({key: value})
    assert failure.code == 7
    assert failure.msg.startswith(f'failed to load netconf: "{key}" ')


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"ipam": {"type": 7}}, "ipam.type"),
        ({"dns": {"nameservers": "10.0.0.53"}}, "dns.nameservers"),
        ({"dns": {"search": [7]}}, "dns.search[0]"),
        ({"args": {"cni": []}}, "args.cni"),
        ({"args": {"cni": {"mac": 7}}}, "args.cni.mac"),
        ({"runtimeConfig": {"mac": 7}}, "runtimeConfig.mac"),
    ],
)
def test_wrong_types_inside_are_told_with_their_path(keys, path):
    """A wrong type inside an object is told with the whole path of the key."""
    assert f'"{path}"' in error(keys).msg


def test_exclusions_have_the_references_texts():
    """What excludes each other is refused with code 7 and the reference's texts."""
    failure = error({"hairpinMode": True, "promiscMode": True})
    assert (failure.code, failure.msg) == (7, "cannot set hairpin mode and promiscuous mode at the same time")
    failure = error({"disableContainerInterface": True, "ipam": {"type": "static"}})
    assert (failure.code, failure.msg) == (7, "cannot use IPAM when DisableContainerInterface flag is set")
    assert parsed({"disableContainerInterface": True, "ipam": {"type": ""}}).container_interface_down


ONE, TWO, THREE = ("02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03")


@pytest.mark.parametrize("runtime", [None, "", ONE])
@pytest.mark.parametrize("args", [None, "", TWO])
@pytest.mark.parametrize("environment", [None, THREE])
def test_macs_have_an_order(runtime, args, environment):
    """The MAC is runtimeConfig's, else that of args.cni, else that of CNI_ARGS; empty texts do not count."""
    keys = {"runtimeConfig": {"mac": runtime}, "args": {"cni": {"mac": args}}}
    env = {"CNI_ARGS": f"MAC={environment}"} if environment else {}
    expected = runtime or args or environment or ""
    assert parsed(keys, **env).mac == bytes.fromhex(expected.replace(":", ""))


@pytest.mark.parametrize(
    "mac",
    [
        "rubbish",
        "02:00:00:00:00",
        "02:00:00:00:00:0g",
        "01:00:5e:00:00:01",
        "00:00:00:00:00:00",
        "02:00:00:00:00:00:00:01",
    ],
)
def test_unusable_macs_are_refused(mac):
    """Text that is no MAC, a multicast MAC, zero, and lengths other than Ethernet's are refused with Go's text."""
    failure = error({"runtimeConfig": {"mac": mac}})
    assert (failure.code, failure.msg) == (7, f"address {mac}: invalid MAC address")


def test_cni_args_are_checked():
    """Unknown keys and malformed pairs of CNI_ARGS are refused with code 4, unknown ones pass with IgnoreUnknown."""
    assert error({}, CNI_ARGS="IP=10.0.0.1").code == 4
    assert error({}, CNI_ARGS="MAC").code == 4
    assert parsed({}, CNI_ARGS="IgnoreUnknown=true;IP=10.0.0.1") == DEFAULTS


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"ipMasq": True}, "ipMasq"),
        ({"ipmasq": True}, "ipMasq"),
        ({"ipMasq": "true"}, "ipMasq"),
        ({"vlan": 100}, "vlan"),
        ({"vlan": 5000}, "vlan"),
        ({"vlanTrunk": []}, "vlanTrunk"),
        ({"vlanTrunk": [{"id": 5}]}, "vlanTrunk"),
        ({"macspoofchk": True}, "macspoofchk"),
    ],
)
def test_unsupported_keys_are_refused(keys, key):
    """What this version does not serve is refused with code 2 and the name of the key."""
    with pytest.raises(CniError) as caught:
        refuse_unsupported(netconf(keys))
    assert caught.value.code == 2
    assert caught.value.msg.startswith(f'"{key}": ')


@pytest.mark.parametrize("key", ["ipMasq", "vlan", "vlanTrunk", "macspoofchk"])
@pytest.mark.parametrize("value", [None, False, 0])
def test_unsupported_keys_may_ask_for_nothing(key, value):
    """The same keys pass with null and with the value that switches them off."""
    refuse_unsupported(netconf({key: value}))


@pytest.mark.parametrize(
    ("version", "ipam", "refused"),
    [("0.1.0", "", True), ("0.2.0", "", True), ("0.3.0", "", False), ("1.1.0", "", False), ("0.2.0", "static", False)],
)
def test_the_oldest_versions_need_addresses(version, ipam, refused):
    """A network without IPAM is refused for versions whose results consist of addresses."""
    conf = netconf({"cniVersion": version, "ipam": {"type": ipam}})
    own = parse(cni_args.from_env(ENV), conf)
    failure = failure_of(lambda: refuse_addressless_version(own, conf), CniError)
    assert (failure is not None and failure.msg == "cannot convert: no valid IP addresses") == refused


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
MAC_HOLDER = st.dictionaries(st.sampled_from(["mac", "MAC"]), JSON) | JSON
KEYS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys((*BOOLEANS, "mtu", "bridge", "ipMasq", "vlan", "vlanTrunk", "macspoofchk"), JSON),
        "ipam": st.dictionaries(st.sampled_from(["type", "Type"]), JSON) | JSON,
        "dns": st.dictionaries(st.sampled_from(["nameservers", "domain", "search", "options"]), JSON) | JSON,
        "args": st.dictionaries(st.sampled_from(["cni", "CNI"]), MAC_HOLDER) | JSON,
        "runtimeConfig": MAC_HOLDER,
    },
)


@given(KEYS, st.text(alphabet="MACIgnoreUk=;:0123456789abcdef", max_size=40))
def test_any_configuration_gives_a_value_or_an_error(keys, arguments):
    """Whatever a configuration holds, it is a value or a CniError of code 4 or 7, and DEL's part never worse."""
    conf = netconf(keys)
    failure = failure_of(lambda: parse(cni_args.from_env(ENV | {"CNI_ARGS": arguments}), conf), CniError)
    assert failure is None or failure.code in (4, 7)
    failure = failure_of(lambda: ipam_type(conf), CniError)
    assert failure is None or failure.code == 7
    failure = failure_of(lambda: refuse_unsupported(conf), CniError)
    assert failure is None or failure.code == 2
