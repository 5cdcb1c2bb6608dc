"""Reads the whole node, and returns it as a `NodeInventory`.

Pods start and stop meanwhile, so a leak is reported only if a second snapshot shows it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from cni.address import Cidr
from kernel.link import IFF_LOOPBACK, Link
from podwire import networks
from podwire.checking import LIMIT_S, NETNS_NOT_VISIBLE, Checker, CheckOutcome
from podwire.networks import NetworkFile
from podwire.node import links
from podwire.node import records as records_module
from podwire.node import rules as rules_module
from podwire.node.leaks import find_leaks
from podwire.node.model import AttachmentState, HostInterface, NodeInventory, NodeNetwork, Pod, RangeUsage
from podwire.node.records import Directories, Records, bridge_names
from podwire.node.rules import Rules
from podwire.node.snapshot import Snapshot
from podwire.output import plural

Report = Callable[[str], None]  # gets what is being done

_NO_ADDRESS = ("veth", "ifb")
_HIDDEN = (AttachmentState.NOT_SEEN, AttachmentState.UNKNOWN)


def read_snapshot(directories: Directories, network: str = "", *, rules: bool = True) -> Snapshot:
    """Reads files and kernel once, the packet filter only with `rules`; raises CniError(7) for an unknown network."""
    records = records_module.read_records(directories)
    if network and not records.has_network(network):
        raise networks.unknown_network(network, directories.conf_dir, records.files)
    kernel = links.read_kernel(item.netns for item in records.cached if item.netns)
    owned_rules = rules_module.read_rules() if rules else Rules()
    return Snapshot(records, kernel, owned_rules, directories.layers)


def inspect_snapshot(
    directories: Directories, checker: Checker, network: str = "", report: Report = lambda text: None
) -> tuple[NodeInventory, Snapshot]:
    """Returns the node, or only the parts of one network, and the snapshot that it was derived from.

    `checker` runs CHECK for the pods whose interface exists; `report` gets what is being done, for a progress line.
    Raises CniError(7) for an unknown network.
    """
    snapshot = read_snapshot(directories, network)
    leaks = find_leaks(snapshot)
    if leaks:
        snapshot = read_snapshot(directories)
        before = {(leak.kind, leak.description) for leak in leaks}
        leaks = tuple(leak for leak in find_leaks(snapshot) if (leak.kind, leak.description) in before)
    node = NodeInventory(
        tuple(_networks(snapshot)),
        snapshot.pods,
        tuple(_bridges(snapshot)),
        tuple(_host_interfaces(snapshot)),
        leaks,
        tuple(dict.fromkeys((*snapshot.records.unread, *snapshot.kernel.unseen, *snapshot.rules.unseen))),
    )
    return _run_checks(snapshot, _only_network(node, network) if network else node, checker, report), snapshot


def _run_checks(snapshot: Snapshot, node: NodeInventory, checker: Checker, report: Report) -> NodeInventory:
    """Runs CHECK for each pod whose interface exists, and returns the node with the resulting states."""
    known = {(item.network_name, item.attachment): item for item in snapshot.records.cached}
    end = time.monotonic() + LIMIT_S
    pods, unseen = [], dict[str, int]()
    for number, pod in enumerate(node.pods):
        if pod.state is AttachmentState.OK:
            report(f"checking attachment {number + 1} of {len(node.pods)}")
            late = time.monotonic() > end
            verdict = CheckOutcome(unseen="time was up") if late else checker.check(known[pod.network, pod.attachment])
            pods.append(_with_verdict(pod, verdict))
        else:
            verdict = CheckOutcome(unseen=NETNS_NOT_VISIBLE if pod.state in _HIDDEN else "")
            pods.append(pod)
        if verdict.unseen:
            unseen[verdict.unseen] = unseen.get(verdict.unseen, 0) + 1
    texts = (f"CHECK of {plural(number, 'attachment')}: {reason}" for reason, number in unseen.items())
    return replace(node, pods=tuple(pods), unseen=(*node.unseen, *texts))


def _with_verdict(pod: Pod, verdict: CheckOutcome) -> Pod:
    if verdict.failures:
        problems = tuple(f"{failure.plugin}: {failure.error.msg}" for failure in verdict.failures)
        ports = pod.host_ports
        if any(failure.plugin == "portmap" for failure in verdict.failures):
            # The rule that exists may cover one IP version only, or follow another pod's rule for the same port.
            ports = tuple(replace(port, confirmed=None) if port.confirmed else port for port in ports)
        return replace(pod, state=AttachmentState.FAILED, problems=problems, host_ports=ports)
    return replace(pod, state=AttachmentState.NOT_CHECKED) if verdict.skipped or verdict.unseen else pod


def _only_network(node: NodeInventory, network: str) -> NodeInventory:
    selected = tuple(item for item in node.networks if item.name == network)
    names = {name for item in selected for name in item.bridges}
    return replace(
        node,
        networks=selected,
        pods=tuple(item for item in node.pods if item.network == network),
        bridges=tuple(item for item in node.bridges if item.name in names),
        leaks=tuple(item for item in node.leaks if item.network == network),
    )


def _networks(snapshot: Snapshot) -> Iterable[NodeNetwork]:
    counts: dict[str, int] = {}
    for pod in snapshot.pods:
        counts[pod.network] = counts.get(pod.network, 0) + 1
    for file in networks.with_delegates(snapshot.records.files):
        yield _from_file(snapshot, file, counts)
    rest = [
        *(pod.network for pod in snapshot.pods),
        *(pool.network for pool in snapshot.records.pools if pool.reservations),
    ]
    for name in dict.fromkeys(rest):
        if name not in snapshot.records.networks:
            used = next(iter(snapshot.records.configurations.get(name, ())), None)
            known = [item for item in snapshot.records.cached if item.network_name == name]
            is_known = name in snapshot.records.begun or (known and not known[0].needs_file)
            yield NodeNetwork(
                name,
                "",
                tuple(str(plugin["type"]) for plugin in used.plugins) if used else (),
                bridge_names(used, snapshot.kernel),
                tuple(_ranges(snapshot.records, name)),
                counts.get(name, 0),
                "" if is_known else "no file in net.d",
            )


def _from_file(snapshot: Snapshot, file: NetworkFile, counts: dict[str, int]) -> NodeNetwork:
    if file.network is None:
        return NodeNetwork("", file.path, problem=file.problem.msg if file.problem else "cannot be used")
    name = file.network.name
    types = tuple(str(plugin["type"]) for plugin in file.network.plugins)
    bridges = bridge_names(file.network, snapshot.kernel)
    if snapshot.records.networks[name] is not file.network:
        return NodeNetwork(name, file.path, types, bridges, problem="another file has this name first")
    ranges = tuple(_ranges(snapshot.records, name))
    return NodeNetwork(name, file.path, types, bridges, ranges, counts.get(name, 0))


def _ranges(records: Records, network: str) -> Iterable[RangeUsage]:
    for pool in records.pools:
        if pool.network == network:
            for number, range_set in enumerate(pool.range_sets):
                yield RangeUsage(pool.data_dir, number, str(range_set), range_set.size, pool.in_use(range_set))


def _bridges(snapshot: Snapshot) -> Iterable[HostInterface]:
    configurations = (one for known in snapshot.records.configurations.values() for one in known)
    names = {name for network in configurations for name in bridge_names(network, snapshot.kernel)}
    for link in snapshot.kernel.links:
        if link.kind == "bridge" and link.name in names:
            ports = tuple(port.name for port in snapshot.kernel.links if port.master == link.index)
            yield HostInterface(link.name, _addresses(snapshot, link), ports)


def _host_interfaces(snapshot: Snapshot) -> Iterable[HostInterface]:
    """Yields the host's interfaces that have addresses, without host veths and bridges of pods."""
    names = {item.name for item in _bridges(snapshot)}
    for link in snapshot.kernel.links:
        addresses = _addresses(snapshot, link)
        is_host_end = link.kind in _NO_ADDRESS and link.iflink_nsid is not None
        if addresses and link.name not in names and not link.flags & IFF_LOOPBACK and not is_host_end:
            yield HostInterface(link.name, addresses)


def _addresses(snapshot: Snapshot, link: Link) -> tuple[str, ...]:
    addresses: Iterable[Cidr] = snapshot.kernel.addresses.get(link.index, ())
    return tuple(str(item) for item in addresses if not item.ip.is_link_local)
