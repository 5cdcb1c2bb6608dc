"""The meaning of the kernel's notifications for the routes to the other nodes.

The existing objects are updated as notifications say; what other programs changed is collected for repair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from socket import AF_BRIDGE

from agent.route_plan import ObjectKind, Objects, ObjectValue, RouteOptions, Situation
from kernel import link, protocol_route, tunnel_entries, vxlan
from kernel.address import RTM_DELADDR, RTM_NEWADDR
from kernel.link import RTM_DELLINK, RTM_NEWLINK, Link
from kernel.neighbour import RTM_DELNEIGH, RTM_NEWNEIGH
from kernel.notifications import Notification
from kernel.protocol_route import OTHER, UNREACHABLE, ProtocolRoute
from kernel.route import RTM_DELROUTE
from kernel.wire import DecodedMessage


class NotificationReader:
    """Reads notifications. Afterwards the attributes say what to do.

    `repairs` are the objects that other programs changed or deleted, with their desired values. `situation_may_differ`
    and `device_may_differ`: this node's situation, the VXLAN device must be read again. `may_lack_routes`: the kernel
    may have deleted IPv4 routes without a notification. `shadowing` are other routes that win over the agent's.
    """

    def __init__(
        self,
        options: RouteOptions,
        situation: Situation,
        links: Mapping[int, Link],
        existing: Objects,
        shadowing: set[ProtocolRoute],
    ) -> None:
        self._options, self._situation, self._links = options, situation, links
        self._existing = existing
        self._connected = {(item.network, item.ifindex) for item in situation.connected}
        self._addresses = {*situation.addresses, situation.underlay, options.underlay}
        self.repairs: dict[tuple[ObjectKind, bytes], ObjectValue] = {}
        self.shadowing = shadowing
        self.situation_may_differ = False
        self.device_may_differ = False
        self.may_lack_routes = False

    def read(self, notifications: Iterable[Notification]) -> None:
        """Reads notifications."""
        for number, message in notifications:
            if number in (RTM_NEWLINK, RTM_DELLINK):
                self._read_link(number, message)
            elif number in (RTM_NEWADDR, RTM_DELADDR):
                self._read_address(number, message)
            elif number in (RTM_NEWNEIGH, RTM_DELNEIGH):
                self._read_entry(number, message)
            else:
                self._read_route(number, message)

    def _read_link(self, number: int, message: DecodedMessage) -> None:
        if message["family"] == AF_BRIDGE:  # a port of a bridge changed
            return
        changed = link.from_message(message)
        if number == RTM_DELLINK or not changed.is_up:  # also if it is up again by now
            self.may_lack_routes |= changed.index == self._situation.tunnel_ifindex or changed.index in self._links
        if changed.index == self._situation.tunnel_ifindex or changed.name == self._options.device:
            self.device_may_differ = True
        elif number == RTM_DELLINK and changed.kind == vxlan.KIND and not self._situation.tunnel_ifindex:
            self.device_may_differ = True  # it may have had the VNI and the port of the agent's device
        elif known := self._links.get(changed.index):
            is_same = (changed.is_up, changed.mtu) == (known.is_up, known.mtu)
            self.situation_may_differ |= number == RTM_DELLINK or not is_same
        else:
            self.situation_may_differ |= changed.name == self._options.underlay

    def _read_address(self, number: int, message: DecodedMessage) -> None:
        packed = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS") or b""
        index, tunnel = message["index"], self._situation.tunnel_ifindex
        # With the last IPv4 address of a link its IPv4 routes disappear.
        self.may_lack_routes |= number == RTM_DELADDR and len(packed) == 4 and (index == tunnel or index in self._links)
        if tunnel and index == tunnel:
            value = b"" if number == RTM_NEWADDR else None
            self._store(ObjectKind.ADDRESS, bytes((*packed, message["prefixlen"])), value)
        elif packed in self._addresses or index in self._links:
            self.situation_may_differ = True

    def _read_entry(self, number: int, message: DecodedMessage) -> None:
        tunnel = self._situation.tunnel_ifindex
        if not tunnel or message["ifindex"] != tunnel:
            return
        mac, address = tunnel_entries.addresses_of(message)
        is_new = number == RTM_NEWNEIGH
        if message["family"] == AF_BRIDGE:
            if is_new and not address:  # Linux 6.1 notifies of an entry twice, the second time without the node
                return
            self._store(ObjectKind.FORWARDING, mac, address if is_new else None)
        else:
            is_valid = is_new and tunnel_entries.is_neighbour(message, tunnel)
            self._store(ObjectKind.NEIGHBOUR, address, mac if is_valid else None)

    def _read_route(self, number: int, message: DecodedMessage) -> None:
        route = protocol_route.from_message(message)
        if route is None:
            return
        is_deleted = number == RTM_DELROUTE
        options, is_ours = self._options, route.protocol == self._options.protocol
        hop = route.hop if is_ours else OTHER
        if is_deleted and not is_ours and route.metric in (options.metric, options.unreachable_metric):
            return  # it was not the agent's
        if route.metric == options.metric:
            self._store(ObjectKind.ROUTE, route.dst, None if is_deleted else hop)
        elif route.metric == options.unreachable_metric:
            self._store(ObjectKind.UNREACHABLE, route.dst, None if is_deleted or hop != UNREACHABLE else b"")
        elif protocol_route.is_connected(route):
            is_known = (route.dst, route.hop.ifindex) in self._connected
            is_news = is_known == is_deleted  # a known network is deleted, or an unknown one is connected
            self.situation_may_differ |= is_news and route.hop.ifindex != self._situation.tunnel_ifindex
        elif is_deleted:
            self.shadowing.discard(route)
        elif route.metric < options.metric and self._is_desired(ObjectKind.ROUTE, route.dst):
            self.shadowing.add(route)

    def _is_desired(self, kind: ObjectKind, key: bytes) -> bool:
        return key in self._existing[kind] or (kind, key) in self.repairs

    def _store(self, kind: ObjectKind, key: bytes, value: ObjectValue | None) -> None:
        """Stores an object's new value, None for a deleted one; `repairs` gets the value before the first change."""
        existing = self._existing[kind]
        desired = self.repairs.get((kind, key), existing.get(key))
        if desired is None:  # not the agent's
            return
        if value == desired:
            self.repairs.pop((kind, key), None)
        else:
            self.repairs[kind, key] = desired
        if value is None:
            existing.pop(key, None)
        else:
            existing[key] = value
