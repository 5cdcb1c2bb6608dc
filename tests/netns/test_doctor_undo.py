"""Each kind of command that doctor prints can be undone: the node is then as before the command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from podwire.doctor.undo import Undo
from tests.support.fault_node import FaultNode, fault_node
from tests.support.processes import PATH

pytestmark = pytest.mark.one_kernel

# The shell commands that precede a command, and the command: one for each kind that doctor prints.
COMMANDS = {
    "sysctl": ("sysctl -qw net/ipv4/ip_local_port_range='50000 50010'",
               "sysctl -w net/ipv4/ip_local_port_range='32768 60999'"),
    "sysctl in a pod": ("ip netns exec {pod} sysctl -qw net/ipv6/conf/eth0/disable_ipv6=1",
                        "{enter} sysctl -w net/ipv6/conf/eth0/disable_ipv6=0"),
    "route del": ("ip route add blackhole {ip}/32 metric 7", "ip route del blackhole {ip}/32 metric 7"),
    "route del of a nexthop": ("ip nexthop add id 20 blackhole; ip route add default nhid 20 table 77",
                               "ip route del 0.0.0.0/0 nhid 20 table 77"),
    "route del with two hops": (
        "ip route add 198.51.100.0/24 nexthop via 192.0.2.2 dev out0 nexthop via 192.0.2.3 dev out0",
        "ip route del 198.51.100.0/24"),
    "IPv6 route del": ("ip -6 route add unreachable {subnet6}", "ip -6 route del unreachable {subnet6}"),
    "route replace": ("ip route replace {subnet} dev out0 metric 0",
                      "ip route replace {subnet} dev {gate} proto kernel scope link src {gateway}"),
    "rule del": ("ip rule add from {subnet} ipproto tcp dport 443 unreachable priority 100",
                 "ip rule del priority 100 from {subnet} ipproto tcp dport 443 unreachable"),
    "rule add": ("ip rule add priority 5270 lookup 52",
                 "ip rule add priority 5269 from {subnet} lookup main && "
                 "ip rule add priority 5269 to {subnet} lookup main"),
    "address of the bridge": ("ip address flush dev {gate} scope global",
                              "ip address replace {gateway}/24 dev {gate} && "
                              "ip address replace {gateway6}/64 dev {gate} nodad"),
    "address del": ("ip address add {subnet} dev lo", "ip address del {subnet} dev lo"),
    "the first address of a pod": (
        "ip -n {pod} address del {ip}/24 dev eth0; ip -n {pod} address add {gone}/24 dev eth0; "
        "ip -n {pod} address add {ip}/24 dev eth0; ip -n {pod} route add default via {gateway}",
        "{enter} ip address del {gone}/24 dev eth0 && {enter} ip address replace {ip}/24 dev eth0 && "
        "{enter} ip address replace {gone}/24 dev eth0 && {enter} ip route replace default via {gateway} dev eth0"),
    "neigh del": ("ip neigh replace {ip} lladdr 02:00:00:00:00:99 dev {gate} nud permanent",
                  "ip neigh del {ip} dev {gate}"),
    "neigh del proxy": ("ip neigh add proxy {ip} dev {gate}", "ip neigh del proxy {ip} dev {gate}"),
    "link up": ("ip link set {veth} down", "ip link set {veth} up"),
    "link master": ("ip link set {veth} nomaster",
                    "ip link set {veth} master {gate} && ip link set {veth} type bridge_slave hairpin on"),
    "link nomaster": ("ip link add br9 type bridge; ip link set out0 master br9", "ip link set out0 nomaster"),
    "link mtu": ("ip link set {veth} mtu 1280", "ip link set {veth} mtu 1500"),
    "link address and arp": ("ip -n {pod} link set eth0 arp off",
                             "{enter} ip link set eth0 address 02:00:00:00:00:77 && {enter} ip link set eth0 arp on"),
    "link stp": ("ip link set {gate} type bridge stp_state 1", "ip link set {gate} type bridge stp_state 0"),
    "bridge link": ("bridge link set dev {veth} isolated on learning off",
                    "bridge link set dev {veth} isolated off learning on"),
    "bridge link state": ("bridge link set dev {veth} state 2", "bridge link set dev {veth} state 3"),
    "bridge vlan": ("ip link set {gate} type bridge vlan_filtering 1; bridge vlan add dev {veth} vid 9 pvid untagged",
                    "bridge vlan add dev {veth} vid 1 pvid untagged"),
    "bridge fdb": ("bridge fdb replace 02:00:00:00:00:66 dev {veth2} master static",
        "bridge fdb del 02:00:00:00:00:66 dev {veth2} master"),
    "tc": ("tc qdisc add dev {veth} root netem delay 10ms loss 50%", "tc qdisc del dev {veth} root"),
    "iptables insert": (
        "iptables -A FORWARD -i lo -j DROP; iptables -A INPUT -i lo -j ACCEPT",
        "iptables -I FORWARD -i {gate} -j ACCEPT && iptables -A INPUT -s {subnet} -j ACCEPT",
    ),
    "iptables delete": ("iptables -A FORWARD -i lo -j DROP; iptables -A FORWARD -s {ip} -j REJECT; "
                        "iptables -A FORWARD -o lo -j DROP", "iptables -D FORWARD -s {ip} -j REJECT"),
    "iptables policy": ("iptables -P FORWARD DROP", "iptables -P FORWARD ACCEPT"),
    "iptables-legacy": ("iptables-legacy -A FORWARD -i lo -j DROP", "iptables-legacy -I FORWARD 1 -i {gate} -j ACCEPT"),
    "nft insert": ("nft 'add table inet ours; add chain inet ours c; add rule inet ours c ip saddr {ip} drop'",
                   "nft insert rule inet ours c handle 2 iifname {gate} accept"),
    "nft delete": ("nft 'add table inet ours; add chain inet ours c; add rule inet ours c ip saddr {ip} drop; "
                   "add rule inet ours c ip saddr {ip2} drop'", "nft delete rule inet ours c handle 2"),
    "nft policy in a pod": ("ip netns exec {pod} nft 'add table ip t; add chain ip t c {{ type filter hook input "
                            "priority 0; policy drop; }}'",
                            "{enter} nft 'add chain ip t c {{ type filter hook input priority 0; policy accept; }}'"),
}  # fmt: skip
NEEDS = {"bridge vlan": ("vlan_filtering",), "tc": ("netem",)}
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
    ("shell", "command"),
    [pytest.param(*pair, id=name, marks=pytest.mark.needs(*NEEDS.get(name, ()))) for name, pair in COMMANDS.items()],
)
def test_command_is_undone(node: FaultNode, shell: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the undo the node is as before the command; the command has changed it."""
    monkeypatch.setenv("PATH", PATH)
    node.inject(shell)
    line = command.format(**node.words)
    before = state(node)
    with node.host.entered():
        undo = Undo(line)
        node.inject(line.replace("{", "{{").replace("}", "}}"))
        assert undo.is_complete
        assert state(node) != before
        for one in undo.compute():
            done = node.shell(one)
            assert done.returncode == 0, f"{one}: {done.stderr}"
        assert undo.is_restored
    assert state(node) == before, undo.compute()


@pytest.mark.parametrize(
    "command", ["podwire repair net", "kill 1", "ip route flush table 7", "true; true", "systemctl x"]
)
def test_unknown_command_has_no_undo(node: FaultNode, command: str) -> None:
    """For a command of podwire itself, and for an unknown one, there is no undo."""
    with node.host.entered():
        undo = Undo(command)
        assert not undo.is_complete
        assert undo.compute() == []


def test_change_of_another_program_is_not_undone(node: FaultNode) -> None:
    """What another program changes while the command runs stays: other rules, a route to another network."""
    with node.host.entered():
        undo = Undo("iptables -I FORWARD -i cni0 -j ACCEPT && ip route add blackhole 203.0.113.0/24")
        node.inject("iptables -I FORWARD -i cni0 -j ACCEPT; ip route add blackhole 203.0.113.0/24")
        node.inject("iptables -A FORWARD -s 10.1.1.1 -j DROP; iptables -A INPUT -s 10.1.1.1 -j ACCEPT")
        node.inject("ip route add blackhole 198.51.100.0/24")
        for one in undo.compute():
            node.inject(one)
    rules = node.shell("iptables -S FORWARD; iptables -S INPUT; ip route").stdout
    assert "-i cni0 -j ACCEPT" not in rules
    assert "203.0.113.0" not in rules
    assert all(text in rules for text in ("FORWARD -s 10.1.1.1/32", "INPUT -s 10.1.1.1/32", "198.51.100.0/24"))
