"""Host ports with real packets: the pod that a caller reaches, and the source address that the pod sees."""

from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.support import kernels
from tests.support.attaching import address
from tests.support.publishing import CLIENT, CLIENT6, GATEWAY, GATEWAY6, NODE, NODE6
from tests.support.sockets import NO_ANSWER_S, Reached, call, open_services, open_socket, service

BACKENDS = ["iptables", pytest.param("nftables", marks=pytest.mark.needs("nft_nat"))]
# Backend and protocol; no kernel of the tests has both SCTP and NAT in nftables.
CASES = [
    *((backend, protocol) for protocol in ("tcp", "udp") for backend in ("iptables", "reference")),
    *(pytest.param("nftables", protocol, marks=pytest.mark.needs("nft_nat")) for protocol in ("tcp", "udp")),
    *(pytest.param(backend, "sctp", marks=pytest.mark.needs("sctp")) for backend in ("iptables", "reference")),
]
BRIDGE_NETFILTER = "net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"
EVERYWHERE = ("0.0.0.0", "::")


@pytest.fixture(params=BACKENDS)
def net(request, published, client):
    """The network with each backend."""
    return published.having(backend=request.param)


@pytest.fixture(params=[*BACKENDS, "reference"])
def any_portmap(request, published, client, reference):
    """The network with each backend, and with the reference plugin, from which both must not differ."""
    if request.param == "reference":
        return replace(published, bin_dir=reference)
    return published.having(backend=request.param)


@pytest.fixture
def pods(new_sandbox):
    """Two pods by name."""
    return {"pod": new_sandbox(), "other": new_sandbox()}


@pytest.fixture
def call_all(published, client, pods):
    """A function that connects from callers to addresses, and returns the pod that each (caller, address) reaches."""
    with ExitStack() as stack:
        services = open_services(stack, pods, ("tcp",), *EVERYWHERE)
        callers = {"outside": client, "host": published.host, **pods}

        def run_calls(calls, port=8080, **how):
            return {(caller, ip): call(services, callers[caller], "tcp", ip, port, **how) for caller, ip in calls}

        yield run_calls


SOURCES = {
    ("outside", NODE): CLIENT,
    ("host", NODE): NODE,
    ("host", GATEWAY): GATEWAY,
    ("host", "127.0.0.1"): GATEWAY,
    ("pod", NODE): GATEWAY,
    ("other", NODE): GATEWAY,
    ("outside", NODE6): CLIENT6,
    ("host", NODE6): NODE6,
    ("host", GATEWAY6): GATEWAY6,
    ("pod", NODE6): GATEWAY6,
    ("other", NODE6): GATEWAY6,
}


def expect_pod(name, cases):
    """Returns the expected calls: each reaches the pod `name`, which sees the source address."""
    return {case: Reached(name, SOURCES[case]) for case in cases}


@pytest.mark.parametrize(("any_portmap", "protocol"), CASES, indirect=["any_portmap"])
def test_host_port_reaches_the_pod(any_portmap, client, pods, protocol):
    """A host port reaches the pod from a client, the host, its loopback, the pod itself and another pod."""
    for pod, port in zip(pods.values(), (8080, 8081), strict=True):
        any_portmap.add(pod, f"{port}:80/{protocol}")
    callers = {"outside": client, "host": any_portmap.host, **pods}
    with ExitStack() as stack:
        services = open_services(stack, pods, (protocol,), *EVERYWHERE)
        reached = {(caller, ip): call(services, callers[caller], protocol, ip, 8080) for caller, ip in SOURCES}
    assert reached == expect_pod("pod", SOURCES)


@pytest.mark.parametrize("hairpin", [True, False], ids=["hairpin", "no-hairpin"])
@pytest.mark.parametrize("bridged", ["0", pytest.param("1", marks=pytest.mark.needs("br_netfilter"))])
def test_host_ports_between_pods(any_portmap, pods, call_all, hairpin, bridged):
    """Pods reach their own and each other's host ports, whether or not bridged frames pass netfilter.

    If they do, a pod needs hairpinMode to reach its own host port.
    """
    for key in BRIDGE_NETFILTER if kernels.has("br_netfilter") else ():
        any_portmap.host.set_sysctl(key, bridged)
    network = replace(any_portmap, bridge=any_portmap.bridge.having(hairpinMode=hairpin))
    network.add(pods["pod"], "8080:80")
    network.add(pods["other"], "8081:80")
    calls = [case for case in SOURCES if case[0] in pods]
    dropped = [case for case in calls if case[0] == "pod"] if bridged == "1" and not hairpin else []
    assert call_all(dropped, timeout_s=NO_ANSWER_S) == dict.fromkeys(dropped)
    passed = set(calls) - set(dropped)
    assert call_all(passed) == expect_pod("pod", passed)


def test_del_of_one_of_two_pods(net, client, pods, call_all):
    """Each port reaches its pod; after DEL of one pod its port is closed, and connections to the other continue."""
    client_calls = [("outside", NODE), ("outside", NODE6)]
    ports = {"pod": 8080, "other": 8081}
    results = {name: net.add(pod, f"{ports[name]}:80") for name, pod in pods.items()}
    for name, port in ports.items():
        assert call_all(client_calls, port=port) == expect_pod(name, client_calls)
    with (
        service(pods["other"], "tcp", address(results["other"]), 81) as listening,
        open_socket(client, "tcp", CLIENT) as end,
    ):
        net.portmap("ADD", pods["other"], ("8082:81", "8081:80"), results["other"])
        end.connect((NODE, 8082))
        connection, _ = listening.socket.accept()
        with connection:
            net.delete(pods["pod"], "8080:80", result=results["pod"])
            end.sendall(b"still there?")
            assert connection.recv(99) == b"still there?"
    assert call_all(client_calls) == dict.fromkeys(client_calls)
    assert call_all(client_calls, port=8081) == expect_pod("other", client_calls)


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_forwarded_packets_are_not_published(net, client, pods, protocol):
    """With host port 53, a pod's query to an external server or to another pod reaches its destination."""
    result = net.add(pods["pod"], "53:80/udp", "53:80/tcp")
    neighbour = net.add(pods["other"])
    with ExitStack() as stack:
        services = open_services(stack, pods, (protocol,), *EVERYWHERE)
        dns = [
            stack.enter_context(service(pods["other"], protocol, "0.0.0.0", 53, "neighbour")),
            stack.enter_context(service(client, protocol, CLIENT, 53, "server")),
            stack.enter_context(service(client, protocol, CLIENT6, 53, "server")),
        ]
        calls = (CLIENT, CLIENT6, address(neighbour), NODE)
        reached = {ip: call([*services, *dns], pods["pod"], protocol, ip, 53) for ip in calls}
    assert reached == {
        CLIENT: Reached("server", NODE),
        CLIENT6: Reached("server", NODE6),
        address(neighbour): Reached("neighbour", address(result)),
        NODE: Reached("pod", GATEWAY),
    }


def test_without_snat(any_portmap, pods, call_all):
    """With snat off the port is published at the node's addresses only, and route_localnet stays disabled."""
    any_portmap.having(snat=False).add(pods["pod"], "8080:80")
    calls = [("outside", NODE), ("host", NODE), ("outside", NODE6), ("host", NODE6)]
    assert call_all(calls) == expect_pod("pod", calls)
    assert call_all([("host", "127.0.0.1")], timeout_s=NO_ANSWER_S) == {("host", "127.0.0.1"): None}
    assert any_portmap.host.run("sh", "-c", "sort -u /proc/sys/net/ipv4/conf/*/route_localnet") == "0\n"


def test_masq_all(net, pods, call_all):
    """With masqAll the pod sees the node's address as the source of every connection."""
    net.having(masqAll=True).add(pods["pod"], "8080:80")
    net.add(pods["other"], "8081:80")
    assert call_all(SOURCES) == {case: Reached("pod", GATEWAY6 if ":" in case[1] else GATEWAY) for case in SOURCES}


def test_host_ip(net, pods, call_all):
    """A mapping with hostIP is published at that address only."""
    net.add(pods["pod"], f"{NODE}|8080:80", f"{NODE6}|8081:80", "0.0.0.0|8082:80")
    calls = [("outside", NODE), ("outside", NODE6), ("host", GATEWAY)]
    names = {port: [pod and pod.name for pod in call_all(calls, port=port).values()] for port in (8080, 8081, 8082)}
    assert names == {8080: ["pod", None, None], 8081: [None, "pod", None], 8082: ["pod", None, "pod"]}
