"""Runs CHECK of each running attachment's plugins, with the configuration and the result from the cache.

`podwire repair` repairs missing rules; for the rest CHECK names the fix. A fault that a finding about the
bridge or the host veth explains is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from shlex import quote

from attachment.presence import Presence
from plugins.portmap.localhost import WrongRouteError
from plugins.portmap.port_conflicts import ShadowedError
from podwire.attachments import CachedAttachment
from podwire.checking import LIMIT_S, NETNS_NOT_VISIBLE, CheckOutcome, Failure
from podwire.doctor.finding import UNSEEN, Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.node import CheckedNode
from podwire.doctor.pods import attachment_key
from podwire.output import plural

_GROUP = "attachments"
_MAX_REPORTED = 5  # attachments with one fault in one network; the rest is counted

_LOST_RULES = Fault(
    "rules-missing",
    Severity.PROBLEM,
    "rules of a running pod are missing (masquerading, host ports or firewall): flushed, or lost by a reload",
)
_SHADOWED = Fault(
    "host-port-shadowed",
    Severity.PROBLEM,
    "another container's rule for the same host port comes before the pod's, and gets its packets",
)
ELSEWHERE = Fault(
    "pod-routed-elsewhere",
    Severity.PROBLEM,
    "the host's route to a running pod uses an interface that is not the pod's: 127.0.0.1:hostPort fails",
)
_WRONG = Fault(
    "check-failed",
    Severity.PROBLEM,
    "the interface, addresses, routes, limits or settings of a running pod are no longer as ADD created them",
)
_NOT_ALL = Fault(
    "not-all-checked",
    Severity.NOTE,
    "not every attachment was checked, due to its configuration: the network's version has no CHECK, the network "
    "disables it, or a plugin is not podwire's",
)
_REMARK = Fault(
    "remark",
    Severity.NOTE,
    "CHECK passes with a remark: mostly that no rule protects the host's 127.0.0.1, as with pods whose host ports the "
    "reference plugins published",
)


@dataclass
class _Tally:
    """Counts of attachments that were checked, and of others by the reason: their configuration, or not readable."""

    checked: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    unseen: dict[str, int] = field(default_factory=dict)
    reported: dict[tuple[str, str], int] = field(default_factory=dict)
    remarks: dict[tuple[str, str], None] = field(default_factory=dict)

    def add(self, verdict: CheckOutcome) -> None:
        """Counts one attachment."""
        self.checked += not (verdict.unseen or verdict.skipped)
        if verdict.unseen:
            self.unseen[verdict.unseen] = self.unseen.get(verdict.unseen, 0) + 1
        for reason in (verdict.skipped, *(f"{kind} is not podwire's" for kind in verdict.foreign)):
            if reason:
                self.skipped[reason] = self.skipped.get(reason, 0) + 1


def _look(node: CheckedNode) -> Iterator[Finding]:
    end = time.monotonic() + LIMIT_S
    tally = _Tally()
    for one in node.running:
        verdict = CheckOutcome(unseen="time was up") if time.monotonic() > end else _verdict(node, one)
        tally.add(verdict)
        tally.remarks |= dict.fromkeys((one.network_name, line) for line in verdict.remarks)
        for finding in _findings(node, one, verdict):
            number = tally.reported[finding.name, one.network_name] = (
                tally.reported.get((finding.name, one.network_name), 0) + 1
            )
            if number <= _MAX_REPORTED:
                yield finding
    for (name, network), number in tally.reported.items():
        if number > _MAX_REPORTED:
            more = f"{number - _MAX_REPORTED} more attachments of this network have the same fault"
            is_repairable = name == _LOST_RULES.name
            fix = node.command("repair", network) if is_repairable else f"list them with: podwire show {quote(network)}"
            behind = [item.bridge for item in node.interfaces if item.network.name == network]
            yield Finding(Severity.PROBLEM, name, network, more, fix, behind=tuple(behind))
    for network, line in tally.remarks:
        yield _REMARK.finding(network, line.removeprefix("podwire: "), _remark_fix(node, network, line))
    yield from _summary(node, tally)


def _summary(node: CheckedNode, tally: _Tally) -> Iterator[Finding]:
    """Yields how many attachments were checked, and why others were not."""
    text = f"{tally.checked} of {plural(len(node.running), 'attachment')} checked; not "
    for fault, reasons in ((UNSEEN, tally.unseen), (_NOT_ALL, tally.skipped)):
        if reasons:
            counts = "; ".join(f"{number}: {reason}" for reason, number in reasons.items())
            yield fault.finding("attachments", text + counts, "check one attachment with: podwire check NETWORK NETNS")
    if tally.checked and not (tally.unseen or tally.skipped):
        yield ok_finding("check", "", f"CHECK was run for {plural(tally.checked, 'attachment')}")


def _remark_fix(node: CheckedNode, network: str, line: str) -> str:
    return node.command("repair", network) if "podwire repair" in line else ""


def _verdict(node: CheckedNode, one: CachedAttachment) -> CheckOutcome:
    if one.netns and node.presence(one) is not Presence.HERE:
        return CheckOutcome(unseen=NETNS_NOT_VISIBLE)
    return node.checker.check(one)


def _findings(node: CheckedNode, one: CachedAttachment, verdict: CheckOutcome) -> Iterator[Finding]:
    """Yields the findings about an attachment; all its missing rules are one finding."""
    missing_rules: list[Finding] = []
    for failure in verdict.failures:
        finding = _finding(node, one, failure)
        if finding.name == _LOST_RULES.name:
            missing_rules.append(finding)
        else:
            yield finding
    if missing_rules:
        yield replace(missing_rules[0], text="; ".join(finding.text for finding in missing_rules))


def _finding(node: CheckedNode, one: CachedAttachment, failure: Failure) -> Finding:
    pod = one.pod or one.attachment.container_id
    subject = f"{one.network_name}: {pod} {one.attachment.ifname}"
    error, text = failure.error, f"{failure.plugin}: {failure.error.msg}"
    if isinstance(error, ShadowedError):
        return _SHADOWED.finding(
            subject,
            text,
            error.details
            or "give one of them another host port, or `podwire gc NETWORK` if the other is no longer running",
        )
    behind = [*one.host_interfaces, attachment_key(one)]
    if isinstance(error, WrongRouteError):
        return ELSEWHERE.finding(subject, text, error.details, behind=behind)
    if failure.only_rules or failure.plugin == "portmap":  # also route_localnet: repair creates its guard first
        objects = (rules_of(one.network_name),)
        fix = node.command("repair", one.network_name)
        return _LOST_RULES.finding(subject, text, fix, objects=objects, behind=behind)
    return _WRONG.finding(subject, text, error.details or "remove the container and create it again", behind=behind)


def rules_of(network: str) -> str:
    """Returns the name of a network's own rules in `Finding.objects`."""
    return f"rules of {network}"


CHECKS = (
    Check(
        _GROUP,
        "check",
        "the cache has no running attachment",
        _look,
        (_LOST_RULES, _SHADOWED, ELSEWHERE, _WRONG, _REMARK, _NOT_ALL),
    ),
)
