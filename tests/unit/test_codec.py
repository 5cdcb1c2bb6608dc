"""The message classes of kernel.codec, compared with pyroute2's full classes.

The full classes support every attribute and use text for addresses; those of kernel.codec support the attributes that
podwire uses, and use bytes.
"""

import importlib
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any
from unittest.mock import Mock

import pytest

from cni.result import Route
from kernel import address, link, route, route_copy, rule, vlan
from kernel.codec import AddressMessage, LinkMessage, RouteMessage, VlanMessage
from kernel.codec_routing import FibRuleMessage, RouteCopyMessage
from kernel.link import Link, VethEnd
from kernel.netns import Netns
from kernel.route_copy import build_route
from kernel.rtnl import NLM_F_DUMP, Request, Socket
from kernel.wire import decode

NAMES = {LinkMessage: "ifinfmsg", VlanMessage: "ifinfmsg", AddressMessage: "ifaddrmsg"}
NAMES |= {RouteMessage: "rtmsg", RouteCopyMessage: "rtmsg", FibRuleMessage: "fibmsg"}
# Not by import statements: kernel.codec must replace the package's __init__ before.
FULL_CLASSES: dict[type[Any], Any] = {
    kind: getattr(importlib.import_module(f"pyroute2.netlink.rtnl.{name}"), name) for kind, name in NAMES.items()
}

MAC, OTHER = bytes.fromhex("020000000001"), bytes.fromhex("0200000000fe")
ETH0 = Link(7, "eth0", MAC.hex(":"), 1500, 0, "veth", 3, 9, None, 6)
IPV4, IPV6 = ip_interface("10.22.0.9/16"), ip_interface("fd00:22::9/64")
GATEWAY, GATEWAY6 = ip_address("10.22.0.1"), ip_address("fd00:22::1")
SUBNET = ip_interface("192.0.2.0/24")
ENDS = VethEnd("veth01234567", MAC), VethEnd("eth0", OTHER)
NETNS = Mock(Netns, fileno=lambda: 42)
PORTS_OF_3 = [("IFLA_MASTER", 3), ("IFLA_EXT_MASK", 8)]
REQUESTS = {
    "get by name": link.by_name_request("eth0"),
    "get by index": link.by_index_request(7),
    "list ports": Request("", LinkMessage, link.RTM_GETLINK, NLM_F_DUMP, {}, PORTS_OF_3),
    "bridge": link.create_bridge_request("cni0", MAC, 1400),
    "bridge with VLAN filtering": link.create_bridge_request("cni0", MAC, 0, vlan_filtering=True),
    "VLAN filtering": vlan.enable_filtering_request(ETH0),
    "list VLANs": Request("", VlanMessage, link.RTM_GETLINK, NLM_F_DUMP, {"family": 7}, [("IFLA_EXT_MASK", 4)]),
    "veth on the host": link.create_veth_request(*ENDS, None, master=3, mtu=1400),
    "ifb": link.create_ifb_request(1_000_000_007, "bwp0123456789ab", MAC, 1500),
    "rename": link.set_request(ETH0, up=True, name="cni0.100"),
    "add VLANs": vlan.add_request(ETH0, {100: vlan.PVID | vlan.UNTAGGED, 101: 0, 102: 0, 200: 0}),
    "remove a VLAN": vlan.remove_request(ETH0, [1]),
    "veth": link.create_veth_request(*ENDS, NETNS, master=3, mtu=9000),
    "veth without mtu": link.create_veth_request(*ENDS, NETNS, master=3, mtu=0),
    "up": link.set_request(ETH0, up=True, promisc=True),
    "down": link.set_request(ETH0, up=False, promisc=False),
    "mac": link.set_request(ETH0, mac=OTHER),
    "hairpin": link.set_port_request(ETH0, hairpin=True, isolated=False),
    "isolated": link.set_port_request(ETH0, hairpin=True, isolated=True),
    "delete": link.delete_request(ETH0),
    "add IPv4": address.add_request(ETH0, IPV4),
    "add IPv4 /31": address.add_request(ETH0, ip_interface("10.22.0.8/31"), exists_ok=True),
    "add IPv6": address.add_request(ETH0, IPV6),
    "remove IPv4": address.remove_request(ETH0, IPV4),
    "remove IPv6": address.remove_request(ETH0, IPV6),
    "default route": route.add_request(ETH0, Route(ip_interface("0.0.0.0/0")), GATEWAY),
    "IPv6 default route": route.add_request(ETH0, Route(ip_interface("::/0")), GATEWAY6),
    "route": route.add_request(ETH0, Route(SUBNET, mtu=1300, advmss=1200, priority=5, table=1000), GATEWAY),
    "rule": rule.add_request(GATEWAY, 100),
    "IPv6 rule": rule.add_request(GATEWAY6, 70000),
    "delete a rule": rule.delete_request(GATEWAY6, 253),
    "subnet in a table": route_copy.add_request(build_route(ETH0, IPV4.network, source=IPV4.ip), 100, replace=True),
    "default in a table": route_copy.add_request(build_route(ETH0, ip_network("::/0"), gateway=GATEWAY6), 70000),
    "delete from a table": route_copy.delete_request(build_route(ETH0, IPV6.network, metric=256, source=IPV6.ip), 101),
    "link route": route.add_request(ETH0, Route(ip_interface("2001:db8::/32"), scope=253, table=100), None),
}


def textual(name: str, value: Any) -> Any:
    """Returns an attribute's value in the form of pyroute2's full classes: addresses and states as text."""
    if name == "IFLA_BRIDGE_VLAN_INFO":
        return value
    if isinstance(value, dict):
        return {"attrs": [(inner, textual(inner, item)) for inner, item in value["attrs"]]}
    if name == "IFLA_OPERSTATE":
        return link.OPERSTATES[value].upper()
    if isinstance(value, bytes):
        return value.hex(":") if name == "IFLA_ADDRESS" else str(ip_address(value))
    return value


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_are_encoded_and_decoded_as_by_the_full_classes(name):
    """Each request has the bytes and values of pyroute2's full class."""
    request = REQUESTS[name]
    full = FULL_CLASSES[request.kind]()
    full["header"].update({"type": request.type, "flags": request.flags | 1, "sequence_number": 3})
    full.update(request.values)
    full["attrs"] = [(key, textual(key, value)) for key, value in request.attributes]
    full.encode()
    assert request.encode(3).hex() == bytes(full.data).hex()
    assert request.encode(3) == request.encode(3)  # it can be sent twice
    assert compare_attributes(request.kind, request.encode(3)) > 0 or not request.attributes


def test_per_interface_ipv4_settings():
    """IFLA_AF_SPEC is nested as the kernel expects it (net/ipv4/devinet.c), which the full class cannot encode."""
    data = link.set_request(ETH0, arp_notify=True).encode(1)
    arp_notify = bytes.fromhex("0800 1600 01000000")  # IPV4_DEVCONF_ARP_NOTIFY is 22 (linux/ip.h)
    inet_conf = bytes.fromhex("0c00 0100") + arp_notify
    af_inet = bytes.fromhex("1000 0200") + inet_conf
    assert data[32:] == bytes.fromhex("1400 1a00") + af_inet


def compare_attributes(kind: type[Any], data: bytes) -> int:
    """Compares the attributes that both classes decode from a message; returns their number."""
    decoded, full = decode(kind, data), FULL_CLASSES[kind](data)
    full.decode()
    for field, *_ in kind.fields:
        if field != "__align":
            assert decoded[field] == full[field]
    known = {name for _, name, _ in kind.nla_map}
    count = 0
    for name, value in decoded["attrs"]:
        if kind is VlanMessage and name == "IFLA_AF_SPEC":
            entries = [attribute.get_attrs("IFLA_BRIDGE_VLAN_INFO") for attribute in (value, full.get_attr(name))]
            decoded_entries, full_entries = ([(item["flags"], item["vid"]) for item in entry] for entry in entries)
            assert decoded_entries == full_entries != []
            count += 1
        elif name in known and name not in ("IFLA_AF_SPEC", "RTA_METRICS"):
            assert is_same(name, value, full.get_attr(name)), name
            count += 1
    return count


def is_same(name: str, decoded: Any, full: Any) -> bool:
    """Returns whether both classes decode an attribute to the same value."""
    if name == "IFLA_LINKINFO":
        return all(
            is_same(inner, decoded.get_attr(inner), full.get_attr(inner))
            for inner in ("IFLA_INFO_KIND", "IFLA_INFO_SLAVE_KIND", "IFLA_INFO_SLAVE_DATA")
        )
    if name == "IFLA_INFO_SLAVE_DATA" and decoded is not None:
        return all(
            decoded.get_attr(inner) == full.get_attr(inner) for inner in ("IFLA_BRPORT_MODE", "IFLA_BRPORT_ISOLATED")
        )
    return bool(textual(name, bytes(decoded) if isinstance(decoded, (bytes, bytearray)) else decoded) == full)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (LinkMessage, link.RTM_GETLINK),
        (AddressMessage, address.RTM_GETADDR),
        (RouteMessage, route.RTM_GETROUTE),
        (FibRuleMessage, rule.RTM_GETRULE),
    ],
)
def test_the_kernels_messages_are_decoded_as_by_the_full_classes(kind, number, monkeypatch):
    """The machine's links, addresses and routes are decoded to the same values as by the full classes."""
    raw: list[bytes] = []
    monkeypatch.setattr("kernel.rtnl.decode", lambda kind, data: raw.append(bytes(data)))
    with Socket() as socket:
        socket.dump(Request("", kind, number, NLM_F_DUMP))
    assert sum(compare_attributes(kind, data) for data in raw) >= len(raw)
    assert raw or kind is RouteMessage
