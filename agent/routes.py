"""The routes to the other nodes' pods: keeps the kernel equal to the plan (agent.route_plan).

A change of one node costs requests for that node only. Objects that other programs delete or change are restored when
the kernel notifies of it. Only objects with the agent's protocol number, and those of its VXLAN device, are deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from agent import kernel_routes, route_plan, tunnel_device
from agent.node import Node
from agent.peer_plans import PeerPlans
from agent.route_diff import ObjectChange, RouteDiff
from agent.route_notifications import NotificationReader
from agent.route_plan import AUTO, NONE, ROUTE_KINDS, VXLAN, ObjectKind, Objects, Peer, RouteOptions, Situation
from agent.route_report import Counters, Problem, disagreement_problem, shadow_problem
from agent.situation import NodeLinks, read_situation
from agent.tunnel_device import TunnelError
from cni.address import Address, Network
from kernel import link, notifications, protocol_route, route
from kernel.errors import KernelError
from kernel.link import Link
from kernel.notifications import Notification, Notifications
from kernel.protocol_route import NextHop, Prefix, ProtocolRoute, pack_network
from kernel.rtnl import Request, Socket

_BATCH = 256  # requests in one send
_BUFFER_BYTES = 4 << 20  # of notifications: about 4,000
_MAX_REPAIRS = 5  # of one object between two full comparisons: two programs may disagree for ever


class Routes:
    """The routes of the network namespace in which it is created. A context manager.

    Nothing happens before both set_node() and replace_peers() were called, so that a restart changes nothing before the
    first answer of the API server. The caller runs handle_notifications() when fileno() is readable, and reconcile()
    every few minutes: it tries again what the kernel refused. `log` gets a line for each change of the device and for
    each repair.
    """

    def __init__(self, options: RouteOptions, log: Callable[[str], None]) -> None:
        self._options, self._log = options, log
        self._socket = Socket()
        self._notifications = Notifications(notifications.ALL, self._socket, buffer_bytes=_BUFFER_BYTES)
        self._pending: list[Notification] = []
        self._has_lost_notifications = self._has_peers = False
        self._node: Node | None = None
        self._peers = PeerPlans()
        self._conflicting: frozenset[Network] = frozenset()
        self._conflicting_prefixes: frozenset[Prefix] = frozenset()  # the same networks
        self._situation = Situation(options.mode, (), (), ())
        self._links = NodeLinks({})
        self._device: Link | None = None
        self._existing: Objects = route_plan.new_objects()
        self._shadowing: set[ProtocolRoute] = set()  # other programs' routes that win over the agent's
        self._refused: dict[tuple[ObjectKind, bytes], str] = {}
        self._device_problem = ""
        self._repairs_of: Counter[tuple[ObjectKind, bytes]] = Counter()  # since the last full comparison
        self._requests = self._comparisons = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the sockets; the kernel's objects stay."""
        self._notifications.close()
        self._socket.close()

    def fileno(self) -> int:
        """Returns the descriptor that is readable when handle_notifications() has something to do."""
        return self._notifications.fileno()

    def set_node(self, node: Node, conflicting: frozenset[Network] = frozenset()) -> None:
        """Sets this node; raises KernelError."""
        before, self._node = self._node, node
        self._peers.this_node = node.name
        is_same = before is not None and route_plan.peer_of(before) == route_plan.peer_of(node)
        if self._set_conflicting(conflicting) or not is_same:
            self.reconcile()

    def replace_peers(self, peers: Mapping[str, Node], conflicting: frozenset[Network] = frozenset()) -> None:
        """Sets all nodes; this node itself is ignored.

        The first call compares the plan with the kernel, later calls with the objects that are known. Raises
        KernelError.
        """
        is_first, self._has_peers = not self._has_peers, True
        self._peers.replace(peers)
        self._set_conflicting(conflicting)
        if is_first or (self._can_create_device and self._peers.needs_tunnel(self._situation)):
            self.reconcile()
        elif self._is_ready:
            self._apply_plans()
            self._handle_pending()

    def update_peer(self, node: Node, conflicting: frozenset[Network] = frozenset()) -> None:
        """Adds or changes a node; raises KernelError."""
        self._change_peer(node.name, self._peers.with_former_addresses(node), conflicting)

    def remove_peer(self, name: str, conflicting: frozenset[Network] = frozenset()) -> None:
        """Removes a node; raises KernelError."""
        self._change_peer(name, None, conflicting)

    def delete_routes_to(self, addresses: Iterable[Address]) -> None:
        """Deletes the agent's routes to networks that contain one of the addresses; raises KernelError."""
        packed = [address.packed for address in addresses]
        _, existing = kernel_routes.read_objects(self._socket, self._options, "")  # routes: no node's device is needed
        for kind in ROUTE_KINDS:
            for key in existing[kind]:
                if any(route_plan.contains(key, address) for address in packed):
                    self._log(f"delete {kernel_routes.describe(kind, key)}: it contains an address of the API server")
                    self._send([kernel_routes.build_request(ObjectChange(kind, key, None), self._options, None)])

    def reconcile(self) -> None:
        """Compares all objects with the kernel, and changes what differs; raises KernelError."""
        if self._is_ready:
            self._compare_all()
            self._handle_pending()

    def handle_notifications(self) -> None:
        """Reads the kernel's notifications, and restores what other programs changed; raises KernelError."""
        self._receive()
        self._handle_pending()

    def has_route(self, network: Network) -> bool:
        """Returns whether the agent has a route to a network; with routes "none", whether it is in no conflict."""
        prefix = pack_network(network)
        if self._options.mode == NONE:
            return prefix not in self._conflicting_prefixes
        return any(prefix in self._existing[kind] for kind in ROUTE_KINDS)

    def is_behind_tunnel(self, node: Node) -> bool:
        """Returns whether a node is reached by VXLAN for one of its networks, or may be once it has networks."""
        may_be = self._situation.mode in (AUTO, VXLAN) and not node.pod_cidrs
        return may_be or route_plan.needs_tunnel(route_plan.peer_of(node), self._situation)

    def remove(self) -> None:
        """Deletes all objects of the agent, for uninstalling; raises KernelError."""
        name = self._node.name if self._node else ""
        device, existing = kernel_routes.read_objects(self._socket, self._options, name)
        self._apply([ObjectChange(kind, key, None) for kind in ROUTE_KINDS for key in existing[kind]])
        if device:
            self._send([link.delete_request(device)])
        self._has_peers = False

    @property
    def has_refusals(self) -> bool:
        """Whether the kernel refused an object or the VXLAN device, so that reconcile() should try again soon."""
        return bool(self._refused or self._device_problem)

    @property
    def problems(self) -> list[Problem]:
        """The problems at present."""
        result = [Problem("", text) for text in (self._device_problem, self._links.problem) if text]
        result += [Problem(name, text) for name, texts in self._peers.problems.items() for text in texts]
        result += [Problem("", text) for text in self._refused.values()]
        for each in sorted(self._shadowing):
            if each.dst in self._existing[ObjectKind.ROUTE]:
                out = self._links.by_index.get(each.hop.ifindex)
                result.append(shadow_problem(self._peers.holder_of(each.dst), each, out))
        return result + [disagreement_problem(*each) for each, n in self._repairs_of.items() if n > _MAX_REPAIRS]

    @property
    def note(self) -> str:
        """A text about this node's addresses that an operator should know although the routes work, "" for none."""
        return self._links.note

    @property
    def counters(self) -> Counters:
        """The numbers for metrics."""
        return Counters(self._requests, self._comparisons, len(self._existing[ObjectKind.ROUTE]))

    @property
    def _is_ready(self) -> bool:
        return self._node is not None and self._has_peers

    def _set_conflicting(self, networks: frozenset[Network]) -> bool:
        """Sets the networks for which nothing is added, changed or deleted; returns whether they differ from before."""
        if networks is self._conflicting:
            return False
        before = self._conflicting_prefixes
        self._conflicting, self._conflicting_prefixes = networks, frozenset(map(pack_network, networks))
        return self._conflicting_prefixes != before

    def _change_peer(self, name: str, after: Peer | None, conflicting: frozenset[Network]) -> None:
        if not self._has_peers:
            raise ValueError("replace_peers() comes first")
        conflicts_changed = self._set_conflicting(conflicting)
        if (before := self._peers.get(name)) == after and not conflicts_changed:
            return
        networks = {*(before.networks if before else ()), *(after.networks if after else ())}
        affected = {name, *self._peers.holders_of(networks)}
        candidates = self._peers.list_keys(affected, self._situation)
        for kind, keys in zip(ObjectKind, candidates, strict=True):
            for key in keys:
                self._refused.pop((kind, key), None)
        self._peers.change(name, after)
        if not self._is_ready:
            return
        if conflicts_changed or (after and self._can_create_device and route_plan.needs_tunnel(after, self._situation)):
            self.reconcile()
            return
        diff = self._new_diff()
        for each in affected | self._peers.holders_of(networks):  # the holders before and after the change
            diff.add(self._peers.plan_and_store_problems(each, self._situation))
        self._apply(diff.changes(candidates))
        self._handle_pending()

    def _new_diff(self) -> RouteDiff:
        return RouteDiff(self._existing, self._conflicting_prefixes, self._situation.tunnel_ifindex)

    def _apply_plans(self) -> None:
        """Changes the objects that differ from the plans of all nodes."""
        assert self._node is not None
        diff = self._new_diff()
        self._peers.problems.clear()
        for name in self._peers.names():
            diff.add(self._peers.plan_and_store_problems(name, self._situation))
        plan = route_plan.plan_node(self._situation)
        diff.add(plan)
        if plan.problems:
            self._peers.problems[self._node.name] = plan.problems
        self._apply(diff.changes([list(table) for table in self._existing]))

    def _compare_all(self) -> None:
        """Reads the situation and the existing objects, ensures the device, makes the objects equal to the plan."""
        assert self._node is not None
        self._refused.clear()
        self._repairs_of.clear()
        self._pending.clear()
        self._has_lost_notifications = False
        self._notifications.receive()  # discarded: all is read below
        self._read_situation(self._node)
        is_needed = self._needs_device()
        if is_needed and self._ensure_device(self._node):
            self._notifications.receive()  # discarded: all is read below
            self._read_situation(self._node)
        existing_device, self._existing = kernel_routes.read_objects(self._socket, self._options, self._node.name)
        if not is_needed:
            self._device, self._device_problem = existing_device, ""
            self._situation = self._situation._replace(tunnel_ifindex=0)
            for kind in (ObjectKind.ADDRESS, ObjectKind.NEIGHBOUR, ObjectKind.FORWARDING):
                self._existing[kind].clear()  # they are deleted with the device
        self._apply_plans()
        if not is_needed and self._device:
            self._delete_device(self._device)
        self._shadowing = set(self._list_shadowing())
        self._comparisons += 1

    def _delete_device(self, device: Link) -> None:
        hops = self._existing[ObjectKind.ROUTE].values()
        # The routes of unchanged networks may still use the device.
        if not any(isinstance(hop, NextHop) and hop.ifindex == device.index for hop in hops):
            self._log(f'delete "{device.name}": no node is reached by VXLAN')
            self._send([link.delete_request(device)])
            self._device = None

    def _read_situation(self, node: Node) -> None:
        last = self._situation, self._links
        self._situation, self._links = read_situation(self._socket, self._options, node, self._peers.any_address, last)

    def _needs_device(self) -> bool:
        """Returns whether there must be a device. An existing one is deleted only in modes without VXLAN."""
        assert self._node is not None
        if self._options.mode not in (AUTO, VXLAN):
            return False
        if self._options.mode == VXLAN or self._device or self._situation.is_incomplete:
            return True
        existing = tunnel_device.find(self._socket, self._options.device, route_plan.mac_of(self._node.name))
        return existing is not None or self._peers.needs_tunnel(self._situation)

    @property
    def _can_create_device(self) -> bool:
        return self._is_ready and not self._situation.tunnel_ifindex and not self._device_problem

    def _ensure_device(self, node: Node) -> bool:
        """Creates or repairs the device if its address is known; returns whether it changed. Raises KernelError."""
        if not self._situation.underlay:
            return False
        local = route.address_of(self._situation.underlay)
        spec = tunnel_device.spec_of(self._options, node.name, local, self._links.underlay_mtu)
        before, reason = self._device, ""
        texts: list[str] = []
        try:
            self._device, texts = tunnel_device.ensure(self._socket, spec)
        except (TunnelError, KernelError) as error:
            self._device, reason = None, str(error)
        for text in texts:
            self._log(text)
        self._requests += len(texts)
        self._device_problem = reason
        index = self._device.index if self._device else 0
        self._situation = self._situation._replace(tunnel_ifindex=index)
        return bool(texts) or index != (before.index if before else 0)

    def _list_shadowing(self) -> list[ProtocolRoute]:
        if self._options.mode == NONE:
            return []
        destinations = frozenset(self._existing[ObjectKind.ROUTE])
        return protocol_route.list_shadowing(self._socket, destinations, self._options.metric)

    def _apply(self, changes: list[ObjectChange]) -> None:
        """Sends changes in batches; stores which the kernel refused, and the new state."""
        # Changes that the kernel would refuse now are left out: they follow when the links change.
        ready = [each for each in changes if not self._links.refuses(each.value, self._situation.tunnel_ifindex)]
        for start in range(0, len(ready), _BATCH):
            batch = ready[start : start + _BATCH]
            requests = [kernel_routes.build_request(each, self._options, self._device) for each in batch]
            self._requests += len(requests)
            try:
                self._socket.change(*requests)
                self._store(batch)
            except KernelError:  # the kernel executed the others: sending again finds out which it refused
                for each, request in zip(batch, requests, strict=True):
                    self._apply_one(each, request)
            self._receive()

    def _apply_one(self, change: ObjectChange, request: Request) -> None:
        try:
            self._socket.send(request)
            self._store([change])
        except KernelError as error:
            self._refused[change.kind, change.key] = str(error)

    def _store(self, changes: Iterable[ObjectChange]) -> None:
        for kind, key, value in changes:
            if value is None:
                self._existing[kind].pop(key, None)
            else:
                self._existing[kind][key] = value
            self._refused.pop((kind, key), None)

    def _send(self, requests: list[Request]) -> None:
        self._requests += len(requests)
        self._socket.change(*requests)

    def _receive(self) -> None:
        received = self._notifications.receive()
        if received is None:
            self._has_lost_notifications = True
        else:
            self._pending += received

    def _handle_pending(self) -> None:
        """Handles the notifications that have arrived, until there are none."""
        if not self._is_ready:
            self._pending.clear()
        while self._is_ready and (self._has_lost_notifications or self._pending):
            received, self._pending = self._pending, []
            if self._has_lost_notifications:
                self._log("the kernel dropped notifications: comparing all routes")
                self._compare_all()
                continue
            reader = NotificationReader(
                self._options, self._situation, self._links.by_index, self._existing, self._shadowing
            )
            reader.read(received)
            self._handle(reader)

    def _handle(self, reader: NotificationReader) -> None:
        assert self._node is not None
        device_changed = reader.device_may_differ and self._needs_device() and self._ensure_device(self._node)
        if reader.situation_may_differ or reader.may_lack_routes or device_changed:
            last = self._situation, self._links
            self._read_situation(self._node)
            may_differ = reader.may_lack_routes or last != (self._situation, self._links)
            if device_changed or (may_differ and not self._links.are_all_missing):
                self._log("interfaces or addresses changed: comparing all routes")
                self._compare_all()
                return
        repairs = []
        for (kind, key), value in reader.repairs.items():
            self._repairs_of[kind, key] += 1
            if self._repairs_of[kind, key] <= _MAX_REPAIRS and not self._is_conflicting(kind, key):
                self._log(f"restore {kernel_routes.describe(kind, key)}, which another program changed")
                repairs.append(ObjectChange(kind, key, value))
        self._apply(sorted(repairs))

    def _is_conflicting(self, kind: ObjectKind, key: bytes) -> bool:
        return kind in ROUTE_KINDS and key in self._conflicting_prefixes
