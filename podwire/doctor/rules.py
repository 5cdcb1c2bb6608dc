"""Checks the packet filter for rules and policies that take the pods' packets: of any program, in any table.

Doctor predicts what the rules do to packets of the pods (probes.py). A rule is reported as a problem only if it
certainly ends such a packet; if an earlier rule may accept it, it is a note.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from shlex import quote

from cni.errors import CniError
from kernel.netfilter.evaluation import Event, Fate
from kernel.netfilter.ruleset import FAMILY_NAMES, FilterChain
from podwire.doctor import probes
from podwire.doctor.attachments import rules_of
from podwire.doctor.culprits import Culprit, accept_commands, delete_command, is_iptables, lasting, may_delete
from podwire.doctor.finding import Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.node import Node
from podwire.doctor.probes import Happening, Prediction
from podwire.doctor.run import Run
from podwire.node.programs import find_program, get_output_lines
from podwire.node.rule_owners import PODWIRE, owner_of
from podwire.output import plural

_GROUP = "packet filter"
LEGACY = "iptables-legacy"  # a value of `Finding.objects`
_BUILT_IN = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
_ENDS = ("drop", "reject", "queue", "expire")
_WORDS = {
    "drop": "drops",
    "reject": "rejects",
    "queue": "passes to a program in user space",
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
    "a rule that is not podwire's drops or rejects packets of the pods: in a table of any family, of iptables-nft, "
    "iptables-legacy or nftables",
    "a rule that names the pods, or that was added by hand: delete it; another program's: an accept rule for the pods "
    "before it, or that program's own setting",
)
_SOME = Fault(
    "rule-drops-some",
    Severity.WARNING,
    "a rule that is not podwire's drops some of the pods' packets: at random, above a rate, by length or content",
    "as for `rule-drops`",
)
_POLICY = Fault(
    "forward-drop",
    Severity.PROBLEM,
    "the policy of a chain drops the pods' packets, and no rule accepts them: pods reach only the host and their "
    "bridge. Docker, ufw and hand-written rule sets do that",
    'add {"type": "firewall"} to the network\'s plugins; for running pods: the commands in the finding',
)
_PERHAPS = Fault(
    "forward-policy",
    Severity.NOTE,
    "a rule or a policy drops the pods' packets, unless an earlier rule accepts them, which doctor does not know: it "
    "depends on a mark, a set of ipset, or a match that doctor does not read",
    "inspect it: `nft list table FAMILY TABLE`",
)
_CLOSED = Fault(
    "node-closed",
    Severity.NOTE,
    "the host's firewall drops new connections from the pods to the host itself; pods reach everything else. Usual "
    "with ufw and firewalld",
    "if pods need a service of this node: allow it in the firewall",
)
_NAT = Fault(
    "nat-before-podwire",
    Severity.PROBLEM,
    "a rule that is not podwire's changes the destination of packets to a published port, or of what pods send: they "
    "reach something else",
    "delete the rule, or limit it to the packets that it is for",
)
_SOURCE = Fault(
    "source-rewritten",
    Severity.PROBLEM,
    "a rule that is not podwire's changes the source of the pods' packets to an address that this host does not have, "
    "or of packets to the pods",
    "delete the rule, or limit it to the packets that it is for",
)
_BYPASSED = Fault(
    "nat-bypassed",
    Severity.PROBLEM,
    "a rule that is not podwire's accepts packets in a chain of nat before podwire's rule: they are not masqueraded, "
    "or not forwarded to the published port",
    "delete the rule, or move it behind podwire's",
)
_UNTRACKED = Fault(
    "not-tracked",
    Severity.PROBLEM,
    "a rule excludes packets of the pods from connection tracking (NOTRACK), or moves them to another zone: "
    "masquerading and host ports do not work for them, and stateful rules drop them",
    "delete the rule, or limit it to the packets that it is for",
)
_SEGMENTS = Fault(
    "segments-too-small",
    Severity.WARNING,
    "a rule limits the TCP segments of the pods' connections to a few bytes (TCPMSS): they are very slow, or hang",
    "delete the rule, or use --clamp-mss-to-pmtu",
)


def _check(node: Node) -> Iterator[Finding]:
    if not any(node.has_pods(item.network.name) for item in node.interfaces):
        return
    culprits: dict[object, Culprit] = {}
    for one in Prediction(node).run():
        event = one.event
        if not _is_relevant(node, one):
            continue
        place = event.chain.place, event.rule.handle if event.rule else -1, event.fate, one.pod.item.network.name
        if place not in culprits:
            culprits[place] = Culprit(event, _neighbours(node, event.chain))
        culprits[place].happenings.append(one)
    findings = [_finding(node, culprit) for culprit in culprits.values()]
    findings.sort(key=lambda one: list(Severity).index(one.severity))
    yield from findings
    if not any(one.severity is not Severity.NOTE for one in findings):
        text = f"{plural(len(node.ruleset.chains), 'chain')} read: no rule or policy takes the pods' packets"
        yield ok_finding("rules", "", text)


def _neighbours(node: Node, chain: FilterChain) -> frozenset[str]:
    where = chain.family, chain.table, chain.tool
    return frozenset(one.name for one in node.ruleset.chains if (one.family, one.table, one.tool) == where)


def _is_relevant(node: Node, one: Happening) -> bool:
    """Returns whether an event is another program's and not meant for the pods' packets."""
    event = one.event
    if owner_of(event.chain, event.rule) == PODWIRE:
        return False
    kind = event.action.kind
    if kind in _ENDS:
        return True
    if event.fate is not Fate.CERTAIN and kind != "accept":
        return False
    if kind in ("untrack", "zone", "mss"):
        return one.label in (probes.TO_OTHERS, probes.PUBLISHED)
    if kind in ("dnat", "redirect"):
        return _takes_away(one)
    if kind in ("snat", "masquerade"):
        return _takes_source(node, one)
    return _bypasses(one)


def _takes_away(one: Happening) -> bool:
    if one.label in (probes.PUBLISHED, probes.LOCALLY):
        return one.event.action.address not in one.pod.addresses
    return one.label in (probes.TO_OTHERS, probes.TO_NODE)


def _takes_source(node: Node, one: Happening) -> bool:
    action = one.event.action
    if one.label == probes.TO_OTHERS:
        host_addresses = [each.address.ip for assigned in node.addresses.values() for each in assigned]
        return action.kind == "snat" and action.address is not None and action.address not in host_addresses
    return one.label in (probes.PUBLISHED, probes.FROM_NODE) and one.event.rule is not None


def _bypasses(one: Happening) -> bool:
    if one.label == probes.TO_OTHERS:
        plugins = one.pod.item.network.plugins
        return one.event.chain.hook != 0 and any(plugin.get("ipMasq") is True for plugin in plugins)
    return one.label in (probes.PUBLISHED, probes.LOCALLY) and one.event.chain.hook in (0, 3)


def _finding(node: Node, culprit: Culprit) -> Finding:
    event, item = culprit.event, culprit.item
    fault = _fault(culprit)
    text = f"{_place(culprit)} {_what(event)} packets {_which(culprit)}"
    rule = _text_of(culprit)
    text += f": {rule}" if rule else ""
    if fault is _PERHAPS or fault is _CLOSED:
        return fault.finding(item.network.name, text, _inspect(culprit.chain))
    fix, advice = _fix(node, culprit, fault)
    severity = None
    if fault is _DROPS and _is_narrow(culprit):
        severity = Severity.WARNING
    return fault.finding(
        item.network.name,
        text,
        fix,
        advice=advice,
        severity=severity,
        objects=_objects(culprit),
        behind=_behind(culprit),
    )


def _behind(culprit: Culprit) -> tuple[str, ...]:
    """Returns the network's own rules, if they accept the packets: before iptables' policy, in firewalld's zone."""
    chain, plugins = culprit.chain, culprit.item.network.plugins
    is_policy = culprit.event.rule is None and (chain.tool or is_iptables(chain))
    is_shared = is_policy or owner_of(chain, culprit.event.rule) == "firewalld"
    has_firewall = any(plugin["type"] == "firewall" for plugin in plugins)
    return (rules_of(culprit.item.network.name),) if is_shared and has_firewall else ()


def _objects(culprit: Culprit) -> tuple[str, ...]:
    return (LEGACY,) if culprit.chain.tool and culprit.event.rule is None else ()


def _fault(culprit: Culprit) -> Fault:
    event = culprit.event
    kind = event.action.kind
    if kind in _ENDS:
        if set(culprit.labels) == {probes.TO_NODE} and not culprit.names_pods:
            return _CLOSED
        if event.fate is Fate.PERHAPS:
            return _PERHAPS
        if event.fate is Fate.PARTLY:
            return _SOME
        return _DROPS if event.rule else _POLICY
    if kind in ("dnat", "redirect"):
        return _NAT
    if kind in ("snat", "masquerade"):
        return _SOURCE
    if kind == "mss":
        return _SEGMENTS
    return _UNTRACKED if kind in ("untrack", "zone") else _BYPASSED


def _is_narrow(culprit: Culprit) -> bool:
    """Returns whether only packets to a service that doctor's own list does not have are dropped: perhaps a policy."""
    usual = {"tcp 443", "tcp 80", "udp 53", "ping", ""}
    return all(
        one.label in (probes.TO_OTHERS, probes.REPLIES) and one.service not in usual for one in culprit.happenings
    )


def _place(culprit: Culprit) -> str:
    chain, rule = culprit.chain, culprit.event.rule
    owner = owner_of(chain, rule) or ("" if rule else _creator(culprit))
    of = f" ({owner})" if owner else ""
    if rule is None:
        return f"the policy of chain {chain}{of}"
    number = f"rule {rule.handle}" if chain.tool else f"the rule with handle {rule.handle}"
    return f"{number} of chain {chain}{of}"


def _creator(culprit: Culprit) -> str:
    """Returns the program that set the policy of a shared chain, by the other chains in its table."""
    if "DOCKER-USER" in culprit.neighbours:
        return "Docker"
    return "ufw" if any(name.startswith("ufw") for name in culprit.neighbours) else ""


def _what(event: Event) -> str:
    word = _WORDS.get(event.action.kind, event.action.kind)
    if event.fate is Fate.PARTLY:
        word += " some of the"
    if event.action.kind == "dnat" and event.action.address:
        word = f"sends to {event.action.address}"
    if event.action.kind == "snat" and event.action.address:
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


def _text_of(culprit: Culprit) -> str:
    """Returns the rule as its program lists it, "" if that cannot be read."""
    rule, chain = culprit.event.rule, culprit.chain
    if rule is None:
        return ""
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


def _inspect(chain: FilterChain) -> str:
    if chain.tool:
        return f"if pods have no connection, inspect the rules: {chain.tool} -t {chain.table} -S"
    table = f"{FAMILY_NAMES[chain.family]} {chain.table}"
    return f"if pods have no connection, inspect the rules: nft list table {table}"


def _fix(node: Node, culprit: Culprit, fault: Fault) -> tuple[str, str]:
    """Returns the command that repairs it, and advice."""
    chain, rule = culprit.chain, culprit.event.rule
    owner = owner_of(chain, rule)
    advice = lasting(culprit.item, owner)
    if owner == "firewalld" and culprit.item.bridge:
        return Run(f"firewall-cmd --zone=trusted --change-interface={quote(culprit.item.bridge)}"), advice
    if fault in (_NAT, _SOURCE, _BYPASSED, _UNTRACKED, _SEGMENTS) or (
        rule is not None and not owner and may_delete(culprit)
    ):
        if owner:
            return f"change it in the settings of {owner}", ""
        return Run(delete_command(culprit)), "it was added by hand, or by a program that may add it again: look there"
    return Run(" && ".join(accept_commands(culprit))), advice


CHECKS = (
    Check(
        _GROUP,
        "rules",
        "no pod is running that the packet filter could stop",
        _check,
        (_DROPS, _SOME, _POLICY, _PERHAPS, _CLOSED, _NAT, _SOURCE, _BYPASSED, _UNTRACKED, _SEGMENTS),
    ),
)
