"""The routes to the other nodes' pods: keeps the kernel equal to the plan (agent.route_plan).

A change of one node costs requests for this node only. Objects that other programs delete or change are restored when
the kernel notifies of it. Only objects with the agent's protocol number, and those of its VXLAN device, are deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from agent import kernel_routes, tunnel_device
from agent.kernel_routes import Facts
from agent.node import Node
from agent.peer_plans import PeerPlans
from agent.route_diff import Change, Comparison
from agent.route_news import News, list_shadowed
from agent.route_plan import (
    AUTO,
    NONE,
    VXLAN,
    Kind,
    Objects,
    Peer,
    RouteOptions,
    Situation,
    mac_of,
    needs_tunnel,
    new_objects,
    peer_of,
    plan_node,
)
from agent.route_report import Counters, Problem, disagreement_problem, shadow_problem
from agent.tunnel_device import TunnelError
from cni.address import Network
from kernel import link, notifications, protocol_route, route
from kernel.errors import KernelError
from kernel.link import Link
from kernel.notifications import Notification, Notifications
from kernel.protocol_route import Hop, Prefix, ProtocolRoute, pack_network
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
        self._news = Notifications(notifications.ALL, self._socket, buffer_bytes=_BUFFER_BYTES)
        self._pending: list[Notification] = []
        self._is_lost = False
        self._node: Node | None = None
        self._peers = PeerPlans()
        self._is_synced = False
        self._frozen: frozenset[Prefix] = frozenset()
        self._situation = Situation(options.mode, (), (), ())
        self._facts: Facts | None = None
        self._down: frozenset[int] = frozenset()
        self._device: Link | None = None
        self._existing: Objects = new_objects()
        self._shadowing: set[ProtocolRoute] = set()
        self._refused: dict[tuple[Kind, bytes], str] = {}
        self._device_problem = ""
        self._repaired: Counter[tuple[Kind, bytes]] = Counter()
        self._requests = self._repairs = self._comparisons = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the sockets; the kernel's objects stay."""
        self._news.close()
        self._socket.close()

    def fileno(self) -> int:
        """Returns the descriptor that is readable when handle_notifications() has something to do."""
        return self._news.fileno()

    def set_node(self, node: Node) -> None:
        """Sets this node. Raises KernelError."""
        before, self._node = self._node, node
        self._peers.this_node = node.name
        if before is None or peer_of(before) != peer_of(node):
            self.reconcile()

    def replace_peers(self, peers: Mapping[str, Node], frozen: frozenset[Network] = frozenset()) -> None:
        """Sets all nodes; this node itself is ignored. Nothing is changed for the networks in `frozen`.

        The first call compares the plan with the kernel, later calls with the objects that are known. Raises
        KernelError.
        """
        is_first, self._is_synced = not self._is_synced, True
        self._peers.replace(peers)
        self._frozen = frozenset(map(pack_network, frozen))
        if is_first or (self._can_create_device and self._peers.needs_tunnel(self._situation)):
            self.reconcile()
        elif self._is_ready:
            self._replan()
            self._settle()

    def update_peer(self, node: Node) -> None:
        """Adds or changes a node; raises KernelError."""
        self._change_peer(node.name, peer_of(node))

    def remove_peer(self, name: str) -> None:
        """Removes a node; raises KernelError."""
        self._change_peer(name, None)

    def set_frozen(self, networks: frozenset[Network]) -> None:
        """Sets the networks that several nodes claim: for these nothing is added, changed or deleted."""
        frozen = frozenset(map(pack_network, networks))
        if frozen != self._frozen:
            self._frozen = frozen
            if self._is_ready:
                self._replan()
                self._settle()

    def reconcile(self) -> None:
        """Compares all objects with the kernel, and changes what differs; raises KernelError."""
        if not self._is_ready:
            return
        self._read_kernel()
        self._shadowing = set(self._list_shadowing())
        self._settle()

    def handle_notifications(self) -> None:
        """Reads the kernel's notifications, and restores what other programs changed; raises KernelError."""
        self._receive()
        self._settle()

    def is_behind_tunnel(self, node: Node) -> bool:
        """Returns whether a node is reached by VXLAN, at least for one of its networks, or may be: it has none yet."""
        may_be = self._situation.mode in (AUTO, VXLAN) and not node.pod_cidrs
        return may_be or needs_tunnel(peer_of(node), self._situation)

    def remove(self) -> None:
        """Deletes all objects of the agent, for uninstalling; raises KernelError."""
        name = self._node.name if self._node else ""
        device, existing, stale = kernel_routes.read_objects(self._socket, self._options, name)
        deletions = [Change(kind, key, None) for kind in (Kind.ROUTE, Kind.UNREACHABLE) for key in existing[kind]]
        self._apply(deletions)
        self._send([self._delete_request(dst, metric) for dst, metric in stale])
        if device:
            self._send([link.delete_request(device)])
        self._is_synced = False

    @property
    def problems(self) -> list[Problem]:
        """The problems at present."""
        result = [Problem("", self._device_problem)] if self._device_problem else []
        if self._facts and not self._facts.is_usable:
            text = "this node's InternalIP is on no interface that is up: its routes stay as they are until then"
            result.append(Problem("", text))
        result += [Problem(name, text) for name, texts in self._peers.problems.items() for text in texts]
        result += [Problem("", text) for text in self._refused.values()]
        for each in list_shadowed(self._shadowing, self._existing[Kind.ROUTE].keys()):
            result.append(shadow_problem(self._peers.holder_of(each.dst), each))
        return result + [disagreement_problem(*each) for each, count in self._repaired.items() if count > _MAX_REPAIRS]

    @property
    def counters(self) -> Counters:
        """The numbers for metrics."""
        routes = len(self._existing[Kind.ROUTE])
        return Counters(self._requests, self._repairs, self._comparisons, routes, len(self._peers))

    @property
    def _is_ready(self) -> bool:
        return self._node is not None and self._is_synced

    def _change_peer(self, name: str, after: Peer | None) -> None:
        if not self._is_synced:
            raise ValueError("replace_peers() comes first")
        before = self._peers.get(name)
        if before == after:
            return
        networks = {*(before.networks if before else ()), *(after.networks if after else ())}
        affected = {name, *self._peers.holders_of(networks)}
        candidates = self._peers.keys(affected, self._situation)
        self._peers.change(name, after)
        if not self._is_ready:
            return
        if after and self._can_create_device and needs_tunnel(after, self._situation):
            self.reconcile()
            return
        comparison = self._compare()
        for each in affected | self._peers.holders_of(networks):
            comparison.add(self._peers.plan(each, self._situation))
        self._apply(comparison.changes(candidates))
        self._settle()

    def _compare(self) -> Comparison:
        return Comparison(self._existing, self._frozen, self._situation.tunnel)

    def _replan(self) -> None:
        """Makes the known objects equal to the plan of all nodes."""
        assert self._node is not None
        comparison = self._compare()
        self._peers.problems.clear()
        for name in self._peers.names():
            comparison.add(self._peers.plan(name, self._situation))
        plan = plan_node(self._situation)
        comparison.add(plan)
        if plan.problems:
            self._peers.problems[self._node.name] = plan.problems
        self._apply(comparison.changes([list(table) for table in self._existing]))

    def _read_kernel(self) -> None:
        """Reads the facts and the existing objects, ensures the device, and makes the objects equal to the plan."""
        assert self._node is not None
        self._comparisons += 1
        self._refused.clear()
        self._repaired.clear()
        self._pending.clear()
        self._is_lost = False
        self._news.receive()  # the state is read now
        self._read_facts(self._node)
        is_needed = self._needs_device()
        if is_needed:
            self._ensure_device(self._node)
        existing_device, self._existing, stale = kernel_routes.read_objects(
            self._socket, self._options, self._node.name
        )
        if not is_needed:
            self._device, self._device_problem = existing_device, ""
            self._situation = self._situation._replace(tunnel=0)
            for kind in (Kind.ADDRESS, Kind.NEIGHBOUR, Kind.FORWARDING):
                self._existing[kind].clear()  # they are deleted with the device
        self._replan()
        self._send([self._delete_request(dst, metric) for dst, metric in stale])
        if not is_needed and self._device:
            self._delete_device(self._device)

    def _delete_device(self, device: Link) -> None:
        hops = self._existing[Kind.ROUTE].values()
        if not any(isinstance(hop, Hop) and hop.ifindex == device.index for hop in hops):  # not one of a frozen network
            self._log(f'delete "{device.name}": no node is reached by VXLAN')
            self._send([link.delete_request(device)])
            self._device = None

    def _read_facts(self, node: Node) -> None:
        """Reads the facts about this node; while its address is missing, the last connected networks count."""
        before = self._facts
        remote = self._peers.any_address(len(self._situation.underlay))
        facts = kernel_routes.read_facts(self._socket, self._options, node, remote)
        situation = facts.situation._replace(tunnel=self._situation.tunnel, no_tunnel=self._situation.no_tunnel)
        if before and not facts.is_usable:
            situation = situation._replace(connected=before.situation.connected)
            facts = facts._replace(
                situation=situation, links={**before.links, **facts.links}, underlay_mtu=before.underlay_mtu
            )
        self._facts, self._situation = facts, situation
        indexes = sorted({item.ifindex for item in situation.connected})
        answers = link.get(self._socket, *map(link.by_index_request, indexes))
        self._down = frozenset(
            index for index, each in zip(indexes, answers, strict=True) if not each or not each.is_up
        )
        self._facts = facts._replace(links={**facts.links, **{each.index: each for each in answers if each}})

    def _needs_device(self) -> bool:
        assert self._node is not None
        if not self._situation.underlay or self._options.mode not in (AUTO, VXLAN):
            return False
        if self._options.mode == VXLAN or self._device:
            return True
        existing = tunnel_device.find(self._socket, self._options.device, mac_of(self._node.name))
        return existing is not None or self._peers.needs_tunnel(self._situation)

    @property
    def _can_create_device(self) -> bool:
        return self._is_ready and not self._situation.tunnel and not self._device_problem

    def _ensure_device(self, node: Node) -> bool:
        """Creates or repairs the device; returns whether something changed. Raises KernelError."""
        assert self._facts is not None
        local = route.address_of(self._situation.underlay)
        spec = tunnel_device.spec_of(self._options, node.name, local, self._facts.underlay_mtu)
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
        self._situation = self._situation._replace(tunnel=index, no_tunnel=reason)
        return bool(texts) or index != (before.index if before else 0)

    def _list_shadowing(self) -> list[ProtocolRoute]:
        if self._options.mode == NONE:
            return []
        destinations = frozenset(self._existing[Kind.ROUTE])
        return protocol_route.list_shadowing(self._socket, destinations, self._options.metric)

    def _apply(self, changes: list[Change]) -> None:
        """Sends changes in batches; stores which the kernel refused, and the new state."""
        ready = [each for each in changes if not (isinstance(each.value, Hop) and each.value.ifindex in self._down)]
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

    def _apply_one(self, change: Change, request: Request) -> None:
        try:
            self._socket.send(request)
            self._store([change])
        except KernelError as error:
            self._refused[change.kind, change.key] = str(error)

    def _store(self, changes: Iterable[Change]) -> None:
        for kind, key, value in changes:
            if value is None:
                self._existing[kind].pop(key, None)
            else:
                self._existing[kind][key] = value
            self._refused.pop((kind, key), None)

    def _send(self, requests: list[Request]) -> None:
        self._requests += len(requests)
        self._socket.change(*requests)

    def _delete_request(self, dst: Prefix, metric: int) -> Request:
        return protocol_route.delete_request(dst, metric, self._options.protocol)

    def _receive(self) -> None:
        received = self._news.receive()
        if received is None:
            self._is_lost = True
        else:
            self._pending += received

    def _settle(self) -> None:
        """Handles the notifications that have arrived, until there are none."""
        if not self._is_ready:
            self._pending.clear()
        while self._is_ready and (self._is_lost or self._pending):
            received, self._pending = self._pending, []
            if self._is_lost:
                self._log("the kernel dropped notifications: comparing all routes")
                self._read_kernel()
                continue
            assert self._facts is not None
            links = dict(self._facts.links)
            news = News(self._options, self._situation, links, self._existing, self._shadowing)
            news.read(received)
            self._handle(news)

    def _handle(self, news: News) -> None:
        assert self._node is not None
        is_changed = news.is_device and self._needs_device() and self._ensure_device(self._node)
        if news.is_elsewhere or news.is_flushed or is_changed:
            before = self._basis
            self._read_facts(self._node)
            is_usable = self._facts is not None and self._facts.is_usable
            if is_changed or (is_usable and (news.is_flushed or self._basis != before)):
                self._log("interfaces or addresses changed: comparing all routes")
                self._read_kernel()
                return
        repairs = []
        for (kind, key), value in news.repairs.items():
            self._repaired[kind, key] += 1
            if self._repaired[kind, key] <= _MAX_REPAIRS and not self._is_frozen(kind, key):
                self._log(f"restore {kernel_routes.describe(kind, key)}, which another program changed")
                repairs.append(Change(kind, key, value))
        self._repairs += len(repairs)
        self._apply(sorted(repairs))

    @property
    def _basis(self) -> tuple[object, ...]:
        """The values whose change requires a comparison."""
        facts = self._facts
        return self._situation, self._down, facts and (facts.underlay_mtu, facts.is_usable)

    def _is_frozen(self, kind: Kind, key: bytes) -> bool:
        return kind in (Kind.ROUTE, Kind.UNREACHABLE) and key in self._frozen
