"""firewall with nftables: what stands in its table after each verb."""

import pytest

from tests.support.attaching import reaches
from tests.support.firewall_network import FirewallNetwork
from tests.support.firewall_sets import IPV4, IPV6, Firewall, rules, sets
from tests.support.netstate import nft_rules
from tests.support.publishing import CLIENT, NODE

pytestmark = pytest.mark.needs("nft_inet")

OWN = "net: net, if: eth0, id: cid"


@pytest.fixture
def firewall(host, bin_dir):
    """A network with the firewall behind a bridge, and one dual-stack pod."""
    config = {"cniVersion": "1.1.0", "name": "net", "type": "firewall", "backend": "nftables"}
    return Firewall(host, config).pod(IPV4, IPV6)


BASE = """\
table inet podwire_firewall {
	comment "made by podwire's firewall plugin; chain admin is yours, the rest is not"
	set pods4 {
		type ipv4_addr
		comment "packets from these pods are accepted"
		elements = { 10.22.0.2 comment "net: net, if: eth0, id: cid" }
	}

	set pods6 {
		type ipv6_addr
		comment "packets from these pods are accepted"
		elements = { fd00:22::2 comment "net: net, if: eth0, id: cid" }
	}

	set members4 {
		type ifname . ipv4_addr
		comment "pods with an ingressPolicy"
	}

	set members6 {
		type ifname . ipv6_addr
		comment "pods with an ingressPolicy"
	}

	set policed {
		type ifname
		comment "bridges with an ingressPolicy"
	}

	set inside {
		type ifname . ifname
		comment "bridges with ingressPolicy same-bridge"
	}

	chain admin {
		comment "for the administrator's rules"
	}

	chain policies {
		comment "ingressPolicy"
		iifname . oifname @inside return
		iifname @policed oifname @policed drop
	}

	chain forward {
		type filter hook forward priority filter; policy accept;
		jump admin
		jump policies
		ct state established,related ip daddr @pods4 accept
		ip saddr @pods4 accept
		ct state established,related ip6 daddr @pods6 accept
		ip6 saddr @pods6 accept
	}
}
"""


def test_add_of_an_open_network(firewall):
    """ADD makes the table and an element for each address; a second ADD changes nothing, DEL empties it."""
    firewall.add()
    assert nft_rules(firewall.host) == BASE.splitlines()
    firewall.check()
    firewall.add()
    assert nft_rules(firewall.host) == BASE.splitlines()
    firewall.delete()
    assert nft_rules(firewall.host) == [line for line in BASE.splitlines() if "elements" not in line]
    firewall.delete()


def test_policies(firewall):
    """With a policy the bridge is an element as long as a pod is on it, and a pod's port while it is isolated."""
    same, second = firewall.having(ingressPolicy="same-bridge"), firewall.pod("10.22.0.3/16", port="veth3")
    same.add()
    both = {"pods4": ["10.22.0.2"], "pods6": ["fd00:22::2"], "policed": ["cni0"]}
    both |= {"members4": ["cni0 . 10.22.0.2"], "members6": ["cni0 . fd00:22::2"]}
    assert sets(firewall.host) == both | {"inside": ["cni0 . cni0"]}
    same.check()
    same.delete()
    assert sets(firewall.host) == {}
    isolated = firewall.having(ingressPolicy="isolated")
    isolated.add()
    assert sets(firewall.host) == both | {"isolated": ["veth2"]}
    assert rules(firewall.host, "forward", "bridge") == ["iifname @isolated drop", "oifname @isolated drop"]
    isolated.check()
    second.having(ingressPolicy="isolated").add("two")
    isolated.delete()
    assert sets(firewall.host) == {
        "pods4": ["10.22.0.3"],
        "members4": ["cni0 . 10.22.0.3"],
        "policed": ["cni0"],
        "isolated": ["veth3"],
    }
    second.delete("two")
    assert sets(firewall.host) == {}


def test_a_policy_is_the_newest_adds(firewall):
    """When a bridge's policy changes, the newest ADD decides; CHECK tells the older pods."""
    isolated = firewall.having(ingressPolicy="isolated")
    same = firewall.pod("10.22.0.3/16", port="veth3").having(ingressPolicy="same-bridge")
    isolated.add()
    same.add("two")
    assert (sets(firewall.host)["inside"], sets(firewall.host)["isolated"]) == (["cni0 . cni0"], ["veth2"])
    assert firewall.having(ingressPolicy="isolated").refusal().startswith("set podwire_firewall inside contains")
    isolated.add()
    assert "inside" not in sets(firewall.host)
    assert same.refusal("two").startswith('set podwire_firewall inside lacks "cni0"')
    firewall.add()  # no policy any more: the other pod still has one
    assert sets(firewall.host)["members4"] == ["cni0 . 10.22.0.3"]
    assert sets(firewall.host)["policed"] == ["cni0"]
    assert "isolated" not in sets(firewall.host)
    same.pod("10.22.0.3/16", bridge="cni1").add("two")
    assert (sets(firewall.host)["policed"], sets(firewall.host)["inside"]) == (["cni1"], ["cni1 . cni1"])


def test_comments_tell_whose_elements_are(firewall):
    """Each element of a pod tells network, interface and container."""
    firewall.having(ingressPolicy="isolated").pod(IPV4).add()
    assert sets(firewall.host, comments=True) == {
        "pods4": [f"10.22.0.2: {OWN}"],
        "members4": [f"cni0 . 10.22.0.2: {OWN}"],
        "policed": ["cni0"],
        "isolated": [f"veth2: {OWN}"],
    }


def test_other_addresses_replace_the_old_ones(firewall):
    """A repeated ADD with other addresses leaves none of the old ones, and nothing of another pod is touched."""
    firewall.pod("10.22.0.9/16", "10.22.0.8/16").add("two")
    firewall.add()
    firewall.pod("10.22.0.3/16").add()
    assert sets(firewall.host) == {"pods4": ["10.22.0.3", "10.22.0.8", "10.22.0.9"]}


def test_a_late_del_leaves_the_addresss_new_owner(firewall):
    """An address that is used again is the newest pod's: the late DEL of the old one leaves it."""
    firewall.having(ingressPolicy="isolated").add("old")
    new = firewall.having(ingressPolicy="isolated").pod(IPV4, port="veth9")
    new.add("new")
    assert "belongs to another attachment (net: net, if: eth0, id: new)" in firewall.refusal("old")
    firewall.delete("old")
    assert sets(firewall.host) == {
        "pods4": ["10.22.0.2"],
        "members4": ["cni0 . 10.22.0.2"],
        "policed": ["cni0"],
        "isolated": ["veth9"],
    }
    new.check("new")


def test_one_container_with_two_interfaces(firewall):
    """DEL and GC of one interface, or on one network, leave the container's others."""
    firewall.pod(IPV4).add()
    firewall.pod("10.22.0.3/16").add(ifname="eth1")
    elsewhere = firewall.having(name="elsewhere").pod("10.33.0.2/16")
    elsewhere.add()
    firewall.delete()
    assert sets(firewall.host) == {"pods4": ["10.22.0.3", "10.33.0.2"]}
    firewall.gc("cid")
    assert sets(firewall.host) == {"pods4": ["10.33.0.2"]}
    elsewhere.gc()
    assert sets(firewall.host) == {}


def test_gc(firewall):
    """GC leaves the listed attachments, other networks' and what does not say whose it is."""
    isolated = firewall.having(ingressPolicy="isolated")
    isolated.pod("10.22.0.2/16", port="veth2").add("stays")
    isolated.pod("10.22.0.3/16", port="veth3").add("goes")
    isolated.pod("10.33.0.3/16", port="veth4", bridge="cni1").add("goes-too")
    isolated.having(name="net2").pod("10.44.0.3/16", port="veth5", bridge="cni2").add("other")
    firewall.host.run("nft", "add element inet podwire_firewall pods4 { 192.0.2.1 comment mine, 192.0.2.2 }")
    firewall.gc("stays")
    assert sets(firewall.host) == {
        "pods4": ["10.22.0.2", "10.44.0.3", "192.0.2.1", "192.0.2.2"],
        "members4": ["cni0 . 10.22.0.2", "cni2 . 10.44.0.3"],
        "policed": ["cni0", "cni2"],
        "isolated": ["veth2", "veth5"],
    }


@pytest.mark.parametrize("ifname", ["eth0", 'a"b', "a,b", "a\\b", "é"])
def test_what_was_listed_and_loaded_again(firewall, tmp_path, ifname):
    """Elements that `nft` listed and loaded, which keeps the comment only, are still found by CHECK, GC and DEL."""
    isolated = firewall.having(ingressPolicy="isolated")
    isolated.add(ifname=ifname)
    isolated.pod("10.22.0.3/16", port="veth3").add("two")
    file = tmp_path / "rules"
    file.write_text("flush ruleset\n" + firewall.host.run("nft", "list", "ruleset"))
    firewall.host.run("nft", "-f", str(file))
    isolated.check(ifname=ifname)
    before = sets(firewall.host, comments=True)
    isolated.add(ifname=ifname)
    assert sets(firewall.host, comments=True) == before
    firewall.gc("cid", ifname=ifname)
    firewall.delete(ifname=ifname)
    assert sets(firewall.host) == {}


def test_a_flushed_ruleset_is_made_again(firewall):
    """After `nft flush ruleset` CHECK fails, and ADD makes all again; so it does for a flushed chain or set."""
    own = firewall.having(ingressPolicy="isolated")
    own.add()
    before = nft_rules(firewall.host)
    for what, complaint in (
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
        firewall.host.run("nft", what)
        assert own.refusal().startswith(complaint)
        own.add()
        assert sorted(nft_rules(firewall.host)) == sorted(before), what
        own.check()


def test_what_the_administrator_does_stays(firewall):
    """Rules in chain admin, the policy of chain forward, and other tables stay as they are."""
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
    assert rules(firewall.host, "admin") == ["tcp dport 22 accept"]


@pytest.mark.parametrize(
    "what",
    [
        "chain inet podwire_firewall forward { type filter hook input priority 0; }",
        "chain inet podwire_firewall policies { type filter hook forward priority 0; }",
        "set inet podwire_firewall pods6 { type ipv4_addr; }",
    ],
)
def test_a_table_that_somebody_made_otherwise(firewall, what):
    """Where the names are taken by something else, ADD and STATUS say what to look at, and nothing is changed."""
    firewall.host.run("nft", "add table inet podwire_firewall")
    firewall.host.run("nft", f"add {what}")
    before = nft_rules(firewall.host)
    error = firewall.run("ADD").error()
    assert "another program created it with other properties: nft list table inet podwire_firewall" in error["details"]
    status = firewall.having(prevResult=None).run("STATUS").error()
    assert status["code"] == 50
    assert "another program created it with other properties" in status["msg"]
    assert nft_rules(firewall.host) == before


def test_a_failed_add_leaves_what_was_there(firewall):
    """An ADD that the kernel refuses leaves an earlier one's elements as they were, since nothing of it was done."""
    firewall.add()
    firewall.host.run("nft", "add table bridge podwire_firewall")
    firewall.host.run("nft", "add chain bridge podwire_firewall forward { type filter hook input priority 0; }")
    before = nft_rules(firewall.host)
    error = firewall.having(ingressPolicy="isolated").run("ADD").error()
    assert "nft list table bridge podwire_firewall" in error["details"]
    assert nft_rules(firewall.host) == before


def test_status_makes_nothing(firewall):
    """STATUS tries what ADD needs and leaves nothing."""
    firewall.having(prevResult=None).run("STATUS").assert_silent()
    assert nft_rules(firewall.host) == []


def test_a_drop_of_iptables_is_told(firewall):
    """ADD tells where chain FORWARD of iptables drops what is accepted here, of the pod's families only."""
    assert firewall.pod(IPV4).add() == ""
    chain = "add chain {} filter FORWARD {{ type filter hook forward priority 0; policy {}; }}"
    for family, policy, said in (("ip", "accept", ""), ("ip6", "drop", ""), ("ip", "drop", "iptables")):
        firewall.host.run("nft", "add", "table", family, "filter")
        firewall.host.run("nft", chain.format(family, policy))
        told = firewall.pod(IPV4).add()
        assert told.startswith(f"firewall: chain FORWARD of {said} drops" if said else "")
        assert bool(told) == bool(said)
    assert "iptables and ip6tables" in firewall.add()


def test_an_isolated_pod_without_a_port(firewall):
    """Where prevResult names no port of the bridge ADD tells what that means; where it is no bridge all is well."""
    own = firewall.having(ingressPolicy="isolated").pod(IPV4, port="")
    assert own.add() == ""
    firewall.host.ip("link", "add", "cni0", "type", "bridge")
    assert own.add().startswith("firewall: prevResult does not name the pod's port of cni0: ")
    assert sets(firewall.host) == {"pods4": ["10.22.0.2"], "members4": ["cni0 . 10.22.0.2"], "policed": ["cni0"]}


def test_what_is_accepted(network, client, new_sandbox):
    """Where an administrator has our chain drop the rest, pods reach the outside, and nobody there reaches them.

    What he lets through in chain admin passes, also between networks whose policies forbid it.
    """
    client.ip("route", "add", "10.0.0.0/8", "via", NODE)
    foo = FirewallNetwork(
        network.having(name="foo", bridge="foo"), {"backend": "nftables", "ingressPolicy": "same-bridge"}
    )
    one, two = foo.add(new_sandbox()), foo.sibling("bar", "bar", "10.33.0.0/16").add(new_sandbox())
    network.host.run("nft", "chain inet podwire_firewall forward { policy drop; }")
    assert one.reaches(CLIENT)
    assert one.cannot_reach(two)
    assert not reaches(client, one.ip, within_s=1)
    for rule in (f"ip saddr {CLIENT} accept", f"ip saddr {one.ip} accept", f"ip daddr {one.ip} accept"):
        network.host.run("nft", f"add rule inet podwire_firewall admin {rule}")
    assert reaches(client, one.ip)
    assert one.reaches(two)
    foo.delete(one)
    third = new_sandbox()
    unprotected = foo.bridge.add(third)
    assert not reaches(third, CLIENT, within_s=1)
    foo.firewall(unprotected).add(third.name)
    assert reaches(third, CLIENT)


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
def test_no_addresses(firewall, version):
    """A pod without addresses needs nothing, and gets nothing; no verb minds."""
    own = firewall.having(cniVersion=version, ingressPolicy="isolated").pod()
    own.add()
    own.check()
    own.delete()
    assert nft_rules(firewall.host) == []


def test_no_process_is_started(firewall, tmp_path):
    """Every verb works where no program can be found."""
    own = firewall.having(ingressPolicy="isolated")
    for command in ("STATUS", "ADD", "CHECK"):
        asked = own if command != "STATUS" else own.having(prevResult=None)
        assert asked.run(command, env={"PATH": str(tmp_path)}).status == 0
    firewall.having(prevResult=None).run("DEL", env={"PATH": str(tmp_path)}).assert_silent()
    assert sets(firewall.host) == {}
