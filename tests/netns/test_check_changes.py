"""CHECK of bridge and ptp passes after ADD, and reports what another program has changed since."""

from typing import Any

import pytest

from tests.support.attaching import host_end
from tests.support.vlans import gateway_port

MAC = "address 02:00:00:00:00:99"
NF_CALL = "net/bridge/bridge-nf-call-ip"
KEYS: dict[str, dict[str, Any]] = {
    "bridge": {},
    "bridge with a fix": {"hairpinMode": True, "portIsolation": True, "mtu": 1400, "bridgeNetfilter": True},
    "bridge 1.1.0": {"mtu": 1400, "cniVersion": "1.1.0"},
    "vlan": {"vlan": 100, "vlanTrunk": [{"id": 101}, {"minID": 200, "maxID": 210}]},
    "ptp": {"mtu": 1400, "cniVersion": "1.1.0"},
}
# Commands in the pod or on the host, where PORT is the host veth and GATEWAY the port of the VLAN's gateway interface,
# and a part of CHECK's message.
CHANGES: dict[str, dict[str, tuple[str, str]]] = {
    "bridge": {
        "an address removed": ("pod ip addr del 10.22.0.2/16 dev eth0", "address 10.22.0.2/16"),
        "another prefix": (
            "pod ip addr del 10.22.0.2/16 dev eth0; pod ip addr add 10.22.0.2/24 dev eth0",
            "address 10.22.0.2/16",
        ),
        "the default route removed": ("pod ip route del default", "route 0.0.0.0/0"),
        "the container's link down": ("pod ip link set eth0 down", "eth0 is down"),
        "another MAC": (f"pod ip link set eth0 {MAC}", "Interface eth0 Mac doesn't match"),
        "the interface missing": ("pod ip link del eth0", "eth0 not found"),
        "the interface renamed": ("pod ip link set eth0 down; pod ip link set eth0 name eth1", "eth0 not found"),
        "the bridge missing": ("host ip link del cni0", "Interface name cni0 not found"),
    },
    "bridge with a fix": {
        "bridge down": ("host ip link set cni0 down", "Bridge interface cni0 is down"),
        "bridge's MAC": (f"host ip link set cni0 {MAC}", "Bridge interface cni0 Mac doesn't match"),
        "bridge promiscuous": ("host ip link set cni0 promisc on", "Bridge interface cni0 configured Promisc Mode"),
        "port down": ("host ip link set PORT down", "is down"),
        "port's MAC": (f"host ip link set PORT {MAC}", "Mac doesn't match"),
        "no port any more": ("host ip link set PORT nomaster", "CNI veth created for bridge cni0 was not found"),
        "hairpin": ("host bridge link set dev PORT hairpin off", "hairpin"),
        "isolation": ("host bridge link set dev PORT isolated off", "isolation"),
        "gateway": ("host ip address flush dev cni0", "lost the gateway address 10.22.0.1"),
        "bridge's MTU": ("host ip link set cni0 mtu 1500", "Bridge interface cni0 MTU 1500 exceeds its port's: 1400"),
        "IPv4 frames": (f"host sysctl -w {NF_CALL}tables=0", f"{NF_CALL}tables is not 1"),
        "IPv6 frames": (f"host sysctl -w {NF_CALL}6tables=0", f"{NF_CALL}6tables is not 1"),
    },
    "bridge 1.1.0": {
        "inner end": ("pod ip link set eth0 mtu 1300", "Interface eth0 MTU doesn't match: 1400"),
        "outer end": ("host ip link set PORT mtu 1300", "Interface PORT MTU doesn't match: 1400"),
        "bridge": ("host ip link set cni0 mtu 1500", "Bridge interface cni0 MTU 1500 exceeds its port's: 1400"),
    },
    "vlan": {
        "another VLAN on the port": ("host bridge vlan add dev PORT vid 300", "in VLAN 300, which is not configured"),
        "VLAN 1 on the port": ("host bridge vlan add dev PORT vid 1 untagged", "in VLAN 1, which is not configured"),
        "no VLAN on the port": ("host bridge vlan del dev PORT vid 100", "has lost VLAN 100"),
        "a missing VLAN of the trunk": ("host bridge vlan del dev PORT vid 205", "has lost VLAN 205"),
        "untagged on a trunk": ("host bridge vlan add dev PORT vid 205 untagged", "has VLAN 205 untagged, not tagged"),
        "not the PVID": ("host bridge vlan add dev PORT vid 100 untagged", "has VLAN 100 untagged, not pvid untagged"),
        "no filtering": ("host ip link set cni0 type bridge vlan_filtering 0", "cni0 does not filter by VLAN"),
        "the gateway's address": ("host ip addr del 10.22.0.1/16 dev cni0.100", "lost the gateway address 10.22.0.1"),
        "the gateway interface missing": ("host ip link del cni0.100", "Interface name cni0.100 not found"),
        "the gateway interface down": ("host ip link set cni0.100 down", "Interface cni0.100 is down"),
        "the gateway's MAC": (f"host ip link set cni0.100 {MAC}", "Interface cni0.100 Mac doesn't match"),
        "the gateway in no VLAN": ("host bridge vlan del dev GATEWAY vid 100", "has lost VLAN 100"),
        "the gateway's port down": ("host ip link set GATEWAY down", "the other end of cni0.100, is down"),
        "the gateway's port free": (
            "host ip link set GATEWAY nomaster",
            "the other end of cni0.100, is not a port of cni0",
        ),
        "the gateway tagged": ("host bridge vlan add dev GATEWAY vid 100 pvid", "VLAN 100 pvid, not pvid untagged"),
        "the gateway elsewhere": ("host bridge vlan add dev GATEWAY vid 7", "in VLAN 7, which is not configured"),
    },
    "ptp": {
        "address": ("pod ip addr del 10.23.0.2/24 dev eth0", 'Expected address 10.23.0.2/24 is not on "eth0"'),
        "route": ("pod ip route del default", "Expected route 0.0.0.0/0 is missing"),
        "gateway's route": (
            "pod ip -6 route del fd00:23::/64; pod ip -6 route del fd00:23::1",
            "Failed to find Gateway fd00:23::1 for interface eth0",
        ),
        "host address": ("host ip addr del 10.23.0.1/32 dev PORT", "has lost the gateway address 10.23.0.1"),
        "host route": ("host ip route del 10.23.0.2", "The host's route to 10.23.0.2 does not go through veth"),
        "link": ("pod ip link del eth0", "ptp: Container Interface name in prevResult: eth0 not found"),
        "MAC": (f"pod ip link set eth0 {MAC}", "ptp: Interface eth0 Mac "),
        "MTU": ("pod ip link set eth0 mtu 1399", "Interface eth0 MTU doesn't match: 1400"),
        "host veth": ("host ip link set PORT down", " is down"),
    },
}


def list_cases() -> list[Any]:
    """Returns a parameter for each row of the table."""
    marks = {"vlan": pytest.mark.needs("vlan_filtering")}
    return [
        pytest.param(kind, *row, id=f"{kind}, {label}", marks=marks.get(kind, ()))
        for kind, rows in CHANGES.items()
        for label, row in rows.items()
    ]


@pytest.mark.every_case
@pytest.mark.parametrize(("kind", "commands", "text"), list_cases())
def test_check_reports_changes(network, routed, sandbox, kind, commands, text):
    """CHECK passes after ADD, and reports each part that was changed or removed since; a printed command repairs it."""
    net = (routed if kind == "ptp" else network).having(**KEYS[kind])
    result = net.add(sandbox)
    net.check(sandbox, result)
    port = result["interfaces"][0]["name"] if kind == "ptp" else host_end(result)
    names = {"PORT": port, "GATEWAY": gateway_port(net.host) if kind == "vlan" else ""}
    for command in commands.split("; "):
        where, *words = (names.get(word, word) for word in command.split())
        (sandbox if where == "pod" else net.host).run(*words)
    error = net.run("CHECK", sandbox, result).error()
    assert (error["code"], text.replace("PORT", port) in error["msg"]) == (999, True), error
    if kind == "bridge with a fix":
        net.host.run("sh", "-c", error["details"].rpartition(": ")[2])
        if "nomaster" in commands:  # a new port has default flags
            net.host.run("bridge", "link", "set", "dev", port, "hairpin", "on", "isolated", "on")
        net.check(sandbox, result)
