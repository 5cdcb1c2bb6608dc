"""UDP flows to host ports: they follow a change of the host port at once, and other flows stay."""

from contextlib import ExitStack
from dataclasses import replace

import pytest

from kernel.netfilter import conntrack, nft
from kernel.rtnl import Request
from plugins.portmap import conntrack as portmap_conntrack
from plugins.portmap.conf import HostPorts, PortMapping
from tests.support.publishing import CLIENT, CLIENT6, NODE, NODE6
from tests.support.sockets import Reached, ask, open_services, open_socket, service

BACKENDS = ["iptables", pytest.param("nftables", marks=pytest.mark.needs("nft_nat"))]
PATHS = [pytest.param(CLIENT, NODE, id="IPv4"), pytest.param(CLIENT6, NODE6, id="IPv6")]


@pytest.fixture(params=BACKENDS)
def net(request, published, client):
    """The network with each backend."""
    return published.having(backend=request.param)


@pytest.fixture
def tracking(host, client):
    """A host that tracks connections, as every host with NAT rules does, those to port 55 in a zone."""
    host.run("iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "203.0.113.1", "-j", "MASQUERADE")
    zone = ("-t", "raw", "-A", "PREROUTING", "-p", "udp", "--dport", "55", "-j", "CT", "--zone", "7")
    host.run("iptables", *zone, check=False)  # not every kernel has zones
    with host.entered():
        yield host


def tracked(ports=(53, 54)):
    """Returns the numbers of the UDP flows in conntrack, by destination, port and source."""
    with nft.open_socket() as socket:
        udp_flows = [flow for version in (4, 6) for flow in conntrack.list_udp_flows(socket, version, ports)]
    return {(str(flow.destination), flow.port, str(flow.source)): flow.number for flow in udp_flows}


@pytest.mark.parametrize(("caller", "node"), PATHS)
def test_flow_moves_to_the_next_pod(net, client, new_sandbox, caller, node):
    """A client that keeps sending from one port reaches the next pod right after that pod's ADD."""
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


@pytest.mark.parametrize(("caller", "node"), PATHS)
def test_flow_to_the_host_moves_to_the_pod(net, client, new_sandbox, caller, node):
    """A flow that began before ADD, and so reached the host itself, reaches the pod right after ADD."""
    net.bridge.add(new_sandbox())  # from now on connections are tracked
    sandbox = new_sandbox()
    with ExitStack() as stack:
        services = open_services(stack, {"pod": sandbox}, ("udp",), "0.0.0.0", "::")
        sender = stack.enter_context(open_socket(client, "udp", caller))
        with service(net.host, "udp", node, 5353, "host") as before:
            assert ask([before], sender, node, 5353) == Reached("host", caller)
            net.add(sandbox, "5353:80/udp")
            assert ask([before, *services], sender, node, 5353) == Reached("pod", caller)


@pytest.mark.parametrize(("caller", "node"), PATHS)
@pytest.mark.parametrize("with_result", [True, False], ids=["prevResult", "no-prevResult"])
def test_flow_returns_to_the_host_after_del(net, client, sandbox, caller, node, with_result):
    """After DEL, with or without prevResult, a client that keeps sending reaches the host again."""
    with ExitStack() as stack:
        pod = open_services(stack, {"pod": sandbox}, ("udp",), "0.0.0.0", "::")
        sender = stack.enter_context(open_socket(client, "udp", caller))
        result = net.add(sandbox, "5353:80/udp")
        assert ask(pod, sender, node, 5353) == Reached("pod", caller)
        after = stack.enter_context(service(net.host, "udp", node, 5353, "host"))
        net.delete(sandbox, "5353:80/udp", result=result if with_result else None)
        assert ask([*pod, after], sender, node, 5353) == Reached("host", caller)


def test_other_flows_stay(net, client, new_sandbox):
    """Flows to other ports, and forwarded flows to the same port, stay in conntrack."""
    pod, other = new_sandbox(), new_sandbox()
    net.add(other, "54:80/udp")
    with ExitStack() as stack:
        services = open_services(stack, {"other": other}, ("udp",), "0.0.0.0")
        services += [stack.enter_context(service(client, "udp", CLIENT, 53, "server"))]
        client_socket = stack.enter_context(open_socket(client, "udp", CLIENT))
        pod_socket = stack.enter_context(open_socket(other, "udp", "0.0.0.0"))
        assert ask(services, client_socket, NODE, 54) == Reached("other", CLIENT)
        assert ask(services, pod_socket, CLIENT, 53) == Reached("server", NODE)
        client_socket.sendto(b"no pod yet", (NODE, 53))
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


def test_kernel_that_ignores_the_filter(tracking, client, monkeypatch):
    """Linux before 5.8 lists all flows, and the same ones are selected from them."""
    with open_socket(client, "udp", CLIENT) as sender:
        for port in (53, 54, 55):
            sender.sendto(b"?", (NODE, port))
    filtered, of_one_port = tracked(), tracked([53])
    request = Request
    messages = []

    def without_filter(description, kind, number, flags, values, attributes, body_filter):
        def count(data):
            messages.append(data)
            return body_filter(data)

        return request(description, kind, number, flags, values, [], body_filter=count)

    monkeypatch.setattr(conntrack, "Request", without_filter)
    assert (tracked(), tracked([53])) == (filtered, of_one_port)
    assert len(messages) == 6  # three flows, twice
    assert [key[1] for key in of_one_port] == [53]


@pytest.mark.every_case
@pytest.mark.parametrize(("port", "zone"), [(53, None), (55, 7)], ids=["no-zone", "zone"])
def test_flow_with_another_number_stays(tracking, client, port, zone):
    """A flow, also of a zone, is deleted by its number, and deleting a missing flow succeeds."""
    with open_socket(client, "udp", CLIENT) as sender:
        sender.sendto(b"?", (NODE, port))
        with nft.open_socket() as socket:
            (flow,) = conntrack.list_udp_flows(socket, 4, [port])
            assert flow.zone in (zone, None)
            conntrack.delete_flows(socket, [replace(flow, number=flow.number ^ 1)])
            assert conntrack.list_udp_flows(socket, 4, [port]) == [flow]
            conntrack.delete_flows(socket, [flow])
            assert conntrack.list_udp_flows(socket, 4, [port]) == []
            conntrack.delete_flows(socket, [flow])


def test_thousands_of_flows(tracking, client):
    """Thousands of flows to a host port are all deleted."""
    for _ in range(1500):
        with open_socket(client, "udp", CLIENT) as sender:
            sender.sendto(b"?", (NODE, 53))
    with nft.open_socket() as socket:
        assert len(conntrack.list_udp_flows(socket, 4, [53])) > 1000
    portmap_conntrack.delete_flows(HostPorts("net", "cid", "eth0", (PortMapping(53, 80, "udp"),)))
    assert tracked() == {}
