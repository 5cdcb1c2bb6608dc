"""`podwire doctor --fix`: shows the commands of the findings and runs those that the operator accepts."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.netns.test_tool_doctor_faults import UPLINK
from tests.support import programs as stand_ins
from tests.support.doctor_node import DoctorNode
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.processes import PATH

DELETE = "ip route del throw 10.26.0.2"
THROW = "ip route add throw 10.26.0.2/32"


@pytest.fixture
def node(host: Namespace, sandbox: Namespace, tmp_path: Path) -> DoctorNode:
    """A node with a pod, and two faults with commands."""
    sandbox.ip("link", "set", "lo", "up")
    faulty = DoctorNode(host, tmp_path)
    faulty.attach(faulty.add_sample("60-podman.conflist"), sandbox)
    host.run("sh", "-ec", THROW)
    host.set_sysctl("net/ipv4/ip_forward", "0")
    return faulty


def fix(node: DoctorNode, answers: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs `podwire doctor --fix` with the operator's answers."""
    wrapper = f'sh -c \'printf "{answers}" | "$@"\' sh'
    return node.doctor("--fix", *options, wrapper=wrapper)


@pytest.mark.long
def test_refused_command_is_not_run(node: DoctorNode) -> None:
    """A command that the operator refuses is not run, and the next one is shown."""
    done = fix(node, "n\\ny\\n")
    assert done.stdout.count("  command:") == 2
    assert done.stdout.count("  done") == 1
    assert done.returncode == 1
    assert node.host.sysctl("net/ipv4/ip_forward") == "0"
    assert "throw" not in node.host.ip("route")


@pytest.mark.long
def test_all_runs_the_rest(node: DoctorNode) -> None:
    """The answer "a" runs this command and all that follow."""
    assert fix(node, "a\\n").stdout.count("  done") == 2


def test_fix_needs_text(node: DoctorNode) -> None:
    """--json cannot be combined with --fix, as it asks questions."""
    done = node.doctor("--fix", "--json")
    assert done.returncode == 2
    assert "throw" in node.host.ip("route")


@pytest.mark.long
def test_podwire_commands_are_run(node: DoctorNode) -> None:
    """A command of podwire itself is run by the same file, wherever it is."""
    node.host.run("iptables", "-t", "nat", "-F")
    done = node.doctor("--fix", "--yes")
    assert "podwire repair podwire-podman" in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr


def replace_program(node: DoctorNode, name: str, script: str) -> dict[str, str]:
    """Returns the environment in which a script stands for a program."""
    return {"PATH": f"{stand_ins.install(node.directory / 'programs', **{name: script})}:{PATH}"}


def test_packets_are_sent_before_and_after(node: DoctorNode) -> None:
    """For each command --fix prints which packets are lost before and after, that it is kept; --yes asks nothing."""
    done = node.doctor("--fix", "--yes")
    lines = done.stdout.splitlines()
    kinds = [line.split(":")[0].strip() for line in lines if line.startswith("  ")]
    expected = ["command", "packets before", "done", "packets after", "kept"]
    assert [kind for kind in kinds if "ip_forward =" not in kind] == 2 * expected
    texts = [line for line in lines if "packets" in line]
    assert "6 of 6 paths lose packets" in texts[0]
    assert "gateway icmp 10.26.0.2 > 10.26.0.1" in texts[0]
    assert texts[-1].endswith("paths, none loses packets")
    assert (done.returncode, "run it?" in done.stdout, node.doctor().returncode) == (0, False, 0)


@pytest.mark.long
def test_command_without_effect_is_undone_and_not_repeated(node: DoctorNode) -> None:
    """A command that does not help is undone, reported, and not run again; the others run."""
    harm = 'case "$*" in "route del"*) exec /sbin/ip route add throw 203.0.113.0/24 table 7;; esac; exec /sbin/ip "$@"'
    done = node.doctor("--fix", "--yes", env=replace_program(node, "ip", harm))
    assert done.stdout.count(f"  command: {DELETE}") == 1
    assert "undone: it did not help: the finding is still there" in done.stdout
    assert node.host.sysctl("net/ipv4/ip_forward") == "1"
    assert done.returncode == 1
    assert "throw" in node.host.ip("route")


@pytest.mark.long
@pytest.mark.needs("iptables_nft_nat")
def test_command_that_opens_the_isolation_is_undone(
    host: Namespace, new_sandbox: Callable[[], Namespace], tmp_path: Path
) -> None:
    """A command that lets pods reach those of an isolated network is undone, and the rules are as before."""
    node = DoctorNode(host, tmp_path)
    for number in (1, 2):
        firewall = {"type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge"}
        chained = [firewall] if number == 1 else []
        name = f"br{number}"
        network = node.add_bridge(
            name, f"10.{number}.0.0/24", *chained, bridge=name, isDefaultGateway=True, ipMasq=True
        )
        pod = new_sandbox()
        pod.ip("link", "set", "lo", "up")
        node.attach(network, pod)
    host.run("sh", "-ec", UPLINK)
    host.run("iptables", "-P", "FORWARD", "DROP")
    rules = host.run("iptables", "-S")
    insert = "exec /usr/sbin/iptables $(echo \"$*\" | sed -E 's/-[AI] FORWARD( [0-9]+)?/-I FORWARD/; s/ -o out0//')"
    done = node.doctor("--fix", "--yes", env=replace_program(node, "iptables", insert))
    assert "undone: it opened" in done.stdout, done.stdout
    assert host.run("iptables", "-S") == rules


@pytest.mark.long
def test_signal_during_the_verification(node: DoctorNode) -> None:
    """SIGTERM after a command leaves the state before it, and the output says so."""
    mark = node.directory / "ran"
    script = f'/sbin/ip "$@" || exit; case "$*" in "route del"*) : > {mark};; esac'
    line, env = node.command_line("--fix", "--yes", env=replace_program(node, "ip", script))
    line.insert(line.index("--fix"), "doctor")
    with node.host.entered():
        process = subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert eventually(mark.exists, within_s=50)
    process.terminate()
    output, _ = process.communicate(timeout=50)
    assert "  interrupted: undone" in output
    assert process.returncode == 3
    assert "throw 10.26.0.2" in node.host.ip("route")
