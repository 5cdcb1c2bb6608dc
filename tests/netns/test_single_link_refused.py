"""Configurations that plugins of one interface refuse before they change anything."""

from typing import Any

import pytest

from tests.support.netstate import state
from tests.support.single_link import cases, each
from tests.support.uplink import UPLINK

# Changed keys of the configuration, the code and the beginning of the message.
Case = tuple[dict[str, Any], int, str]
LOAD = "failed to load netconf:"
ON_MASTER: dict[str, Case] = {
    "unknown master": ({"master": "zz"}, 999, 'failed to lookup master "zz": Link not found'),
    "impossible master": ({"master": "a/b"}, 7, f'{LOAD} "master" is not a valid interface name: "a/b"'),
    "loopback": ({"master": "lo"}, 7, 'master "lo" is the loopback interface'),
    "negative MTU": ({"mtu": -1}, 7, "invalid MTU -1, must be [0, master MTU(1500)]"),
    "large MTU": ({"mtu": 1501}, 7, "invalid MTU 1501, must be [0, master MTU(1500)]"),
    "MTU without IPv6": ({"mtu": 1279}, 7, '"mtu" 1279 is too small for the IPv6 addresses that IPAM allocates'),
    "MTU of another type": ({"mtu": "1400"}, 7, f'{LOAD} "mtu" must be an integer, not a string'),
}
UNTYPED = "no plugin name provided"
NO_ADDRESS = "cannot convert: no valid IP addresses"
BAD_MAC = "invalid args zz for MAC addr: address zz: invalid MAC address"
REFUSED: dict[str, dict[str, Case]] = {
    "macvlan": {
        **ON_MASTER,
        "mode": ({"mode": "Bridge"}, 7, 'unknown macvlan mode: "Bridge"'),
        "small MTU": ({"mtu": 50}, 999, "failed to create macvlan: invalid argument"),
        "negative queue": ({"bcqueuelen": -1}, 7, f'{LOAD} "bcqueuelen" must be between 0 and 4294967295, not -1'),
        "MAC": ({"mac": "zz"}, 7, BAD_MAC),
        **{
            f"{name} MAC": ({"mac": mac}, 7, "failed to create macvlan: cannot assign requested address")
            for name, mac in (
                ("multicast", "01:00:5e:00:00:01"),
                ("zero", "00:00:00:00:00:00"),
                ("long", "02:00:00:00:00:00:00:01"),
            )
        },
        "version": ({"cniVersion": "0.2.0", "ipam": None}, 7, NO_ADDRESS),
    },
    "ipvlan": {
        **ON_MASTER,
        "mode": ({"mode": "l4"}, 7, 'unknown ipvlan mode: "l4"'),
        **{
            f"no ARP in {mode}": (
                {"mode": mode, "conflictDetection": True},
                7,
                f'"conflictDetection" is not possible: in mode "{mode}" pods do not use ARP',
            )
            for mode in ("l3", "l3s")
        },
    },
    "vlan": {
        **ON_MASTER,
        "no master": ({"master": None}, 7, '"master" field is required. It specifies the host interface'),
        "ID 4095": ({"vlanId": 4095}, 7, "invalid VLAN ID 4095 (must be between 0 and 4095 inclusive)"),
        "ID -1": ({"vlanId": -1}, 7, "invalid VLAN ID -1 (must be between 0 and 4095 inclusive)"),
        "protocol": ({"protocol": "x"}, 7, f'{LOAD} "protocol" is not a VLAN protocol: "x"'),
        "priority": ({"ingressQosMap": ["8:1"]}, 7, f'{LOAD} "ingressQosMap[0]" is not a pair of priorities: "8:1"'),
    },
    "tap": {
        "MAC": ({"mac": "zz"}, 7, BAD_MAC),
        "multicast MAC": ({"mac": "01:00:00:00:00:01"}, 7, "failed to create tap: cannot assign requested address"),
        "zero MAC": ({"runtimeConfig": {"mac": "00:00:00:00:00:00"}}, 7, "failed to create tap: cannot assign"),
        "MTU": ({"mtu": 67}, 7, f'{LOAD} "mtu" must be 0 or between 68 and 65521, not 67'),
        "large MTU": ({"mtu": 65522}, 7, f'{LOAD} "mtu" must be 0 or between 68 and 65521'),
        "owner": ({"owner": -1}, 7, f'{LOAD} "owner"'),
        "no owner": ({"owner": 4294967295}, 7, f'{LOAD} "owner"'),
        "group": ({"group": "root"}, 7, f'{LOAD} "group"'),
        "bridge": ({"bridge": "a/b"}, 7, f'{LOAD} "bridge" is not a valid interface name'),
        "missing bridge": ({"bridge": "nobr"}, 999, "failed to get bridge nobr: Link not found"),
        "no bridge": ({"bridge": "v0"}, 999, "failed to set tap eth0 as a port of bridge v0: operation not supported"),
        "label": ({"selinuxContext": "a:b:c:s0"}, 7, "failed set socket label: operation not supported"),
        "NUL": ({"selinuxContext": "a\0b"}, 7, f'{LOAD} "selinuxContext" contains a NUL character'),
    },
    "ptp": {
        "auto MTU without IPv6": ({"mtu": "auto"}, 7, '"mtu" 1000 is too small for the IPv6 addresses'),
        "small MTU": ({"mtu": 67}, 7, f'{LOAD} "mtu" must be 0 or between 68 and 65535, not 67'),
        "MTU of another type": ({"mtu": "large"}, 7, f'{LOAD} "mtu" must be an integer'),
        "MTU without IPv6": ({"mtu": 1279}, 7, '"mtu" 1279 is too small for the IPv6 addresses'),
        "backend": ({"ipMasq": True, "ipMasqBackend": "ebtables"}, 7, 'unknown ipmasq backend "ebtables"'),
        "DNS": ({"dns": {"search": "x"}}, 7, f'{LOAD} "dns.search" must be a list'),
    },
    "bridge": {
        "hairpin and promiscuous": ({"hairpinMode": True, "promiscMode": True}, 7, "cannot set hairpin mode and"),
        "interface down with IPAM": ({"disableContainerInterface": True}, 7, "cannot use IPAM when Disable"),
        "gateway of another type": ({"isGateway": "true"}, 7, LOAD),
        "fractional MTU": ({"mtu": 1500.5}, 7, LOAD),
        "large MTU": ({"mtu": 70000}, 7, LOAD),
        "empty name": ({"bridge": ""}, 7, LOAD),
        "long name": ({"bridge": "a-name-much-too-long"}, 7, 'failed to create bridge "a-name-much-too-long": the'),
        "backend": ({"ipMasq": True, "ipMasqBackend": "ebtables"}, 7, 'unknown ipmasq backend "ebtables"'),
        "exempt networks": ({"nonMasqueradeCIDRs": ["10.0.0.0"]}, 7, LOAD),
        "unknown IPAM": ({"ipam": {"type": "no-such-plugin"}}, 7, 'failed to find plugin "no-such-plugin"'),
        "IPAM elsewhere": ({"ipam": {"type": "../host-local"}}, 7, "invalid plugin name: ../host-local"),
        "MAC": ({"runtimeConfig": {"mac": "02:00:00:00:00"}}, 7, "address 02:00:00:00:00: invalid MAC address"),
        "multicast MAC": (
            {"args": {"cni": {"mac": "01:00:5e:00:00:01"}}},
            7,
            "address 01:00:5e:00:00:01: invalid MAC address",
        ),
        "auto MTU without IPv6": ({"mtu": "auto"}, 7, '"mtu" 1000 is too small for the IPv6 addresses'),
        "MTU without IPv6": ({"mtu": 1279}, 7, '"mtu" 1279 is too small for the IPv6 addresses'),
    },
}


@pytest.mark.parametrize(("net", "keys", "code", "text"), cases(REFUSED), indirect=["net"])
def test_invalid_configuration_changes_nothing(net, sandbox, keys, code, text):
    """A wrong value is one error object with the cause, and nothing changes."""
    sandbox.ip("link", "add", "v0", "type", "veth", "peer", "name", "v1")
    if keys.get("mtu") == "auto":
        net.host.ip("link", "set", UPLINK, "mtu", "1000")
    before = state(net.host), state(sandbox)
    error = net.having(**keys).run("ADD", sandbox).error()
    assert (error["code"], error["msg"][: len(text)]) == (code, text)
    assert ('"auto"' if keys.get("mtu") == "auto" else "") in error["details"]
    assert (state(net.host), state(sandbox), net.leases()) == (*before, {})


@each("ipvlan", "vlan", "dummy", "ptp")
def test_missing_ipam_type(net, sandbox):
    """ADD, CHECK and STATUS report `ipam` without a type, even with a wrong namespace; DEL succeeds."""
    kind = net.config["type"]
    text = {"vlan": f"failed to execute IPAM delegate: {UNTYPED}", "dummy": "dummy interface requires an IPAM"}
    before = state(sandbox)
    for wrong in (net.having(ipam={}), *([net.having(ipam=None)] if kind == "dummy" else [])):
        for command, pod in (("ADD", sandbox), ("ADD", "/nonexistent"), ("CHECK", sandbox), ("STATUS", None)):
            error = wrong.run(command, pod, prev_result={"cniVersion": "1.1.0"}).error()
            assert error["msg"].startswith(text.get(kind, UNTYPED))
            assert error["code"] == (50 if command == "STATUS" else 7)
        for pod in (sandbox, ""):
            wrong.delete(pod)
    assert state(sandbox) == before
