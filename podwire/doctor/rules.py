"""Checks the packet filter for rules and policies that take the pods' packets: of any program, in any table.

Doctor predicts what the rules do to packets of the pods (probes.py). A rule or a policy is a problem only if it
certainly drops all packets of one kind; what may be intended is a note (culprits.py). No command deletes a rule of
others or changes a policy; some accept the lost packets (accepting.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import cached_property

from cni.errors import CniError
from kernel.netfilter import nfqueue
from kernel.netfilter.ruleset import FAMILY_NAMES, FilterRule
from kernel.sockets_table import list_listeners
from podwire.doctor import probes
from podwire.doctor.accepting import accept_commands
from podwire.doctor.attachments import rules_of
from podwire.doctor.culprits import Culprit, is_iptables, look, owner_of_event
from podwire.doctor.finding import Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.node import CheckedNode
from podwire.doctor.pods import host_addresses
from podwire.doctor.probes import Happening, Prediction
from podwire.doctor.shell_command import ShellCommand
from podwire.networks import Network
from podwire.node.programs import find_program, get_output_lines
from podwire.node.rule_owners import ADMINISTRATOR, PODWIRE
from podwire.output import plural
from podwire.predictions.conditions import conditions_of
from podwire.predictions.evaluation import ENDS, FORWARD, Fate, PacketEvent
from podwire.predictions.verdicts import RuleAction

_GROUP = "packet filter"
LEGACY = "iptables-legacy"  # a value of `Finding.objects`
_FEW_PORTS = 1000  # so many connections to one server can be open at once
_WORDS = {
    "drop": "drops",
    "reject": "rejects",
    "queue": "queues for a program that is not running (NFQUEUE)",
    "expire": "sets the TTL to 1 of",
    "dnat": "sends elsewhere",
    "redirect": "redirects to this node",
    "snat": "changes the source of",
    "masquerade": "changes the source of",
    "untrack": "excludes from connection tracking",
    "zone": "puts into another zone of connection tracking",
    "mss": "limits the segments (MSS) of",
    "accept": "accepts, before podwire's rule,",
}

_DROPS = Fault(
    "rule-drops",
    Severity.PROBLEM,
    "a rule that is not podwire's drops all packets of one kind (to other machines, replies, ...) of all pods: in a "
    "table of any family, of iptables-nft, iptables-legacy or nftables",
)
_RESTRICTS = Fault(
    "rule-restricts",
    Severity.NOTE,
    "a rule or a policy that is not podwire's drops some packets of the pods, and that may be intended: it names "
    "addresses, ports, protocols, states, marks, sets, rates or one pod's interface, or earlier rules accept others; "
    "or it is of a policy engine, or in a chain for the administrator's rules",
)
_SOME = Fault(
    "rule-drops-some",
    Severity.WARNING,
    "a rule that is not podwire's drops some of the pods' packets at random",
)
_POLICY = Fault(
    "forward-drop",
    Severity.PROBLEM,
    "the policy of a chain drops the pods' packets, and no rule accepts them. Docker, ufw and hand-written rule sets "
    "do that",
)
_PERHAPS = Fault(
    "forward-policy",
    Severity.NOTE,
    "a rule or a policy drops the pods' packets, unless an earlier rule accepts them; doctor cannot predict that, "
    "because it depends on a mark, a set of ipset, or a match that doctor does not read",
)
_CLOSED = Fault(
    "node-closed",
    Severity.NOTE,
    "the host's firewall drops new connections from the pods to the host itself. Usual with ufw and firewalld",
)
_NAT = Fault(
    "nat-before-podwire",
    Severity.PROBLEM,
    "a rule that is not podwire's changes the destination of packets to a published port, or of what pods send: they "
    "reach something else. A note, if the rule names what it is for; nothing, if a process listens at the new port",
)
_SOURCE = Fault(
    "source-rewritten",
    Severity.PROBLEM,
    "a rule that is not podwire's changes the source of the pods' packets to an address that this host does not have; "
    "or, a note, of packets to published ports, so that the pods do not see their clients' addresses",
)
_FEW = Fault(
    "few-source-ports",
    Severity.WARNING,
    "a rule masquerades the pods' packets with few source ports: the pods can open few connections to one server",
)
_BYPASSED = Fault(
    "nat-bypassed",
    Severity.PROBLEM,
    "a rule that is not podwire's accepts packets in a chain of nat before podwire's rule: they are not masqueraded, "
    "or not forwarded to the published port. A note, if it names destinations: machines there must know the pods",
)
_UNTRACKED = Fault(
    "not-tracked",
    Severity.PROBLEM,
    "a rule excludes packets of the pods from connection tracking (NOTRACK), or moves them to another zone: "
    "masquerading and host ports do not work for them, and stateful rules drop them",
)
_SEGMENTS = Fault(
    "segments-too-small",
    Severity.WARNING,
    "a rule limits the TCP segments of the pods' connections to a few bytes (TCPMSS): they are very slow, or hang",
)


def _check(node: CheckedNode) -> Iterator[Finding]:
    if not any(node.list_attached(item) for item in node.interfaces):
        return
    prediction, programs = Prediction(node), _Programs()
    culprits: dict[object, Culprit] = {}
    for one in prediction.run():
        event, network = one.event, one.pod.item.network.name
        if not _is_relevant(node, programs, one):
            continue
        place = event.chain.place, event.rule.handle if event.rule else -1, event.fate, network
        if place not in culprits:
            culprits[place] = Culprit(event, node.ruleset, prediction.pods[network])
        culprits[place].add(one)
    findings = [_finding(node, culprit, prediction.uplinks) for culprit in culprits.values()]
    findings.sort(key=lambda one: list(Severity).index(one.severity))
    yield from findings
    if not any(one.severity is not Severity.NOTE for one in findings):
        text = f"{plural(len(node.ruleset.chains), 'chain')} read: no rule or policy drops or diverts the pods' packets"
        yield ok_finding("rules", "", text)


def _is_relevant(node: CheckedNode, programs: _Programs, one: Happening) -> bool:
    """Returns whether an event is another program's and not meant for the pods' packets."""
    event = one.event
    if owner_of_event(event) == PODWIRE:
        return False
    kind = event.action.kind
    if kind == "queue" and event.action.port in programs.queues:
        return False
    if kind in ENDS:
        return True
    if event.fate is not Fate.CERTAIN and kind != "accept":
        return False
    if kind in ("untrack", "zone", "mss"):
        return one.label in (probes.TO_OTHERS, probes.TO_LAN, probes.PUBLISHED)
    if kind in ("dnat", "redirect"):
        return _takes_away(programs, one)
    if kind in ("snat", "masquerade"):
        return _spoils_source(node, one)
    return _bypasses(one)


def _takes_away(programs: _Programs, one: Happening) -> bool:
    action = one.event.action
    if one.label in (probes.PUBLISHED, probes.LOCALLY):
        return action.address not in one.pod.addresses
    is_proxied = action.kind == "redirect" and (one.event.packet.protocol, action.port) in programs.ports
    return one.label in (probes.TO_OTHERS, probes.TO_LAN, probes.TO_NODE) and not is_proxied


def _spoils_source(node: CheckedNode, one: Happening) -> bool:
    """Returns whether a rule sets a source address that gets no answers, or leaves few source ports."""
    action = one.event.action
    if one.label in (probes.TO_OTHERS, probes.TO_LAN):
        is_foreign = action.address is not None and action.address not in host_addresses(node)
        return (action.kind == "snat" and is_foreign) or _has_few_ports(action)
    return one.label == probes.PUBLISHED and one.event.rule is not None


def _has_few_ports(action: RuleAction) -> bool:
    return 0 < action.ports < _FEW_PORTS


def _bypasses(one: Happening) -> bool:
    if one.label in (probes.TO_OTHERS, probes.TO_LAN):
        return one.event.base.hook != 0 and one.pod.item.masquerades
    return one.label in (probes.PUBLISHED, probes.LOCALLY) and one.event.base.hook in (0, 3)


class _Programs:
    """The programs of the host that receive packets; read when a rule passes packets to one."""

    @cached_property
    def queues(self) -> frozenset[int]:
        """The queues (NFQUEUE) that a program reads."""
        return nfqueue.list_queues()

    @cached_property
    def ports(self) -> frozenset[tuple[int, int]]:
        """Protocol and port of the listening sockets."""
        return frozenset((one.protocol, one.port) for one in list_listeners({6, 17}))


def _finding(node: CheckedNode, culprit: Culprit, uplinks: list[str]) -> Finding:
    event, item = culprit.event, culprit.item
    fault = _fault(culprit)
    text = f"{culprit.place} {_what(event)} packets {_which(culprit)}{_quotation(culprit)}"
    severity = Severity.NOTE if _is_note(culprit, fault) else fault.severity
    may_accept = fault in (_DROPS, _POLICY) and event.action.kind in ("drop", "reject")
    commands = accept_commands(culprit, uplinks) if may_accept else []
    if severity is Severity.NOTE:
        return fault.finding(item.network.name, text, _advice(culprit, fault), severity=severity)
    return fault.finding(
        item.network.name,
        text,
        ShellCommand(" && ".join(commands)) if commands else _advice(culprit, fault),
        advice=_lasting(culprit) if commands else "",
        objects=_objects(culprit),
        behind=_behind(culprit),
    )


def _is_note(culprit: Culprit, fault: Fault) -> bool:
    """Returns whether a fault that is mostly a problem may be intended here."""
    if fault is _SOURCE:
        return not {probes.TO_OTHERS, probes.TO_LAN} & set(culprit.labels)
    is_about_ports = bool({probes.PUBLISHED, probes.LOCALLY} & set(culprit.labels))
    if fault is _BYPASSED:
        return not culprit.lost and not is_about_ports
    if fault is _NAT and culprit.event.action.kind == "dnat":
        return culprit.conditions.has_others and not is_about_ports
    return False


def _behind(culprit: Culprit) -> tuple[str, ...]:
    """Returns the network's own rules, if they accept the packets: before iptables' policy, in firewalld's zone."""
    is_policy = culprit.event.rule is None and is_iptables(culprit.chain, culprit.neighbours)
    is_shared = is_policy or culprit.owner == "firewalld"
    has_firewall = "firewall" in culprit.item.network.kinds
    return (rules_of(culprit.item.network.name),) if is_shared and has_firewall else ()


def _objects(culprit: Culprit) -> tuple[str, ...]:
    return (LEGACY,) if culprit.chain.tool else ()


def _fault(culprit: Culprit) -> Fault:
    event = culprit.event
    kind = event.action.kind
    if kind in ("dnat", "redirect"):
        return _NAT
    if kind in ("snat", "masquerade"):
        return _FEW if _has_few_ports(event.action) else _SOURCE
    if kind == "mss":
        return _SEGMENTS
    if kind not in ENDS:
        return _UNTRACKED if kind in ("untrack", "zone") else _BYPASSED
    if set(culprit.labels) == {probes.TO_NODE}:
        return _CLOSED
    if event.fate is Fate.PERHAPS:
        return _PERHAPS
    if event.fate is Fate.PARTLY:
        return _SOME if culprit.conditions.is_random else _RESTRICTS
    if {one.label for one in culprit.lost} <= {probes.BETWEEN}:
        return _RESTRICTS
    return _DROPS if event.rule else _POLICY


def _what(event: PacketEvent) -> str:
    word = _WORDS.get(event.action.kind, event.action.kind)
    if event.fate is Fate.PARTLY:
        word += " some of the"
    if event.action.kind == "dnat" and event.action.address:
        word = f"sends to {event.action.address}"
    if _has_few_ports(event.action):
        word = f"leaves {plural(event.action.ports, 'source port')} to"
    elif event.action.kind == "snat" and event.action.address:
        word = f"sets {event.action.address} as the source of"
    return f"{word}{', unless an earlier rule accepts them,' if event.fate is Fate.PERHAPS else ''}"


def _which(culprit: Culprit) -> str:
    parts = []
    for label in culprit.labels[:3]:
        services = list(dict.fromkeys(one.service for one in culprit.happenings if one.label == label))
        limited = label in (probes.PUBLISHED, probes.LOCALLY) or (
            label in (probes.TO_OTHERS, probes.REPLIES) and not {"tcp 443", "udp 53", "ping"} <= set(services)
        )
        names = ", ".join(service for service in services[:4] if service)
        parts.append(f"{label} ({names})" if limited and names else label)
    return ", ".join(parts)


def _quotation(culprit: Culprit) -> str:
    """Returns the rule as its program lists it, and the last jump to it that says which packets; "" for a policy."""
    rules = culprit.event.rules
    jumps = [one for one in rules[:-1] if conditions_of(one).are_narrow][-1:] if culprit.event.rule else []
    texts = [text for one in (*rules[-1:], *jumps) if (text := _text_of(one))]
    return f": {', after '.join(texts)}" if texts and culprit.event.rule else ""


def _text_of(rule: FilterRule) -> str:
    """Returns a rule as its program lists it, "" if that cannot be read."""
    chain = rule.chain
    if rule.words:
        return shlex.join(rule.words)
    if program := find_program("nft"):
        try:
            lines = get_output_lines(
                program, "-a", "list", "chain", FAMILY_NAMES[chain.family], chain.table, chain.name
            )
        except CniError:
            return ""
        end = f" # handle {rule.handle}"
        return next((line.removesuffix(end).strip() for line in lines if line.endswith(end)), "")
    return ""


def _advice(culprit: Culprit, fault: Fault) -> str:
    """Returns the advice where there is no command: where the rule can be changed, and the command that lists it."""
    owner, subject = culprit.owner, "the rule" if culprit.event.rule else "the policy"
    if fault is _PERHAPS or fault is _CLOSED:
        need = "have no connection" if fault is _PERHAPS else "need a service of this node"
        return f"if pods {need}, list the rules: {look(culprit)}"
    if fault is _POLICY or owner == "firewalld":
        plugin = _add_firewall(culprit.item.network)
        return f"{plugin}, or allow the pods in {owner or 'this chain'}; to list it: {look(culprit)}"
    if culprit.event.action.kind == "queue":
        return f"start the program that reads queue {culprit.event.action.port}; to list it: {look(culprit)}"
    is_program = owner not in ("", ADMINISTRATOR)
    place = f"in the settings of {owner}" if is_program else "in the program or script that created it"
    return f"if {subject} should not apply to pods, change it {place}; to list it: {look(culprit)}"


def _lasting(culprit: Culprit) -> str:
    """Returns the advice that makes an accept rule permanent."""
    item = culprit.item
    has_firewall = "firewall" in item.network.kinds
    if has_firewall or not item.routed or culprit.event.base.hook != FORWARD:
        return f"it has effect until {culprit.owner or 'the host'} loads its rules again"
    return f"to make it permanent, {_add_firewall(item.network)}"


def _add_firewall(network: Network) -> str:
    """Returns the advice for a chain that drops pods' packets; the plugin accepts none that come for a host port."""
    text = f'add {{"type": "firewall"}} to "plugins" in {network.path}'
    if "portmap" not in network.kinds:
        return text
    return f'{text} (and for host ports a rule: "Making a fix permanent" in docs/troubleshooting.md)'


CHECKS = (
    Check(
        _GROUP,
        "rules",
        "no pod is running",
        _check,
        (_DROPS, _POLICY, _SOME, _RESTRICTS, _PERHAPS, _CLOSED, _NAT, _SOURCE, _FEW, _BYPASSED, _UNTRACKED, _SEGMENTS),
    ),
)
