"""`podwire repair` restores flushed rules of each backend, and connections continue."""

import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from attachment import presence
from tests.netns.conftest import LEGACY, NFT, NFTABLES
from tests.support import xtables
from tests.support.attaching import address
from tests.support.chained import differences
from tests.support.namespaces import delete_and_wait
from tests.support.netstate import links
from tests.support.publishing import CLIENT, NODE, connect, disable_dad
from tests.support.repair_node import Node, network
from tests.support.sockets import NO_ANSWER_S, Reached, ask, call, is_unreachable, open_socket, service

BACKENDS = [
    NFTABLES,
    pytest.param("iptables nft", marks=NFT.marks),
    pytest.param("iptables legacy", marks=LEGACY.marks),
]
TRACKING = (
    "add table inet others; add chain inet others seen { type filter hook prerouting priority 0 ; }; "
    "add rule inet others seen ct state new accept"
)


@pytest.fixture(params=BACKENDS)
def node(request, bin_dir, host, store, tmp_path):
    """A node whose network uses one backend."""
    disable_dad(host)
    backend, _, variant = request.param.partition(" ")
    tools = xtables.variant(tmp_path / variant, variant) if variant else None
    env = xtables.path(tools) if tools else {}
    return Node(host, network(store, backend), tmp_path / "cni", env, tools=tools)


@pytest.fixture
def external_host(node, new_sandbox):
    """A host on the node's uplink, without a route to the pods."""
    namespace = new_sandbox()
    disable_dad(namespace)
    connect(node.host, namespace)
    return namespace


def exchange(one, other):
    """Sends data over an established connection in both directions."""
    for sender, receiver in ((one, other), (other, one)):
        sender.sendall(b"still there")
        assert receiver.recv(100) == b"still there"


def connect_to(stack, caller, server, ip, port):
    """Returns both ends of a connection from a namespace to a listening service."""
    client = stack.enter_context(open_socket(caller, "tcp", "0.0.0.0"))
    client.connect((ip, port))
    accepted, source = server.socket.accept()
    accepted.settimeout(20)
    stack.enter_context(accepted)
    return client, accepted, source[0]


@pytest.mark.needs("nft_inet")
def test_connections_survive_a_flush_and_a_repair(node, external_host, new_sandbox):
    """New connections fail after a flush and work after a repair, and established ones continue throughout."""
    pod, other = new_sandbox(), new_sandbox()
    web, neighbour = node.with_ports("8080:80", "5353:53/udp"), node.with_ports("8081:80")
    result = web.add(pod)
    neighbour.add(other)
    with ExitStack() as stack:
        open_service = lambda *where: stack.enter_context(service(*where))  # noqa: E731
        tcp, udp = open_service(pod, "tcp", "0.0.0.0"), open_service(pod, "udp", "0.0.0.0", 53)
        remote = open_service(external_host, "tcp", CLIENT)
        inward = connect_to(stack, external_host, tcp, NODE, 8080)
        outward = connect_to(stack, pod, remote, CLIENT, 80)
        assert (inward[2], outward[2]) == (CLIENT, NODE)
        steady, stray = (stack.enter_context(open_socket(external_host, "udp", "0.0.0.0")) for _ in range(2))
        assert ask([udp], steady, NODE, 5353) == Reached(pod.name, CLIENT)
        before = node.rules()

        node.flush()
        # Another program's rules enable connection tracking, as kube-proxy's do: flows that begin now get an entry.
        node.host.run("nft", TRACKING)
        assert is_unreachable([tcp], external_host, "tcp", NODE, 8080)
        assert ask([udp], stray, NODE, 5353, timeout_s=NO_ANSWER_S) is None
        assert is_unreachable([remote], pod, "tcp", CLIENT, 80)

        assert node.repair() == {pod.name: "repaired", other.name: "repaired"}
        node.host.run("nft", "delete table inet others")
        assert differences(before, node.rules()) == []
        assert call([tcp], external_host, "tcp", NODE, 8080) == Reached(pod.name, CLIENT)
        assert call([remote], pod, "tcp", CLIENT, 80) == Reached(external_host.name, NODE)
        assert ask([udp], stray, NODE, 5353) == Reached(pod.name, CLIENT), "conntrack entry from the time without rules"
        exchange(*inward[:2])
        exchange(*outward[:2])
        # The pod sends first: without the conntrack entry its datagram would have another source port.
        udp.socket.sendto(b"news", (CLIENT, steady.getsockname()[1]))
        assert steady.recvfrom(100) == (b"news", (NODE, 5353))
        web.check(pod, result)

        assert node.repair() == {pod.name: "fine", other.name: "fine"}
        assert differences(before, node.rules()) == []


def test_first_owner_of_a_host_port_stays_first(node, external_host, new_sandbox):
    """The first of two pods with one host port gets it again, and the second one is not repaired repeatedly."""
    first, second = (new_sandbox() for _ in range(2))
    node_with_port = node.with_ports("5353:53/udp")
    names = {"z-first": first, "a-second": second}  # the order of ADD differs from the order of the names
    for name, pod in names.items():
        node_with_port.add(pod, name)
    with service(first, "udp", "0.0.0.0", 53) as udp, open_socket(external_host, "udp", "0.0.0.0") as steady:
        assert ask([udp], steady, NODE, 5353) == Reached(first.name, CLIENT)
        before = node.rules()
        node.flush()
        assert node.repair() == dict.fromkeys(names, "repaired")
        assert differences(before, node.rules()) == []
        udp.socket.sendto(b"news", (CLIENT, steady.getsockname()[1]))
        assert steady.recvfrom(100) == (b"news", (NODE, 5353))
        assert node.repair() == dict.fromkeys(names, "fine")
        assert call([udp], external_host, "udp", NODE, 5353) == Reached(first.name, CLIENT)


def test_isolation_and_spoof_check_are_restored(node, store, new_sandbox):
    """Repair isolates pods of another bridge again, and drops frames with a spoofed MAC address."""
    second = replace(node, chain=network(store, node.chain.plugins[2]["backend"], name="two", bridge="cni1", net=23))
    pod, stranger = new_sandbox(), new_sandbox()
    ip = address(node.add(pod))
    second.add(stranger)
    with service(pod, "tcp", "0.0.0.0") as tcp:
        assert is_unreachable([tcp], stranger, "tcp", ip, 80)
        node.flush()
        assert call([tcp], stranger, "tcp", ip, 80)
        node.repair()
        assert is_unreachable([tcp], stranger, "tcp", ip, 80)
    refuse_another_mac(pod)
    node.flush()
    node.repair()
    refuse_another_mac(pod)


def refuse_another_mac(pod):
    """Checks that a pod gets an answer with its assigned MAC address only: "refused" from a closed port."""
    assigned_mac = links(pod)["eth0"]["address"]
    for mac, answer in ((assigned_mac, "refused"), ("02:00:00:00:00:01", r"timed out|No route")):
        pod.ip("link", "set", "eth0", "address", mac)
        with open_socket(pod, "tcp", "0.0.0.0") as caller:
            caller.settimeout(NO_ANSWER_S)
            with pytest.raises(OSError, match=answer):
                caller.connect(("10.22.0.1", 9))
    pod.ip("link", "set", "eth0", "address", assigned_mac)


def test_each_flushed_chain_is_restored(node, new_sandbox):
    """Repair restores each chain that is flushed alone."""
    pods = {new_sandbox(): None for _ in range(2)}
    for number, pod in enumerate(pods):
        pods[pod] = node.with_ports(f"{8080 + number}:80", f"{5350 + number}:53/udp").add(pod)
    before = unordered(node.rules())
    # CNI-FORWARD-OWNERS records address owners for DEL and GC; CHECK ignores it, as the reference plugins lack it.
    for name in (name for name in before if "CNI-FORWARD-OWNERS" not in name):
        kind, *words = name.split()
        if kind in xtables.TOOLS:
            node.host.run(f"{node.tools}/{kind}", "-t", words[0], "-F", words[1])
        elif words[3] == "chain":
            node.host.run("nft", "flush", "chain", words[0], words[1], words[4])
        if unordered(node.rules()) == before:
            continue  # an empty chain for administrators
        assert "repaired" in node.repair().values(), name
        assert unordered(node.rules()) == before, name
        for number, (pod, result) in enumerate(pods.items()):
            node.with_ports(f"{8080 + number}:80", f"{5350 + number}:53/udp").check(pod, result)


def unordered(rules):
    """Returns the rules in an order that does not depend on the order of ADD."""
    return {name: sorted(lines) for name, lines in rules.items()}


def test_dry_run_prints_missing_rules(node, new_sandbox):
    """A dry run prints the missing rules, exits with 1, and creates nothing."""
    pod = new_sandbox()
    node.with_ports("8080:80").add(pod)
    outcome = node.tool("--dry-run")
    assert (outcome.status, b" in order" in outcome.stdout) == (0, True), outcome
    node.flush()
    empty = node.rules()
    outcome = node.tool("--dry-run")
    text = outcome.stdout.decode()
    assert (outcome.status, outcome.stderr) == (1, "")
    for plugin, what in (("bridge", "the masquerading"), ("portmap", "the host ports"), ("firewall", "the firewall")):
        assert f"{plugin}: restore {what}" in text
    assert node.rules() == empty
    assert node.repair("--dry-run") == {pod.name: "missing"}


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--json",)])
def test_missing_cache_directory(node, options):
    """A --cache-dir that does not exist is an error with exit status 3, also beside one that does."""
    (node.cache / "results").mkdir(parents=True)
    outcome = node.tool("--cache-dir", "/nonexistent", *options)
    assert outcome.status == 3, outcome
    assert "the cache /nonexistent/results does not exist" in outcome.stdout.decode() + outcome.stderr


def test_nothing_is_restored_for_stopped_pods(node, new_sandbox):
    """No rules are restored for a path that is missing, a plain file, or the host's namespace."""
    running, stopped, file = new_sandbox(), new_sandbox(), new_sandbox()
    for number, pod in enumerate((running, stopped, file)):
        node.with_ports(f"{8080 + number}:80").add(pod)
    reused = node.file(stopped.name).read_text().replace(stopped.path, node.host.path).replace(stopped.name, "reused")
    node.file("reused").write_text(reused)
    delete_and_wait(stopped, node.host)
    delete_and_wait(file, node.host)
    if not presence.get_obstacle():  # in a container it may be the mount point of another mount namespace
        Path(file.path).touch()
    node.flush()
    states = node.repair()
    assert states == {running.name: "repaired", stopped.name: "gone", file.name: "gone", "reused": "gone"}
    text = str(node.rules())
    assert [name in text for name in (running.name, stopped.name, file.name, "reused")] == [True, False, False, False]


def test_invalid_cache_entry(node, new_sandbox):
    """A truncated or empty cache file or a FIFO is reported with exit status 1, and other pods are repaired."""
    pod, lost = new_sandbox(), new_sandbox()
    for number, one in enumerate((pod, lost)):
        node.with_ports(f"{8080 + number}:80").add(one)
    file = node.file(lost.name)
    for text in (file.read_text()[:50], "", None):
        node.flush()
        file.unlink()
        os.mkfifo(file) if text is None else file.write_text(text)
        outcome = node.tool("--json", "--settle", "0")
        assert (outcome.status, outcome.json["unread"], outcome.json["counts"]) == (1, [str(file)], {"repaired": 1})
        assert f"cannot read {file}" in node.tool("--settle", "0", "--quiet").stdout.decode()
