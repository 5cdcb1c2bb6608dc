"""portmap and UDP flows that go on: they follow the host port at once, and nobody else's are touched."""

from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_address

import pytest

from kernel.netfilter import conntrack, nft
from plugins.portmap import conntrack as flows
from plugins.portmap.spec import HostPorts, PortMapping
from tests.support.publishing import CLIENT, CLIENT6, NODE, NODE6
from tests.support.sockets import Reached, ask, open_services, open_socket, service

BACKENDS = ["iptables", pytest.param("nftables", marks=pytest.mark.needs("nft_nat"))]
WAYS = [pytest.param(CLIENT, NODE, id="IPv4"), pytest.param(CLIENT6, NODE6, id="IPv6")]


@pytest.fixture(params=BACKENDS)
def net(request, published, client):
    """The network with each backend."""
    return published.having(backend=request.param)


@pytest.fixture
def tracking(host, client):
    """A host that tracks connections, as one with any address translation does."""
    host.run("iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "203.0.113.1", "-j", "MASQUERADE")
    with host.entered():
        yield host


def tracked(ports=(53, 54)):
    """Returns the UDP flows that are tracked, by where they go to and where they come from, with their numbers."""
    with nft.open_socket() as socket:
        found = [entry for version in (4, 6) for entry in conntrack.list_udp_flows(socket, version, ports)]
    return {(str(entry.destination), entry.port, str(entry.source)): entry.number for entry in found}


@pytest.mark.parametrize(("caller", "node"), WAYS)
def test_a_flow_moves_to_the_next_pod(net, client, new_sandbox, caller, node):
    """A client that goes on sending from one port is led to the next pod as soon as that has the host port."""
    one, two = new_sandbox(), new_sandbox()
    with ExitStack() as stack:
        services = open_services(stack, {"one": one, "two": two}, ("udp",), "0.0.0.0", "::")
        sender = stack.enter_context(open_socket(client, "udp", caller))
        net.add(one, "5353:80/udp")
        assert ask(services, sender, node, 5353) == Reached("one", caller)
        net.delete(one, "5353:80/udp")
        sender.sendto(b"meanwhile", (node, 5353))
        net.add(two, "5353:80/udp")
        assert ask(services, sender, node, 5353) == Reached("two", caller)


@pytest.mark.parametrize(("caller", "node"), WAYS)
def test_a_flow_that_was_there_first(net, client, new_sandbox, caller, node):
    """A flow that began while nobody had the port, and so went to the host itself, reaches the pod right after ADD."""
    net.bridge.add(new_sandbox())  # from now on connections are tracked
    sandbox = new_sandbox()
    with ExitStack() as stack:
        services = open_services(stack, {"pod": sandbox}, ("udp",), "0.0.0.0", "::")
        sender = stack.enter_context(open_socket(client, "udp", caller))
        with service(net.host, "udp", node, 5353, "host") as before:
            assert ask([before], sender, node, 5353) == Reached("host", caller)
            net.add(sandbox, "5353:80/udp")
            assert ask([before, *services], sender, node, 5353) == Reached("pod", caller)


@pytest.mark.parametrize(("caller", "node"), WAYS)
@pytest.mark.parametrize("known", [True, False], ids=["prevResult", "no-prevResult"])
def test_a_flow_ends_with_the_mapping(net, client, sandbox, caller, node, known):
    """After DEL, also without prevResult, what a client goes on sending is for the host again."""
    with ExitStack() as stack:
        pod = open_services(stack, {"pod": sandbox}, ("udp",), "0.0.0.0", "::")
        sender = stack.enter_context(open_socket(client, "udp", caller))
        result = net.add(sandbox, "5353:80/udp")
        assert ask(pod, sender, node, 5353) == Reached("pod", caller)
        after = stack.enter_context(service(net.host, "udp", node, 5353, "host"))
        net.delete(sandbox, "5353:80/udp", result=result if known else None)
        assert ask([*pod, after], sender, node, 5353) == Reached("host", caller)


def test_other_flows_stay(net, client, new_sandbox):
    """Flows to other ports, and those that pass through the node to the same port, keep their entries."""
    pod, other = new_sandbox(), new_sandbox()
    net.add(other, "54:80/udp")
    with ExitStack() as stack:
        services = open_services(stack, {"other": other}, ("udp",), "0.0.0.0")
        services += [stack.enter_context(service(client, "udp", CLIENT, 53, "server"))]
        outside = stack.enter_context(open_socket(client, "udp", CLIENT))
        inside = stack.enter_context(open_socket(other, "udp", "0.0.0.0"))
        assert ask(services, outside, NODE, 54) == Reached("other", CLIENT)
        assert ask(services, inside, CLIENT, 53) == Reached("server", NODE)
        outside.sendto(b"nobody there yet", (NODE, 53))
        with net.host.entered():
            before = tracked()
        result = net.add(pod, "53:80/udp")
        with net.host.entered():
            after = tracked()
        assert {key[:2] for key in before} == {(NODE, 54), (CLIENT, 53), (NODE, 53)}
        assert after == {key: number for key, number in before.items() if key[:2] != (NODE, 53)}
        net.delete(pod, "53:80/udp", result=result)
        with net.host.entered():
            assert tracked() == after


def test_only_flows_to_the_mapped_address(tracking, client):
    """With hostIP, flows to the node's other addresses keep their entries."""
    tracking.ip("addr", "add", "192.0.2.9/24", "dev", "uplink")
    with open_socket(client, "udp", CLIENT) as sender:
        for ip in (NODE, "192.0.2.9"):
            sender.sendto(b"?", (ip, 53))
    before = tracked()
    flows.delete_flows(HostPorts("net", "cid", "eth0", (PortMapping(53, 80, "udp", ip_address("192.0.2.9")),)))
    assert before.keys() == {(NODE, 53, CLIENT), ("192.0.2.9", 53, CLIENT)}
    assert tracked() == {key: number for key, number in before.items() if key[0] == NODE}


def test_a_kernel_that_does_not_filter(tracking, client, monkeypatch):
    """Before Linux 5.8 all entries come, and the same ones are found among them."""
    with open_socket(client, "udp", CLIENT) as sender:
        for port in (53, 54, 55):
            sender.sendto(b"?", (NODE, port))
    filtered, of_one = tracked(), tracked([53])
    request = conntrack.Request
    bodies = []

    def without_filter(description, kind, number, flags, values, attributes, body_filter):
        def count(data):
            return bodies.append(data) or body_filter(data)

        return request(description, kind, number, flags, values, [], body_filter=count)

    monkeypatch.setattr(conntrack, "Request", without_filter)
    assert (tracked(), tracked([53])) == (filtered, of_one)
    assert len(bodies) == 6  # three flows, twice
    assert [key[1] for key in of_one] == [53]


def test_a_successor_is_not_hit(tracking, client):
    """An entry with another number keeps its place, and what is gone is success."""
    with open_socket(client, "udp", CLIENT) as sender:
        sender.sendto(b"?", (NODE, 53))
        with nft.open_socket() as socket:
            (entry,) = conntrack.list_udp_flows(socket, 4, [53])
            conntrack.delete_flows(socket, [replace(entry, number=entry.number ^ 1)])
            assert conntrack.list_udp_flows(socket, 4, [53]) == [entry]
            conntrack.delete_flows(socket, [entry])
            assert conntrack.list_udp_flows(socket, 4, [53]) == []
            conntrack.delete_flows(socket, [entry])


def test_thousands_of_flows(tracking, client):
    """However many flows there are, all of them are forgotten."""
    for _ in range(1500):
        with open_socket(client, "udp", CLIENT) as sender:
            sender.sendto(b"?", (NODE, 53))
    with nft.open_socket() as socket:
        assert len(conntrack.list_udp_flows(socket, 4, [53])) > 1000
    flows.delete_flows(HostPorts("net", "cid", "eth0", (PortMapping(53, 80, "udp"),)))
    assert tracked() == {}
