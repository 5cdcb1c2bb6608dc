"""`podwire doctor` names each fault of tests/data/faults.toml once, and the printed commands end it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import exposing_commands
from tests.support.fault_node import SUBNET, SUBNET6, FaultNode, Shared, describe, fault_node
from tests.support.fault_table import FAULTS, REBUILD, Fault

pytestmark = pytest.mark.one_kernel

# A command that ends one fault may leave the other variant of iptables with rules: that is another finding. A rule
# for the pods' packets to the node itself stays, as a note.
REMAINS = ("iptables-mixture", "node-closed")


@pytest.fixture(scope="module")
def nodes(root: None, bin_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared[FaultNode]]:
    """The node of the module's tests."""
    shared = Shared(lambda: fault_node(tmp_path_factory.mktemp("node")))
    yield shared
    shared.discard()


def marked(*, intended: bool) -> list[object]:
    chosen = [one for one in FAULTS if one.intended == intended]
    return [pytest.param(one, marks=pytest.mark.needs(*one.needs), id=one.name) for one in chosen]


def test_node_without_faults_has_no_finding(nodes: Shared[FaultNode]) -> None:
    """The node into which the faults are injected has no finding, not even a note."""
    with nodes.used() as node:
        assert node.list_findings() == []


@pytest.mark.parametrize("fault", marked(intended=False))
def test_fault_is_named_and_repaired(nodes: Shared[FaultNode], fault: Fault) -> None:
    """The only finding names the fault, and its commands, run unchanged, end it; its consequences are not reported."""
    with nodes.used() as node:
        node.inject(fault.shell)
        findings = node.list_findings(before=fault.before)
        assert list(dict.fromkeys(one["name"] for one in findings)) == [fault.finding, *fault.others], describe(
            findings
        )
        if fault.run and fault.undo != REBUILD:
            assert bool(findings[0]["commands"]) == fault.repair, describe(findings)
        for finding in findings:
            assert forbidden_commands(node, finding) == [], describe(findings)
        if fault.repair and fault.run:
            assert node.run_commands(findings[0]) == ""
            rest = [one for one in node.list_findings(before=fault.before) if one["name"] not in REMAINS]
            assert rest == [], describe(rest)
        undo(node, fault)
    if fault.undo == REBUILD:
        nodes.discard()


def forbidden_commands(node: FaultNode, finding: dict[str, object]) -> list[str]:
    """Returns the commands of a finding that delete rules of others, change a policy, or open more than the pods."""
    text = f"{finding['commands']} {finding['advice']}"
    interfaces = [node.words[name] for name in ("gate", "veth", "veth2")]
    opened = exposing_commands.commands(str(finding), interfaces, (SUBNET, SUBNET6))  # also its consequences
    return [*opened, *exposing_commands.deletions(text)]


@pytest.mark.parametrize("fault", marked(intended=True))
def test_intended_restriction_is_left_alone(nodes: Shared[FaultNode], fault: Fault) -> None:
    """A restriction that may be intended is a note without a command, and `--fix --yes` leaves every rule."""
    with nodes.used() as node:
        node.inject(fault.shell)
        findings = [one for one in node.list_findings() if one["name"] not in REMAINS or fault.finding == one["name"]]
        assert fault.finding in {one["name"] for one in findings}, describe(findings)
        assert all(one["severity"] == "note" and not one["commands"] for one in findings), describe(findings)
        rules = node.list_rules()
        node.node.doctor("--fix", "--yes")
        assert node.list_rules() == rules
        undo(node, fault)


def undo(node: FaultNode, fault: Fault) -> None:
    """Removes what the repair left, and restores podwire's own rules; the node is then as before."""
    if fault.undo in ("", REBUILD):
        return
    node.shell(f"set +e; {fault.undo.format(**node.words)}")
    findings = node.list_findings()
    if any(one["name"] == "rules-missing" for one in findings):
        assert node.run_commands(findings[0]) == ""
        findings = node.list_findings()
    assert findings == [], describe(findings)
