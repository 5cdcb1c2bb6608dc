"""Answers `podwire policy` on the agent's Unix socket, as JSON.

    GET  /policy      {"policies": [...], "pods": [...], "problem": ""}: the policies, and the pods of this node
    POST /policy/why  {"source": "shop/web-0", "destination": "10.22.0.7", "protocol": "tcp", "port": 5432}, each end a
                      pod or an address -> {"connections": [...], "problem": ""}, one for each IP version

`problem` says why the agent does not enforce the policies, "" if it does. An error is {"msg", "details"}.

One rule: only the main thread uses the selection. A thread of the HTTP server passes its question to it, and waits.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from ipaddress import ip_address
from typing import NamedTuple

from agent.http_server import BAD_REQUEST, UNAVAILABLE, Answer, Pages, Refusal, json_answer
from agent.policy.evaluator import ClusterState, Decision, PodConnection, decide_direction
from agent.policy.filter_table import FilterTable
from agent.policy.objects import EGRESS, INGRESS, LAST_PORT, ClusterPod, Policy
from agent.policy.selection import RECORD_PRECEDENCE, PolicySelection
from cni.address import Address, format_ip, parse_ip
from kernel.address import list_elsewhere
from kernel.errors import KernelError
from kernel.rtnl import Socket

_LIMIT_S = 8.0  # below the HTTP server's limit; the main thread may be reading the whole packet filter
_PROTOCOLS = ("tcp", "udp", "sctp", "icmp")

Document = dict[str, object]


class FilterState(NamedTuple):
    """The packet filter in force, the dropped packets by chain, and why the agent does not enforce policies, or ""."""

    table: FilterTable
    drops: Mapping[str, int]
    problem: str


class PolicyAdmin:
    """Answers both requests. `call_in_main` runs a call in the main thread, and `state` is called only there."""

    def __init__(
        self,
        selection: PolicySelection,
        node: str,
        call_in_main: Callable[[Callable[[], None]], None],
        state: Callable[[], FilterState],
    ) -> None:
        self._selection, self._node, self._call_in_main, self._state = selection, node, call_in_main, state

    def pages(self) -> Pages:
        """Returns the pages, by path."""
        return {"/policy": lambda: self._answer(self._list)}

    def actions(self) -> dict[str, Callable[[bytes], Answer]]:
        """Returns the actions, by path."""
        return {"/policy/why": lambda body: self._answer(lambda: self._explain(*_parse(body)))}

    def _answer(self, question: Callable[[], Document]) -> Answer:
        """Answers a question in the main thread."""
        answer: Future[Document] = Future()

        def run() -> None:
            try:
                answer.set_result(question())
            except Exception as error:
                answer.set_exception(error)
                if not isinstance(error, Refusal):
                    raise  # the loop logs it

        self._call_in_main(run)
        try:
            return json_answer(answer.result(_LIMIT_S))
        except Refusal as error:
            return error.answer()
        except TimeoutError:
            msg = f"podwire-agent has been busy for {_LIMIT_S:.0f} s"
            return Refusal(msg, "run the command again; the agent's log shows its work", UNAVAILABLE).answer()

    # ---- in the main thread

    def _list(self) -> Document:
        state, pods = self._state(), list(self._selection.local.values())
        policies = [each for of_namespace in self._selection.policies.values() for each in of_namespace.values()]
        drops = Counter[tuple[str, str]]()
        for name, chain in state.table.chains.items():
            for policy_name in chain.subject.policies:
                drops[chain.subject.namespace, policy_name] += state.drops.get(name, 0)
        return {
            "policies": [
                {
                    "namespace": policy.namespace,
                    "name": policy.name,
                    "directions": _directions(policy),
                    "pods": len({pod.name for pod in pods if pod.policies.get(policy.name) is policy}),
                    "droppedPackets": drops[policy.namespace, policy.name],
                }
                for policy in sorted(policies, key=lambda policy: (policy.namespace, policy.name))
            ],
            "pods": [
                {
                    "namespace": pod.namespace,
                    "name": pod.name,
                    "addresses": list(map(format_ip, pod.addresses)),
                    "policies": sorted(pod.policies),
                    "isKnown": pod.pod is not None,
                }
                for pod in sorted(pods, key=lambda pod: (pod.namespace, pod.name))
            ],
            "problem": state.problem,
        }

    def _explain(self, source: str, destination: str, protocol: str, port: int) -> Document:
        sources, destinations = self._addresses(source), self._addresses(destination)
        pairs = [(one, other) for one in sources for other in destinations if one.version == other.version]
        if not pairs:
            raise Refusal(f"{source} and {destination} have no addresses of one IP version", "use addresses")
        cluster = self._cluster({address for pair in pairs for address in pair})
        connections = [self._decide(cluster, PodConnection(*pair, protocol, port)) for pair in pairs]
        return {"connections": connections, "problem": self._state().problem}

    def _addresses(self, text: str) -> list[Address]:
        """Returns the address in a text, or the addresses of the pod that it names; raises Refusal."""
        namespace, is_pod, name = text.partition("/")
        if not is_pod:
            try:
                return [parse_ip(text)]
            except ValueError:
                raise Refusal(
                    f'"{text}" is neither a pod (NAMESPACE/NAME) nor an address', status=BAD_REQUEST
                ) from None
        pod = self._selection.find_pod(namespace, name)
        if pod is None:
            details = f"kubectl --namespace {namespace} get pod {name}"
            raise Refusal(f"the agent knows no pod {name} of namespace {namespace}", details, 404)
        if not pod.addresses:
            raise Refusal(f"pod {name} of namespace {namespace} has no address", "it has not started yet, or has ended")
        return list(pod.addresses)

    def _cluster(self, ends: set[Address]) -> ClusterState:
        """Returns the objects that decide about the addresses `ends`: a copy of all pods would take too long."""
        selection = self._selection
        owners = {address: owner for address in ends if (owner := selection.owners.get(address))}
        namespaces = {owner.namespace for owner in owners.values()}
        policies = [each for name in namespaces for each in selection.policies.get(name, {}).values()]
        pods = {address: owner for address, owner in owners.items() if owner.can_have_policies}
        return ClusterState(pods, selection.namespaces, policies, {self._node: _node_addresses()})

    def _decide(self, cluster: ClusterState, connection: PodConnection) -> Document:
        ends = {direction: self._decide_end(cluster, connection, direction) for direction in (EGRESS, INGRESS)}
        return {
            "source": format_ip(connection.source),
            "destination": format_ip(connection.destination),
            "allowed": all(allowed for allowed, _ in ends.values()),
            **{direction: {"allowed": allowed, "reason": reason} for direction, (allowed, reason) in ends.items()},
        }

    def _decide_end(self, cluster: ClusterState, connection: PodConnection, direction: str) -> tuple[bool, str]:
        """Returns whether the pod at one end allows a connection, and why."""
        address = connection.source if direction == EGRESS else connection.destination
        for local in self._selection.local.values():
            if address in local.addresses and self._selection.is_isolated_as_unknown(local, direction):
                cause = f"the agent has no object of pod {local.name} yet, and its namespace {local.namespace}"
                return False, f"{cause} has policies: the pod is isolated until the object arrives"
        pod, decision = cluster.pods.get(address), decide_direction(cluster, connection, direction)
        if pod is None or not decision.policies:
            return decision.allowed, decision.describe()
        if pod.node == self._node and pod.precedence != RECORD_PRECEDENCE:
            return (
                True,
                f"policies do not apply to {pod.name}: it has no record, as if it started without networkPolicy",
            )
        return decision.allowed, "; ".join((decision.describe(), *self._notes(cluster, decision, pod)))

    def _notes(self, cluster: ClusterState, decision: Decision, pod: ClusterPod) -> Iterator[str]:
        """Yields what the decision about a pod does not consider, and names of ports that match nothing."""
        connection, is_egress = decision.connection, decision.direction == EGRESS
        peer = connection.destination if is_egress else connection.source
        if not decision.allowed and not is_egress:
            yield from _unknown_port_names(cluster, decision)
        if peer not in cluster.pods and is_egress:
            yield "policies never see a Service's address: name one of its pods"
        if peer not in cluster.pods and pod.node != self._node and not decision.allowed:
            yield f"if it is an address of node {pod.node}, it is allowed"


def _unknown_port_names(cluster: ClusterState, decision: Decision) -> Iterator[str]:
    """Yields the port names of a denial's rules that no container of the destination has."""
    destination = cluster.pods.get(decision.connection.destination)
    known = {(port.name, port.protocol) for port in destination.ports} if destination else set()
    rules = [rule for policy in decision.policies for rule in policy.rules(decision.direction) or ()]
    names = {port.name for rule in rules for port in rule.ports or () if (port.name, port.protocol) not in known}
    for name in sorted(names - {""} if destination else ()):
        yield f"a rule has the port {name}, which no container of this pod has"


def _parse(body: bytes) -> tuple[str, str, str, int]:
    """Parses a question: returns source, destination, protocol and port; raises Refusal."""
    try:
        question: object = json.loads(body)
    except (ValueError, RecursionError):
        question = None
    fields = question if isinstance(question, dict) else {}
    source, destination = fields.get("source"), fields.get("destination")
    protocol, port = fields.get("protocol"), fields.get("port")
    first = 0 if protocol == "icmp" else 1
    is_valid = protocol in _PROTOCOLS and isinstance(port, int) and first <= port <= LAST_PORT
    if not (isinstance(source, str) and isinstance(destination, str) and isinstance(port, int) and is_valid):
        raise Refusal("the question has no valid source, destination, protocol or port", status=BAD_REQUEST)
    return source, destination, str(protocol), port


def _directions(policy: Policy) -> list[str]:
    return [direction for direction in (INGRESS, EGRESS) if policy.rules(direction) is not None]


def _node_addresses() -> frozenset[Address]:
    """Returns this node's addresses, none if they cannot be read."""
    try:
        with Socket() as socket:
            return frozenset(ip_address(each.packed) for each in list_elsewhere(socket, None))
    except KernelError:
        return frozenset()
