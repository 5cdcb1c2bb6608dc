"""`podwire doctor --fix`: shows the commands of the findings and runs those that the operator accepts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.doctor_node import DoctorNode
from tests.support.namespaces import Namespace

DOWN = "ip link set cni4 down"
BLACKHOLE = "ip route add blackhole 10.26.0.2/32"


@pytest.fixture
def node(host: Namespace, sandbox: Namespace, tmp_path: Path) -> DoctorNode:
    """A node with a pod, and two faults with commands."""
    sandbox.ip("link", "set", "lo", "up")
    faulty = DoctorNode(host, tmp_path)
    faulty.attach(faulty.add_sample("60-podman.conflist"), sandbox)
    host.run("sh", "-ec", BLACKHOLE)
    host.set_sysctl("net/ipv4/ip_forward", "0")
    return faulty


def fix(node: DoctorNode, answers: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs `podwire doctor --fix` with the operator's answers."""
    wrapper = f'sh -c \'printf "{answers}" | "$@"\' sh'
    return node.doctor("--fix", *options, wrapper=wrapper)


def test_every_command_is_run_with_yes(node: DoctorNode) -> None:
    """With --yes all commands run without a question, and the exit status is that of a node in order."""
    done = node.doctor("--fix", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("  done") == 2
    assert "run it?" not in done.stdout
    assert node.doctor().returncode == 0


def test_refused_command_is_not_run(node: DoctorNode) -> None:
    """A command that the operator refuses is not run, and the next one is shown."""
    done = fix(node, "n\\ny\\n")
    assert done.stdout.count("  command:") == 2
    assert done.stdout.count("  done") == 1
    assert done.returncode == 1
    assert node.host.sysctl("net/ipv4/ip_forward") == "0"
    assert "blackhole" not in node.host.ip("route")


def test_end_of_input_stops(node: DoctorNode) -> None:
    """At the end of the input nothing more is run."""
    done = fix(node, "")
    assert done.stdout.count("  command:") == 1
    assert "  done" not in done.stdout
    assert "blackhole" in node.host.ip("route")


def test_all_runs_the_rest(node: DoctorNode) -> None:
    """The answer "a" runs this command and all that follow."""
    assert fix(node, "a\\n").stdout.count("  done") == 2


def test_fix_needs_text(node: DoctorNode) -> None:
    """--json cannot be combined with --fix, as it asks questions."""
    done = node.doctor("--fix", "--json")
    assert done.returncode == 2
    assert "blackhole" in node.host.ip("route")


def test_podwire_commands_are_run(node: DoctorNode) -> None:
    """A command of podwire itself is run by the same file, wherever it is."""
    node.host.run("iptables", "-t", "nat", "-F")
    done = node.doctor("--fix", "--yes")
    assert "podwire repair podwire-podman" in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr
