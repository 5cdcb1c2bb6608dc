"""Each mistake in a network's configuration is reported with severity, key and text, and nothing else is."""

from typing import Any

import pytest

from tests.support.lint_file import BRIDGE, IPAM, FindingText, lint, list_findings, network

PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}


def ipam(**keys: Any) -> dict[str, Any]:
    return {**BRIDGE, "ipam": {**IPAM, **keys}}


# Configuration and findings, each as severity, key and a part of the text.
MISTAKES: dict[str, tuple[dict[str, Any], list[FindingText]]] = {
    "correct": (network(BRIDGE, PORTMAP), []),
    # Names of keys
    "unknown key": (network({**BRIDGE, "colour": 1}), [("warning", "plugins[0].colour", "unknown key")]),
    "key of the list": (network({**BRIDGE, "plugins": []}), [("warning", "plugins[0].plugins", "unknown key")]),
    "key of ipam": (network({**BRIDGE, "ranges": []}), [("warning", "plugins[0].ranges", "unknown key")]),
    "key in ipam": (network(ipam(gatway="10.1.0.1")), [("warning", "plugins[0].ipam.gatway", "unknown key")]),
    "key in a range": (
        network(ipam(ranges=[[{"subnet": "10.1.0.0/16", "start": "10.1.0.5"}]])),
        [("warning", "plugins[0].ipam.ranges[0][0].start", "unknown key")],
    ),
    "other case": (network({**BRIDGE, "HAIRPINMODE": True}), [("note", "plugins[0].HAIRPINMODE", "is spelt")]),
    "comment": (network({**BRIDGE, "_comment": "why", "//": "why"}), []),
    "key of a network": (network(BRIDGE, disabelGC=True), [("warning", "disabelGC", "unknown key")]),
    "runtime's own key": (network(BRIDGE, nerdctlID="x", args={}), []),
    "plugin's key": (network(BRIDGE, ipam={}), [("warning", "ipam", "has no effect here")]),
    "foreign key": (network(BRIDGE, colour=1), [("note", "colour", "unknown key")]),
    "foreign plugin": (network({"type": "calico", "colour": 1, "ipam": {"type": "calico-ipam", "x": 1}}), []),
    "foreign ipam": (network({**BRIDGE, "ipam": {"type": "whereabouts", "range": "10.0.0.0/8"}}), []),
    "delegate": (
        network({"type": "flannel", "delegate": {"hairpin": True}}),
        [("warning", "plugins[0].delegate.hairpin", "unknown key")],
    ),
    "args": (network({**BRIDGE, "args": {"cni": {"labels": []}, "x": 1}}), []),
    "runtime's key": (
        network({**BRIDGE, "prevResult": {}}),
        [("warning", "plugins[0].prevResult", "set by the runtime")],
    ),
    # Types
    "boolean in quotes": (
        network({**BRIDGE, "ipMasq": "true"}),
        [("error", "plugins[0].ipMasq", "must be true or false, not a string")],
    ),
    "number in quotes": (network({**BRIDGE, "vlan": "5"}), [("error", "plugins[0].vlan", "must be an integer")]),
    "fraction": (network({**BRIDGE, "vlan": 1.5}), [("error", "plugins[0].vlan", "not a number with a fraction")]),
    "foreign list": (
        network({"type": "calico", "dns": {"nameservers": [1, None]}}),
        [("error", "plugins[0].dns.nameservers[0]", "must be a string")],
    ),
    "all types": (
        network({**BRIDGE, "vlan": "5", "mtu": [], "hairpinMode": 1}),
        [
            ("error", "plugins[0].vlan", "must be"),
            ("error", "plugins[0].mtu", "must be"),
            ("error", "plugins[0].hairpinMode", "must be"),
        ],
    ),
    "flat ranges": (
        network(ipam(ranges=[{"subnet": "10.1.0.0/16"}])),
        [("error", "plugins[0].ipam.ranges[0]", "must be a list, not an object")],
    ),
    "sysctl": (
        network(BRIDGE, {"type": "tuning", "sysctl": {"net.core.somaxconn": 500}}),
        [("error", "plugins[1].sysctl.net.core.somaxconn", "must be a string")],
    ),
    "null": (network({**BRIDGE, "vlan": None, "dns": None}), []),
    "flag of libcni": (network(BRIDGE, disableCheck="true"), []),
    "capability": (
        network({"type": "calico", "capabilities": {"bandwidth": "true"}}),
        [("error", "plugins[0].capabilities.bandwidth", "must be true or false")],
    ),
    "wrong type in other case": (
        network({**BRIDGE, "VLAN": "5"}),
        [("error", "plugins[0].VLAN", "must be an integer"), ("note", "plugins[0].VLAN", "is spelt")],
    ),
    # Errors of parsers
    "vlan": (network({**BRIDGE, "vlan": 5000}), [("error", "plugins[0].vlan", "invalid VLAN ID")]),
    "two refused": (
        network({**BRIDGE, "vlan": 5000, "mtu": 7}),
        [("error", "plugins[0].vlan", "invalid VLAN"), ("error", "plugins[0].mtu", '"mtu" must be 0 or')],
    ),
    "hairpin and promisc": (
        network({**BRIDGE, "hairpinMode": True, "promiscMode": True}),
        [("error", "plugins[0].hairpinMode", "hairpin mode and promiscuous mode")],
    ),
    "mtu word": (network({**BRIDGE, "mtu": "Auto"}), [("error", "plugins[0].mtu", 'must be an integer or "auto"')]),
    "mtu of ptp": (network({"type": "ptp", "mtu": "auto"}), []),
    "mtu word of ptp": (network({"type": "ptp", "mtu": "big"}), [("error", "plugins[0].mtu", 'an integer or "auto"')]),
    "no ranges": (network({**BRIDGE, "ipam": {"type": "host-local"}}), [("error", "plugins[0].ipam", "no IP ranges")]),
    "ranges by the runtime": (
        network({**BRIDGE, "capabilities": {"ipRanges": True}, "ipam": {"type": "host-local"}}),
        [],
    ),
    "host bits": (
        network(ipam(ranges=[[{"subnet": "10.1.0.5/16"}]])),
        [("error", "plugins[0].ipam.ranges[0][0].subnet", "host bits")],
    ),
    "overlap in a network": (
        network(ipam(ranges=[[{"subnet": "10.1.0.0/16"}], [{"subnet": "10.1.5.0/24"}]])),
        [("error", "plugins[0].ipam", "overlaps with")],
    ),
    "routes": (network(ipam(routes=[{"gw": "10.1.0.1"}])), [("error", "plugins[0].ipam.routes[0].dst", "is missing")]),
    "static address": (
        network({**BRIDGE, "ipam": {"type": "static", "addresses": [{"address": "10.1.0.2"}]}}),
        [("error", "plugins[0].ipam.addresses[0].address", "CIDR notation")],
    ),
    "portmap backend": (
        network(BRIDGE, {**PORTMAP, "backend": "nft"}),
        [("error", "plugins[1].backend", "unrecognized backend")],
    ),
    "conditions": (
        network(BRIDGE, {**PORTMAP, "conditionsV4": ["ip", "saddr"], "backend": "nftables"}),
        [("error", "plugins[1].conditionsV4", "lacks a value")],
    ),
    "sysctl elsewhere": (
        network(BRIDGE, {"type": "tuning", "sysctl": {"kernel.shmmax": "1"}}),
        [("error", "plugins[1].type", "invalid net sysctl key")],
    ),
    "firewall backend": (
        network(BRIDGE, {"type": "firewall", "backend": "iptabels"}),
        [("warning", "plugins[1].backend", "unknown value")],
    ),
    "burst": (
        network(BRIDGE, {"type": "bandwidth", "ingressRate": 8000}),
        [("error", "plugins[1].ingressRate", "burst must also be set")],
    ),
    # Capabilities
    "no portMappings": (network(BRIDGE, {"type": "portmap"}), [("warning", "plugins[1].type", "no host port")]),
    "portMappings off": (
        network(BRIDGE, {"type": "portmap", "capabilities": {"portMappings": False}}),
        [("warning", "plugins[1].type", "no host port")],
    ),
    "portMapping": (
        network(BRIDGE, {"type": "portmap", "capabilities": {"portMapping": True}}),
        [
            ("warning", "plugins[1].type", "no host port"),
            ("warning", "plugins[1].capabilities.portMapping", "unknown capability"),
        ],
    ),
    "no bandwidth": (network(BRIDGE, {"type": "bandwidth"}), [("warning", "plugins[1].type", "nothing will ever")]),
    "both bandwidths": (
        network(
            BRIDGE,
            {"type": "bandwidth", "capabilities": {"bandwidth": True}, "ingressRate": 8000, "ingressBurst": 8000},
        ),
        [("warning", "plugins[1].ingressRate", "overrides the runtime's limits")],
    ),
    "useless capability": (
        network({**BRIDGE, "capabilities": {"portMappings": True}}),
        [("note", "plugins[0].capabilities.portMappings", "does not use")],
    ),
    "ipam's capability": (network({**BRIDGE, "capabilities": {"ips": True, "mac": True}}), []),
    # Settings without effect
    "gateway of nothing": (
        network({"type": "bridge", "isGateway": True, "ipMasq": True}),
        [("warning", "plugins[0].isGateway", "does nothing"), ("warning", "plugins[0].ipMasq", "does nothing")],
    ),
    "ipam without type": (
        network({"type": "bridge", "ipam": {"subnet": "10.1.0.0/16"}}),
        [("warning", "plugins[0].ipam", "no addresses")],
    ),
    "exempt from nothing": (
        network({**BRIDGE, "nonMasqueradeCIDRs": ["10.0.0.0/8"]}),
        [("warning", "plugins[0].nonMasqueradeCIDRs", "does nothing without")],
    ),
    "cluster exempt from nothing": (
        network({**BRIDGE, "nonMasqueradeCluster": True}),
        [("warning", "plugins[0].nonMasqueradeCluster", "does nothing without")],
    ),
    "range without subnet": (
        network(ipam(rangeStart="10.1.0.5")),
        [("warning", "plugins[0].ipam.rangeStart", "does nothing without")],
    ),
    "masqAll": (
        network(BRIDGE, {**PORTMAP, "masqAll": True, "snat": False}),
        [("warning", "plugins[1].masqAll", "nothing")],
    ),
    "static without addresses": (
        network({**BRIDGE, "ipam": {"type": "static"}}),
        [("warning", "plugins[0].ipam", "no address to allocate")],
    ),
    # Ranges
    "gateway elsewhere": (
        network(ipam(ranges=[[{"subnet": "10.1.0.0/16", "gateway": "10.2.0.1"}]])),
        [("warning", "plugins[0].ipam.ranges[0][0].gateway", "not in the subnet")],
    ),
    "link-local gateway": (network(ipam(ranges=[[{"subnet": "fd00::/64", "gateway": "fe80::1"}]])), []),
    "gateway is the subnet": (
        network(ipam(ranges=[[{"subnet": "10.1.0.0/16", "gateway": "10.1.0.0"}]])),
        [("warning", "plugins[0].ipam.ranges[0][0].gateway", "address of the subnet")],
    ),
    "tiny range": (network(ipam(ranges=[[{"subnet": "10.1.0.0/29"}]])), []),
    "tinier range": (
        network(ipam(ranges=[[{"subnet": "10.1.0.0/30"}]])),
        [("note", "plugins[0].ipam.ranges[0][0].subnet", "1 address to allocate")],
    ),
    "range of a gateway": (
        network(ipam(ranges=[[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.1", "rangeEnd": "10.1.0.1"}]])),
        [("error", "plugins[0].ipam.ranges[0][0].subnet", "no address")],
    ),
    "gateway for all": (
        network(ipam(ranges=[[{"subnet": "10.1.0.0/16", "gateway": "10.1.255.255"}]])),
        [("warning", "plugins[0].ipam.ranges[0][0].gateway", "broadcast")],
    ),
    "loopback range": (
        network(ipam(ranges=[[{"subnet": "127.1.0.0/16"}]])),
        [("warning", "plugins[0].ipam.ranges[0][0].subnet", "not routed")],
    ),
    # The list
    "chained first": (network(PORTMAP, BRIDGE), [("error", "plugins[0].type", "but it is the first")]),
    "tuning alone": (network({"type": "tuning"}), [("error", "plugins[0].type", "but it is the first")]),
    "two interfaces": (
        network(BRIDGE, {"type": "macvlan", "master": "eth0"}),
        [("warning", "plugins[1].type", "second interface")],
    ),
    "sbr without addresses": (
        network({"type": "bridge"}, {"type": "sbr"}),
        [("warning", "plugins[1].type", 'bridge has no "ipam"')],
    ),
    "sbr with a table": (
        network(BRIDGE, {"type": "sbr", "table": 5000, "gateways": ["10.1.0.1"], "addSourceHints": True}),
        [
            ("warning", "plugins[1].gateways", 'does nothing with "table"'),
            ("warning", "plugins[1].addSourceHints", 'does nothing with "table"'),
        ],
    ),
    "sbr with table main": (
        network(BRIDGE, {"type": "sbr", "table": 254}),
        [("warning", "plugins[1].table", "table of the kernel")],
    ),
    "sbr gateways": (
        network(BRIDGE, {"type": "sbr", "gateways": ["10.1.0.1", "10.1.0.2"]}),
        [("error", "plugins[1].gateways", "multiple IPv4 addresses")],
    ),
    "vrf with table main": (
        network(BRIDGE, {"type": "vrf", "vrfname": "blue", "table": 254}),
        [("warning", "plugins[1].table", "the VRF isolates nothing")],
    ),
    "vrf without a name": (
        network(BRIDGE, {"type": "vrf", "table": 5}),
        [("error", "plugins[1].type", "valid vrf name")],
    ),
    "vrf misspelt": (
        network(BRIDGE, {"type": "vrf", "vrfname": "blue", "tabel": 5}),
        [("warning", "plugins[1].tabel", 'unknown key "tabel"')],
    ),
    "MAC address for all pods": (
        network({"type": "macvlan", "master": "eth0", "mac": "02:00:00:00:00:01"}),
        [("warning", "plugins[0].mac", '"mac" gives every pod of this network the same MAC address')],
    ),
    "MAC address with passthru": (
        network({"type": "macvlan", "master": "eth0", "mode": "passthru", "mac": "02:00:00:00:00:01"}),
        [("warning", "plugins[0].mac", 'with mode "passthru" the interface has the MAC address of its master')],
    ),
    "impossible host access": (
        network({"type": "macvlan", "master": "eth0", "mode": "private", "hostAccess": True}),
        [("error", "plugins[0].hostAccess", '"hostAccess" is not possible: interfaces of mode "private"')],
    ),
    "vlan without ID": (
        network({"type": "vlan", "master": "eth0"}),
        [("warning", "plugins[0].type", "VLAN ID 0 is a tag without a VLAN")],
    ),
    "ipvlan with a gateway": (
        network(
            {
                "type": "ipvlan",
                "mode": "l3",
                "ipam": {"type": "host-local", "subnet": "10.1.0.0/16", "gateway": "10.1.0.1"},
            }
        ),
        [("warning", "plugins[0].ipam.gateway", "does nothing in mode l3")],
    ),
    "ipvlan with gateways of ranges": (
        network(
            {
                "type": "ipvlan",
                "mode": "l3s",
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": "10.1.0.0/16"}, {"subnet": "10.2.0.0/16", "gateway": "10.2.0.1"}]],
                },
            }
        ),
        [("warning", "plugins[0].ipam.ranges[0][1].gateway", "does nothing in mode l3s")],
    ),
    "ipvlan with a gateway in l2": (
        network({"type": "ipvlan", "ipam": {"type": "host-local", "subnet": "10.1.0.0/16", "gateway": "10.1.0.1"}}),
        [],
    ),
    "VLAN ID 0": (
        network({"type": "vlan", "master": "eth0", "vlanId": 0}),
        [("warning", "plugins[0].vlanId", "VLAN ID 0 is a tag without a VLAN")],
    ),
    "dhcp with ipvlan in mode l3": (
        network({"type": "ipvlan", "mode": "l3", "ipam": {"type": "dhcp"}}),
        [("error", "plugins[0].ipam", "pods share one MAC address and get no broadcasts")],
    ),
    "dhcp with ipvlan in mode l2": (network({"type": "ipvlan", "ipam": {"type": "dhcp"}}), []),
    "dhcp with an unknown option": (
        network({"type": "macvlan", "ipam": {"type": "dhcp", "request": [{"option": "ntp"}]}}),
        [("error", "plugins[0].ipam", 'Can not parse option "ntp"')],
    ),
    "dhcp without a network": (
        network({"type": "ptp", "ipam": {"type": "dhcp"}}),
        [("warning", "plugins[0].ipam.type", "dhcp reaches no server")],
    ),
    "dhcp with a gateway": (
        network({"type": "bridge", "isGateway": True, "ipam": {"type": "dhcp"}}),
        [("warning", "plugins[0].isGateway", "gives the bridge the address of the DHCP server's router")],
    ),
    "conflict detection without ARP": (
        network({"type": "ipvlan", "mode": "l3", "conflictDetection": True}),
        [("error", "plugins[0].conflictDetection", 'in mode "l3" pods do not use ARP')],
    ),
    "ipvlan with impossible host access": (
        network({"type": "ipvlan", "linkInContainer": True, "hostAccess": True, "ipam": IPAM}),
        [("error", "plugins[0].hostAccess", 'with "linkInContainer" the master is not on the host')],
    ),
    "sbr twice": (network(BRIDGE, {"type": "sbr"}, {"type": "sbr", "table": 5000}), []),
    "twice": (network(BRIDGE, PORTMAP, PORTMAP), [("warning", "plugins[2].type", "twice")]),
    "ipam in the list": (
        network(BRIDGE, {"type": "host-local", "ipam": IPAM}),
        [("warning", "plugins[1].type", "does nothing in a list")],
    ),
    "both backends": (
        network({**BRIDGE, "ipMasq": True, "ipMasqBackend": "nftables"}, {**PORTMAP, "backend": "iptables"}),
        [("note", "plugins[1].backend", "with iptables and with nftables")],
    ),
    "policy without bridge": (
        network({"type": "ptp", "ipam": IPAM}, {"type": "firewall", "ingressPolicy": "isolated"}),
        [("warning", "plugins[1].ingressPolicy", "needs a bridge")],
    ),
    "misspelt type": (network({**BRIDGE, "type": "brigde"}), [("error", "plugins[0].type", 'unknown plugin "brigde"')]),
    "path as type": (network({"type": "../bridge"}), [("error", "plugins[0].type", "not a valid plugin name")]),
    # The network
    "no version": ({"name": "net", "plugins": [BRIDGE]}, [("note", "cniVersion", "means 0.1.0")]),
    "short version": (network(BRIDGE, cniVersion="1.0"), [("error", "cniVersion", '"1.0" is unknown')]),
    "later version": (network(BRIDGE, cniVersion="2.0.0"), [("error", "cniVersion", "is unknown")]),
    "new version": (network(BRIDGE, cniVersion="1.1.0"), [("note", "cniVersion", "containerd 1 and podman 4 refuse")]),
    "new version first": (
        network(BRIDGE, cniVersion="1.1.0", cniVersions=["1.0.0", "1.1.0"]),
        [("note", "cniVersion", "containerd 1 and podman 4 refuse")],
    ),
    "old version": (
        network(BRIDGE, {"type": "firewall"}, cniVersion="0.3.1"),
        [("error", "plugins[1].type", "only 0.4.0 or later")],
    ),
    "old version for vrf": (
        network(BRIDGE, {"type": "vrf", "vrfname": "blue"}, cniVersion="0.3.0"),
        [("error", "plugins[1].type", "does not support cniVersion 0.3.0")],
    ),
    "no name": ({"cniVersion": "1.0.0", "plugins": [BRIDGE]}, [("error", "name", "is missing")]),
    "bad name": (network(BRIDGE, name="a/b"), [("error", "name", "not allowed")]),
    "no plugins": (network(), [("error", "plugins", "has no plugin")]),
    "no type": (network({"bridge": "cni0"}), [("error", "plugins[0].type", "is missing")]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_reported_with_its_key(mistake, tmp_path):
    """The findings of lint are exactly those of the table."""
    text, expected = MISTAKES[mistake]
    findings = list_findings(lint(tmp_path / "10-net.conflist", text))
    assert [item[:2] for item in findings] == [item[:2] for item in expected], findings
    assert all(part in text for (_, _, text), (_, _, part) in zip(findings, expected, strict=True)), findings
