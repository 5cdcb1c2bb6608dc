"""Each kind of command that doctor prints can be undone: the node is then as before the command."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from podwire.doctor.undo import CommandUndo
from tests.support.binaries import ROOT
from tests.support.fault_node import FaultNode, fault_node
from tests.support.processes import PATH

pytestmark = pytest.mark.one_kernel

COMMANDS = tomllib.loads((ROOT / "tests" / "data" / "undo_commands.toml").read_text())
STATE = """
for n in {pod} ''; do
    x=${{n:+ip netns exec $n}}
    $x ip -4 -o address | cut -d ' ' -f 2-8; $x ip -6 -o address show scope global | cut -d ' ' -f 2-8 | sort
    $x ip -o link; $x ip rule; $x ip -6 rule; $x ip neigh show nud permanent; $x ip neigh show proxy
    $x ip -4 -o route show table all
    $x ip -6 -o route show table all | grep -v 'fe80\\|ff00\\|^local\\|^anycast' | sort
    $x sysctl net.ipv4.ip_local_port_range net.ipv6.conf.eth0.disable_ipv6 2>/dev/null || true; $x nft list ruleset
done
for v in {veth} {veth2}; do bridge -d link show dev $v; done
bridge vlan; bridge fdb show | grep static || true; tc qdisc
ip -d link show {gate} | grep -o 'stp_state .'; iptables-save; iptables-legacy-save; true
"""
# What changes without a command, or is a number of the kernel's own.
VARIES = re.compile(
    r"#.*\n|\[\d+:\d+\]|counter packets \d+ bytes \d+|(qdisc \w+) \w+:|\bqlen \d+|state [A-Z]+|tentative|refcnt \d+|"
    r"expires \d+sec|linkdown|LOWER_UP|NO-CARRIER|M-DOWN|[<>,]"
)


@pytest.fixture
def node(root: None, bin_dir: Path, tmp_path: Path) -> Iterator[FaultNode]:
    """A node with two pods."""
    with fault_node(tmp_path) as faulty:
        faulty.words["enter"] = f"nsenter --net=/run/netns/{faulty.words['pod']}"
        yield faulty


def state(node: FaultNode) -> list[str]:
    """Returns the state that commands change."""
    return VARIES.sub("", node.shell(STATE.format(**node.words)).stdout).splitlines()


@pytest.mark.parametrize(
    "case",
    [pytest.param(one, marks=pytest.mark.needs(*one.get("needs", ())), id=name) for name, one in COMMANDS.items()],
)
def test_command_is_undone(node: FaultNode, case: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """After the undo the node is as before the command; the command has changed it."""
    monkeypatch.setenv("PATH", PATH)
    node.inject(case["before"])
    line = case["command"].format(**node.words)
    before = state(node)
    with node.host.entered():
        undo = CommandUndo(line)
        node.inject(line.replace("{", "{{").replace("}", "}}"))
        assert undo.is_complete
        assert state(node) != before
        for one in undo.compute():
            done = node.shell(one)
            assert done.returncode == 0, f"{one}: {done.stderr}"
        assert undo.is_restored
    assert state(node) == before, undo.compute()


def test_change_of_another_program_is_not_undone(node: FaultNode) -> None:
    """What another program changes while the command runs stays: other rules, a route to another network."""
    with node.host.entered():
        undo = CommandUndo("iptables -I FORWARD -i cni0 -j ACCEPT && ip route add blackhole 203.0.113.0/24")
        node.inject("iptables -I FORWARD -i cni0 -j ACCEPT; ip route add blackhole 203.0.113.0/24")
        node.inject("iptables -A FORWARD -s 10.1.1.1 -j DROP; iptables -A INPUT -s 10.1.1.1 -j ACCEPT")
        node.inject("ip route add blackhole 198.51.100.0/24")
        for one in undo.compute():
            node.inject(one)
    rules = node.shell("iptables -S FORWARD; iptables -S INPUT; ip route").stdout
    assert "-i cni0 -j ACCEPT" not in rules
    assert "203.0.113.0" not in rules
    assert all(text in rules for text in ("FORWARD -s 10.1.1.1/32", "INPUT -s 10.1.1.1/32", "198.51.100.0/24"))
