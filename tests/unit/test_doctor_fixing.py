"""The question of `podwire doctor --fix`."""

from __future__ import annotations

import io

from podwire.doctor import fixing
from podwire.doctor.finding import Check, Finding, Severity
from podwire.doctor.packets import Packets
from podwire.doctor.run import Run
from podwire.output import Output
from process import signals

CHECK = Check("links", "bridges", "", lambda _node: (), ())
FINDING = Finding(Severity.PROBLEM, "bridge-down", "net", "it is down", Run("false"))


def test_the_end_of_the_input_ends_the_line(monkeypatch):
    """At the end of the input nothing is run, and the line of the question ends."""
    monkeypatch.setattr(signals, "block", lambda: None)
    stream = io.StringIO()
    findings = [(CHECK, FINDING)]
    kept = fixing.fix(lambda: findings, lambda _finding: Packets({}), Output(stream), io.StringIO(), {})
    assert kept == findings
    assert stream.getvalue().endswith("[q]uit: \n")
