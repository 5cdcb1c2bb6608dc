"""A node of the cluster, as far as the agent needs it.

This module is pure. Source: the Kubernetes API, core/v1 Node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, ip_network
from typing import NamedTuple

from agent.api_object import object_at, objects_at
from cni.address import Address, Network, format_ip, parse_ip

INTERNAL_IP = "InternalIP"
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_NAMED_NODES = 3
_BROADCAST = IPv4Address("255.255.255.255")
# A shorter podCIDR is a mistake: a route to it would take most of the node's packets.
_SHORTEST_PREFIX = {4: 8, 6: 16}


class Node(NamedTuple):
    """A node: its name, UID, the networks of its pods, its internal addresses, and what is wrong with its object.

    `pod_cidrs` and `addresses` are in the order of the object, the preferred IP version first. A node with
    `problems` has only the valid networks and addresses. By the taint node.kubernetes.io/out-of-service the
    administrator states that the machine is off. Cluster.get_usable sets `has_only_ignored_addresses`.
    """

    name: str
    uid: str
    pod_cidrs: tuple[Network, ...] = ()
    addresses: tuple[Address, ...] = ()
    problems: tuple[str, ...] = ()
    is_out_of_service: bool = False
    has_only_ignored_addresses: bool = False

    def address_of(self, version: int) -> Address | None:
        """Returns the first internal address of an IP version (4 or 6), None if the node has none."""
        return next((address for address in self.addresses if address.version == version), None)


def parse_node(document: Mapping[str, object]) -> Node:
    """Returns the node of a core/v1 Node object; raises ValueError for an object without name and UID.

    Wrong podCIDRs and addresses are listed in `problems`, so that the object of one node cannot stop the others.
    """
    metadata = object_at(document, "metadata")
    name, uid = metadata.get("name"), metadata.get("uid")
    if not (isinstance(name, str) and name and isinstance(uid, str) and uid):
        raise ValueError("the object of a Node has no name or no UID")
    spec, status = object_at(document, "spec"), object_at(document, "status")
    problems: list[str] = []
    texts = _list(spec.get("podCIDRs")) or ([spec["podCIDR"]] if spec.get("podCIDR") else [])
    pod_cidrs = tuple(network for text in texts if (network := _network(text, problems)) is not None)
    internal = (item for item in objects_at(status, "addresses") if item.get("type") == INTERNAL_IP)
    parsed = (_address(item.get("address"), problems) for item in internal)
    addresses = tuple(address for address in parsed if address is not None)
    is_off = any(taint.get("key") == _OUT_OF_SERVICE for taint in objects_at(spec, "taints"))
    return Node(name, uid, pod_cidrs, addresses, tuple(problems), is_off)


def format_networks(networks: tuple[Network, ...]) -> str:
    """Returns networks as text: "10.244.1.0/24, fd00:1::/64"."""
    return ", ".join(f"{format_ip(network.network_address)}/{network.prefixlen}" for network in networks)


def format_names(names: Sequence[str]) -> str:
    """Returns the names of nodes as text, the first three of them: "nodes a, b, c and 7 more"."""
    more = f" and {len(names) - _NAMED_NODES} more" if len(names) > _NAMED_NODES else ""
    return f"{'node' if len(names) == 1 else 'nodes'} {', '.join(names[:_NAMED_NODES])}{more}"


def _network(text: object, problems: list[str]) -> Network | None:
    try:
        if not isinstance(text, str) or "/" not in text:
            raise ValueError
        network = ip_network(text)
    except ValueError:
        problems.append(f"podCIDR {text!r} is not a network such as 10.244.1.0/24")
        return None
    if network.prefixlen < _SHORTEST_PREFIX[network.version] or _is_special(network):
        problems.append(f"podCIDR {text!r} is not a network of pods: it is too large or has special addresses")
        return None
    return network


def _address(text: object, problems: list[str]) -> Address | None:
    try:
        if not isinstance(text, str):
            raise ValueError
        address = parse_ip(text)
    except ValueError:
        problems.append(f"{INTERNAL_IP} {text!r} is not an address")
        return None
    if _is_special(address):
        problems.append(f"{INTERNAL_IP} {text!r} is a special address, and not one of a node")
        return None
    return address


def _is_special(value: Address | Network) -> bool:
    """Returns whether no pod and no other node can have `value`: loopback, link-local, multicast, unspecified."""
    is_special = value.is_loopback or value.is_link_local or value.is_multicast or value.is_unspecified
    return is_special or value == _BROADCAST


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
