"""Masquerading with iptables, with both variants of it: rules, traffic, taking over, giving back, taking away."""

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

KINDS = ("ours", "reference")
NOTHING: dict[str, list[str]] = {"iptables": [], "ip6tables": []}


@pytest.fixture
def net(dual_network, tools):
    """A masqueraded network of both families whose plugins find that variant."""
    return masqueraded(dual_network, tools)


@pytest.fixture
def by(net, bin_dir):
    """A function that returns the network served by our plugins or by the reference's."""
    directories = {"ours": bin_dir, "reference": binaries.REFERENCE}
    return lambda kind: replace(net, bin_dir=directories[kind], path=str(directories[kind]))


@pytest.fixture
def counted(net, tools, tmp_path):
    """The network with programs that note their names; a function to call for the names since the last call."""
    directory = xtables.counted(tools, tmp_path / "counted")
    return replace(net, env=xtables.path(directory)), lambda: xtables.calls(directory)


@pytest.fixture
def given(net, scripted_network):
    """A function that returns the network with an IPAM plugin that gives one fixed address."""

    def make(cidr):
        scripted = scripted_network([{"address": cidr, "gateway": "10.22.0.1"}])
        return replace(net, config={**net.config, "ipam": scripted.config["ipam"]}, path=scripted.path)

    return make


def masqueraded(network, tools):
    own = network.having(ipMasq=True, ipMasqBackend="iptables")
    return replace(own, env=xtables.path(tools))


def rules(network):
    """Returns all chains that are not built in and all rules, as iptables-save prints them without counters."""
    directory = network.env["PATH"].partition(":")[0]
    found = {}
    for tool in ("iptables", "ip6tables"):
        lines = network.host.run(f"{directory}/{tool}-save").splitlines()
        found[tool] = [line.partition(" [")[0] for line in lines if line.startswith("-A") or " - [" in line]
    return found


def is_legacy(network):
    """Tells which variant the programs are that note their starts."""
    return "/legacy/" in Path(network.env["PATH"].partition(":")[0], "iptables-restore").read_text()


def load(network, *lines, tool="iptables"):
    directory = network.env["PATH"].partition(":")[0]
    xtables.load(network.host, Path(directory), *lines, tool=tool)


def source_seen(sender, receiver, destination):
    """Returns the address that `destination`, an address of `receiver`, sees `sender` call from."""
    assert reaches(sender, destination)  # IPv6 takes a moment until the gateway's address is no longer tentative
    with serving(receiver, destination):
        return source_address(sender, destination)


@pytest.fixture
def outside(net):
    """A namespace beyond the host's uplink: 198.51.100.2 and others, with a way back to the pods' subnets."""
    with namespaces.temporary("out") as namespace:
        host = net.host
        host.ip("link", "add", "uplink", "type", "veth", "peer", "name", "eth0", "netns", namespace.name)
        for here, ipv4, ipv6 in (
            (host, "198.51.100.1/24", "2001:db8::1/64"),
            (namespace, "198.51.100.2/24", "2001:db8::2/64"),
        ):
            name = "uplink" if here is host else "eth0"
            here.ip("address", "add", ipv4, "dev", name)
            here.ip("address", "add", ipv6, "dev", name, "nodad")
            here.ip("link", "set", name, "up")
        for other in ("203.0.113.9", "10.22.200.1"):
            namespace.ip("address", "add", f"{other}/32", "dev", "eth0")
            host.ip("route", "add", f"{other}/32", "via", "198.51.100.2")
        namespace.ip("route", "add", "10.22.0.0/16", "via", "198.51.100.1")
        namespace.ip("route", "add", "fd00:22::/64", "via", "2001:db8::1")
        yield namespace


@pytest.mark.parametrize("scenario", ["masq-iptables", "masq-iptables-dual", "ptp-masq-iptables"])
def test_the_rules_are_the_references(network, sandbox, tools, scenario, store):
    """Chains, rules, their order and their comments equal the reference's, and DEL leaves none."""
    expected = golden.scenario(scenario)
    config = {**expected["config"], "ipam": {**expected["config"]["ipam"], "dataDir": str(store)}}
    net = masqueraded(replace(network, config=config), tools)
    net.add(sandbox, container_id=golden.CONTAINER_ID)
    assert rules(net) == expected["iptables"]
    net.delete(sandbox, container_id=golden.CONTAINER_ID)
    assert rules(net) == NOTHING


@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize(("maker", "taker"), [KINDS, KINDS[::-1]])
def test_a_pod_is_taken_over(by, new_sandbox, maker, taker):
    """A pod made by one is CHECKed and DELeted by the other, with the state as it was before."""
    made, taken = by(maker), by(taker)
    other, pod = new_sandbox(), new_sandbox()
    stays = taken.add(other)
    made.delete(pod, made.add(pod))
    before = rules(made), links(made.host), made.leases()
    result = made.add(pod)
    made.check(pod, result)
    taken.check(pod, result)
    taken.delete(pod, result)
    assert (rules(made), links(made.host), made.leases()) == before
    made.delete(other, stays)
    assert rules(made) == NOTHING


@pytest.mark.usefixtures("reference")
def test_rules_of_a_dead_pod_of_the_reference_go(by, sandbox):
    """Where the reference leaks, since it needs the address, our DEL without a namespace does not."""
    by("reference").add(sandbox)
    sandbox.delete()
    by("reference").delete(sandbox)
    assert rules(by("ours")) != NOTHING
    by("ours").delete(sandbox)
    assert rules(by("ours")) == NOTHING


@pytest.mark.parametrize("netns", [None, "", "/run/netns/absent"])
def test_without_a_namespace_the_rules_go(net, sandbox, netns):
    """DEL with CNI_NETNS unset, empty or naming nothing removes the rules, and again."""
    net.add(sandbox)
    sandbox.delete()
    for _ in range(2):
        net.delete(netns, container_id=sandbox.name)
        assert rules(net) == NOTHING


def test_del_twice_and_without_add(net, sandbox):
    """DEL succeeds when there never was anything, when it is repeated, and adds no table where there is none."""
    before = state(net.host, netfilter=True)
    net.delete(sandbox)
    assert state(net.host, netfilter=True) == before
    result = net.add(sandbox)
    for _ in range(2):
        net.delete(sandbox, result)
        assert rules(net) == NOTHING


def test_traffic_that_leaves_has_the_hosts_address(net, sandbox, outside):
    """A pod is seen from outside with the node's address, in both families."""
    net.add(sandbox)
    assert source_seen(sandbox, outside, "198.51.100.2") == "198.51.100.1"
    assert source_seen(sandbox, outside, "2001:db8::2") == "2001:db8::1"


def test_traffic_to_own_and_exempt_networks_keeps_its_address(net, sandbox, outside):
    """A destination in the pod's subnet, wherever it is, and one in an exempt network sees the pod itself."""
    result = net.having(nonMasqueradeCIDRs=["203.0.113.0/24"]).add(sandbox)
    sandbox.ip("route", "add", "10.22.200.1/32", "via", "10.22.0.1")
    assert source_seen(sandbox, outside, "10.22.200.1") == address(result)
    assert source_seen(sandbox, outside, "203.0.113.9") == address(result)
    assert source_seen(sandbox, outside, "198.51.100.2") == "198.51.100.1"


def test_two_interfaces_of_one_container(net, sandbox, outside):
    """Two interfaces on one network share a chain: DEL of one, even repeated, keeps the other working."""
    net = net.having(isDefaultGateway=None, isGateway=True)
    first = net.add(sandbox, ifname="eth0")
    second = net.add(sandbox, ifname="eth1")
    for ifname, result in (("eth0", first), ("eth1", second)):
        net.check(sandbox, result, ifname=ifname)
    for _ in range(2):
        net.delete(sandbox, second, ifname="eth1")
    net.check(sandbox, first, ifname="eth0")
    sandbox.ip("route", "add", "198.51.100.2/32", "via", "10.22.0.1", "src", address(first))
    assert source_seen(sandbox, outside, "198.51.100.2") == "198.51.100.1"
    net.delete(sandbox, first, ifname="eth0")
    assert rules(net) == NOTHING


def test_two_first_pods_at_once(dual_network, tools):
    """Two pods that are the first on their host, whose tables are not there yet, both get all their rules."""
    for _ in range(20):
        with namespaces.temporary_host() as host, namespaces.temporary() as one, namespaces.temporary() as two:
            net = masqueraded(replace(dual_network, host=host), tools)
            processes = [net.start("ADD", pod) for pod in (one, two)]
            for pod, process in zip((one, two), processes, strict=True):
                net.check(pod, finish(process).result())
            for process in [net.start("DEL", pod) for pod in (one, two)]:
                finish(process).assert_silent()
            assert rules(net) == NOTHING


def test_an_address_used_again(given, new_sandbox, outside):
    """DEL of a dead pod leaves the rules of the pod that has its address by now."""
    net = given("10.22.0.9/16")
    dead, alive = new_sandbox(), new_sandbox()
    net.add(dead)
    dead.delete()
    result = net.add(alive)
    net.delete(dead)
    net.check(alive, result)
    assert not any(dead.name in line for line in rules(net)["iptables"])
    alive.ip("route", "replace", "default", "via", "10.22.0.1")
    assert source_seen(alive, outside, "198.51.100.2") == "198.51.100.1"
    net.delete(alive, result)
    assert rules(net) == NOTHING


def test_a_container_that_came_again_with_another_address(given, new_sandbox):
    """A container whose first life ended without DEL has the rules of the second, and DEL removes those of both."""
    first, second = new_sandbox(), new_sandbox()
    given("10.22.0.8/16").add(first, container_id="again")
    first.delete()
    net = given("10.22.0.9/16")
    result = net.add(second, container_id="again")
    net.check(second, result, container_id="again")
    net.delete(second, result, container_id="again")
    assert rules(net) == NOTHING


def test_few_processes(counted, sandbox):
    """ADD and DEL run at most two programs for each family concerned, CHECK one; of iptables-nft CHECK and DEL none."""
    net, calls = counted
    result = net.add(sandbox)
    assert len(calls()) <= 4
    net.check(sandbox, result)
    assert calls() == (["ip6tables-restore", "iptables-restore"] if is_legacy(net) else [])
    net.delete(sandbox, result)
    assert calls() == (["ip6tables-restore"] * 2 + ["iptables-restore"] * 2 if is_legacy(net) else [])
    net.delete(sandbox, result)
    assert len(calls()) <= 2


def test_one_family_costs_nothing_in_the_other(counted, network, sandbox):
    """An IPv4 network never runs the IPv6 programs."""
    net, calls = counted
    net = net.having(ipam=network.config["ipam"])
    net.delete(sandbox, net.add(sandbox))
    assert set(calls()) == {"iptables-restore"}


def test_what_others_made_stays(net, sandbox):
    """A rule of the operator and five hundred chains of others are untouched by ADD, GC and DEL."""
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


def test_gc_takes_what_has_no_attachment(net, new_sandbox):
    """GC removes the rules of dead pods of its network, keeps those of the living and of other networks."""
    dead, alive, other = new_sandbox(), new_sandbox(), new_sandbox()
    net.add(dead)
    dead.delete()
    result = net.add(alive)
    elsewhere = net.having(name="other")
    third = elsewhere.add(other)
    valid = [{"containerID": alive.name, "ifname": "eth0"}]
    net.having(cniVersion="1.1.0", **{"cni.dev/valid-attachments": valid}).run("GC").assert_silent()
    assert not any(dead.name in line for lines in rules(net).values() for line in lines)
    net.check(alive, result)
    elsewhere.check(other, third)


def test_check_tells_what_is_missing(net, sandbox):
    """CHECK fails with the rule that is not there, the chain or the jump."""
    result = net.add(sandbox)
    found = rules(net)["iptables"]
    jump, accept = (next(line for line in found if word in line) for word in ("POSTROUTING", "ACCEPT"))
    for line in (accept, jump):
        load(net, "-D" + line[2:])
        error = net.run("CHECK", sandbox, prev_result=result).error()
        assert error["code"] == 999
        assert f"rule {line} is missing" in error["msg"]
        load(net, "-I" + line[2:])
    net.check(sandbox, result)
    load(net, "-D" + accept[2:], accept)  # behind the rule that masquerades
    assert f"rule {accept} is missing" in net.run("CHECK", sandbox, prev_result=result).error()["msg"]
    load(net, "-D" + accept[2:], "-I" + accept[2:])
    chain = jump.split()[-1]
    further = f"-I {chain} -p tcp -j LOG"
    load(net, further)
    net.check(sandbox, result)
    load(net, "-D" + further[2:])
    load(net, "-D" + jump[2:], f"-F {chain}", f"-X {chain}")
    assert f"chain {chain} is missing" in net.run("CHECK", sandbox, prev_result=result).error()["msg"]


def test_a_failure_in_one_family_leaves_nothing_in_the_other(net, tools, sandbox):
    """When the IPv6 rules cannot be made, the IPv4 ones, the interface and the addresses are taken back."""
    (tools / "ip6tables-restore").unlink()
    (tools / "ip6tables-restore").write_text("#!/bin/sh\necho no such luck >&2\nexit 2\n")
    (tools / "ip6tables-restore").chmod(0o755)
    error = net.run("ADD", sandbox).error()
    assert "no such luck" in error["details"]
    assert (rules(net), net.leases(), set(links(sandbox))) == (NOTHING, {}, {"lo"})


def test_a_long_container_id(net, sandbox):
    """An ID longer than a comment may be is served, and its rules are found again."""
    result = net.add(sandbox, container_id="x" * 250)
    comment = ('name: "net" id: "' + "x" * 250)[:255].replace('"', '\\"')
    assert all(f' --comment "{comment}" ' in line for line in rules(net)["iptables"] if line.startswith("-A"))
    net.check(sandbox, result, container_id="x" * 250)
    net.delete(sandbox, result, container_id="x" * 250)
    assert rules(net) == NOTHING


@pytest.fixture
def lock(tmp_path):
    """The lock of iptables-legacy, held by somebody; its file."""
    with (tmp_path / "xtables.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file.name


@pytest.mark.parametrize("tools", [LEGACY], indirect=True)
def test_the_lock_is_waited_for_but_not_without_end(net, sandbox, lock):
    """While another program holds the lock ADD waits ten seconds, names it, fails with code 11, and leaves nothing."""
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
    """SIGTERM ends the wait, the program that waits, and the ADD, which leaves nothing."""
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
