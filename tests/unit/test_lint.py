"""`podwire lint` of one file: each mistake is reported with severity, key, position and hint, and nothing else is."""

import json
from pathlib import Path
from typing import Any

import pytest

from podwire.lint import directory
from podwire.lint.source import SourceFile
from podwire.main import PLUGINS
from tests.support.binaries import ROOT

IPAM = {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}]]}
POOL = {"type": "host-local", "subnet": "10.1.0.0/16"}
TWO_RANGES = {**IPAM, "ranges": [[{"subnet": "10.1.0.0/16"}, {"subnet": "10.2.0.0/16", "gateway": "10.2.0.1"}]]}
BRIDGE = {"type": "bridge", "isGateway": True, "ipam": IPAM}
PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}


def network(*plugins: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Returns a network's list."""
    return {"cniVersion": "1.0.0", "name": "net", **keys, "plugins": list(plugins)}


def bridge(**keys: Any) -> dict[str, Any]:
    """Returns a network of bridge with these keys."""
    return network({**BRIDGE, **keys})


def ipam(**keys: Any) -> dict[str, Any]:
    """Returns a network of bridge with these keys in "ipam"."""
    return bridge(ipam={**IPAM, **keys})


def ip_range(**keys: Any) -> dict[str, Any]:
    """Returns a network of bridge with one range."""
    return ipam(ranges=[[keys]])


def alone(kind: str, **keys: Any) -> dict[str, Any]:
    """Returns a network of one plugin."""
    return network({"type": kind, **keys})


def chained(kind: str, **keys: Any) -> dict[str, Any]:
    """Returns a network of bridge and a plugin after it."""
    return network(BRIDGE, {"type": kind, **keys})


def lint(path: Path, text: str | bytes | dict[str, Any]) -> SourceFile:
    """Writes a file and checks it."""
    data = json.dumps(text) if isinstance(text, dict) else text
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return directory.lint_file(str(path), PLUGINS, ()).files[0]


def list_findings(page: SourceFile) -> list[str]:
    """Returns the severity, key and text of each finding."""
    return [f"{finding.severity} {finding.key}: {finding.text}" for finding in page.findings]


# A file, and its findings: severity, key and a part of the text.
MISTAKES: dict[str, tuple[Any, ...]] = {
    "correct": (network(BRIDGE, PORTMAP),),
    # Names of keys
    "unknown key": (bridge(colour=1), "warning plugins[0].colour: unknown key"),
    "key of the list": (bridge(plugins=[]), "warning plugins[0].plugins: unknown key"),
    "key of ipam": (bridge(ranges=[]), "warning plugins[0].ranges: unknown key"),
    "key in ipam": (ipam(gatway="10.1.0.1"), "warning plugins[0].ipam.gatway: unknown key"),
    "key in a range": (ip_range(subnet="10.1.0.0/16", start="10.1.0.5"),
        "warning plugins[0].ipam.ranges[0][0].start: unknown key"),
    "other case": (bridge(HAIRPINMODE=True), "note plugins[0].HAIRPINMODE: is spelt"),
    "comment": (network({**BRIDGE, "_comment": "why", "//": "why"}),),
    "key of a network": (network(BRIDGE, disabelGC=True), "warning disabelGC: unknown key"),
    "runtime's own key": (network(BRIDGE, nerdctlID="x", args={}),),
    "plugin's key": (network(BRIDGE, ipam={}), "warning ipam: has no effect here"),
    "foreign key": (network(BRIDGE, colour=1), "note colour: unknown key"),
    "foreign plugin": (alone("calico", colour=1, ipam={"type": "calico-ipam", "x": 1}),),
    "foreign ipam": (bridge(ipam={"type": "whereabouts", "range": "10.0.0.0/8"}),),
    "delegate": (alone("flannel", delegate={"hairpin": True}), "warning plugins[0].delegate.hairpin: unknown key"),
    "args": (bridge(args={"cni": {"labels": []}, "x": 1}),),
    "runtime's key": (bridge(prevResult={}), "warning plugins[0].prevResult: set by the runtime"),
    # Types
    "boolean in quotes": (bridge(ipMasq="true"), "error plugins[0].ipMasq: must be true or false, not a string"),
    "number in quotes": (bridge(vlan="5"), "error plugins[0].vlan: must be an integer"),
    "fraction": (bridge(vlan=1.5), "error plugins[0].vlan: not a number with a fraction"),
    "foreign list": (alone("calico", dns={"nameservers": [1, None]}),
        "error plugins[0].dns.nameservers[0]: must be a string"),
    "all types": (bridge(vlan="5", mtu=[], hairpinMode=1),
        "error plugins[0].vlan: must be", "error plugins[0].mtu: must be", "error plugins[0].hairpinMode: must be"),
    "flat ranges": (ipam(ranges=[{"subnet": "10.1.0.0/16"}]),
        "error plugins[0].ipam.ranges[0]: must be a list, not an object"),
    "sysctl": (chained("tuning", sysctl={"net.core.somaxconn": 500}),
        "error plugins[1].sysctl.net.core.somaxconn: must be a string"),
    "null": (bridge(vlan=None, dns=None),),
    "flag of libcni": (network(BRIDGE, disableCheck="true"),),
    "capability": (alone("calico", capabilities={"bandwidth": "true"}),
        "error plugins[0].capabilities.bandwidth: must be true or false"),
    "wrong type in other case": (bridge(VLAN="5"),
        "error plugins[0].VLAN: must be an integer", "note plugins[0].VLAN: is spelt"),
    # Errors of parsers
    "vlan": (bridge(vlan=5000), "error plugins[0].vlan: invalid VLAN ID"),
    "two refused": (bridge(vlan=5000, mtu=7),
        "error plugins[0].vlan: invalid VLAN", 'error plugins[0].mtu: "mtu" must be 0 or'),
    "hairpin and promisc": (bridge(hairpinMode=True, promiscMode=True),
        "error plugins[0].hairpinMode: hairpin mode and promiscuous mode"),
    "mtu word": (bridge(mtu="Auto"), 'error plugins[0].mtu: must be an integer or "auto"'),
    "mtu of ptp": (alone("ptp", mtu="auto"),),
    "mtu word of ptp": (alone("ptp", mtu="big"), 'error plugins[0].mtu: an integer or "auto"'),
    "no ranges": (bridge(ipam={"type": "host-local"}), "error plugins[0].ipam: no IP ranges"),
    "ranges by the runtime": (bridge(capabilities={"ipRanges": True}, ipam={"type": "host-local"}),),
    "host bits": (ip_range(subnet="10.1.0.5/16"), "error plugins[0].ipam.ranges[0][0].subnet: host bits"),
    "overlap in a network": (ipam(ranges=[[{"subnet": "10.1.0.0/16"}], [{"subnet": "10.1.5.0/24"}]]),
        "error plugins[0].ipam: overlaps with"),
    "routes": (ipam(routes=[{"gw": "10.1.0.1"}]), "error plugins[0].ipam.routes[0].dst: is missing"),
    "static address": (bridge(ipam={"type": "static", "addresses": [{"address": "10.1.0.2"}]}),
        "error plugins[0].ipam.addresses[0].address: CIDR notation"),
    "portmap backend": (network(BRIDGE, {**PORTMAP, "backend": "nft"}),
        "error plugins[1].backend: unrecognized backend"),
    "conditions": (network(BRIDGE, {**PORTMAP, "conditionsV4": ["ip", "saddr"], "backend": "nftables"}),
        "error plugins[1].conditionsV4: lacks a value"),
    "sysctl elsewhere": (chained("tuning", sysctl={"kernel.shmmax": "1"}),
        "error plugins[1].type: invalid net sysctl key"),
    "firewall backend": (chained("firewall", backend="iptabels"), "warning plugins[1].backend: unknown value"),
    "burst": (chained("bandwidth", ingressRate=8000), "error plugins[1].ingressRate: burst must also be set"),
    # Capabilities
    "no portMappings": (chained("portmap"), "warning plugins[1].type: no host port"),
    "portMappings off": (chained("portmap", capabilities={"portMappings": False}),
        "warning plugins[1].type: no host port"),
    "portMapping": (chained("portmap", capabilities={"portMapping": True}),
        "warning plugins[1].type: no host port", "warning plugins[1].capabilities.portMapping: unknown capability"),
    "no bandwidth": (chained("bandwidth"), "warning plugins[1].type: nothing will ever"),
    "both bandwidths": (chained("bandwidth", capabilities={"bandwidth": True}, ingressRate=8000, ingressBurst=8000),
        "warning plugins[1].ingressRate: overrides the runtime's limits"),
    "useless capability": (bridge(capabilities={"portMappings": True}),
        "note plugins[0].capabilities.portMappings: does not use"),
    "ipam's capability": (bridge(capabilities={"ips": True, "mac": True}),),
    # Settings without effect
    "gateway of nothing": (alone("bridge", isGateway=True, ipMasq=True),
        "warning plugins[0].isGateway: does nothing", "warning plugins[0].ipMasq: does nothing"),
    "ipam without type": (alone("bridge", ipam={"subnet": "10.1.0.0/16"}), "warning plugins[0].ipam: no addresses"),
    "exempt from nothing": (bridge(nonMasqueradeCIDRs=["10.0.0.0/8"]),
        "warning plugins[0].nonMasqueradeCIDRs: does nothing without"),
    "cluster exempt from nothing": (bridge(nonMasqueradeCluster=True),
        "warning plugins[0].nonMasqueradeCluster: does nothing without"),
    "range without subnet": (ipam(rangeStart="10.1.0.5"), "warning plugins[0].ipam.rangeStart: does nothing without"),
    "masqAll": (network(BRIDGE, {**PORTMAP, "masqAll": True, "snat": False}), "warning plugins[1].masqAll: nothing"),
    "static without addresses": (bridge(ipam={"type": "static"}), "warning plugins[0].ipam: no address to allocate"),
    # Ranges
    "gateway elsewhere": (ip_range(subnet="10.1.0.0/16", gateway="10.2.0.1"),
        "warning plugins[0].ipam.ranges[0][0].gateway: not in the subnet"),
    "link-local gateway": (ip_range(subnet="fd00::/64", gateway="fe80::1"),),
    "gateway is the subnet": (ip_range(subnet="10.1.0.0/16", gateway="10.1.0.0"),
        "warning plugins[0].ipam.ranges[0][0].gateway: address of the subnet"),
    "tiny range": (ip_range(subnet="10.1.0.0/29"),),
    "tinier range": (ip_range(subnet="10.1.0.0/30"), "note plugins[0].ipam.ranges[0][0].subnet: 1 address to allocate"),
    "range of a gateway": (ip_range(subnet="10.1.0.0/24", rangeStart="10.1.0.1", rangeEnd="10.1.0.1"),
        "error plugins[0].ipam.ranges[0][0].subnet: no address"),
    "gateway for all": (ip_range(subnet="10.1.0.0/16", gateway="10.1.255.255"),
        "warning plugins[0].ipam.ranges[0][0].gateway: broadcast"),
    "loopback range": (ip_range(subnet="127.1.0.0/16"), "warning plugins[0].ipam.ranges[0][0].subnet: not routed"),
    # The list
    "chained first": (network(PORTMAP, BRIDGE), "error plugins[0].type: but it is the first"),
    "tuning alone": (alone("tuning"), "error plugins[0].type: but it is the first"),
    "two interfaces": (chained("macvlan", master="eth0"), "warning plugins[1].type: second interface"),
    "sbr without addresses": (network({"type": "bridge"}, {"type": "sbr"}),
        'warning plugins[1].type: bridge has no "ipam"'),
    "sbr with a table": (chained("sbr", table=5000, gateways=["10.1.0.1"], addSourceHints=True),
        'warning plugins[1].gateways: does nothing with "table"',
        'warning plugins[1].addSourceHints: does nothing with "table"'),
    "sbr with table main": (chained("sbr", table=254), "warning plugins[1].table: table of the kernel"),
    "sbr gateways": (chained("sbr", gateways=["10.1.0.1", "10.1.0.2"]),
        "error plugins[1].gateways: multiple IPv4 addresses"),
    "vrf with table main": (chained("vrf", vrfname="blue", table=254),
        "warning plugins[1].table: the VRF isolates nothing"),
    "vrf without a name": (chained("vrf", table=5), "error plugins[1].type: valid vrf name"),
    "vrf misspelt": (chained("vrf", vrfname="blue", tabel=5), 'warning plugins[1].tabel: unknown key "tabel"'),
    "MAC address for all pods": (alone("macvlan", master="eth0", mac="02:00:00:00:00:01"),
        'warning plugins[0].mac: "mac" gives every pod of this network the same MAC address'),
    "MAC address with passthru": (alone("macvlan", master="eth0", mode="passthru", mac="02:00:00:00:00:01"),
        'warning plugins[0].mac: with mode "passthru" the interface has the MAC address of its master'),
    "impossible host access": (alone("macvlan", master="eth0", mode="private", hostAccess=True),
        'error plugins[0].hostAccess: "hostAccess" is not possible: interfaces of mode "private"'),
    "vlan without ID": (alone("vlan", master="eth0"), "warning plugins[0].type: VLAN ID 0 is a tag without a VLAN"),
    "ipvlan with a gateway": (alone("ipvlan", mode="l3", ipam={**POOL, "gateway": "10.1.0.1"}),
        "warning plugins[0].ipam.gateway: does nothing in mode l3"),
    "ipvlan with gateways of ranges": (alone("ipvlan", mode="l3s", ipam=TWO_RANGES),
        "warning plugins[0].ipam.ranges[0][1].gateway: does nothing in mode l3s"),
    "ipvlan with a gateway in l2": (alone("ipvlan", ipam={**POOL, "gateway": "10.1.0.1"}),),
    "VLAN ID 0": (alone("vlan", master="eth0", vlanId=0),
        "warning plugins[0].vlanId: VLAN ID 0 is a tag without a VLAN"),
    "dhcp with ipvlan in mode l3": (alone("ipvlan", mode="l3", ipam={"type": "dhcp"}),
        "error plugins[0].ipam: pods share one MAC address and get no broadcasts"),
    "dhcp with ipvlan in mode l2": (alone("ipvlan", ipam={"type": "dhcp"}),),
    "dhcp with an unknown option": (alone("macvlan", ipam={"type": "dhcp", "request": [{"option": "ntp"}]}),
        'error plugins[0].ipam: Can not parse option "ntp"'),
    "dhcp without a network": (alone("ptp", ipam={"type": "dhcp"}),
        "warning plugins[0].ipam.type: dhcp reaches no server"),
    "dhcp with a gateway": (alone("bridge", isGateway=True, ipam={"type": "dhcp"}),
        "warning plugins[0].isGateway: gives the bridge the address of the DHCP server's router"),
    "conflict detection without ARP": (alone("ipvlan", mode="l3", conflictDetection=True),
        'error plugins[0].conflictDetection: in mode "l3" pods do not use ARP'),
    "ipvlan with impossible host access": (alone("ipvlan", linkInContainer=True, hostAccess=True, ipam=IPAM),
        'error plugins[0].hostAccess: with "linkInContainer" the master is not on the host'),
    "sbr twice": (network(BRIDGE, {"type": "sbr"}, {"type": "sbr", "table": 5000}),),
    "twice": (network(BRIDGE, PORTMAP, PORTMAP), "warning plugins[2].type: twice"),
    "ipam in the list": (chained("host-local", ipam=IPAM), "warning plugins[1].type: does nothing in a list"),
    "both backends": (
        network({**BRIDGE, "ipMasq": True, "ipMasqBackend": "nftables"}, {**PORTMAP, "backend": "iptables"}),
        "note plugins[1].backend: with iptables and with nftables"),
    "policy without bridge": (network({"type": "ptp", "ipam": IPAM}, {"type": "firewall", "ingressPolicy": "isolated"}),
        "warning plugins[1].ingressPolicy: needs a bridge"),
    "misspelt type": (network({**BRIDGE, "type": "brigde"}), 'error plugins[0].type: unknown plugin "brigde"'),
    "path as type": (alone("../bridge"), "error plugins[0].type: not a valid plugin name"),
    # The network
    "no version": ({"name": "net", "plugins": [BRIDGE]}, "note cniVersion: means 0.1.0"),
    "short version": (network(BRIDGE, cniVersion="1.0"), 'error cniVersion: "1.0" is unknown'),
    "later version": (network(BRIDGE, cniVersion="2.0.0"), "error cniVersion: is unknown"),
    "new version": (network(BRIDGE, cniVersion="1.1.0"), "note cniVersion: containerd 1 and podman 4 refuse"),
    "new version first": (network(BRIDGE, cniVersion="1.1.0", cniVersions=["1.0.0", "1.1.0"]),
        "note cniVersion: containerd 1 and podman 4 refuse"),
    "old version": (network(BRIDGE, {"type": "firewall"}, cniVersion="0.3.1"),
        "error plugins[1].type: only 0.4.0 or later"),
    "old version for vrf": (network(BRIDGE, {"type": "vrf", "vrfname": "blue"}, cniVersion="0.3.0"),
        "error plugins[1].type: does not support cniVersion 0.3.0"),
    "no name": ({"cniVersion": "1.0.0", "plugins": [BRIDGE]}, "error name: is missing"),
    "bad name": (network(BRIDGE, name="a/b"), "error name: not allowed"),
    "no plugins": (network(), "error plugins: has no plugin"),
    "no type": (network({"bridge": "cni0"}), "error plugins[0].type: is missing"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_reported_with_its_key(mistake, tmp_path):
    """The findings of lint are exactly those of the table."""
    text, *expected = MISTAKES[mistake]
    findings = list_findings(lint(tmp_path / "10-net.conflist", text))
    assert len(findings) == len(expected), findings
    for finding, (place, part) in zip(findings, (one.split(": ", 1) for one in expected), strict=True):
        assert finding.startswith(f"{place}: "), findings
        assert part in finding.partition(": ")[2], findings


def test_positions_of_findings():
    """Each finding in a file with many mistakes has the line and the column of its key."""
    page = directory.lint_file(str(ROOT / "tests/data/netd/broken" / "10-misspelt.conflist"), PLUGINS, ()).files[0]
    assert [(one.line, one.column, one.severity, one.key.rpartition(".")[2]) for one in page.findings] == [
        (4, 3, "warning", "disabelCheck"),
        (5, 3, "warning", "ipam"),
        (10, 7, "warning", "isGatway"),
        (11, 7, "error", "isDefaultGateway"),
        (12, 7, "error", "mtu"),
        (13, 7, "warning", "hairpin"),
        (14, 7, "error", "vlan"),
        (15, 7, "note", "promiscmode"),
        (16, 7, "warning", "subnet"),
        (17, 15, "warning", "nameserver"),
        (20, 22, "error", "subnet"),
        (20, 47, "warning", "gatway"),
        (21, 21, "warning", "dest"),
        (24, 42, "warning", "portmappings"),
        (24, 65, "error", "backend"),
        (25, 6, "error", "type"),
        (25, 26, "warning", "backend"),
        (26, 6, "warning", "type"),
        (27, 52, "error", "a"),
    ]


@pytest.mark.parametrize(
    ("misspelt", "expected"),
    [
        ("isGatway", "isGateway"),
        ("isdefaultgatway", "isDefaultGateway"),
        ("hairpin", "hairpinMode"),
        ("promisc", "promiscMode"),
        ("ipmask", "ipMasq"),
        ("nonMasqueradeCIDR", "nonMasqueradeCIDRs"),
        ("mac_spoofchk", "macspoofchk"),
        ("capability", "capabilities"),
    ],
)
def test_similar_key_is_suggested(misspelt, expected, tmp_path):
    """The hint for a misspelt key suggests the similar known key."""
    page = lint(tmp_path / "10-net.conflist", bridge(**{misspelt: True}))
    (hint,) = (one.hint for one in page.findings if one.key.endswith(misspelt))
    assert hint == f'did you mean "{expected}"?'


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("ipMasq", "True", "write true without quotes"),
        ("vlan", "12", "write 12 without quotes"),
        ("vlan", "x", "write an integer"),
        ("vlanTrunk", "1", "write it in brackets: [...]"),
        ("bridge", 5, "write it in double quotes"),
        ("disableCheck", True, 'move it beside "plugins"'),
        ("subnet", "10.1.0.0/16", 'move it into "ipam"'),
        ("cni", {}, 'move it into "args"'),
        ("colour", 1, "it is ignored"),
    ],
)
def test_hint_has_the_correction(key, value, hint, tmp_path):
    """The hint for a wrong type has the correct type, and for a misplaced key the correct place."""
    page = lint(tmp_path / "10-net.conflist", bridge(**{key: value}))
    assert [(finding.key, finding.hint) for finding in page.findings] == [(f"plugins[0].{key}", hint)]


def test_too_large_number_is_an_error(tmp_path):
    """A number that Go cannot read is an error under any key."""
    text = json.dumps(alone("calico", x=[0])).replace("[0]", "[1e999]")
    (finding,) = list_findings(lint(tmp_path / "10-net.conflist", text))
    assert finding.startswith("error plugins[0].x[0]: ")


def test_file_with_an_unread_suffix_is_checked(tmp_path):
    """A file that no runtime reads can be checked, with a note."""
    (finding,) = list_findings(lint(tmp_path / "net.txt", network(BRIDGE)))
    assert finding.startswith("note : ")


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (b"", (1, 1)),
        (b'\xef\xbb\xbf{"name": "a"}', (1, 1)),
        (b'{\n "name": "a",\n}', (2, 13)),
        (b'{\n // why\n "name": "a"}', (2, 2)),
        (b"[" * 1000 + b"]" * 1000, (1, 1)),
        (b"[]", (1, 1)),
    ],
)
def test_file_without_an_object_is_an_error(text, position, tmp_path):
    """A file that is not a JSON object has one error, at the first invalid character."""
    findings = lint(tmp_path / "10-net.conflist", text).findings
    assert [(finding.severity, finding.line, finding.column) for finding in findings] == [("error", *position)]


def test_repeated_name_is_reported(tmp_path):
    """A repeated name, of which runtimes use the last, is reported."""
    text = '{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "loopback", "type": "loopback"}]}'
    assert [finding.key for finding in lint(tmp_path / "10-net.conflist", text).findings] == ["plugins[0].type"]


@pytest.mark.parametrize("name", ["10-net.conf", "10-net.json"])
def test_single_plugin_is_checked_like_a_list(name, tmp_path):
    """A file with the configuration of one plugin may also have the keys of a network."""
    single = {"cniVersion": "1.0.0", "name": "net", **BRIDGE, "colour": 1}
    assert list_findings(lint(tmp_path / name, single)) == [
        'warning colour: unknown key "colour": bridge does not read it'
    ]
    (finding,) = list_findings(lint(tmp_path / name, network(BRIDGE)))
    assert finding.startswith("error type: ")


def test_drop_in_plugins_are_checked(tmp_path):
    """A plugin in NAME/*.conf beside its list belongs to the list, and its findings have its own file."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net/20-portmap.conf").write_text('{"type": "portmap",\n "backnd": "iptables"}')
    path = tmp_path / "10-net.conflist"
    path.write_text(json.dumps(network(BRIDGE)))
    first, second = directory.lint_file(str(path), PLUGINS, ()).files
    assert list_findings(first) == []
    assert [(finding.line, finding.key) for finding in second.findings] == [(1, "type"), (2, "backnd")]
    path.write_text(json.dumps(network(BRIDGE, loadOnlyInlinedPlugins=True)))
    assert len(directory.lint_file(str(path), PLUGINS, ()).files) == 1


def test_plugin_that_is_not_installed(tmp_path):
    """With a directory of plugins, a missing plugin or IPAM plugin is a warning."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bridge").touch()
    path = tmp_path / "10-net.conflist"
    path.write_text(json.dumps(network(BRIDGE)))
    page = directory.lint_file(str(path), PLUGINS, (str(tmp_path / "bin"),)).files[0]
    assert [finding.key for finding in page.findings] == ["plugins[0].ipam.type"]
    assert 'no plugin "host-local" in' in page.findings[0].text
