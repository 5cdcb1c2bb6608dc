"""The texts of doctor and of the other commands, as their reader sees them at 80 columns."""

import io
import re
from types import SimpleNamespace
from typing import cast

import pytest

from podwire.commands import doctor, test
from podwire.doctor.checks import CHECKS
from podwire.doctor.finding import Check, Finding, ok_finding
from podwire.doctor.shell_command import ShellCommand
from podwire.node.model import Pod
from podwire.output import Output
from podwire.probe.paths import Path
from podwire.probe.run import PathResult, PathState
from podwire.trace.suspect import Suspect
from podwire.trace.topology import Topology

FAULTS = [(check, fault) for check in CHECKS for fault in check.faults]
QUOTED = re.compile(r"`[^`]*`|\{\"type\": \"firewall\"\}")  # commands, keys and their values
EXISTING = re.compile(r"net/\S+|br_netfilter|rp_filter|accept_ra|sk_lookup")  # settings and modules
BAD = {
    "a value of Python": re.compile(r"None|\[\]|[{}]|<class|\bTrue\b|\bFalse\b|\('"),
    "a doubled word": re.compile(r"(?<![-\w])([a-z]+) \1\b"),
    "singular and plural": re.compile(r"\w\(e?s\)"),
    "two periods": re.compile(r"\.\.$"),
}


def list_mistakes(text: str) -> list[str]:
    """Returns what a reader stumbles over, and names of the code."""
    prose = EXISTING.sub("", QUOTED.sub("", text))
    return [name for name, pattern in BAD.items() if pattern.search(prose)] + re.findall(r"\w+_\w+", prose)


def print_all(*findings: tuple[Check, Finding]) -> list[str]:
    """Returns the lines that doctor prints at 80 columns."""
    stream = io.StringIO()
    doctor._print(findings, Output(stream, width=80), everything=True)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(("check", "fault"), FAULTS, ids=[fault.name for _, fault in FAULTS])
def test_declared_texts_are_prose(check, fault):
    """The declared texts have no value of Python, no doubled word and no name of the code, and fit into 80 columns."""
    assert [list_mistakes(text) for text in (check.ok_text, fault.meaning)] == [[], []]
    finding = fault.finding("podwire", fault.meaning)
    assert max(map(len, print_all((check, finding), (check, ok_finding(check.name, "", check.ok_text))))) <= 80


def test_a_fix_of_several_findings_is_printed_once():
    """Findings with the same fix stand together above it; a command is never broken, other lines are."""
    check, fault = FAULTS[0]
    fix = ShellCommand(f"podwire repair {'podwire ' * 10}")
    first, other, last = (fault.finding("podwire", f"{pod} {'is lost ' * 12}", fix) for pod in "abc")
    lines = print_all((check, first), (check, fault.finding("x", "y", "do this")), (check, other), (check, last))
    assert [line[:11] for line in lines if not line.startswith("    ")][:4] == ["problem con"] * 3 + ["  fix: podw"]
    assert max(len(line) for line in lines if "fix:" not in line) <= 80


def test_an_equal_suspect_is_not_repeated():
    """Paths of one pod that the same suspect lost name it once, and say where to look, if that is not the node."""
    path = cast(Path, SimpleNamespace(pod=cast(Pod, None), title="gateway icmp", way="10.22.0.2 > 10.22.0.1"))
    lost = PathResult(
        path, PathState.LOST, None, "no answer", Suspect("mtu", "default/a", "eth0 has MTU 68", look="ip link")
    )
    stream = io.StringIO()
    for previous in (lost._replace(suspect=None), lost):
        test._print(lost, previous, cast(Topology, None), Output(stream))
    lines = stream.getvalue().splitlines()
    assert lines[1:3] == ["       suspect: default/a: eth0 has MTU 68", "       look in default/a: ip link"]
    assert lines[4:] == ["       suspect: as above"]
