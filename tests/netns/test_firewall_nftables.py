"""The firewall with nftables: the content of its tables after each verb."""

from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.attaching import reaches
from tests.support.bare_plugin import DUAL, IPV4, run_in_parallel
from tests.support.binaries import ROOT
from tests.support.firewall_network import FirewallNetwork
from tests.support.firewall_tables import Firewall, list_elements, list_rules
from tests.support.netstate import nft_rules
from tests.support.publishing import CLIENT, NODE

pytestmark = pytest.mark.needs("nft_inet")


@pytest.fixture
def firewall(host, bin_dir):
    """A network with bridge and firewall, and one dual-stack pod."""
    config = {"cniVersion": "1.1.0", "name": "net", "type": "firewall", "backend": "nftables"}
    return Firewall(host, config).pod(*DUAL)


BASE = Path(ROOT, "tests/data/firewall.nft").read_text().splitlines()  # of one dual-stack pod


def test_add_of_an_open_network(firewall):
    """ADD creates the table with an element per address, a repeated ADD changes nothing, DEL deletes the elements."""
    firewall.add()
    assert nft_rules(firewall.host) == BASE
    firewall.check()
    firewall.add()
    assert nft_rules(firewall.host) == BASE
    firewall.delete()
    assert nft_rules(firewall.host) == [line for line in BASE if "elements" not in line]
    firewall.delete()


def test_elements_of_policies(firewall):
    """The bridge is an element as long as it has pods with a policy, and the port of each isolated pod is another."""
    same, second = firewall.having(ingressPolicy="same-bridge"), firewall.pod("10.22.0.3/16", port="veth3")
    same.add()
    expected = {"pods4": ["10.22.0.2"], "pods6": ["fd00:22::2"], "policed": ["cni0"]}
    expected |= {"members4": ["cni0 . 10.22.0.2"], "members6": ["cni0 . fd00:22::2"]}
    assert list_elements(firewall.host) == expected | {"inside": ["cni0 . cni0"]}
    same.check()
    same.delete()
    assert list_elements(firewall.host) == {}
    isolated = firewall.having(ingressPolicy="isolated")
    isolated.add()
    assert list_elements(firewall.host) == expected | {"isolated": ["veth2"]}
    assert list_rules(firewall.host, "forward", "bridge") == ["iifname @isolated drop", "oifname @isolated drop"]
    isolated.check()
    second.having(ingressPolicy="isolated").add("two")
    isolated.delete()
    assert list_elements(firewall.host) == {
        "pods4": ["10.22.0.3"],
        "members4": ["cni0 . 10.22.0.3"],
        "policed": ["cni0"],
        "isolated": ["veth3"],
    }
    second.delete("two")
    assert list_elements(firewall.host) == {}


def test_newest_policy_of_a_bridge_is_effective(firewall):
    """The policy of the newest ADD applies to the whole bridge, and CHECK of pods with another policy fails."""
    isolated = firewall.having(ingressPolicy="isolated")
    same = firewall.pod("10.22.0.3/16", port="veth3").having(ingressPolicy="same-bridge")
    isolated.add()
    same.add("two")
    elements = list_elements(firewall.host)
    assert (elements["inside"], elements["isolated"]) == (["cni0 . cni0"], ["veth2"])
    assert firewall.having(ingressPolicy="isolated").check_error().startswith("set podwire_firewall inside contains")
    isolated.add()
    assert "inside" not in list_elements(firewall.host)
    assert same.check_error("two").startswith('set podwire_firewall inside lacks "cni0"')
    firewall.add()  # without a policy; the other pod still has one
    elements = list_elements(firewall.host)
    assert (elements["members4"], elements["policed"]) == (["cni0 . 10.22.0.3"], ["cni0"])
    assert "isolated" not in elements
    same.pod("10.22.0.3/16", bridge="cni1").add("two")
    elements = list_elements(firewall.host)
    assert (elements["policed"], elements["inside"]) == (["cni1"], ["cni1 . cni1"])


def test_policy_survives_del_in_parallel_with_add(firewall):
    """The DEL of a bridge's last pod, in parallel with the ADD of another pod, keeps the bridge's policy."""
    pods = [firewall.pod(f"10.22.0.{n}/16", port=f"veth{n}").having(ingressPolicy="isolated") for n in range(2, 18)]
    pods[0].add("c0")
    for n, (former, pod) in enumerate(pairwise(pods)):
        for outcome in run_in_parallel(("DEL", f"c{n}", former.without_result()), ("ADD", f"c{n + 1}", pod)):
            assert outcome.status == 0, outcome
        elements = list_elements(firewall.host)
        assert (elements["policed"], len(elements["members4"]), len(elements["isolated"])) == (["cni0"], 1, 1)


def test_repeated_add_with_other_addresses(firewall):
    """A repeated ADD with other addresses deletes the elements of the old ones, and none of other pods."""
    firewall.pod("10.22.0.9/16", "10.22.0.8/16").add("two")
    firewall.add()
    firewall.pod("10.22.0.3/16").add()
    assert list_elements(firewall.host) == {"pods4": ["10.22.0.3", "10.22.0.8", "10.22.0.9"]}


def test_gc_deletes_stale_elements(firewall):
    """GC keeps the elements of valid attachments, of other networks, and those without an owner."""
    isolated = firewall.having(ingressPolicy="isolated")
    isolated.pod("10.22.0.2/16", port="veth2").add("valid")
    isolated.pod("10.22.0.3/16", port="veth3").add("stale")
    isolated.pod("10.33.0.3/16", port="veth4", bridge="cni1").add("stale-too")
    isolated.having(name="net2").pod("10.44.0.3/16", port="veth5", bridge="cni2").add("other")
    firewall.host.run("nft", "add element inet podwire_firewall pods4 { 192.0.2.1 comment mine, 192.0.2.2 }")
    firewall.gc("valid")
    assert list_elements(firewall.host) == {
        "pods4": ["10.22.0.2", "10.44.0.3", "192.0.2.1", "192.0.2.2"],
        "members4": ["cni0 . 10.22.0.2", "cni2 . 10.44.0.3"],
        "policed": ["cni0", "cni2"],
        "isolated": ["veth2", "veth5"],
    }


@pytest.mark.parametrize("ifname", ["eth0", 'a"b', "a,b", "a\\b", "é"])
def test_elements_that_nft_has_listed_and_loaded(firewall, tmp_path, ifname):
    """CHECK, GC and DEL recognise elements that `nft` has listed and loaded, which keeps only their comment."""
    isolated = firewall.having(ingressPolicy="isolated")
    isolated.add(ifname=ifname)
    isolated.pod("10.22.0.3/16", port="veth3").add("two")
    file = tmp_path / "rules"
    file.write_text("flush ruleset\n" + firewall.host.run("nft", "list", "ruleset"))
    firewall.host.run("nft", "-f", str(file))
    isolated.check(ifname=ifname)
    before = list_elements(firewall.host, comments=True)
    isolated.add(ifname=ifname)
    assert list_elements(firewall.host, comments=True) == before
    firewall.gc("cid", ifname=ifname)
    firewall.delete(ifname=ifname)
    assert list_elements(firewall.host) == {}


def test_add_restores_missing_objects(firewall):
    """After a flush of the ruleset, a chain or a set, CHECK fails and ADD restores the missing objects."""
    isolated = firewall.having(ingressPolicy="isolated")
    isolated.add()
    before = nft_rules(firewall.host)
    for command, message in (
        ("flush ruleset", "chain podwire_firewall admin is missing"),
        ("flush chain inet podwire_firewall forward", 'rule "jump admin" of chain podwire_firewall forward is missing'),
        ("flush chain inet podwire_firewall policies", 'rule "iifname . oifname @inside return" of chain'),
        ("flush chain bridge podwire_firewall forward", 'rule "iifname @isolated drop" of chain'),
        ("delete table bridge podwire_firewall", "chain podwire_firewall forward is missing"),
        ("flush set inet podwire_firewall pods4", "element 10.22.0.2 of set podwire_firewall pods4 is missing"),
        ("flush set inet podwire_firewall members6", 'element "cni0" . fd00:22::2 of set podwire_firewall members6'),
        ("delete set inet podwire_firewall members4", 'element "cni0" . 10.22.0.2 of set podwire_firewall members4'),
        ("flush set inet podwire_firewall policed", 'element "cni0" of set podwire_firewall policed is missing'),
        ("add element inet podwire_firewall inside { cni0 . cni0 }", "set podwire_firewall inside contains"),
        ("flush set bridge podwire_firewall isolated", 'element "veth2" of set podwire_firewall isolated is missing'),
    ):
        firewall.host.run("nft", command)
        assert isolated.check_error().startswith(message)
        isolated.add()
        assert sorted(nft_rules(firewall.host)) == sorted(before), command
        isolated.check()


def test_administrators_changes_are_kept(firewall):
    """No verb changes the rules of chain admin, the policy of chain forward, or other tables."""
    firewall.add()
    for text in (
        "add rule inet podwire_firewall admin tcp dport 22 accept",
        "chain inet podwire_firewall forward { policy drop; }",
        "add table inet other",
    ):
        firewall.host.run("nft", text)
    before = nft_rules(firewall.host)
    firewall.check()
    firewall.pod("10.22.0.3/16").having(ingressPolicy="isolated").add("two")
    firewall.delete("two")
    firewall.gc("cid")
    after = nft_rules(firewall.host)
    assert [line for line in before if line not in after] == []
    assert list_rules(firewall.host, "admin") == ["tcp dport 22 accept"]


@pytest.mark.parametrize(
    "conflict",
    [
        "chain inet podwire_firewall forward { type filter hook input priority 0; }",
        "chain inet podwire_firewall policies { type filter hook forward priority 0; }",
        pytest.param("set inet podwire_firewall pods6 { type ipv4_addr; }", marks=pytest.mark.needs("nft_set_types")),
    ],
)
def test_table_of_another_program(firewall, conflict):
    """If another program uses the names of the tables, ADD and STATUS report the table and change nothing."""
    firewall.host.run("nft", "add table inet podwire_firewall")
    firewall.host.run("nft", f"add {conflict}")
    before = nft_rules(firewall.host)
    error = firewall.run("ADD").error()
    assert "another program created it with other properties: nft list table inet podwire_firewall" in error["details"]
    status = firewall.having(prevResult=None).run("STATUS").error()
    assert status["code"] == 50
    assert "another program created it with other properties" in status["msg"]
    assert nft_rules(firewall.host) == before


def test_failed_add_keeps_the_elements_of_an_earlier_add(firewall):
    """An ADD that the kernel refuses changes nothing and keeps the elements of an earlier ADD."""
    firewall.add()
    firewall.host.run("nft", "add table bridge podwire_firewall")
    firewall.host.run("nft", "add chain bridge podwire_firewall forward { type filter hook input priority 0; }")
    before = nft_rules(firewall.host)
    error = firewall.having(ingressPolicy="isolated").run("ADD").error()
    assert "nft list table bridge podwire_firewall" in error["details"]
    assert nft_rules(firewall.host) == before


def test_add_warns_of_a_drop_policy_of_iptables(firewall):
    """ADD prints a warning if chain FORWARD of iptables drops by default, for the pod's families only."""
    assert firewall.pod(IPV4).run("ADD").stderr == ""
    chain = "add chain {} filter FORWARD {{ type filter hook forward priority 0; policy {}; }}"
    for family, policy, tool in (("ip", "accept", ""), ("ip6", "drop", ""), ("ip", "drop", "iptables")):
        firewall.host.run("nft", "add", "table", family, "filter")
        firewall.host.run("nft", chain.format(family, policy))
        stderr = firewall.pod(IPV4).run("ADD").stderr
        assert stderr.startswith(f"firewall: chain FORWARD of {tool} drops" if tool else "")
        assert bool(stderr) == bool(tool)
    assert "iptables and ip6tables" in firewall.run("ADD").stderr


def test_isolated_pod_without_a_bridge_port(firewall):
    """If prevResult names no port of the bridge, ADD of an isolated pod prints a warning, but not without a bridge."""
    isolated = firewall.having(ingressPolicy="isolated").pod(IPV4, port="")
    assert isolated.run("ADD").stderr == ""
    firewall.host.ip("link", "add", "cni0", "type", "bridge")
    assert isolated.run("ADD").stderr.startswith("firewall: prevResult does not name the pod's port of cni0: ")
    assert list_elements(firewall.host) == {
        "pods4": ["10.22.0.2"],
        "members4": ["cni0 . 10.22.0.2"],
        "policed": ["cni0"],
    }


def test_chain_with_policy_drop(network, client, new_sandbox):
    """Rules in chain admin accept packets beside policy drop, also between networks whose policies forbid them."""
    client.ip("route", "add", "10.0.0.0/8", "via", NODE)
    foo = FirewallNetwork(
        network.having(name="foo", bridge="foo"), {"backend": "nftables", "ingressPolicy": "same-bridge"}
    )
    one, two = foo.add(new_sandbox()), foo.sibling("bar", "bar", "10.33.0.0/16").add(new_sandbox())
    network.host.run("nft", "chain inet podwire_firewall forward { policy drop; }")
    assert not reaches(client, one.ip, within_s=1)
    for rule in (f"ip saddr {CLIENT} accept", f"ip saddr {one.ip} accept", f"ip daddr {one.ip} accept"):
        network.host.run("nft", f"add rule inet podwire_firewall admin {rule}")
    assert reaches(client, one.ip)
    assert one.reaches(two)
    foo.delete(one)
    third = new_sandbox()
    bridge_result = foo.bridge.add(third)
    assert not reaches(third, CLIENT, within_s=1)
    foo.firewall(bridge_result).add(third.name)
    assert reaches(third, CLIENT)


def test_verbs_run_no_programs(firewall, tmp_path):
    """All verbs succeed on a host without programs."""
    isolated = firewall.having(ingressPolicy="isolated")
    for command in ("STATUS", "ADD", "CHECK"):
        net = isolated if command != "STATUS" else isolated.having(prevResult=None)
        assert net.run(command, env={"PATH": str(tmp_path)}).status == 0
    firewall.having(prevResult=None).run("DEL", env={"PATH": str(tmp_path)}).assert_silent()
    assert list_elements(firewall.host) == {}
