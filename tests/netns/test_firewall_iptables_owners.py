"""Owners of addresses with both variants of iptables: records, DEL, GC, rollback, and the reference plugin's rules."""

import shutil
from dataclasses import replace

import pytest

from tests.support import binaries, libcni, mount_wrapper, seccomp, xtables
from tests.support.bare_plugin import DUAL, IPV4
from tests.support.firewall_tables import expected_accept_rules
from tests.support.xtables import TOOLS

FIRST = expected_accept_rules("10.22.0.2")
OTHER = "10.22.0.3/16"


@pytest.fixture
def cached(firewall, tmp_path):
    """The network with a plugin that uses a separate, empty cache."""
    return firewall.with_cache(tmp_path / "cache")


@pytest.fixture
def reference_firewall(firewall, reference):
    """The network with the reference plugin."""
    return replace(firewall, bin_dir=reference)


def write_cache_entry(net, container_id, *, running=True, network="net"):
    """Writes a container's entry, without interfaces, into the cache."""
    netns = "" if running else libcni.MISSING_NETNS
    result = {**net.config.get("prevResult", {}), "interfaces": []}
    libcni.write_entry(net.bin_dir, network, container_id, netns=netns, result=result)


def owner_comment(container_id="cid", network="net", ifname="eth0"):
    return f'-m comment --comment "name: \\"{network}\\" id: \\"{container_id}\\" if: \\"{ifname}\\""'


def test_records_of_addresses(firewall):
    """Each address has one record that names network, container and interface; the last DEL deletes their chain."""
    firewall.add("first")
    firewall.pod(OTHER).add("second", ifname="eth1")
    assert firewall.records() == [
        f"-s 10.22.0.2/32 {owner_comment('first')}",
        f"-s 10.22.0.3/32 {owner_comment('second', ifname='eth1')}",
    ]
    assert firewall.records("ip6tables") == [f"-s fd00:22::2/128 {owner_comment('first')}"]
    firewall.delete("first")
    assert len(firewall.records()) == 1
    firewall.pod(OTHER).delete("second", ifname="eth1")
    assert not any("CNI-FORWARD-OWNERS" in line for lines in firewall.saved().values() for line in lines)


def test_del_uses_addresses_of_the_cache(cached, reference_firewall):
    """DEL without prevResult removes the reference plugin's rules of addresses in libcni's cache."""
    reference_firewall.add("cid")
    write_cache_entry(cached, "cid")
    cached.without_result().delete("other")
    assert cached.accept_rules() == FIRST
    cached.without_result().delete("cid")
    assert cached.accept_rules() == []


@pytest.mark.parametrize("running", [True, False])
def test_address_of_two_networks(cached, running):
    """DEL keeps the rules of an address that a running container of another network has, too."""
    other = cached.having(name="other")
    other.add("second")
    write_cache_entry(cached, "second", running=running, network="other")
    cached.add("first")
    assert len(cached.records()) == (2 if running else 1)
    cached.delete("first")
    assert cached.accept_rules() == (FIRST if running else [])
    other.delete("second")
    assert cached.accept_rules() == []


def test_del_removes_rules_with_a_stale_second_owner(cached):
    """DEL removes the rules of an address whose other owner, of another network, has lost its namespace."""
    other = cached.having(name="other")
    other.add("second")
    cached.add("first")
    write_cache_entry(cached, "second", running=False, network="other")
    cached.delete("first")
    assert cached.accept_rules() == cached.records() == []


def test_gc_keeps_rules_of_the_reference_plugin(firewall, reference_firewall):
    """GC keeps rules without an owner, which the reference plugin creates, and counts them."""
    firewall.pod(OTHER).add("stale")
    reference_firewall.pod("10.24.0.2/16").add("reference")
    assert "leaves 2 rule(s)" in firewall.gc()
    assert firewall.accept_rules() == expected_accept_rules("10.24.0.2")
    assert firewall.records() == firewall.records("ip6tables") == []


def test_gc_keeps_rules_with_a_second_owner(firewall):
    """GC removes the record of a stale owner, but keeps the rules if another network's record has the address."""
    firewall.having(name="net2").add("running")
    firewall.add("stale")
    firewall.gc()
    assert firewall.accept_rules() == FIRST
    assert firewall.records() == [f"-s 10.22.0.2/32 {owner_comment('running', 'net2')}"]


@pytest.mark.parametrize("verb", ["DEL", "GC"])
def test_policy_of_a_deleted_bridge(firewall, verb):
    """The next DEL or GC of any network removes the policy rules of a deleted bridge."""
    net = firewall.having(ingressPolicy="isolated")
    net.add()
    before = net.rules()
    firewall.host.ip("link", "add", "cni1", "type", "bridge")
    net.pod(*DUAL, bridge="cni1").add("other")
    net.pod(*DUAL, bridge="cni1").delete("other")
    assert sum("cni1" in line for line in net.rules()["iptables"]) == 3
    firewall.host.ip("link", "del", "cni1")
    open_net = firewall.having(name="third").pod("10.24.0.2/16")
    open_net.delete("third") if verb == "DEL" else open_net.gc()
    assert not any("cni1" in line for lines in net.rules().values() for line in lines)
    stages = [line for line in net.rules()["iptables"] if "ISOLATION" in line]
    assert stages == [line for line in before["iptables"] if "ISOLATION" in line]


@pytest.mark.parametrize("verb", ["DEL", "GC"])
def test_policy_stays_if_ioctl_is_denied(firewall, tmp_path, verb):
    """The policy rules of an existing bridge stay if a seccomp filter denies the ioctl that looks up interfaces."""
    net = firewall.having(ingressPolicy="isolated")
    net.add("running")
    before = [line for line in net.rules()["iptables"] if "ISOLATION" in line]
    bin_dir = seccomp.install(tmp_path, binaries.directory() / "firewall", "ioctl")
    keys = {"name": "other", "cniVersion": "1.1.0", "cni.dev/valid-attachments": []}
    outcome = replace(firewall.without_result().having(**keys), bin_dir=bin_dir).run(verb, "stale")
    assert (outcome.status, outcome.stdout) == (0, b"") or outcome.error()["msg"].startswith("cannot run iptables")
    assert [line for line in net.rules()["iptables"] if "ISOLATION" in line] == before


def test_del_removes_the_policy_of_a_veth(firewall):
    """DEL removes the policy rules of a veth, which ptp creates for each pod, before the veth is deleted."""
    firewall.host.ip("link", "add", "veth1234", "type", "veth", "peer", "name", "p")
    net = firewall.having(ingressPolicy="same-bridge").pod(*DUAL, bridge="veth1234")
    net.add()
    assert any("veth1234" in line for line in net.rules()["iptables"])
    net.delete()
    assert not any("veth1234" in line for lines in net.rules().values() for line in lines)


# The reference plugin has "isolated" since 1.7.0; since then the shared rules have another comment.
VARIANTS = [{}, {"ingressPolicy": "same-bridge"}, {"iptablesAdminChainName": "MINE"}]


@pytest.mark.parametrize("keys", VARIANTS)
def test_rules_of_the_reference_plugin(firewall, reference_firewall, keys):
    """CHECK accepts the reference plugin's rules, ADD only adds records to them, and DEL removes them."""
    podwire, reference = firewall.having(**keys), reference_firewall.having(**keys)
    reference.add()
    created = reference.rules()
    podwire.check()
    podwire.add()
    assert podwire.rules() == created
    podwire.delete()
    after = podwire.saved()
    reference.add()
    reference.delete()
    assert reference.saved() == after


@pytest.mark.parametrize("keys", VARIANTS)
def test_reference_plugin_accepts_and_removes_the_rules(firewall, reference_firewall, keys):
    """The reference plugin's CHECK accepts the rules, its DEL removes them, and neither ADD changes the other's rules.

    An old reference plugin adds the shared rules again with another comment; podwire's ADD then keeps one jump.
    """
    podwire, reference = firewall.having(**keys), reference_firewall.having(**keys)
    podwire.add()
    created = podwire.saved()
    reference.add()
    podwire.check()
    reference.check()
    podwire.add()
    repeated = podwire.saved()
    for tool in TOOLS:
        assert set(created[tool]) <= set(repeated[tool])
        assert all("(ingressPolicy: same-bridge)" in line for line in set(repeated[tool]) - set(created[tool]))
    reference.delete()
    assert podwire.accept_rules() == podwire.accept_rules("ip6tables") == []
    podwire.gc()
    assert podwire.records() == podwire.records("ip6tables") == []


@pytest.mark.parametrize("repeated", [False, True])
def test_failing_program_of_one_family(firewall, tmp_path, repeated):
    """If one family's program fails, ADD leaves no rules of the pod except those of an earlier ADD."""
    firewall.pod(OTHER, "fd00:22::3/64").add("other")
    if repeated:
        firewall.pod(IPV4).add()
    before = firewall.saved()
    tools = xtables.counted(firewall.tools, tmp_path / "failing")
    (tools / "ip6tables-restore").write_text("#!/bin/sh\nexit 1\n")
    assert replace(firewall, tools=tools).run("ADD").error()["code"] == 999
    assert firewall.saved() == before


def test_host_without_ip6tables(firewall, tmp_path):
    """On a host without ip6tables IPv4 pods work, and a dual-stack pod is refused with the program's name."""
    tools = tmp_path / "sbin"
    tools.mkdir()
    for program in firewall.tools.glob("iptables*"):
        shutil.copy(program.resolve(), tools / program.name)
    bin_dir = mount_wrapper.install(tmp_path / "bin", "firewall", f"mount --bind {tools} /usr/sbin")
    net = replace(firewall, bin_dir=bin_dir, tools=tools)
    assert "ip6tables-restore is not installed" in net.run("ADD").error()["msg"]
    assert firewall.accept_rules() == []
    net.having(cniVersion="1.1.0").without_result().run("STATUS").assert_silent()
    pod = net.pod(IPV4)
    pod.add()
    pod.check()
    assert firewall.accept_rules() == FIRST
    pod.delete()
    assert firewall.accept_rules() == []
