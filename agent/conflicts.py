"""The conflicts between the pod networks and the addresses of a cluster's nodes.

One rule: a change of a node costs what its networks and addresses overlap with, not a pass over all nodes.

- A network that overlaps a network of another node is a mistake of its allocator (kubernetes#127792). No node can
  decide which of the two is right, so both are conflicting: the agent changes nothing for them.
- A network with the address of another node takes packets to this address to its own pods. Kubernetes allocates
  podCIDRs, while a kubelet, or whatever else registers a Node, reports any address that it likes. So the address is
  ignored: a virtual kubelet that reports its pod's address, or a kubelet that lies, cannot stop another node's routes.
- A network is wrong, and conflicting, if it contains an address of the API server, of this node, or of the node that
  has this network. A podCIDR that contains another node's address is also wrong if this address has more leading bits
  in common with an address of this node than the podCIDR with a podCIDR of this node: it is a part of the nodes'
  network. A wrong network does not make an address ignored.
- An address that several nodes have is shared, and stops no route (agent.cluster).

This module is pure. Networks and addresses are numbers here (cni.prefix_set).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from agent.node import INTERNAL_IP, Node, format_names, format_networks
from agent.prefix_index import PrefixIndex
from cni.address import Address, Network, format_ip
from cni.prefix_set import common_bits, network_of, number_of

_VERSIONS = (4, 6)
_API_SERVER = ("",)  # in place of a node's name


class Conflicts:
    """The conflicts seen from the node `name`. Networks are `fixed` if they are podCIDRs, and not blocks of pools."""

    def __init__(self, name: str, api_addresses: Iterable[Address] = (), *, fixed: bool = True) -> None:
        self._families = {version: _Family(version, name, fixed) for version in _VERSIONS}
        for address in api_addresses:
            self._families[address.version].api.add_name(number_of(address), _API_SERVER)
        self._networks: frozenset[Network] | None = frozenset()

    def __len__(self) -> int:
        return sum(len(family.conflicting()) for family in self._families.values())

    def change(self, before: Node | None, after: Node | None) -> frozenset[str]:
        """Replaces the networks and addresses of a node; returns the nodes whose ignored addresses changed."""
        names: set[str] = set()
        for version, family in self._families.items():
            old, new = _items_of(before, version), _items_of(after, version)
            if old != new:
                node = after or before
                assert node
                names |= family.change(node.name, old, new)
                self._networks = None
        return frozenset(names)

    def is_ignored(self, address: Address) -> bool:
        """Returns whether an address of a node is ignored, because it is in another node's network."""
        return number_of(address) in self._families[address.version].ignored

    @property
    def networks(self) -> frozenset[Network]:
        """The conflicting networks."""
        if self._networks is None:
            families = self._families.items()
            networks = (network_of(version, each) for version, family in families for each in family.conflicting())
            self._networks = frozenset(networks)
        return self._networks

    def describe(self) -> Iterator[str]:
        """Yields a text for each conflict."""
        for family in self._families.values():
            for number in sorted(family.conflicting()):
                yield from family.describe(number)

    def describe_of(self, node: Node | None) -> Iterator[str]:
        """Yields the conflicts of a node's networks."""
        for network in node.pod_cidrs if node else ():
            family, number = self._families[network.version], number_of(network)
            yield from family.describe(number)
            yield from family.describe_subnets(number)

    def describe_addresses(self) -> Iterator[str]:
        """Yields a text for each address that is ignored, and for each that several nodes have."""
        for family in self._families.values():
            yield from map(family.describe_ignored, sorted(family.ignored))
        for family in self._families.values():
            yield from map(family.describe_shared, family.shared)


class _Items(NamedTuple):
    """The networks and the addresses of a node of one IP version."""

    networks: frozenset[int] = frozenset()
    addresses: frozenset[int] = frozenset()


def _items_of(node: Node | None, version: int) -> _Items:
    if node is None:
        return _Items()
    networks = (number_of(each) for each in node.pod_cidrs if each.version == version)
    return _Items(frozenset(networks), frozenset(number_of(each) for each in node.addresses if each.version == version))


class _Family:
    """The conflicts of one IP version (address family).

    `wrong` has an address, the reason, for each wrong network. `shared` is a set of addresses, in order of insertion.
    """

    def __init__(self, version: int, this_node: str, fixed: bool) -> None:
        self._version, self._this_node, self._is_fixed = version, this_node, fixed
        self._this = _Items()
        self._networks, self._addresses, self.api = (PrefixIndex(version) for _ in range(3))
        self.overlapping: set[int] = set()
        self.wrong: dict[int, int] = {}
        self.ignored: set[int] = set()
        self.shared: dict[int, None] = {}

    def conflicting(self) -> set[int]:
        """Returns the conflicting networks."""
        return self.overlapping | self.wrong.keys()

    def change(self, name: str, before: _Items, after: _Items) -> set[str]:
        """Replaces the networks and addresses of a node; returns the nodes whose ignored addresses changed."""
        networks = before.networks ^ after.networks  # that the node has no longer, or has now
        addresses = before.addresses ^ after.addresses
        _replace(self._networks, name, before.networks, after.networks)
        _replace(self._addresses, name, before.addresses, after.addresses)
        for number in networks:
            for each in {number, *self._list_overlapping(number)}:
                self._update_overlap(each)
        if name == self._this_node:
            self._this = after
            if self._is_fixed:
                networks |= frozenset(self._networks)  # fixed networks are compared with this node's
        to_update = set(addresses)
        for number in networks:
            self._update_wrong(number)
            to_update.update(self._addresses.subnets(number))
        for address in addresses:
            self._update_shared(address)
            for number in self._networks.supernets(address):
                if self._update_wrong_for(number, address):
                    to_update.update(self._addresses.subnets(number))
        return self._update_ignored(to_update)

    def _list_overlapping(self, number: int) -> Iterator[int]:
        yield from self._networks.supernets(number)
        yield from self._networks.subnets(number)

    def _update_overlap(self, number: int) -> None:
        names = self._networks.names(number)
        others = (each for each in self._list_overlapping(number) if self._networks.names(each) != names)
        if names and (len(names) > 1 or next(others, None) is not None):
            self.overlapping.add(number)
        else:
            self.overlapping.discard(number)

    def _update_wrong(self, number: int) -> None:
        reason = self._find_wrong(number) if number in self._networks else None
        if reason is None:
            self.wrong.pop(number, None)
        else:
            self.wrong[number] = reason

    def _find_wrong(self, number: int) -> int | None:
        """Returns an address because of which a network is wrong."""
        addresses = (each for each in self._addresses.subnets(number) if self._is_wrong_by(number, each))
        return next(chain(self.api.subnets(number), addresses), None)

    def _update_wrong_for(self, number: int, address: int) -> bool:
        """Updates a network after a change of an address in it; returns whether it has become wrong or right."""
        was_wrong = number in self.wrong
        if self.wrong.get(number, address) != address:
            return False  # it stays wrong because of another address
        if was_wrong or (address in self._addresses and self._is_wrong_by(number, address)):
            self._update_wrong(number)
        return was_wrong != (number in self.wrong)

    def _is_wrong_by(self, number: int, address: int) -> bool:
        """Returns whether a network is wrong because of the address of a node in it."""
        if not {self._this_node, *self._networks.names(number)}.isdisjoint(self._addresses.names(address)):
            return True
        if not (self._is_fixed and self._this.networks):
            return False
        bits_of_networks = max(common_bits(self._version, number, each) for each in self._this.networks)
        bits_of_addresses = (common_bits(self._version, address, each) for each in self._this.addresses)
        return max(bits_of_addresses, default=0) > bits_of_networks

    def _update_shared(self, address: int) -> None:
        if len(self._addresses.names(address)) > 1:
            self.shared[address] = None
        else:
            self.shared.pop(address, None)

    def _update_ignored(self, addresses: Iterable[int]) -> set[str]:
        """Updates which of some addresses are ignored.

        Returns the nodes whose addresses became ignored, or no longer are.
        """
        names: set[str] = set()
        for address in addresses:
            valid = (each for each in self._networks.supernets(address) if each not in self.wrong)
            is_ignored = address in self._addresses and next(valid, None) is not None
            if is_ignored != (address in self.ignored):
                self.ignored ^= {address}
                names.update(self._addresses.names(address))
        return names

    def describe(self, number: int) -> Iterator[str]:
        """Yields the conflicts of a network, except those with networks inside it."""
        names = self._networks.names(number)
        if (address := self.wrong.get(number)) is not None:
            yield f"{self._of_nodes(number)} contains {self._describe_address(address)}"
        if len(names) > 1:
            owners = f"nodes {' and '.join(names)} both" if len(names) == 2 else f"{format_names(names)} all"
            yield f"{owners} have podCIDR {self._text(number)}"
        for each in self._networks.supernets(number):
            if each != number and self._networks.names(each) != names:
                yield self._describe_overlap(each, number)

    def describe_subnets(self, number: int) -> Iterator[str]:
        """Yields the conflicts of a network with networks inside it."""
        names = self._networks.names(number)
        for each in self._networks.subnets(number):
            if each != number and self._networks.names(each) != names:
                yield self._describe_overlap(number, each)

    def describe_ignored(self, address: int) -> str:
        """Returns a text about an address that is ignored."""
        network = next(each for each in self._networks.supernets(address) if each not in self.wrong)
        return (
            f"{format_names(self._addresses.names(address))}: {INTERNAL_IP} {self._ip(address)} is ignored, because it "
            f"is in {self._of_nodes(network)}: correct --node-ip of its kubelet (a virtual kubelet needs no routes)"
        )

    def describe_shared(self, address: int) -> str:
        """Returns a text about an address that several nodes have."""
        return (
            f"{format_names(self._addresses.names(address))} have the same {INTERNAL_IP} {self._ip(address)}, to which "
            "packets to the pods of all of them are sent: delete the Node object that is out of date, or correct "
            "--node-ip of kubelet"
        )

    def _describe_overlap(self, outer: int, inner: int) -> str:
        names = format_names(self._networks.names(inner))
        return f"{self._of_nodes(outer)} overlaps {self._text(inner)} of {names}"

    def _describe_address(self, address: int) -> str:
        if address in self.api:
            return f"{self._ip(address)}, an address of the API server"
        return f"the {INTERNAL_IP} {self._ip(address)} of {format_names(self._addresses.names(address))}"

    def _of_nodes(self, number: int) -> str:
        return f"podCIDR {self._text(number)} of {format_names(self._networks.names(number))}"

    def _text(self, number: int) -> str:
        return format_networks((network_of(self._version, number),))

    def _ip(self, address: int) -> str:
        return format_ip(network_of(self._version, address).network_address)


def _replace(index: PrefixIndex, name: str, before: frozenset[int], after: frozenset[int]) -> None:
    for number in before - after:
        index.remove_name(number, name)
    names = (name,)
    for number in after - before:
        index.add_name(number, names)
