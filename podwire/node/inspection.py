"""One look at the node.

One rule: pods come and go meanwhile, so what is wrong is looked at twice, and told only if it is still so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from cni.address import Interface
from kernel.link import IFF_LOOPBACK, Link
from podwire import attachments, networks
from podwire.checking import NETNS_NOT_VISIBLE, Checker, Verdict
from podwire.networks import NetworkFile
from podwire.node import links
from podwire.node import records as records_module
from podwire.node import rules as rules_module
from podwire.node.leaks import find_leaks
from podwire.node.model import HostInterface, Node, NodeNetwork, Pod, Range, State
from podwire.node.records import Directories, Records, bridge_names
from podwire.node.rules import Rules
from podwire.node.snapshot import Snapshot
from podwire.output import plural

_NO_ADDRESS = ("veth", "ifb")
_HIDDEN = (State.NOT_SEEN, State.UNKNOWN)
_LIMIT_S = 10.0  # for CHECK of all pods; a hundred take one to two and a half seconds


def read_snapshot(directories: Directories, network: str = "", *, rules: bool = True) -> Snapshot:
    """Looks once; the packet filter only if `rules` are asked for. Raises CniError(7) if nobody knows `network`."""
    records = records_module.read_records(directories)
    if network and not records.has_network(network):
        raise networks.unknown_network(network, directories.conf_dir, records.files)
    kernel = links.read_kernel(item.netns for item in records.cached if item.netns)
    found = rules_module.read_rules() if rules else Rules()
    return Snapshot(records, kernel, found, attachments.results_dir(directories.cache_dir))


def inspect_node(directories: Directories, checker: Checker, network: str = "") -> Node:
    """Returns the node, or what belongs to one network of it; raises CniError(7) for one that nobody knows.

    Pods whose interface is there are judged by `checker`.
    """
    snapshot = read_snapshot(directories, network)
    found = find_leaks(snapshot)
    if found:
        snapshot = read_snapshot(directories)
        before = {(item.kind, item.description) for item in found}
        found = tuple(item for item in find_leaks(snapshot) if (item.kind, item.description) in before)
    node = Node(
        tuple(_networks(snapshot)),
        snapshot.pods,
        tuple(_bridges(snapshot)),
        tuple(_host_interfaces(snapshot)),
        found,
        tuple(dict.fromkeys((*snapshot.records.unread, *snapshot.kernel.unseen, *snapshot.rules.unseen))),
    )
    return _judged(snapshot, _only(node, network) if network else node, checker)


def _judged(snapshot: Snapshot, node: Node, checker: Checker) -> Node:
    """Returns the node with the states of its pods as CHECK of their plugins has them."""
    known = {(item.network_name, item.attachment): item for item in snapshot.records.cached}
    end = time.monotonic() + _LIMIT_S
    pods, unseen = [], dict[str, int]()
    for pod in node.pods:
        if pod.state is State.OK:
            late = time.monotonic() > end
            verdict = Verdict(unseen="time was up") if late else checker.check(known[pod.network, pod.attachment])
            pods.append(_with_verdict(pod, verdict))
        else:
            verdict = Verdict(unseen=NETNS_NOT_VISIBLE if pod.state in _HIDDEN else "")
            pods.append(pod)
        if verdict.unseen:
            unseen[verdict.unseen] = unseen.get(verdict.unseen, 0) + 1
    texts = (f"CHECK of {plural(number, 'attachment')}: {reason}" for reason, number in unseen.items())
    return replace(node, pods=tuple(pods), unseen=(*node.unseen, *texts))


def _with_verdict(pod: Pod, verdict: Verdict) -> Pod:
    if verdict.failures:
        problems = tuple(f"{failure.plugin}: {failure.error.msg}" for failure in verdict.failures)
        ports = pod.host_ports
        if any(failure.plugin == "portmap" for failure in verdict.failures):
            # A rule of one IP version, or one that stands behind another pod's, is not all of it.
            ports = tuple(replace(port, confirmed=None) if port.confirmed else port for port in ports)
        return replace(pod, state=State.FAILED, problems=problems, host_ports=ports)
    return replace(pod, state=State.NOT_CHECKED) if verdict.skipped or verdict.unseen else pod


def _only(node: Node, network: str) -> Node:
    own = tuple(item for item in node.networks if item.name == network)
    names = {name for item in own for name in item.bridges}
    return replace(
        node,
        networks=own,
        pods=tuple(item for item in node.pods if item.network == network),
        bridges=tuple(item for item in node.bridges if item.name in names),
        leaks=tuple(item for item in node.leaks if item.network == network),
    )


def _networks(snapshot: Snapshot) -> Iterable[NodeNetwork]:
    counts: dict[str, int] = {}
    for pod in snapshot.pods:
        counts[pod.network] = counts.get(pod.network, 0) + 1
    used = {network.path: network for network in snapshot.records.networks.values()}
    for file in snapshot.records.files:
        yield _configured(snapshot.records, file, counts, is_used=file.path in used)
    rest = [
        *(pod.network for pod in snapshot.pods),
        *(pool.network for pool in snapshot.records.pools if pool.reservations),
    ]
    for name in dict.fromkeys(rest):
        if name not in snapshot.records.networks:
            made = next(
                (item.network for item in snapshot.records.cached if item.network_name == name and item.network), None
            )
            types = tuple(str(plugin["type"]) for plugin in made.plugins) if made else ()
            yield NodeNetwork(
                name,
                "",
                types,
                bridge_names(made),
                tuple(_ranges(snapshot.records, name)),
                counts.get(name, 0),
                "" if made and set(types) == {"loopback"} else "no file in net.d",
            )


def _configured(records: Records, file: NetworkFile, counts: dict[str, int], *, is_used: bool) -> NodeNetwork:
    if file.network is None:
        return NodeNetwork("", file.path, problem=file.problem.msg if file.problem else "cannot be used")
    name = file.network.name
    types = tuple(str(plugin["type"]) for plugin in file.network.plugins)
    if not is_used:
        return NodeNetwork(
            name, file.path, types, bridge_names(file.network), problem="another file has this name first"
        )
    ranges = tuple(_ranges(records, name))
    return NodeNetwork(name, file.path, types, bridge_names(file.network), ranges, counts.get(name, 0))


def _ranges(records: Records, network: str) -> Iterable[Range]:
    for pool in records.pools:
        if pool.network == network:
            for number, own in enumerate(pool.range_sets):
                yield Range(pool.data_dir, number, str(own), own.size, pool.in_use(own))


def _bridges(snapshot: Snapshot) -> Iterable[HostInterface]:
    wanted = {name for network in snapshot.records.networks.values() for name in bridge_names(network)}
    wanted |= {name for item in snapshot.records.cached for name in bridge_names(item.network)}
    for own in snapshot.kernel.links:
        if own.kind == "bridge" and own.name in wanted:
            ports = tuple(port.name for port in snapshot.kernel.links if port.master == own.index)
            yield HostInterface(own.name, _texts(snapshot, own), ports)


def _host_interfaces(snapshot: Snapshot) -> Iterable[HostInterface]:
    """Yields the host's own interfaces: those with addresses that are neither a pod's nor a pods' bridge."""
    wanted = {item.name for item in _bridges(snapshot)}
    for own in snapshot.kernel.links:
        found = _texts(snapshot, own)
        is_host_end = own.kind in _NO_ADDRESS and own.lower_nsid is not None
        if found and own.name not in wanted and not own.flags & IFF_LOOPBACK and not is_host_end:
            yield HostInterface(own.name, found)


def _texts(snapshot: Snapshot, own: Link) -> tuple[str, ...]:
    found: Iterable[Interface] = snapshot.kernel.addresses.get(own.index, ())
    return tuple(str(item) for item in found if not item.ip.is_link_local)
