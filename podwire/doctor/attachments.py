"""The living attachments: each plugin's CHECK, with the configuration and the result that the cache has of it.

One rule: missing rules are repaired by `podwire repair`, the rest by what CHECK says itself, unless a fault of the
bridge or of the pod's interface on the host, which another check finds, explains it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from shlex import quote

from attachment.presence import Presence
from plugins.portmap.pod_route import WrongRouteError
from plugins.portmap.port_conflicts import ShadowedError
from podwire.attachments import CachedAttachment
from podwire.checking import NETNS_NOT_VISIBLE, Failure, Verdict
from podwire.doctor.finding import UNSEEN, Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.node import Node

_GROUP = "attachments"
_LIMIT_S = 4.0  # for all of them
_MOST_TOLD = 5  # of one kind and network; the rest is counted

_LOST_RULES = Fault(
    "rules-missing",
    Severity.PROBLEM,
    "masquerading, host ports or the firewall's rules of a living pod are not there: flushed, or lost by a reload",
    "`podwire repair NETWORK`",
)
_SHADOWED = Fault(
    "host-port-shadowed",
    Severity.PROBLEM,
    "another container's rule stands before the pod's host port, and gets its packets",
    "give one of them another host port, or `podwire gc NETWORK` if the other is gone",
)
_ELSEWHERE = Fault(
    "pod-routed-elsewhere",
    Severity.PROBLEM,
    "the host's route to a living pod leads over an interface that is not the pod's: 127.0.0.1:hostPort fails",
    "`ip route delete` with the route that it names, if somebody else's is in the way",
)
_WRONG = Fault(
    "check-failed",
    Severity.PROBLEM,
    "a living pod is not as ADD left it: its interface, addresses, routes, limits or settings",
    "what the plugin's CHECK says: mostly to remove the container and make it again",
)
_NOT_ALL = Fault(
    "not-all-checked",
    Severity.NOTE,
    "not every attachment was checked, by its configuration: the network is of a version without CHECK, forbids it, or "
    "a plugin of it is not ours",
    "`podwire doctor NETWORK` looks at one network; `podwire check NETWORK NETNS` at one attachment",
)
_REMARK = Fault(
    "remark",
    Severity.NOTE,
    "CHECK passes, and a plugin has something to say all the same: mostly that nothing guards the host's 127.0.0.1, as "
    "with pods whose host ports the reference made",
    "what it says; `podwire repair NETWORK` makes the guard",
)


@dataclass
class _Tally:
    """How many were checked, and why others were not: by configuration, or because they could not be looked at."""

    checked: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    unseen: dict[str, int] = field(default_factory=dict)
    told: dict[tuple[str, str], int] = field(default_factory=dict)
    remarks: dict[tuple[str, str], None] = field(default_factory=dict)

    def add(self, verdict: Verdict) -> None:
        """Counts one attachment."""
        self.checked += not (verdict.unseen or verdict.skipped)
        if verdict.unseen:
            self.unseen[verdict.unseen] = self.unseen.get(verdict.unseen, 0) + 1
        for reason in (verdict.skipped, *(f"{kind} is not ours" for kind in verdict.foreign)):
            if reason:
                self.skipped[reason] = self.skipped.get(reason, 0) + 1


def _look(node: Node) -> Iterator[Finding]:
    end = time.monotonic() + _LIMIT_S
    tally = _Tally()
    for one in node.living:
        verdict = Verdict(unseen="time was up") if time.monotonic() > end else _verdict(node, one)
        tally.add(verdict)
        tally.remarks |= dict.fromkeys((one.network_name, line) for line in verdict.remarks)
        for finding in _findings(node, one, verdict):
            number = tally.told[finding.name, one.network_name] = (
                tally.told.get((finding.name, one.network_name), 0) + 1
            )
            if number <= _MOST_TOLD:
                yield finding
    for (name, network), number in tally.told.items():
        if number > _MOST_TOLD:
            more = f"{number - _MOST_TOLD} more of its attachments: the same"
            behind = [item.bridge for item in node.interfaces if item.network.name == network]
            yield Finding(Severity.PROBLEM, name, network, more, f"podwire show {quote(network)}", behind=tuple(behind))
    for network, line in tally.remarks:
        yield _REMARK.finding(network, line.removeprefix("podwire: "), _remedy(node, network, line))
    yield from _sum(node, tally)


def _sum(node: Node, tally: _Tally) -> Iterator[Finding]:
    """Yields how many were checked, and why others were not."""
    text = f"{tally.checked} of {len(node.living)} attachments were checked; not "
    for fault, reasons in ((UNSEEN, tally.unseen), (_NOT_ALL, tally.skipped)):
        if reasons:
            told = "; ".join(f"{number}: {why}" for why, number in reasons.items())
            yield fault.finding("attachments", text + told, "podwire check NETWORK NETNS")
    if tally.checked and not (tally.unseen or tally.skipped):
        yield ok_finding("check", "attachments", f"all {tally.checked} were checked")


def _remedy(node: Node, network: str, line: str) -> str:
    return node.command("repair", network) if "podwire repair" in line else ""


def _verdict(node: Node, one: CachedAttachment) -> Verdict:
    if one.netns and node.presence(one) is not Presence.HERE:
        return Verdict(unseen=NETNS_NOT_VISIBLE)
    return node.checker.check(one)


def _findings(node: Node, one: CachedAttachment, verdict: Verdict) -> Iterator[Finding]:
    """Yields what is wrong with an attachment: the rules that are missing together, and the first of anything else."""
    lost: list[Finding] = []
    for failure in verdict.failures:
        finding = _finding(node, one, failure)
        if finding.name == _LOST_RULES.name:
            lost.append(finding)
        else:
            yield finding
    if lost:
        yield replace(lost[0], text="; ".join(finding.text for finding in lost))


def _finding(node: Node, one: CachedAttachment, failure: Failure) -> Finding:
    pod = one.pod or one.attachment.container_id
    subject = f"{one.network_name}: {pod} {one.attachment.ifname}"
    error, text = failure.error, f"{failure.plugin}: {failure.error.msg}"
    if isinstance(error, ShadowedError):
        return _SHADOWED.finding(subject, text, error.details or _SHADOWED.fix)
    behind = [own.name for own in one.typed_result.interfaces if not own.sandbox]
    if isinstance(error, WrongRouteError):
        return _ELSEWHERE.finding(subject, text, error.details, behind=behind)
    if failure.only_rules:
        return _LOST_RULES.finding(subject, text, node.command("repair", one.network_name), behind=behind)
    return _WRONG.finding(subject, text, error.details or "remove the container and create it again", behind=behind)


CHECKS = (
    Check(
        _GROUP,
        "check",
        "the cache has no attachment that lives",
        _look,
        (_LOST_RULES, _SHADOWED, _ELSEWHERE, _WRONG, _REMARK, _NOT_ALL),
    ),
)
