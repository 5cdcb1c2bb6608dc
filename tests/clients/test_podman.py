"""Containers of podman on the network of `podwire install --conf`: ports, neighbours, other machines, and removal.

One rule: each test compares the machine's whole state before and after.
"""

import pytest

from tests.clients.podman import serving
from tests.support import binaries, netstate, sockets
from tests.support.attaching import reaches
from tests.support.machine import ADDRESS, CONF_DIR, PEER_ADDRESS
from tests.support.sockets import Reached, call, is_unreachable

pytestmark = pytest.mark.usefixtures("machine_unchanged")

GATEWAY = "10.22.0.1"


@pytest.fixture(scope="module", autouse=True)
def nftables(podman):
    """Adds the sample network with nftables, which one container has used."""
    sample = binaries.ROOT / "conf" / "50-nftables.conflist"
    podman.machine.write(CONF_DIR / sample.name, sample.read_text())
    podman.start("first", "--publish=8080:80", network="podwire-nftables")
    podman.remove()


@pytest.mark.parametrize(
    ("runtime", "network", "gateway"),
    [("runc", "podwire", GATEWAY), ("crun", "podwire", GATEWAY), ("runc", "podwire-nftables", "10.25.0.1")],
)
def test_published_port_is_reachable_by_all_callers(podman, runtime, network, gateway):
    """TCP and UDP ports are forwarded for the peer, the machine, 127.0.0.1, a neighbour and the container itself."""
    host, peer = podman.machine.network, podman.machine.peer
    runtime = f"--runtime={runtime}"
    podman(runtime, *podman.line("web", "--publish=8080:80", "--publish=8080:80/udp", network=network))
    podman(runtime, *podman.line("two", network=network))
    web, two = podman.inspect("web"), podman.inspect("two")
    callers = [
        (peer, ADDRESS, PEER_ADDRESS),  # caller, address, and the source address that the container sees
        (host, ADDRESS, ADDRESS),
        (host, "127.0.0.1", gateway),
        (two.namespace, ADDRESS, gateway),
        (web.namespace, ADDRESS, gateway),
    ]
    with serving(web) as services:
        for protocol in ("tcp", "udp"):
            for caller, ip, source in callers:
                reached = call(services, caller, protocol, ip, 8080)
                assert reached == Reached("web", source), (protocol, caller.name, ip)
    assert sorted(podman("port", "web").splitlines()) == ["80/tcp -> 0.0.0.0:8080", "80/udp -> 0.0.0.0:8080"]


def test_containers_reach_each_other_and_other_machines(podman):
    """Containers see each other's addresses; a machine without a route to them sees the host's address."""
    host, peer = podman.machine.network, podman.machine.peer
    one, two = podman.start("one"), podman.start("two")
    with serving(one, two) as services, sockets.service(peer, "tcp", PEER_ADDRESS, name="world") as world:
        for protocol in ("tcp", "udp"):
            assert call(services, two.namespace, protocol, one.address(), 80) == Reached("one", two.address())
            assert call(services, one.namespace, protocol, two.address(), 80) == Reached("two", one.address())
            assert call(services, host, protocol, one.address(), 80) == Reached("one", GATEWAY)
        for container in (one, two):
            assert call([world], container.namespace, "tcp", PEER_ADDRESS, 80) == Reached("world", ADDRESS)
            assert reaches(container.namespace, PEER_ADDRESS)
    (address,) = netstate.links(one.namespace)["eth0"]["addresses"]
    assert (address["local"], address["prefixlen"]) == (one.address(), 16)
    assert [one.networks["podwire"][key] for key in ("Gateway", "IPPrefixLen")] == [GATEWAY, 16]


def test_restart_and_reload_publish_the_port_again(podman):
    """`podman restart` and `podman network reload` publish the port again; `podman stop` removes everything."""
    machine = podman.machine
    before = machine.picture()
    podman.start("web", "--publish=8080:80")
    for words in (("restart", "--time=0"), ("network", "reload"), ("network", "reload")):
        podman(*words, "web")
        with serving(podman.inspect("web")) as services:
            for caller, ip in ((machine.peer, ADDRESS), (machine.network, "127.0.0.1")):
                assert call(services, caller, "tcp", ip, 8080), (words, ip)
        machine.run("iptables", "--table=nat", "--flush")  # the next reload adds the rules again
        assert is_unreachable([], machine.peer, "tcp", ADDRESS, 8080)
    podman("network", "reload", "web")
    with machine.unchanged(before):
        podman("stop", "--time=0", "web")
    assert is_unreachable([], machine.peer, "tcp", ADDRESS, 8080)


def test_killed_container_is_removed_and_its_name_reused(podman):
    """A killed container is removed by force, and another one of the same name gets its port."""
    machine = podman.machine
    before = machine.picture()
    podman.start("web", "--publish=8080:80", "--publish=8081:80")
    machine.run("kill", "-9", podman("inspect", "--format={{.State.Pid}}", "web"))
    with machine.unchanged(before):  # podman may print an error, because conmon cleans up at the same time
        machine.run("podman", "rm", "--force", "--time=0", "web")
    with serving(podman.start("web", "--publish=8080:80")) as services:
        assert call(services, machine.peer, "tcp", ADDRESS, 8080) == Reached("web", PEER_ADDRESS)
        assert is_unreachable(services, machine.peer, "tcp", ADDRESS, 8081)


def test_containers_of_a_pod_share_its_network(podman):
    """The containers of a podman pod share its network, ports and address until it is removed."""
    before = podman.machine.picture()
    infra = ("--infra-image=localhost/box:1", "--infra-command=sleep 1000")
    podman("pod", "create", "--name=pod", "--network=podwire", "--publish=8080:80", *infra)
    members = [podman(*podman.line(name, "--pod=pod", network="")) for name in ("one", "two")]
    infra = podman("pod", "inspect", "--format={{.InfraContainerID}}", "pod")
    pod = podman.inspect(infra)
    outputs = [podman("exec", member, "ip", "-o", "-4", "address", "show", "eth0") for member in members]
    assert outputs[0] == outputs[1]
    assert pod.address() in outputs[0]
    with serving(pod) as services:
        assert call(services, podman.machine.peer, "tcp", ADDRESS, 8080) == Reached(infra, PEER_ADDRESS)
    with podman.machine.unchanged(before):
        podman("pod", "rm", "--force", "--time=0", "pod")
