"""Host ports of a container with two interfaces on one network: the verbs of one interface keep those of the other."""

from dataclasses import replace

import pytest

from tests.netns.conftest import LEGACY, NFT
from tests.support import xtables

PODS = {"eth0": ("10.22.0.2/16", "fd00:22::2/64"), "eth1": ("10.22.0.9/16", "fd00:22::9/64")}
MAPPINGS = {"eth0": ("8080:80", "53:53/udp"), "eth1": ("8081:81", "192.0.2.1|8082:82")}


@pytest.fixture
def net(any_ports, sandbox):
    """A network with a container whose namespace has both interfaces, with each backend."""
    for name, addresses in PODS.items():
        sandbox.ip("link", "add", name, "type", "bridge")
        for address in addresses:
            sandbox.ip("addr", "add", address, "dev", name, *(["nodad"] if ":" in address else []))
    return replace(any_ports, netns=sandbox)


def run(net, verb, ifname, *mappings):
    outcome = net.run(verb, "cid", *(mappings or MAPPINGS[ifname]), addresses=PODS[ifname], ifname=ifname)
    assert outcome.status == 0, outcome
    return outcome


@pytest.mark.parametrize(("first", "last"), [("eth0", "eth1"), ("eth1", "eth0")])
def test_del_of_one_interface_keeps_the_ports_of_the_other(net, first, last):
    """DEL of one interface, also repeated, leaves exactly the rules of the other, and DEL of both leaves none."""
    run(net, "ADD", last)
    alone = net.container_rules()
    run(net, "DEL", last)
    assert net.container_rules() == []
    for ifname in ("eth0", "eth1"):
        run(net, "ADD", ifname)
    for ifname in ("eth0", "eth1", "eth0"):
        run(net, "CHECK", ifname)
    for _ in range(2):
        run(net, "DEL", first)
        run(net, "CHECK", last)
    assert sorted(net.container_rules()) == sorted(alone)
    run(net, "DEL", last)
    assert net.container_rules() == []


def test_del_without_prev_result_keeps_the_ports_of_the_other_interface(net, sandbox):
    """DEL without addresses reads those of the other interface from the namespace; without it DEL removes all rules."""
    for ifname in ("eth0", "eth1"):
        run(net, "ADD", ifname)
    outcome = net.having(*MAPPINGS["eth1"]).having(prevResult=None).run("DEL", "cid", ifname="eth1")
    assert outcome.status == 0
    run(net, "CHECK", "eth0")
    if net.tools:
        assert not any("10.22.0.9" in line for line in net.container_rules())
        run(net, "ADD", "eth1")
        sandbox.delete()
        run(net, "DEL", "eth1")
        assert net.container_rules() == []


def test_gc_keeps_both_while_one_is_valid(net):
    """GC keeps the ports of a valid interface, and removes all rules if neither is valid."""
    for ifname in ("eth0", "eth1"):
        run(net, "ADD", ifname)
    net.gc("cid", ifname="eth0")
    run(net, "CHECK", "eth0")
    run(net, "DEL", "eth1")
    run(net, "CHECK", "eth0")
    net.gc()
    assert net.container_rules() == []


def test_port_of_both_interfaces_moves_to_the_second(net):
    """A port that both interfaces request belongs to the first, and after DEL of the first to the second."""
    for ifname in ("eth0", "eth1"):
        run(net, "ADD", ifname, "8080:80")
    run(net, "DEL", "eth0", "8080:80")
    run(net, "CHECK", "eth1", "8080:80")
    assert not any("10.22.0.2:" in line for line in net.container_rules())


def test_interface_that_no_longer_exists(iptables_ports, tmp_path):
    """ADD keeps rules that forward to an interface in the runtime's cache, and removes them if it no longer exists."""
    net = iptables_ports.with_cache(tmp_path / "cache")
    net.add("cid", "8080:80")
    net.write_cache(cid=True)
    for _ in range(2):
        run(net, "ADD", "eth1", "8080:80", "8081:81")
        net.check("cid", "8080:80")
        run(net, "CHECK", "eth1", "8080:80", "8081:81")
    assert net.owners() == ["cid", "cid"]
    net.write_cache(cid=False)
    run(net, "ADD", "eth1", "8080:80")
    assert net.owners() == ["cid"]
    assert not any("10.22.0.2:" in line for line in net.container_rules())


# With nftables one transaction changes both IP versions
@pytest.mark.parametrize("any_ports", [NFT, LEGACY], indirect=True)
def test_failed_add_keeps_the_ports_of_the_other_interface(net):
    """An ADD that fails with IPv6 after it has created IPv4 rules keeps the rules of the other interface."""
    run(net, "ADD", "eth0")
    before = net.container_rules()
    broken = xtables.counted(net.tools, net.tools.parent / "broken")
    working = (broken / "ip6tables-restore").read_text()
    program = working.replace("exec ", "case $(cat | tee $0.stdin) in *8081*) exit 4; esac\nexec ").rstrip()
    (broken / "ip6tables-restore").write_text(f"{program} < $0.stdin\n")
    outcome = replace(net, tools=broken).run("ADD", "cid", *MAPPINGS["eth1"], addresses=PODS["eth1"], ifname="eth1")
    assert outcome.error()["code"] in (11, 999)
    assert sorted(net.container_rules()) == sorted(before)
