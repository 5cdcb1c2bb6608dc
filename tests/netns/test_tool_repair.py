"""podwire repair: what a flush took is there again, with each backend, and connections go on."""

import contextlib
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
    """A node whose network is of one backend."""
    disable_dad(host)
    backend, _, variant = request.param.partition(" ")
    tools = xtables.variant(tmp_path / variant, variant) if variant else None
    env = xtables.path(tools) if tools else {}
    return Node(host, network(store, backend), tmp_path / "cni", env, tools=tools)


@pytest.fixture
def outside(node, new_sandbox):
    """A machine beside the node that has no route to the pods."""
    namespace = new_sandbox()
    disable_dad(namespace)
    connect(node.host, namespace)
    return namespace


def exchange(one, other):
    """Tells whether an established connection passes data both ways."""
    for sender, receiver in ((one, other), (other, one)):
        sender.sendall(b"still there")
        with contextlib.suppress(OSError):
            if receiver.recv(100) != b"still there":
                return False
            continue
        return False
    return True


def connected(stack, caller, server, ip, port):
    """Returns both ends of a connection from a namespace to a listening service."""
    client = stack.enter_context(open_socket(caller, "tcp", "0.0.0.0"))
    client.connect((ip, port))
    accepted, source = server.socket.accept()
    accepted.settimeout(2)
    stack.enter_context(accepted)
    return client, accepted, source[0]


@pytest.mark.needs("nft_inet")
def test_connections(node, outside, new_sandbox):
    """After a flush new connections fail, after a repair they work, and established ones go on all the while."""
    pod, other = new_sandbox(), new_sandbox()
    web, neighbour = node.with_ports("8080:80", "5353:53/udp"), node.asking("8081:80")
    result = web.add(pod)
    neighbour.add(other)
    with ExitStack() as stack:
        open_service = lambda *where: stack.enter_context(service(*where))  # noqa: E731
        tcp, udp = open_service(pod, "tcp", "0.0.0.0"), open_service(pod, "udp", "0.0.0.0", 53)
        remote = open_service(outside, "tcp", CLIENT)
        inward = connected(stack, outside, tcp, NODE, 8080)
        outward = connected(stack, pod, remote, CLIENT, 80)
        assert (inward[2], outward[2]) == (CLIENT, NODE)
        steady, stray = (stack.enter_context(open_socket(outside, "udp", "0.0.0.0")) for _ in range(2))
        assert ask([udp], steady, NODE, 5353) == Reached(pod.name, CLIENT)
        before = node.rules()

        node.flush()
        # Others' rules ask for connection tracking, as kube-proxy's do; what begins now is remembered as it began.
        node.host.run("nft", TRACKING)
        assert is_unreachable([tcp], outside, "tcp", NODE, 8080)
        assert ask([udp], stray, NODE, 5353, timeout_s=NO_ANSWER_S) is None
        assert is_unreachable([remote], pod, "tcp", CLIENT, 80)

        assert node.repair() == {pod.name: "repaired", other.name: "repaired"}
        node.host.run("nft", "delete table inet others")
        assert differences(before, node.rules()) == []
        assert call([tcp], outside, "tcp", NODE, 8080) == Reached(pod.name, CLIENT)
        assert call([remote], pod, "tcp", CLIENT, 80) == Reached(outside.name, NODE)
        assert ask([udp], stray, NODE, 5353) == Reached(pod.name, CLIENT), "an entry of the time without rules"
        assert exchange(*inward[:2])
        assert exchange(*outward[:2])
        # The pod speaks first: without the entry it would come from another port than it was called at.
        udp.socket.sendto(b"news", (CLIENT, steady.getsockname()[1]))
        assert steady.recvfrom(100) == (b"news", (NODE, 5353))
        web.check(pod, result)

        assert node.repair() == {pod.name: "fine", other.name: "fine"}
        assert differences(before, node.rules()) == []


def test_a_port_that_two_pods_have(node, outside, new_sandbox):
    """Who was first has the port again, and its flows go on; the second one is not repaired over and over."""
    first, second = (new_sandbox() for _ in range(2))
    asked = node.with_ports("5353:53/udp")
    names = {"z-first": first, "a-second": second}  # by time, not by name
    for name, pod in names.items():
        asked.add(pod, name)
    with service(first, "udp", "0.0.0.0", 53) as udp, open_socket(outside, "udp", "0.0.0.0") as steady:
        assert ask([udp], steady, NODE, 5353) == Reached(first.name, CLIENT)
        before = node.rules()
        node.flush()
        assert node.repair() == dict.fromkeys(names, "repaired")
        assert differences(before, node.rules()) == []
        udp.socket.sendto(b"news", (CLIENT, steady.getsockname()[1]))
        assert steady.recvfrom(100) == (b"news", (NODE, 5353))
        assert node.repair() == dict.fromkeys(names, "fine")
        assert call([udp], outside, "udp", NODE, 5353) == Reached(first.name, CLIENT)


def test_policy(node, store, new_sandbox):
    """Another bridge's pods are kept away again, and so are frames with another MAC."""
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
    """A pod with another MAC gets no answer, be it that nobody listens; with its own it does."""
    own = links(pod)["eth0"]["address"]
    for mac, answer in ((own, "refused"), ("02:00:00:00:00:01", r"timed out|No route")):
        pod.ip("link", "set", "eth0", "address", mac)
        with open_socket(pod, "tcp", "0.0.0.0") as caller:
            caller.settimeout(NO_ANSWER_S)
            with pytest.raises(OSError, match=answer):
                caller.connect(("10.22.0.1", 9))
    pod.ip("link", "set", "eth0", "address", own)


def test_part(node, new_sandbox):
    """Whatever chain is flushed is filled again, by the next repair and without what is in the others."""
    pods = {new_sandbox(): None for _ in range(2)}
    for number, pod in enumerate(pods):
        pods[pod] = node.asking(f"{8080 + number}:80", f"{5350 + number}:53/udp").add(pod)
    before = unordered(node.rules())
    # Whose addresses they are is noted for DEL and GC; CHECK does not miss it, as the reference's pods have no notes.
    for name in (name for name in before if "CNI-FORWARD-OWNERS" not in name):
        kind, *words = name.split()
        if kind in xtables.TOOLS:
            node.host.run(f"{node.tools}/{kind}", "-t", words[0], "-F", words[1])
        elif words[3] == "chain":
            node.host.run("nft", "flush", "chain", words[0], words[1], words[4])
        if unordered(node.rules()) == before:
            continue  # an administrator's chain, empty
        assert "repaired" in node.repair().values(), name
        assert unordered(node.rules()) == before, name
        for number, (pod, result) in enumerate(pods.items()):
            node.asking(f"{8080 + number}:80", f"{5350 + number}:53/udp").check(pod, result)


def unordered(rules):
    """Returns the rules in an order that does not tell which pod's was made first."""
    return {name: sorted(lines) for name, lines in rules.items()}


def test_dry_run(node, new_sandbox):
    """What is missing is told, with exit status 1, and nothing is made."""
    pod = new_sandbox()
    node.with_ports("8080:80").add(pod)
    outcome = node.tool("--dry-run")
    assert (outcome.status, b"nothing to repair" in outcome.stdout) == (0, True), outcome
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
def test_a_cache_directory_that_is_not_there(node, options):
    """A --cache-dir that was misspelt is an error with exit status 3, and no node without pods."""
    outcome = node.tool("--cache-dir", "/nonexistent", *options)
    assert outcome.status == 3, outcome
    assert "the cache /nonexistent/results does not exist" in outcome.stdout.decode() + outcome.stderr


def test_the_dead_stay_dead(node, new_sandbox):
    """For what has no namespace any more, a plain file there, or the host's own, nothing is made."""
    living, gone, file = new_sandbox(), new_sandbox(), new_sandbox()
    for number, pod in enumerate((living, gone, file)):
        node.asking(f"{8080 + number}:80").add(pod)
    reused = node.file(gone.name).read_text().replace(gone.path, node.host.path).replace(gone.name, "reused")
    node.file("reused").write_text(reused)
    delete_and_wait(gone, node.host)
    delete_and_wait(file, node.host)
    if not presence.get_obstacle():  # in a container it may be the mount point of another mount namespace
        Path(file.path).touch()
    node.flush()
    states = node.repair()
    assert states == {living.name: "repaired", gone.name: "gone", file.name: "gone", "reused": "gone"}
    text = str(node.rules())
    assert [name in text for name in (living.name, gone.name, file.name, "reused")] == [True, False, False, False]


def test_an_entry_that_is_no_entry(node, new_sandbox):
    """A file of the cache that is cut off, empty or a FIFO is told, with exit status 1, and the others are repaired."""
    pod, lost = new_sandbox(), new_sandbox()
    for number, one in enumerate((pod, lost)):
        node.asking(f"{8080 + number}:80").add(one)
    file = node.file(lost.name)
    for text in (file.read_text()[:50], "", None):
        node.flush()
        file.unlink()
        os.mkfifo(file) if text is None else file.write_text(text)
        outcome = node.tool("--json", "--settle", "0")
        assert (outcome.status, outcome.json["unread"], outcome.json["counts"]) == (1, [str(file)], {"repaired": 1})
        assert f"cannot read {file}" in node.tool("--settle", "0", "--quiet").stdout.decode()
