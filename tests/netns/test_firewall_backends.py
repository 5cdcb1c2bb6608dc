"""The firewall with each backend: nftables, iptables-nft and iptables-legacy have the same behaviour."""

import pytest

from tests.netns.conftest import LEGACY, NFT
from tests.support import xtables
from tests.support.bare_plugin import DUAL, IPV4, run_in_parallel
from tests.support.firewall_tables import Firewall, list_elements, list_rules
from tests.support.netstate import nft_rules

NFTABLES = pytest.param("nftables", marks=pytest.mark.needs("nft_inet", "nft_bridge"))
OTHER = "10.22.0.3/16"


@pytest.fixture(params=[NFT, LEGACY, NFTABLES])
def firewall(request, bin_dir, bridged, tmp_path):
    """A network with firewall and each backend, for dual-stack pods on bridge `cni0`."""
    config = {"cniVersion": "1.1.0", "name": "net", "type": "firewall", "backend": "iptables"}
    if request.param == "nftables":
        return Firewall(bridged, config).having(backend="nftables").pod(*DUAL)
    return Firewall(bridged, config, tools=xtables.variant(tmp_path / request.param, request.param)).pod(*DUAL)


def rules(firewall):
    """Returns all rules and elements of the backend."""
    return firewall.saved() if firewall.tools else nft_rules(firewall.host)


def list_duplicates(firewall):
    """Returns the rules that exist more than once in their chain."""
    if firewall.tools:
        lines = [line for lines in firewall.saved().values() for line in {*lines} if lines.count(line) > 1]
        return [line for line in lines if line.startswith("-A")]
    chains = [list_rules(firewall.host, name) for name in ("forward", "policies")]
    return [rule for chain in chains for rule in {*chain} if chain.count(rule) > 1]


def list_accepted(firewall):
    """Returns the addresses whose packets are accepted, sorted."""
    if not firewall.tools:
        elements = list_elements(firewall.host)
        return sorted(elements.get("pods4", []) + elements.get("pods6", []))
    lines = [line for tool in xtables.TOOLS for line in firewall.accept_rules(tool) if line.startswith("-s ")]
    return sorted(line.split()[1].partition("/")[0] for line in lines)


@pytest.mark.parametrize("command", ["ADD", "CHECK"])
def test_missing_prev_result(firewall, command):
    """ADD and CHECK without prevResult fail with the reference plugin's text, and change nothing."""
    before = rules(firewall)
    error = firewall.without_result().run(command).error()
    assert (error["code"], error["msg"]) == (7, "missing prevResult from earlier plugin")
    assert rules(firewall) == before


@pytest.mark.parametrize("policy", ["open", "same-bridge", "isolated"])
@pytest.mark.parametrize("version", ["0.4.0", "1.1.0"])
def test_pod_without_addresses(firewall, version, policy):
    """All verbs succeed for a pod without addresses, which gets no rules."""
    before = rules(firewall)
    pod = firewall.having(cniVersion=version, ingressPolicy=policy).pod()
    pod.add()
    pod.check()
    pod.delete()
    assert rules(firewall) == before


def test_del_without_prev_result(firewall):
    """DEL without prevResult, also repeated, deletes what this interface of this container owns."""
    firewall.pod(OTHER).add("cid", ifname="eth1")
    firewall.add("cid")
    lost = firewall.without_result()
    lost.delete("other")
    lost.delete("cid", ifname="eth1")
    assert list_accepted(firewall) == ["10.22.0.2", "fd00:22::2"]
    firewall.check("cid")
    for _ in range(2):
        lost.delete("cid")
        assert list_accepted(firewall) == []


def test_del_with_an_invalid_configuration(firewall):
    """DEL deletes the rules even if the configuration is invalid."""
    firewall.add()
    firewall.having(ingressPolicy=5, backend=7, iptablesAdminChainName=[], prevResult={"ips": "none"}).delete()
    assert list_accepted(firewall) == []


@pytest.mark.parametrize("policy", ["open", "isolated"])
def test_late_del_keeps_the_new_owners_rules(firewall, policy):
    """A late DEL, with or without prevResult, keeps the rules of an address that another container has by now."""
    firewall = firewall.having(ingressPolicy=policy)
    firewall.pod(*DUAL, port="veth1").run("ADD", "old").result()
    firewall.run("ADD", "new").result()
    before = rules(firewall)
    firewall.pod(*DUAL, port="veth1").delete("old")
    if firewall.tools:
        assert rules(firewall) == before
    else:
        assert list_elements(firewall.host)["pods4"] == ["10.22.0.2"]
        assert list_elements(firewall.host).get("isolated", ["veth2"]) == ["veth2"]
    before = rules(firewall)
    firewall.without_result().delete("old")
    assert rules(firewall) == before
    firewall.delete("new")
    assert list_accepted(firewall) == []


@pytest.mark.parametrize(
    ("network", "ids"),
    [("n" * 63, ("c" * 200, "c" * 201)), ("n" * 200, ("c" * 254, "c" * 255))],
    ids=["a network of 63", "a network of 200"],
)
def test_long_names(firewall, network, ids):
    """Owners whose names are too long for a comment are distinguished."""
    net = firewall.pod(IPV4).having(name=network)
    net.add(ids[0])
    net.pod(OTHER).add(ids[1])
    net.without_result().delete(ids[0])
    assert list_accepted(net) == ["10.22.0.3"]
    net.gc(ids[1])
    firewall.gc()
    assert list_accepted(net) == ["10.22.0.3"]
    net.gc()
    assert list_accepted(net) == []


@pytest.mark.parametrize("ifname", ['a"b', "a'b", "a,b", "a\\b", "$a", "é"])
def test_special_characters_in_interface_names(firewall, ifname):
    """All verbs accept every interface name that the kernel accepts."""
    firewall.add(ifname=ifname)
    before = rules(firewall)
    firewall.add(ifname=ifname)
    firewall.check(ifname=ifname)
    firewall.gc("cid", ifname=ifname)
    assert rules(firewall) == before
    firewall.without_result().delete(ifname=ifname)
    assert list_accepted(firewall) == []


def test_gc_deletes_rules_of_stale_attachments(firewall):
    """GC deletes the rules of this network's unlisted attachments, and keeps all others."""
    firewall.add("running")
    firewall.pod(OTHER).add("stale")
    firewall.pod("10.22.0.4/16").add("running", ifname="eth1")
    firewall.having(name="net2").pod("10.23.0.2/16", bridge="cni1").add("stale")
    assert firewall.gc("running") == ""
    assert list_accepted(firewall) == ["10.22.0.2", "10.23.0.2", "fd00:22::2"]
    firewall.check("running")
    firewall.gc()
    assert list_accepted(firewall) == ["10.23.0.2"]


@pytest.mark.one_kernel
def test_parallel_verbs(firewall):
    """Verbs in parallel lose and duplicate no rule: first ADDs on five bridges, late DELs beside ADDs, and DELs."""
    pods = {}
    for n in range(10, 20):
        bridge, policy = f"br{n % 5}", ("open", "same-bridge", "isolated", "isolated", "same-bridge")[n % 5]
        pod = firewall.pod(f"10.22.0.{n}/16", f"fd00:22::{n:x}/64", bridge=bridge, port=f"veth{n}")
        pods[n] = pod.having(ingressPolicy=policy)
    for n in range(5):
        firewall.host.ip("link", "add", f"br{n}", "type", "bridge")
    addresses = sorted(ip for n in pods for ip in (f"10.22.0.{n}", f"fd00:22::{n:x}"))
    first = [("ADD", f"old{n}", pod) for n, pod in pods.items()]
    again = [("ADD", f"new{n}", pod) for n, pod in pods.items()]
    late = [("DEL", name, pod.without_result()) for _, name, pod in first]
    for calls, expected in (
        (first, addresses),
        ([call for pair in zip(late, again, strict=True) for call in pair], addresses),
        ([("DEL", name, pod) for _, name, pod in again], []),
    ):
        for outcome in run_in_parallel(*calls):
            assert outcome.status == 0, outcome
        assert list_accepted(firewall) == expected
        assert list_duplicates(firewall) == []
        for command, name, pod in calls:
            if command == "ADD" and (not firewall.tools or pod.config["ingressPolicy"] != "isolated"):
                pod.check(name)  # isolation with iptables needs br_netfilter
