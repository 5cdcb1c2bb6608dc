"""Masquerading with both variants of iptables: rules, traffic, removal, number of processes, failures."""

import fcntl
import os
import time
from dataclasses import replace

import pytest

from tests.netns.conftest import LEGACY
from tests.support import golden, outside, programs, xtables
from tests.support.attaching import address, reaches
from tests.support.netstate import links
from tests.support.tcp import serving, source_address

NOTHING: dict[str, list[str]] = {"iptables": [], "ip6tables": []}


@pytest.fixture
def net(dual_network, tools):
    """A masqueraded network of both families whose plugins use that variant."""
    return masqueraded(dual_network, tools)


@pytest.fixture
def counted(net, tools, tmp_path):
    """The network with programs that record their names; a function that returns the names since its last call."""
    directory = xtables.counted(tools, tmp_path / "counted")
    return replace(net, env=xtables.path(directory)), lambda: xtables.calls(directory)


def masqueraded(network, tools):
    with_masquerading = network.having(ipMasq=True, ipMasqBackend="iptables")
    return replace(with_masquerading, env=xtables.path(tools))


def rules(network):
    """Returns all user-defined chains and all rules, as iptables-save prints them, without counters."""
    directory = network.env["PATH"].partition(":")[0]
    by_tool = {}
    for tool in ("iptables", "ip6tables"):
        lines = network.host.run(f"{directory}/{tool}-save").splitlines()
        by_tool[tool] = [line.partition(" [")[0] for line in lines if line.startswith("-A") or " - [" in line]
    return by_tool


def source_seen(sender, receiver, destination):
    """Returns the source address of a connection from `sender` to `destination`, an address of `receiver`."""
    assert reaches(sender, destination)  # the gateway's IPv6 address is tentative at first
    with serving(receiver, destination):
        return source_address(sender, destination)


@pytest.fixture
def external(net, new_sandbox):
    """A machine beyond the host's uplink, with further addresses, one of them in the pods' subnet."""
    machine = new_sandbox()
    outside.connect(net.host, machine, "203.0.113.9/32", "10.22.200.1/32")
    return machine


@pytest.mark.parametrize("scenario", ["masq-iptables", "masq-iptables-dual", "ptp-masq-iptables"])
def test_the_rules_are_the_references(network, sandbox, tools, scenario, store):
    """Chains, rules, their order and comments equal the reference plugins', and DEL leaves none."""
    expected = golden.scenario(scenario)
    config = {**expected["config"], "ipam": {**expected["config"]["ipam"], "dataDir": str(store)}}
    net = masqueraded(replace(network, config=config), tools)
    net.add(sandbox, container_id=golden.CONTAINER_ID)
    assert rules(net) == expected["iptables"]
    net.delete(sandbox, container_id=golden.CONTAINER_ID)
    assert rules(net) == NOTHING


def test_traffic_to_the_subnet_and_exempt_networks_is_not_masqueraded(net, sandbox, external):
    """Traffic to the pod's subnet, even on other hosts, and to an exempt network keeps the pod's address."""
    result = net.having(nonMasqueradeCIDRs=["203.0.113.0/24"]).add(sandbox)
    sandbox.ip("route", "add", "10.22.200.1/32", "via", "10.22.0.1")
    assert source_seen(sandbox, external, "10.22.200.1") == address(result)
    assert source_seen(sandbox, external, "203.0.113.9") == address(result)
    assert source_seen(sandbox, external, "198.51.100.2") == "198.51.100.1"


def test_two_interfaces_of_one_container(net, sandbox, external):
    """Two interfaces on one network share a chain: DEL of one, even repeated, keeps the rules of the other."""
    net = net.having(isDefaultGateway=None, isGateway=True)
    first = net.add(sandbox, ifname="eth0")
    second = net.add(sandbox, ifname="eth1")
    for ifname, result in (("eth0", first), ("eth1", second)):
        net.check(sandbox, result, ifname=ifname)
    for _ in range(2):
        net.delete(sandbox, second, ifname="eth1")
    net.check(sandbox, first, ifname="eth0")
    sandbox.ip("route", "add", "198.51.100.2/32", "via", "10.22.0.1", "src", address(first))
    assert source_seen(sandbox, external, "198.51.100.2") == "198.51.100.1"
    net.delete(sandbox, first, ifname="eth0")
    assert rules(net) == NOTHING


def test_del_keeps_the_rules_of_a_reused_address(net, scripted_network, new_sandbox, external):
    """DEL of a pod keeps the rules of the pod that has its address now."""
    scripted = scripted_network([{"address": "10.22.0.9/16", "gateway": "10.22.0.1"}])
    net = replace(net, config={**net.config, "ipam": scripted.config["ipam"]}, path=scripted.path)
    stale, running = new_sandbox(), new_sandbox()
    net.add(stale)
    stale.delete()
    result = net.add(running)
    net.delete(stale)
    net.check(running, result)
    assert not any(stale.name in line for line in rules(net)["iptables"])
    running.ip("route", "replace", "default", "via", "10.22.0.1")
    assert source_seen(running, external, "198.51.100.2") == "198.51.100.1"
    net.delete(running, result)
    assert rules(net) == NOTHING


def test_few_processes(counted, tools, sandbox):
    """ADD and DEL run at most two programs for each family, CHECK one; with iptables-nft CHECK and DEL run none."""
    net, calls = counted
    is_legacy = tools.name == "legacy"
    result = net.add(sandbox)
    assert len(calls()) <= 4
    net.check(sandbox, result)
    assert calls() == (["ip6tables-restore", "iptables-restore"] if is_legacy else [])
    net.delete(sandbox, result)
    assert calls() == (["ip6tables-restore"] * 2 + ["iptables-restore"] * 2 if is_legacy else [])
    net.delete(sandbox, result)
    assert len(calls()) <= 2


def test_only_programs_of_the_networks_family_are_run(counted, network, sandbox):
    """Verbs of an IPv4 network do not run IPv6 programs."""
    net, calls = counted
    net = net.having(ipam=network.config["ipam"])
    net.delete(sandbox, net.add(sandbox))
    assert set(calls()) == {"iptables-restore"}


def test_gc_removes_rules_of_missing_attachments(net, new_sandbox):
    """GC removes the rules of its network's pods that no longer run, and keeps those of other pods and networks."""
    stale, running, other = new_sandbox(), new_sandbox(), new_sandbox()
    net.add(stale)
    stale.delete()
    result = net.add(running)
    other_network = net.having(name="other")
    third = other_network.add(other)
    net.gc(running)
    assert not any(stale.name in line for lines in rules(net).values() for line in lines)
    net.check(running, result)
    other_network.check(other, third)


def test_check_names_the_missing_rule(net, tools, sandbox, tmp_path):
    """CHECK fails with the missing rule, chain or jump in its message, and accepts further rules."""

    def load(*lines):
        xtables.load(net.host, tools, *lines)

    result = net.add(sandbox)
    (tmp_path / "saved").write_text(net.host.run(f"{tools}/iptables-save", "-t", "nat"))
    existing = rules(net)["iptables"]
    jump, accept = (next(line for line in existing if word in line) for word in ("POSTROUTING", "ACCEPT"))
    chain = jump.split()[-1]
    for damage, text in (
        (["-D" + accept[2:]], f"rule {accept} is missing"),
        (["-D" + jump[2:]], f"rule {jump} is missing"),
        (["-D" + accept[2:], accept], f"rule {accept} is missing"),  # after the rule that masquerades
        (["-D" + jump[2:], f"-F {chain}", f"-X {chain}"], f"chain {chain} is missing"),
    ):
        load(*damage)
        error = net.run("CHECK", sandbox, prev_result=result).error()
        assert (error["code"], text in error["msg"]) == (999, True), error
        net.host.run(f"{tools}/iptables-restore", str(tmp_path / "saved"))
    load(f"-I {chain} -p tcp -j LOG")
    net.check(sandbox, result)


def test_a_failure_in_one_family_is_rolled_back_in_the_other(net, tools, sandbox):
    """If the IPv6 rules cannot be created, ADD rolls back the IPv4 rules, the interface and the addresses."""
    (tools / "ip6tables-restore").unlink()
    programs.install(tools, **{"ip6tables-restore": "echo no such luck >&2\nexit 2"})
    error = net.run("ADD", sandbox).error()
    assert "no such luck" in error["details"]
    assert (rules(net), net.leases(), set(links(sandbox))) == (NOTHING, {}, {"lo"})


@pytest.mark.long
@pytest.mark.parametrize("tools", [LEGACY], indirect=True)
def test_add_waits_ten_seconds_for_the_lock(net, sandbox, tmp_path):
    """If another program holds the lock, ADD waits ten seconds, names it, fails with code 11 and rolls back."""
    lock, start = tmp_path / "xtables.lock", time.monotonic()
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = net.run("ADD", sandbox, env={**net.env, "XTABLES_LOCKFILE": str(lock)})
    error, holder = done.error(), f"the lock {lock} is held by process {os.getpid()} ("
    assert time.monotonic() - start > 9
    assert error["code"] == 11
    assert "try again later" in error["msg"]
    assert holder in error["details"]
    assert f"-restore: {holder}" in done.stderr
    assert (rules(net), net.leases(), set(links(sandbox))) == (NOTHING, {}, {"lo"})
