"""The running pods of routed networks as the checks of packets, routes and neighbours need them.

This module only combines what `CheckedNode` has read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from ipaddress import ip_address

from cni.address import Address, format_mac, parse_mac
from kernel.link import IFF_LOOPBACK, Link
from podwire.attachments import CachedAttachment
from podwire.doctor.node import CheckedNode, InterfaceConf
from podwire.node.host_ports import list_host_ports
from podwire.node.model import HostPort
from podwire.predictions.routing import REMOTE


@dataclass(frozen=True, eq=False)
class VethPod:
    """An attachment to a bridge or ptp network: its addresses and its interfaces on the host.

    `gate` is the host's interface that its packets arrive on: the bridge, or the host veth of a routed pod.
    """

    item: InterfaceConf
    attachment: CachedAttachment
    addresses: tuple[Address, ...]
    gateways: tuple[Address, ...]
    mac: str
    host_veth: Link | None
    gate: Link | None
    ports: tuple[HostPort, ...] = ()

    @property
    def name(self) -> str:
        """The pod's name, or its container's ID."""
        return self.attachment.pod or self.attachment.attachment.container_id

    @property
    def key(self) -> str:
        """The attachment in `Finding.objects`."""
        return attachment_key(self.attachment)

    def mac_object(self, mac: str) -> str:
        """Returns the name in `Finding.objects` of a MAC address that the pod has now, and did not have at ADD."""
        return f"{self.key} {mac}"

    @cached_property
    def mac_bytes(self) -> bytes | None:
        """The MAC address, None if the result has none."""
        try:
            return parse_mac(self.mac) if self.mac else None
        except ValueError:
            return None


def attachment_key(one: CachedAttachment) -> str:
    """Returns the name of an attachment in `Finding.objects` and `Finding.behind`."""
    return f"{one.network_name} {one.attachment.container_id} {one.attachment.ifname}"


@lru_cache(maxsize=1)
def list_pods(node: CheckedNode) -> list[VethPod]:
    """Returns the running attachments to bridge and ptp networks; computed once, as every check needs them."""
    items = {one.path: item for item in node.interfaces for one in node.list_attached(item)}
    return [_pod(node, items[one.path], one) for one in node.running if one.path in items]


def is_of_same_container(node: CheckedNode, pod: VethPod, mac: bytes) -> bool:
    """Returns whether an interface of the pod has a MAC address: with arp_ignore 0 it answers for all addresses."""
    container_id = pod.attachment.attachment.container_id
    results = (one.typed_result for one in node.running if one.attachment.container_id == container_id)
    return format_mac(mac) in {each.mac.lower() for result in results for each in result.interfaces if each.sandbox}


def list_uplinks(node: CheckedNode) -> list[Link]:
    """Returns the interfaces to other machines: of the default routes in use; without any, those with an address."""
    if node.used_uplinks:
        return list(node.used_uplinks)
    bridges = {item.bridge for item in node.interfaces}
    others = (node.link_of(index) for index, assigned in node.addresses.items() if assigned)
    return [
        link
        for link in others
        if link
        and link.is_up
        and not link.flags & IFF_LOOPBACK
        and link.name not in bridges
        and link.name not in node.pod_interfaces
    ]


def node_address(node: CheckedNode, version: int) -> Address | None:
    """Returns an address that other machines reach the host at, None without one."""
    for link in list_uplinks(node):
        for one in node.addresses.get(link.index, ()):
            if one.address.version == version and not one.address.ip.is_link_local:
                return one.address.ip
    return None


def host_addresses(node: CheckedNode) -> frozenset[Address]:
    """Returns the addresses of the host."""
    return frozenset(one.address.ip for assigned in node.addresses.values() for one in assigned)


def near_address(node: CheckedNode, version: int) -> Address | None:
    """Returns an address of another machine in the network of an uplink, None without one."""
    for link in list_uplinks(node):
        for one in node.addresses.get(link.index, ()):
            network = one.address.network
            if one.address.version == version and network.num_addresses > 2 and not one.address.ip.is_link_local:
                return next(address for address in (network[1], network[2]) if address != one.address.ip)
    return None


def _pod(node: CheckedNode, item: InterfaceConf, one: CachedAttachment) -> VethPod:
    interfaces = one.typed_result.interfaces
    mac = next((interface.mac for interface in interfaces if interface.sandbox), "")
    names = [name for name in one.host_interfaces if name != item.bridge]
    veth = next((link for name in names if (link := node.link(name)) and link.kind == "veth"), None)
    gate = _gate(node, item, names) if item.bridge else veth
    ips = one.typed_result.ips
    gateways = tuple(ip.gateway for ip in ips if ip.gateway)
    return VethPod(
        item, one, tuple(ip.address.ip for ip in ips), gateways, mac, veth, gate, tuple(list_host_ports(one))
    )


def _gate(node: CheckedNode, item: InterfaceConf, names: list[str]) -> Link | None:
    """Returns the bridge, or the interface of the pods' VLAN on it."""
    vlan = next((link for name in names if name.startswith(f"{item.bridge}.") and (link := node.link(name))), None)
    return vlan or node.link(item.bridge)


def remote_addresses(version: int) -> list[Address]:
    """Returns addresses of other machines."""
    return [ip_address(text) for text in REMOTE[version]]


def port_of_mac(node: CheckedNode, pod: VethPod, mac: bytes) -> str:
    """Returns the port behind which the pods' bridge has learned a MAC address, "" without one."""
    bridge = node.link(pod.item.bridge) if pod.item.bridge else None
    if bridge is None:
        return ""
    learned = (one for one in node.forwarding if (one.master, one.mac) == (bridge.index, mac) and not one.is_static)
    return next((port.name for one in learned if (port := node.link_of(one.ifindex))), "")
