"""Tests the paths of pods: sends packets on all of them in parallel, then traces those that lost one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from shlex import quote
from typing import NamedTuple

from cni.address import Address
from cni.errors import CniError
from kernel import neighbour
from kernel.netfilter import conntrack_cleanup
from kernel.packet_tap import PROTOCOLS
from podwire.node.model import Pod, format_rate
from podwire.probe import limits, paths
from podwire.probe.attempt import Attempt, OwnerSearch, run_all
from podwire.probe.paths import DATAGRAM, DUPLICATE, QUERY, STREAM, Path
from podwire.probe.policies import PolicyQuestions, is_unanswered
from podwire.probe.transfer import PortInUseError, Stage, Transfer
from podwire.trace import judge, network_policy
from podwire.trace import run as tracing
from podwire.trace.destination import source_address
from podwire.trace.exchange import Exchange, Flow
from podwire.trace.outside import ExternalHost
from podwire.trace.place import EXTERNAL, Place
from podwire.trace.suspect import Suspect
from podwire.trace.topology import PodPlace, Topology, name_of

_SLOW_S = 0.2  # a path on one node takes less than a millisecond
_PODS_IN_PARALLEL = 8
_PATHS_IN_PARALLEL = 150  # each has up to five descriptors, and a process may have 1024
_TRACES_MAX = 8
_OTHER_UPLINK = "an accept rule that names an uplink does not match the outside of this test"
_PORT_MIN, _PORTS = 33000, 27000  # for datagrams, in the target


class PathState(StrEnum):
    """The state of a path."""

    OK = "ok"
    LOST = "lost"
    DENIED = "denied"  # by network policies
    SLOW = "slow"
    WRONG = "wrong"  # a limit that does not hold

    @property
    def is_bad(self) -> bool:
        """Whether the exit status is 1."""
        return self in (PathState.LOST, PathState.WRONG)


class PathResult(NamedTuple):
    """The result of a path: its state, the time of the answer in milliseconds, what is special, the first suspect."""

    path: Path
    state: PathState
    ms: float | None = None
    detail: str = ""
    suspect: Suspect | None = None

    def to_json(self) -> dict[str, object]:
        """Returns the result as a JSON object."""
        return {
            "pod": name_of(self.path.pod),
            "network": self.path.pod.network,
            "path": self.path.name,
            "protocol": self.path.kind,
            "ipVersion": self.path.destination.version,
            "source": str(self.path.source_address),
            "destination": str(self.path.destination),
            "port": self.path.port,
            "state": str(self.state),
            "ms": None if self.ms is None else round(self.ms, 3),
            "detail": self.detail,
            "suspect": self.suspect.to_json() if self.suspect else None,
        }


def test_pods(
    topology: Topology,
    pods: Sequence[Pod],
    outer: ExternalHost | None,
    addresses: tuple[Address, ...],
    timeout_s: float,
    unseen: list[str],
) -> Iterator[PathResult]:
    """Yields the results of all paths of pods, in order; adds to `unseen` what could not be observed."""
    causes = _Causes({}, PolicyQuestions())
    hops: set[object] = set()  # tested once
    for start in range(0, len(pods), _PODS_IN_PARALLEL):
        desired: list[Path] = []
        for pod in pods[start : start + _PODS_IN_PARALLEL]:
            try:
                new = {(path.link, path.destination): path for path in paths.list_next_hops(topology, pod)}
                rule = paths.find_bypass(topology, pod, outer) if outer else ""
                if rule and (text := _describe_bypass(rule)) not in unseen:
                    unseen.append(text)
                desired += paths.list_paths(topology, pod, None if rule else outer, addresses)
                desired += [path for key, path in new.items() if key not in hops]
                hops |= new.keys()
            except CniError as error:
                unseen.append(f"the paths of {name_of(pod)}: {error.msg}")
        with _neighbours_restored(desired):
            for result, ended in _test(topology, desired, timeout_s):
                if result.state is PathState.LOST and result.suspect is None:
                    yield _explain(topology, result, ended, causes, unseen)
                elif result.state is PathState.OK and (stale := tracing.find_stale(topology, result.path.flow)):
                    yield result._replace(state=PathState.LOST, suspect=stale, detail="for some clients")
                else:
                    yield result


def _describe_bypass(rule: str) -> str:
    return (
        f'the ways to and from the outside: the policy rule "{rule}" sends the pods\' packets to an uplink, where this '
        "test has no machine: name one with --address"
    )


def send_packets(topology: Topology, desired: Sequence[Path], timeout_s: float) -> list[PathResult]:
    """Sends the packets of paths in parallel; returns the results in the same order, without suspects."""
    with _neighbours_restored(desired):
        return [result for result, _ in _test(topology, desired, timeout_s)]


@contextmanager
def _neighbours_restored(desired: Sequence[Path]) -> Iterator[None]:
    """Deletes the neighbour entries that the block creates.

    The kernel has one table for all namespaces, 1024 entries by default: the test of all pods of a node could fill it.
    """
    places = {place for path in desired for place in (path.source, path.target) if place and place.kind != EXTERNAL}
    before = {place: _list_neighbours(place) for place in places}
    try:
        yield
    finally:
        for place, known in before.items():
            with suppress(CniError):
                entries = _list_neighbours(place) - known
                links = [(place.link_of(index), address) for index, address in entries]
                place.socket.send(*(neighbour.delete_request(link, address) for link, address in links if link))


def _list_neighbours(place: Place) -> set[tuple[int, Address]]:
    entries = neighbour.list_entries(place.socket)
    return {
        (one.ifindex, one.address) for one in entries if not (one.is_proxy or one.is_permanent or one.is_without_arp)
    }


def test_limits(topology: Topology, pods: Sequence[Pod]) -> Iterator[PathResult]:
    """Yields whether the rate limits of pods hold; each takes some seconds, one after the other."""
    for pod in pods:
        place, cached = topology.place(pod), topology.cached(pod)
        local = place.address(4) or place.address(6)
        source = source_address(topology.node, local) if local else None
        if local is None or source is None:
            continue
        for direction in ("receives", "sends"):
            limit = limits.configured(cached, direction)
            if limit is None:
                continue
            path = Path(pod, f"limit-{direction}", STREAM, topology.node, source, local, target=place)
            yield _limit_result(path, topology, place, direction, limit)


def _limit_result(
    path: Path, topology: Topology, place: PodPlace, direction: str, rate_and_burst: tuple[int, int]
) -> PathResult:
    limit, burst = rate_and_burst
    try:
        measured = limits.measure(topology.node, place, path.destination, direction, limit, burst)
    except OSError as error:
        return PathResult(path, PathState.LOST, None, f"no connection: {error.strerror or error}")
    if measured.skipped:
        return PathResult(path, PathState.OK, None, measured.skipped)
    text = f"{format_rate(int(measured.rate))} after the burst; the limit is {format_rate(limit)}"
    if measured.exceeds(limit):
        command = f"tc -s qdisc show dev {path.pod.host_interface}"
        suspect = Suspect(
            "limit", topology.node.name, f"the limit does not hold: {text}", path.pod.host_interface, look=command
        )
        return PathResult(path, PathState.WRONG, None, text, suspect)
    return PathResult(path, PathState.OK, None, text)


def _test(topology: Topology, desired: Sequence[Path], timeout_s: float) -> list[tuple[PathResult, Attempt | None]]:
    """Runs attempts for all paths in parallel; returns their results."""
    results: dict[int, tuple[PathResult, Attempt | None]] = {}
    for numbers in _rounds(desired):
        with ExitStack() as stack:
            attempts = {number: _open(desired[number], timeout_s, stack) for number in numbers}
            run_all([attempt for attempt in attempts.values() if not isinstance(attempt, PathResult)])
            for number, attempt in attempts.items():
                if isinstance(attempt, PathResult):
                    results[number] = attempt, None
                else:
                    results[number] = _result(desired[number], attempt), attempt
                    _forget(topology, desired[number], attempt)
    return [results[number] for number in range(len(desired))]


def _rounds(desired: Sequence[Path]) -> list[list[int]]:
    """Divides paths, by their positions, into rounds: no two paths of a round listen at the same port of a target."""
    rounds: list[tuple[list[int], set[object]]] = []
    for number, path in enumerate(desired):
        key = (id(path.target), path.kind, path.target_port, path.destination.version) if path.target_port else None
        for numbers, keys in rounds:
            if (key is None or key not in keys) and len(numbers) < _PATHS_IN_PARALLEL:
                break
        else:
            numbers, keys = [], set()
            rounds.append((numbers, keys))
        numbers.append(number)
        keys.add(key)
    return [numbers for numbers, _ in rounds]


def _open(path: Path, timeout_s: float, stack: ExitStack) -> Attempt | PathResult:
    """Opens the sockets of a path's attempt; returns a result if that fails."""
    try:
        return _attempt(path, timeout_s, stack)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            suspect = tracing.missing_address(path.source, path.source_address)
            return PathResult(path, PathState.LOST, None, "cannot send", suspect)
        return PathResult(path, PathState.LOST, None, f"cannot send: {error.strerror}")


def _attempt(path: Path, timeout_s: float, stack: ExitStack) -> Attempt:
    if path.link:
        link = path.source.link(path.link)
        if link is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        sender, limit_s = (None, 0) if path.kind == DUPLICATE else (path.source_address, timeout_s)
        return stack.enter_context(OwnerSearch(path.source, link, path.destination, sender, limit_s))
    if path.kind == STREAM and path.target is not None:
        try:
            return stack.enter_context(
                Transfer(
                    path.source, path.source_address, path.destination, path.target, path.target_port, path.port,
                    timeout_s,
                )
            )  # fmt: skip
        except PortInUseError:
            pass
    flow = path.flow
    if path.kind == DATAGRAM and not flow.port:
        port = _PORT_MIN + int.from_bytes(os.urandom(2), "big") % _PORTS
        flow = flow._replace(port=port, target_port=port)
    taps = path.port != 0 and path.kind != QUERY  # at a published port, the node may answer instead of the pod
    return stack.enter_context(Exchange(flow, taps=taps, tries=3, interval_s=timeout_s / 3))


def _result(path: Path, attempt: Attempt) -> PathResult:
    if isinstance(attempt, Transfer):
        if attempt.stage is Stage.DONE:
            return _in_time(path, attempt.elapsed_s)
        reason = os.strerror(attempt.error) if attempt.error else attempt.stage.value
        return PathResult(path, PathState.LOST, None, reason)
    if isinstance(attempt, OwnerSearch):
        return _duplicate(path, attempt) if path.kind == DUPLICATE else _next_hop(path, attempt)
    if isinstance(attempt, Exchange):
        seen = attempt.finish()
        outcome = judge.outcome_of(seen)
        if not outcome.is_ok:
            return PathResult(
                path, PathState.LOST, None, os.strerror(seen.send_error) if seen.send_error else "no answer"
            )
        detail = "" if outcome is judge.ExchangeOutcome.ANSWERED else outcome.value
        if seen.answered_after_s is None:
            return PathResult(path, PathState.OK, None, detail)
        return _in_time(path, seen.answered_after_s, resent=seen.sent > 1, detail=detail)
    raise TypeError(attempt)


def _in_time(path: Path, elapsed_s: float, *, resent: bool = False, detail: str = "") -> PathResult:
    if resent:
        detail = "answered only after a repetition"
    slow = resent or elapsed_s > _SLOW_S
    return PathResult(path, PathState.SLOW if slow else PathState.OK, elapsed_s * 1000, detail)


def _duplicate(path: Path, search: OwnerSearch) -> PathResult:
    if search.error or not search.other_mac:
        ifname = search.same_place_ifname
        flux = f"ARP flux: the pod's {ifname} answers, too; arp_ignore is 0" if ifname else ""
        return _unless_error(path, search, flux)
    text = f"another machine with the MAC address {search.other_mac} has the address {search.address}"
    suspect = Suspect(
        "duplicate", path.source.name, text, search.other_mac, look=f"ip neighbour | grep {search.other_mac}"
    )
    return PathResult(path, PathState.LOST, None, "the address is used twice", suspect)


def _next_hop(path: Path, search: OwnerSearch) -> PathResult:
    if search.error or search.other_mac:
        return _unless_error(path, search)
    text = f"no machine on {path.link} answers for the gateway {search.address}"
    look = f"ip neighbour show {search.address} dev {quote(path.link)}"
    suspect = Suspect("gateway", path.source.name, text, str(search.address), look=look)
    return PathResult(path, PathState.LOST, None, "no answer", suspect)


def _unless_error(path: Path, search: OwnerSearch, detail: str = "") -> PathResult:
    if search.error:
        return PathResult(path, PathState.LOST, None, f"cannot send: {os.strerror(search.error)}")
    return PathResult(path, PathState.OK, None, detail)


class _Causes(NamedTuple):
    """The results of traces by what was lost, and the questions to podwire-agent."""

    traced: dict[object, PathResult]
    questions: PolicyQuestions


def _explain(
    topology: Topology, result: PathResult, ended: Attempt | None, causes: _Causes, unseen: list[str]
) -> PathResult:
    """Returns a lost path with its cause: the policies that deny it, or the first suspect of a trace.

    TCP and UDP between two addresses are traced once, unless policies drop one of them. After some traces, which take a
    second each, the others are left to the user.
    """
    path = result.path
    if denial := causes.questions.find_denial(_flow(path, ended), ended):
        return result._replace(state=PathState.DENIED, detail=denial)
    key = path.source.name, path.destination, path.target, isinstance(ended, Transfer) and ended.stage
    denied_key = *key, path.kind, path.target_port
    if known := causes.traced.get(key) or causes.traced.get(denied_key):
        return result._replace(state=known.state, suspect=known.suspect)
    if len(causes.traced) >= _TRACES_MAX:
        return result._replace(detail=f"{result.detail}; not traced: {paths.trace_command(path)}")
    outcome = _trace(topology, result, ended, unseen)
    is_dropped_by_policy = outcome.suspect is not None and outcome.suspect.name == network_policy.NAME
    if is_dropped_by_policy and is_unanswered(ended):
        outcome = outcome._replace(state=PathState.DENIED)
    causes.traced[denied_key if is_dropped_by_policy else key] = outcome
    return outcome


def _trace(topology: Topology, result: PathResult, ended: Attempt | None, unseen: list[str]) -> PathResult:
    path, flow = result.path, _flow(result.path, ended)
    if isinstance(ended, Transfer) and ended.stage is not Stage.CONNECT:
        flow = _full_size(path, ended)
    topology.node.forget()
    try:
        trace = tracing.run(topology, flow, tries=1, interval_s=0.3)
    except (CniError, OSError) as error:
        return result._replace(detail=f"{result.detail}; it could not be traced: {error}")
    unseen += (text for text in trace.unseen if text not in unseen)
    if trace.suspect is None and path.kind == QUERY and trace.outcome is not judge.ExchangeOutcome.ANSWERED:
        text = f"packets reach {path.destination} port 53, but no DNS server answers there ({trace.outcome})"
        return result._replace(suspect=Suspect("no-answer", str(path.destination), text, str(path.destination)))
    if trace.suspect is None:
        try:
            lossy = next(judge.obstacle_suspects(topology, flow), None)
        except (CniError, OSError):  # the pod is gone
            lossy = None
        return result._replace(detail=f"{result.detail}; a packet that was sent later arrived", suspect=lossy)
    suspect = trace.suspect
    if suspect.name == "rule" and any(place and place.kind == EXTERNAL for place in (path.source, path.target)):
        suspect = suspect._replace(text=f"{suspect.text}; {_OTHER_UPLINK}")
    return result._replace(suspect=suspect)


def _flow(path: Path, ended: Attempt | None) -> Flow:
    """Returns the flow of a path's packets with the ports that the attempt chose."""
    if isinstance(ended, Transfer):
        return path.flow._replace(port=ended.port, target_port=path.target_port or ended.port)
    return ended.flow if isinstance(ended, Exchange) else path.flow


def _full_size(path: Path, ended: Transfer) -> Flow:
    """Returns the flow of an echo as large as the segments that were lost, to the target itself."""
    overhead = 52 if path.destination.version == 4 else 72  # the headers of IP and TCP, with timestamps
    destination = path.destination
    if isinstance(path.target, PodPlace):
        destination = path.target.address(destination.version) or destination
    flow = path.flow._replace(destination=destination, protocol=PROTOCOLS[destination.version], port=0, target_port=0)
    return flow._replace(size=ended.segment_bytes + overhead)


def _forget(topology: Topology, path: Path, attempt: Attempt) -> None:
    """Deletes the tracked connection of an attempt, so that the test leaves none."""
    if isinstance(attempt, Exchange):
        tracing.forget_flow(topology.node, attempt.seen)
    elif isinstance(attempt, Transfer):
        topology.node.call(lambda: conntrack_cleanup.delete_entries([attempt.tracked]))
