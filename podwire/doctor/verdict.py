"""Whether a command of doctor helped: by the findings and the packets before it and after it.

A command is undone if it did not help, if packets are lost that were not lost before, or if it opened a path that was
closed: one that the network's configuration closes, one that a rule still closes which the finding does not name, or a
port of the node that the host's firewall closes and an accept rule opens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from podwire.doctor.finding import Check, Finding, Severity
from podwire.doctor.packets import TO_NODE, Packets

Findings = Sequence[tuple[Check, Finding]]

_FILTER = "packet filter"
_OF_PACKETS = ("kernel", "links", "pods", "routes", "neighbours", _FILTER)  # the groups whose problems lose packets
# The paths on this node alone: what stands for other machines is not reached by each policy rule.
_ON_NODE = ("gateway", "pod-to-pod", "node-to-pod")
_MOST_NAMED = 3


class FixVerdict(NamedTuple):
    """A verdict: whether a command is kept, and the reason."""

    is_kept: bool
    reason: str


class FixTrial(NamedTuple):
    """A command that was run for a finding of a check, with the packets and the findings before it and after it."""

    check: Check
    finding: Finding
    command: str
    before: Packets
    after: Packets
    findings_before: Findings
    findings_after: Findings

    def judge(self) -> FixVerdict:
        """Returns whether the command is kept."""
        if opened := self._opened():
            return FixVerdict(False, f"it opened {shorten(opened)}")
        if stopped := [one for one in self.after.lost if one in self.before.meant and one not in self.before.lost]:
            return FixVerdict(False, f"it stopped {shorten(stopped)}")
        lost, still_lost = set(self.before.lost), set(self.after.lost)
        is_better = len(still_lost) < len(lost)
        if _count(self.findings_after, self.finding) >= _count(self.findings_before, self.finding):
            if is_better:
                return FixVerdict(True, "fewer packets are lost, but the finding is still there: it is not repaired")
            return FixVerdict(False, "it did not help: the finding is still there")
        on_node = [text for text in still_lost if self.after.sent[text].kind in _ON_NODE]
        if on_node and not is_better and self._should_carry():
            return FixVerdict(False, f"it did not help: the finding is gone, but packets are lost: {shorten(on_node)}")
        return FixVerdict(True, "the finding is gone")

    def _opened(self) -> list[str]:
        """Returns the paths that the command opened, and that were closed on purpose."""
        passing = [text for text, one in self.after.sent.items() if one.passes]
        return [text for text in passing if text in self.before.sent and self._was_closed(text)]

    def _was_closed(self, text: str) -> bool:
        one = self.before.sent[text]
        if one.passes:
            return False
        if one.is_isolated:
            return True
        if self.check.group != _FILTER:
            return False
        if one.kind == TO_NODE:
            return bool(one.closed_by) and "accept" in self.command.lower().split()
        return any(key in self.after.rules and name not in self.finding.text for key, name in one.closed_by)

    def _should_carry(self) -> bool:
        """Returns whether packets should arrive: the finding was about packets, and no other one explains the loss."""
        is_of_packets = self.finding.severity is Severity.PROBLEM and self.check.group in _OF_PACKETS
        return is_of_packets and not any(one.severity is Severity.PROBLEM for _, one in self.findings_after)


def shorten(texts: Sequence[str] | set[str]) -> str:
    """Returns the first of some texts, and the number of the others."""
    every = sorted(texts)
    more = f" and {len(every) - _MOST_NAMED} more" if len(every) > _MOST_NAMED else ""
    return f"{', '.join(every[:_MOST_NAMED])}{more}"


def _count(findings: Findings, finding: Finding) -> int:
    return sum(one.identity == finding.identity for _, one in findings)
