"""The packets that `podwire doctor --fix` sends before and after a command, as `podwire test` sends them.

They are those of the paths of a few pods: of the finding's, of the next one of its network, of one of each other
network. Beside the paths that the configuration intends there are those between each two of the pods, and to a port of
the node: a command must not open one that was closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import permutations

from cni.errors import CniError
from kernel.errors import KernelError
from kernel.netfilter.packet import LOCAL, TCP, UNICAST, Packet
from kernel.netfilter.ruleset import FilterChain, FilterRule, Ruleset, read_ruleset
from podwire.doctor.finding import Finding
from podwire.node.inspection import read_snapshot
from podwire.node.legacy_filter import with_legacy
from podwire.node.model import Pod
from podwire.node.records import Directories
from podwire.predictions.evaluation import ENDS, FORWARD, INPUT, Fate, traverse
from podwire.probe import paths
from podwire.probe.paths import DATAGRAM, DUPLICATE, STREAM, Path
from podwire.probe.run import PathState, send_packets
from podwire.trace import outside
from podwire.trace.topology import Topology, name_of
from process.values import dataclass, field

_MOST_PODS = 4
_TIMEOUT_S = 0.7
_TRIES = 2  # a packet that is lost once may be the first one after a change
_ANY_PORT = 33001
TO_NODE = "pod-to-node-port"

RuleKey = tuple[object, ...]


@dataclass(frozen=True)
class Sent:
    """A path whose packets were sent: `passes` says whether they arrived.

    `is_meant`: the configuration intends it; `is_isolated`: the configuration closes it. `closed_by` are the rules that
    the prediction says to drop packets between pods, or to the node, with their names.
    """

    kind: str
    passes: bool
    is_meant: bool
    is_isolated: bool = False
    closed_by: tuple[tuple[RuleKey, str], ...] = ()


@dataclass(frozen=True)
class Packets:
    """The packets that were sent, by the text of their path; `unsent` is the reason why none were."""

    sent: dict[str, Sent] = field(default_factory=dict)
    rules: frozenset[RuleKey] = frozenset()
    unsent: str = ""

    @property
    def lost(self) -> list[str]:
        """The paths that the configuration intends and that lose packets."""
        return [text for text, one in self.sent.items() if one.is_meant and not one.passes]

    @property
    def meant(self) -> list[str]:
        """The paths that the configuration intends."""
        return [text for text, one in self.sent.items() if one.is_meant]


def send(directories: Directories, finding: Finding) -> Packets:
    """Sends the packets of a finding's pods; a node that cannot be read is the reason why none were sent."""
    try:
        snapshot = read_snapshot(directories, rules=False)
        with Topology(snapshot) as topology, ExitStack() as stack:
            pods = _choose(topology, finding)
            if not pods:
                return Packets(unsent="no pod is running")
            outer = None
            with suppress(CniError, KernelError):  # a path less than with it
                outer = stack.enter_context(outside.joined(topology.node))
            return _send_all(topology, pods, outer)
    except (CniError, KernelError, OSError) as error:
        return Packets(unsent=str(error))


def _send_all(topology: Topology, pods: list[Pod], outer: outside.ExternalHost | None) -> Packets:
    intended = [path for pod in pods for path in paths.list_paths(topology, pod, outer, ())]
    passing = _send(topology, [path for path in intended if path.kind != DUPLICATE])
    known = {_text(path) for path in passing}
    others = _send(topology, [path for path in _boundaries(topology, pods) if _text(path) not in known])
    ruleset = with_legacy(read_ruleset())
    sent = {}
    for path, passes in {**passing, **others}.items():
        is_boundary = path.name in ("pod-to-pod", TO_NODE)
        closed_by = tuple(_closing(topology, ruleset, path)) if is_boundary and not passes else ()
        is_meant = path in passing
        sent[_text(path)] = Sent(path.name, passes, is_meant, not is_meant and _is_isolated(topology, path), closed_by)
    return Packets(sent, frozenset(_key(chain, rule) for chain, rule in _all_rules(ruleset)))


def _choose(topology: Topology, finding: Finding) -> list[Pod]:
    """Returns the finding's pods, the others of their networks, then one of each other network, up to a limit."""
    keys = {f"{pod.network} {pod.attachment.container_id} {pod.attachment.ifname}": pod for pod in topology.pods}
    words = finding.subject.replace(":", " ").split()
    named = [pod for key, pod in keys.items() if key in finding.objects or name_of(pod) in words]
    networks = {pod.network for pod in named} or {pod.network for pod in topology.pods if pod.network in words}
    mine = [pod for pod in topology.pods if pod.network in networks]
    firsts = {pod.network: pod for pod in reversed(topology.pods)}
    others = [pod for network, pod in firsts.items() if network not in networks]
    chosen = [*dict.fromkeys([*named, *mine])][: max(2, _MOST_PODS - len(others))]
    return [*dict.fromkeys([*chosen, *others, *topology.pods])][:_MOST_PODS]


def _send(topology: Topology, desired: list[Path]) -> dict[Path, bool]:
    """Sends packets, again those that were lost; returns whether those of each path arrived."""
    passing = dict.fromkeys(desired, False)
    for _ in range(_TRIES):
        rest = [path for path, passes in passing.items() if not passes]
        for result in send_packets(topology, rest, _TIMEOUT_S) if rest else ():
            passing[result.path] = result.state in (PathState.OK, PathState.SLOW)
    return passing


def _boundaries(topology: Topology, pods: list[Pod]) -> Iterator[Path]:
    """Yields the paths between each two pods, and to a port of the node."""
    for version in (4, 6):
        for one, other in permutations(pods, 2):
            source, target = topology.place(one), topology.place(other)
            local, remote = source.address(version), target.address(version)
            if local and remote and one.attachment.container_id != other.attachment.container_id:
                for kind in (STREAM, DATAGRAM):
                    yield Path(one, "pod-to-pod", kind, source, local, remote, target=target)
        node_address = topology.node_address(version)
        for pod in pods:
            local = topology.place(pod).address(version)
            if local and node_address:
                for kind in (STREAM, DATAGRAM):
                    yield Path(pod, TO_NODE, kind, topology.place(pod), local, node_address, target=topology.node)


def _is_isolated(topology: Topology, path: Path) -> bool:
    other = topology.pod_of(path.destination)
    if path.name != "pod-to-pod" or other is None:
        return False
    same = other.network == path.pod.network
    return paths.is_isolated(topology.cached(path.pod), topology.cached(other), same=same)


def _closing(topology: Topology, ruleset: Ruleset, path: Path) -> Iterator[tuple[RuleKey, str]]:
    """Yields the rules that drop a packet between two pods, or to the node, or may; to the node also policies."""
    other = topology.pod_of(path.destination)
    iif, oif = (pod.bridge or pod.host_interface if pod else "" for pod in (path.pod, other))
    packet = Packet(
        path.destination.version, path.source_address, path.destination, TCP, None, _ANY_PORT, iif=iif, oif=oif,
        destination_type=UNICAST if other else LOCAL,
    )  # fmt: skip
    for event in traverse(ruleset, packet, FORWARD if other else INPUT).events:
        if event.action.kind in ENDS and event.fate is not Fate.PASSES and (event.rule or not other):
            number = f"{'rule' if event.chain.tool else 'handle'} {event.rule.handle}" if event.rule else "the policy"
            name = f"{number} of chain {event.chain}"
            yield _key(event.chain, event.rule), name


def _all_rules(ruleset: Ruleset) -> Iterator[tuple[FilterChain, FilterRule]]:
    for chain in ruleset.chains:
        for rule in ruleset.rules.get(chain.place, ()):
            yield chain, rule


def _key(chain: FilterChain, rule: FilterRule | None) -> RuleKey:
    """Returns what identifies a rule; iptables-legacy numbers its rules, which changes."""
    if rule is None:
        return chain.place, "policy"
    return chain.place, tuple(rule.words) if chain.tool else rule.handle


def _text(path: Path) -> str:
    return f"{name_of(path.pod)} {path.title} {path.way}"
