"""`podwire doctor` names each fault of docs/faults.md first, and the printed commands end it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.fault_node import FaultNode, describe, fault_node
from tests.support.fault_table import FAULTS, REBUILD, Fault

pytestmark = pytest.mark.one_kernel

# A command that ends one fault may leave the other variant of iptables with rules: that is another finding.
REMAINS = ("iptables-mixture",)


class Nodes:
    """The node that faults share: a new one is made after a fault that could not be undone."""

    def __init__(self, new_directory: Callable[[], Path]) -> None:
        self._new_directory = new_directory
        self._stack = ExitStack()
        self._node: FaultNode | None = None

    def get(self) -> FaultNode:
        """Returns a node without findings."""
        if self._node is None:
            self._node = self._stack.enter_context(fault_node(self._new_directory()))
        return self._node

    def discard(self) -> None:
        """Deletes the node."""
        self._node = None
        self._stack.close()


@pytest.fixture(scope="module")
def nodes(root: None, bin_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """The node of the module's tests."""
    shared = Nodes(lambda: tmp_path_factory.mktemp("node"))
    yield shared
    shared.discard()


def marked() -> list[object]:
    return [pytest.param(one, marks=pytest.mark.needs(*one.needs), id=one.name) for one in FAULTS]


def test_node_without_faults_has_no_finding(nodes: Nodes) -> None:
    """The node into which the faults are injected has no finding, not even a note."""
    assert nodes.get().list_findings() == []


@pytest.mark.parametrize("fault", marked())
def test_fault_is_named_and_repaired(nodes: Nodes, fault: Fault) -> None:
    """The first finding names the fault, and its commands, run unchanged, end it."""
    node = nodes.get()
    try:
        node.inject(fault.shell)
        findings = node.list_findings(before=fault.before)
        assert findings, f"nothing found: {fault.shell}"
        assert findings[0]["name"] == fault.finding, describe(findings)
        assert bool(findings[0]["commands"]) == fault.repair or not fault.run or fault.undo == REBUILD, describe(
            findings
        )
        if fault.repair and fault.run:
            assert node.run_commands(findings[0]) == ""
            rest = [one for one in node.list_findings(before=fault.before) if one["name"] not in REMAINS]
            assert rest == [], describe(rest)
        undo(node, fault)
    except BaseException:
        nodes.discard()
        raise
    if fault.undo == REBUILD:
        nodes.discard()


def undo(node: FaultNode, fault: Fault) -> None:
    """Removes what the repair left; the node is then as before."""
    if fault.undo in ("", REBUILD):
        return
    node.shell(f"set +e; {fault.undo.format(**node.words)}")
    findings = node.list_findings()
    assert findings == [], describe(findings)
