"""portmap with real packets: who reaches which pod by a host port, and which address the pod sees."""

from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.support import kernels
from tests.support.attaching import address
from tests.support.publishing import CLIENT, CLIENT6, GATEWAY, GATEWAY6, NODE, NODE6
from tests.support.sockets import Reached, call, open_services, open_socket, service

BACKENDS = ["iptables", pytest.param("nftables", marks=pytest.mark.needs("nft_nat"))]
# Backend and protocol; no kernel of the tests has both SCTP and NAT in nftables.
CASES = [
    *((backend, protocol) for protocol in ("tcp", "udp") for backend in ("iptables", "reference")),
    *(pytest.param("nftables", protocol, marks=pytest.mark.needs("nft_nat")) for protocol in ("tcp", "udp")),
    *(pytest.param(backend, "sctp", marks=pytest.mark.needs("sctp")) for backend in ("iptables", "reference")),
]
BRIDGED = "net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"
EVERYWHERE = ("0.0.0.0", "::")


@pytest.fixture(params=BACKENDS)
def net(request, published, client):
    """The network with each backend."""
    return published.having(backend=request.param)


@pytest.fixture(params=[*BACKENDS, "reference"])
def compared(request, published, client, reference):
    """The network with each backend, and with the reference's portmap: what is expected is what users have."""
    if request.param == "reference":
        return replace(published, bin_dir=reference)
    return published.having(backend=request.param)


@pytest.fixture
def pods(new_sandbox):
    """Two pods by name."""
    return {"pod": new_sandbox(), "other": new_sandbox()}


@pytest.fixture
def found(published, client, pods):
    """A function that makes the calls that are expected, (from, to) with a port, and tells whom they reach."""
    with ExitStack() as stack:
        services = open_services(stack, pods, ("tcp", "udp"), *EVERYWHERE)
        callers = {"outside": client, "host": published.host, **pods}

        def of(calls, protocol="tcp", port=8080):
            return {(who, ip): call(services, callers[who], protocol, ip, port) for who, ip in calls}

        yield of


def leading_to(name, sources):
    """Returns what is to be found: each call reaches the pod called `name`, which sees the source."""
    return {case: Reached(name, source) for case, source in sources.items()}


SEEN = {
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


@pytest.mark.parametrize(("compared", "protocol"), CASES, indirect=["compared"])
def test_who_reaches_the_pod(compared, client, pods, protocol):
    """From outside, the host, its loopback, the pod itself and a neighbour a host port leads to the pod."""
    for pod, port in zip(pods.values(), (8080, 8081), strict=True):
        compared.add(pod, f"{port}:80/{protocol}")
    callers = {"outside": client, "host": compared.host, **pods}
    with ExitStack() as stack:
        services = open_services(stack, pods, (protocol,), *EVERYWHERE)
        found = {(who, ip): call(services, callers[who], protocol, ip, 8080) for who, ip in SEEN}
    assert found == leading_to("pod", SEEN)


@pytest.mark.parametrize("hairpin", [True, False], ids=["hairpin", "no-hairpin"])
@pytest.mark.parametrize("bridged", ["0", pytest.param("1", marks=pytest.mark.needs("br_netfilter"))])
def test_pods_and_their_bridge(compared, pods, found, hairpin, bridged):
    """Pods reach their own and each other's host ports whether or not bridged frames pass through netfilter.

    Where they do, an answer of the bridge's port to itself needs hairpinMode.
    """
    for key in BRIDGED if kernels.has("br_netfilter") else ():
        compared.host.set_sysctl(key, bridged)
    own = replace(compared, bridge=compared.bridge.having(hairpinMode=hairpin))
    own.add(pods["pod"], "8080:80")
    own.add(pods["other"], "8081:80")
    calls = [case for case in SEEN if case[0] in pods]
    expected = {case: Reached("pod", SEEN[case]) for case in calls}
    if bridged == "1" and not hairpin:
        expected |= dict.fromkeys([("pod", NODE), ("pod", NODE6)])
    assert found(calls) == expected


def test_two_pods_and_one_of_them_leaves(net, client, pods, found):
    """Each port leads to its own pod; when one leaves, the other's connections go on and the port is closed."""
    outside = [("outside", NODE), ("outside", NODE6)]
    ports = {"pod": 8080, "other": 8081}
    results = {name: net.add(pod, f"{ports[name]}:80") for name, pod in pods.items()}
    for name, port in ports.items():
        assert found(outside, port=port) == leading_to(name, {case: SEEN[case] for case in outside})
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
    assert found(outside) == dict.fromkeys(outside)
    assert found(outside, port=8081) == leading_to("other", {case: SEEN[case] for case in outside})


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_what_is_not_for_the_node_passes(net, client, pods, protocol):
    """With host port 53 a pod's query to a server outside, or to a neighbour, goes where it was sent to."""
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
        found = {ip: call([*services, *dns], pods["pod"], protocol, ip, 53) for ip in calls}
    assert found == {
        CLIENT: Reached("server", NODE),
        CLIENT6: Reached("server", NODE6),
        address(neighbour): Reached("neighbour", address(result)),
        NODE: Reached("pod", GATEWAY),
    }


def test_without_snat(compared, pods, found):
    """With snat off the port is served at the node's addresses only, and no setting is made for localhost."""
    compared.having(snat=False).add(pods["pod"], "8080:80")
    calls = [("outside", NODE), ("host", NODE), ("outside", NODE6), ("host", NODE6)]
    assert found(calls) == leading_to("pod", {case: SEEN[case] for case in calls})
    assert found([("host", "127.0.0.1")]) == {("host", "127.0.0.1"): None}
    assert localnet(compared.host) == {}


def test_the_setting_is_the_bridges_only(net, pods):
    """Only the interface that leads to the pods has route_localnet, which stays when they leave."""
    result = net.add(pods["pod"], "8080:80")
    assert localnet(net.host) == {"cni0": "1"}
    net.delete(pods["pod"], "8080:80", result=result)
    assert localnet(net.host) == {"cni0": "1"}


def localnet(host):
    """Returns the interfaces with route_localnet."""
    lines = host.run("sh", "-c", "grep -H . /proc/sys/net/ipv4/conf/*/route_localnet").splitlines()
    found = {line.split("/")[-2]: line.partition(":")[2] for line in lines}
    return {name: value for name, value in found.items() if value != "0"}


def test_masquerade_of_everybody(net, pods, found):
    """With masqAll the pod sees the node's address whoever calls."""
    net.having(masqAll=True).add(pods["pod"], "8080:80")
    net.add(pods["other"], "8081:80")
    calls = {case: GATEWAY6 if ":" in case[1] else GATEWAY for case in SEEN}
    assert found(calls) == leading_to("pod", calls)


def test_one_address_of_the_node(net, pods, found):
    """A mapping with hostIP is served at that address, and not at the node's others."""
    net.add(pods["pod"], f"{NODE}|8080:80", f"{NODE6}|8081:80", "0.0.0.0|8082:80")
    calls = [("outside", NODE), ("outside", NODE6), ("host", GATEWAY)]
    reached = {port: [who and who.name for who in found(calls, port=port).values()] for port in (8080, 8081, 8082)}
    assert reached == {8080: ["pod", None, None], 8081: [None, "pod", None], 8082: ["pod", None, "pod"]}
