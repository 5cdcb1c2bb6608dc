"""Masquerading with both variants of iptables: rules, traffic, takeover from and by the reference plugins, removal."""

import fcntl
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.netns.conftest import LEGACY
from tests.support import binaries, golden, namespaces, xtables
from tests.support.attaching import address, reaches
from tests.support.invocation import finish
from tests.support.netstate import links, state
from tests.support.tcp import serving, source_address

KINDS = ("podwire", "reference")
NOTHING: dict[str, list[str]] = {"iptables": [], "ip6tables": []}


@pytest.fixture
def net(dual_network, tools):
    """A masqueraded network of both families whose plugins use that variant."""
    return masqueraded(dual_network, tools)


@pytest.fixture
def by(net, bin_dir):
    """A function that returns the network with podwire's plugins or the reference plugins."""
    directories = {"podwire": bin_dir, "reference": binaries.REFERENCE}
    return lambda kind: replace(net, bin_dir=directories[kind], path=str(directories[kind]))


@pytest.fixture
def counted(net, tools, tmp_path):
    """The network with programs that record their names; a function that returns the names since its last call."""
    directory = xtables.counted(tools, tmp_path / "counted")
    return replace(net, env=xtables.path(directory)), lambda: xtables.calls(directory)


@pytest.fixture
def network_with_address(net, scripted_network):
    """A function that returns the network with an IPAM plugin that allocates a fixed address."""

    def make(cidr):
        scripted = scripted_network([{"address": cidr, "gateway": "10.22.0.1"}])
        return replace(net, config={**net.config, "ipam": scripted.config["ipam"]}, path=scripted.path)

    return make


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


def is_legacy(network):
    """Returns whether the recording programs are iptables-legacy's."""
    return "/legacy/" in Path(network.env["PATH"].partition(":")[0], "iptables-restore").read_text()


def load(network, *lines, tool="iptables"):
    directory = network.env["PATH"].partition(":")[0]
    xtables.load(network.host, Path(directory), *lines, tool=tool)


def source_seen(sender, receiver, destination):
    """Returns the source address of a connection from `sender` to `destination`, an address of `receiver`."""
    assert reaches(sender, destination)  # the gateway's IPv6 address is tentative at first
    with serving(receiver, destination):
        return source_address(sender, destination)


@pytest.fixture
def external(net):
    """A namespace beyond the host's uplink, with 198.51.100.2 and others, and with routes to the pods' subnets."""
    with namespaces.temporary("out") as namespace:
        host = net.host
        host.ip("link", "add", "uplink", "type", "veth", "peer", "name", "eth0", "netns", namespace.name)
        for current, ipv4, ipv6 in (
            (host, "198.51.100.1/24", "2001:db8::1/64"),
            (namespace, "198.51.100.2/24", "2001:db8::2/64"),
        ):
            name = "uplink" if current is host else "eth0"
            current.ip("address", "add", ipv4, "dev", name)
            current.ip("address", "add", ipv6, "dev", name, "nodad")
            current.ip("link", "set", name, "up")
        for other in ("203.0.113.9", "10.22.200.1"):
            namespace.ip("address", "add", f"{other}/32", "dev", "eth0")
            host.ip("route", "add", f"{other}/32", "via", "198.51.100.2")
        namespace.ip("route", "add", "10.22.0.0/16", "via", "198.51.100.1")
        namespace.ip("route", "add", "fd00:22::/64", "via", "2001:db8::1")
        yield namespace


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


@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize(("creator", "successor"), [KINDS, KINDS[::-1]])
def test_takeover_of_a_pod(by, new_sandbox, creator, successor):
    """CHECK and DEL of one kind of plugins succeed for a pod of the other, and DEL leaves the state before ADD."""
    first, second = by(creator), by(successor)
    other, pod = new_sandbox(), new_sandbox()
    other_result = second.add(other)
    first.delete(pod, first.add(pod))
    before = rules(first), links(first.host), first.leases()
    result = first.add(pod)
    first.check(pod, result)
    second.check(pod, result)
    second.delete(pod, result)
    assert (rules(first), links(first.host), first.leases()) == before
    first.delete(other, other_result)
    assert rules(first) == NOTHING


@pytest.mark.usefixtures("reference")
def test_leaked_rules_of_the_reference_are_removed(by, sandbox):
    """DEL without a namespace removes rules that the reference plugin leaks, since it needs the address."""
    by("reference").add(sandbox)
    sandbox.delete()
    by("reference").delete(sandbox)
    assert rules(by("podwire")) != NOTHING
    by("podwire").delete(sandbox)
    assert rules(by("podwire")) == NOTHING


@pytest.mark.parametrize("netns", [None, "", "/run/netns/absent"])
def test_del_without_a_namespace_removes_the_rules(net, sandbox, netns):
    """DEL, also repeated, removes the rules if CNI_NETNS is unset, empty or a missing path."""
    net.add(sandbox)
    sandbox.delete()
    for _ in range(2):
        net.delete(netns, container_id=sandbox.name)
        assert rules(net) == NOTHING


def test_del_twice_and_without_add(net, sandbox):
    """DEL succeeds without ADD, when it creates no table, and when it is repeated."""
    before = state(net.host, netfilter=True)
    net.delete(sandbox)
    assert state(net.host, netfilter=True) == before
    result = net.add(sandbox)
    for _ in range(2):
        net.delete(sandbox, result)
        assert rules(net) == NOTHING


def test_traffic_that_leaves_has_the_hosts_address(net, sandbox, external):
    """Traffic to other hosts has the node's address as source, in both families."""
    net.add(sandbox)
    assert source_seen(sandbox, external, "198.51.100.2") == "198.51.100.1"
    assert source_seen(sandbox, external, "2001:db8::2") == "2001:db8::1"


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


def test_parallel_first_pods(dual_network, tools):
    """Two pods that start in parallel on a host without tables both get all their rules."""
    for _ in range(20):
        with namespaces.temporary_host() as host, namespaces.temporary() as one, namespaces.temporary() as two:
            net = masqueraded(replace(dual_network, host=host), tools)
            processes = [net.start("ADD", pod) for pod in (one, two)]
            for pod, process in zip((one, two), processes, strict=True):
                net.check(pod, finish(process).result())
            for process in [net.start("DEL", pod) for pod in (one, two)]:
                finish(process).assert_silent()
            assert rules(net) == NOTHING


def test_del_keeps_the_rules_of_a_reused_address(network_with_address, new_sandbox, external):
    """DEL of a pod keeps the rules of the pod that has its address now."""
    net = network_with_address("10.22.0.9/16")
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


def test_a_container_restarted_with_another_address(network_with_address, new_sandbox):
    """A container that was restarted without DEL gets new rules, and DEL removes the rules of both addresses."""
    first, second = new_sandbox(), new_sandbox()
    network_with_address("10.22.0.8/16").add(first, container_id="again")
    first.delete()
    net = network_with_address("10.22.0.9/16")
    result = net.add(second, container_id="again")
    net.check(second, result, container_id="again")
    net.delete(second, result, container_id="again")
    assert rules(net) == NOTHING


def test_few_processes(counted, sandbox):
    """ADD and DEL run at most two programs for each family, CHECK one; with iptables-nft CHECK and DEL run none."""
    net, calls = counted
    result = net.add(sandbox)
    assert len(calls()) <= 4
    net.check(sandbox, result)
    assert calls() == (["ip6tables-restore", "iptables-restore"] if is_legacy(net) else [])
    net.delete(sandbox, result)
    assert calls() == (["ip6tables-restore"] * 2 + ["iptables-restore"] * 2 if is_legacy(net) else [])
    net.delete(sandbox, result)
    assert len(calls()) <= 2


def test_only_programs_of_the_networks_family_are_run(counted, network, sandbox):
    """Verbs of an IPv4 network do not run IPv6 programs."""
    net, calls = counted
    net = net.having(ipam=network.config["ipam"])
    net.delete(sandbox, net.add(sandbox))
    assert set(calls()) == {"iptables-restore"}


def test_rules_of_other_programs_stay(net, sandbox):
    """ADD, GC and DEL do not change an operator's rule and five hundred chains of other programs."""
    for tool in ("iptables", "ip6tables"):
        chains = [f"-N KUBE-SVC-{number}" for number in range(500)]
        load(net, *chains, "-A POSTROUTING -j KUBE-SVC-7", f"-N CNI-{'0' * 24}", tool=tool)
    before = rules(net)
    result = net.add(sandbox)
    assert rules(net) != before
    net.check(sandbox, result)
    net.having(cniVersion="1.1.0", **{"cni.dev/valid-attachments": []}).run("GC").assert_silent()
    assert rules(net) == before
    net.delete(sandbox, result)
    assert rules(net) == before


def test_gc_removes_rules_of_missing_attachments(net, new_sandbox):
    """GC removes the rules of its network's pods that no longer run, and keeps those of other pods and networks."""
    stale, running, other = new_sandbox(), new_sandbox(), new_sandbox()
    net.add(stale)
    stale.delete()
    result = net.add(running)
    other_network = net.having(name="other")
    third = other_network.add(other)
    valid = [{"containerID": running.name, "ifname": "eth0"}]
    net.having(cniVersion="1.1.0", **{"cni.dev/valid-attachments": valid}).run("GC").assert_silent()
    assert not any(stale.name in line for lines in rules(net).values() for line in lines)
    net.check(running, result)
    other_network.check(other, third)


def test_check_names_the_missing_rule(net, sandbox):
    """CHECK fails with the missing rule, chain or jump in its message."""
    result = net.add(sandbox)
    existing = rules(net)["iptables"]
    jump, accept = (next(line for line in existing if word in line) for word in ("POSTROUTING", "ACCEPT"))
    for line in (accept, jump):
        load(net, "-D" + line[2:])
        error = net.run("CHECK", sandbox, prev_result=result).error()
        assert error["code"] == 999
        assert f"rule {line} is missing" in error["msg"]
        load(net, "-I" + line[2:])
    net.check(sandbox, result)
    load(net, "-D" + accept[2:], accept)  # after the rule that masquerades
    assert f"rule {accept} is missing" in net.run("CHECK", sandbox, prev_result=result).error()["msg"]
    load(net, "-D" + accept[2:], "-I" + accept[2:])
    chain = jump.split()[-1]
    further = f"-I {chain} -p tcp -j LOG"
    load(net, further)
    net.check(sandbox, result)
    load(net, "-D" + further[2:])
    load(net, "-D" + jump[2:], f"-F {chain}", f"-X {chain}")
    assert f"chain {chain} is missing" in net.run("CHECK", sandbox, prev_result=result).error()["msg"]


def test_a_failure_in_one_family_is_rolled_back_in_the_other(net, tools, sandbox):
    """If the IPv6 rules cannot be created, ADD rolls back the IPv4 rules, the interface and the addresses."""
    (tools / "ip6tables-restore").unlink()
    (tools / "ip6tables-restore").write_text("#!/bin/sh\necho no such luck >&2\nexit 2\n")
    (tools / "ip6tables-restore").chmod(0o755)
    error = net.run("ADD", sandbox).error()
    assert "no such luck" in error["details"]
    assert (rules(net), net.leases(), set(links(sandbox))) == (NOTHING, {}, {"lo"})


def test_a_long_container_id(net, sandbox):
    """With a container ID longer than the comment limit, CHECK and DEL still recognise the rules."""
    result = net.add(sandbox, container_id="x" * 250)
    comment = ('name: "net" id: "' + "x" * 250)[:255].replace('"', '\\"')
    assert all(f' --comment "{comment}" ' in line for line in rules(net)["iptables"] if line.startswith("-A"))
    net.check(sandbox, result, container_id="x" * 250)
    net.delete(sandbox, result, container_id="x" * 250)
    assert rules(net) == NOTHING


@pytest.fixture
def lock(tmp_path):
    """The file of iptables-legacy's lock, which this process holds."""
    with (tmp_path / "xtables.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file.name


@pytest.mark.parametrize("tools", [LEGACY], indirect=True)
def test_add_waits_ten_seconds_for_the_lock(net, sandbox, lock):
    """If another program holds the lock, ADD waits ten seconds, names it, fails with code 11 and rolls back."""
    start = time.monotonic()
    done = net.run("ADD", sandbox, env={**net.env, "XTABLES_LOCKFILE": lock})
    error, holder = done.error(), f"the lock {lock} is held by process {os.getpid()} ("
    assert 9 < time.monotonic() - start < 20
    assert error["code"] == 11
    assert "try again later" in error["msg"]
    assert holder in error["details"]
    assert f"-restore: {holder}" in done.stderr
    assert (rules(net), net.leases(), set(links(sandbox))) == (NOTHING, {}, {"lo"})


@pytest.mark.parametrize("tools", [LEGACY], indirect=True)
def test_a_signal_while_waiting_for_the_lock(counted, sandbox, lock):
    """SIGTERM ends an ADD that waits for the lock and its program, and ADD rolls back."""
    net, calls = counted
    process = net.start("ADD", sandbox, env={**net.env, "XTABLES_LOCKFILE": lock})
    deadline = time.monotonic() + 10
    while not calls() and time.monotonic() < deadline:
        time.sleep(0.02)
    start = time.monotonic()
    os.kill(process.pid, signal.SIGTERM)
    error = finish(process).error()
    assert error["code"] == 11
    assert time.monotonic() - start < 5
    assert (rules(net), net.leases(), set(links(sandbox))) == (NOTHING, {}, {"lo"})
