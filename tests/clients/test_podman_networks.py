"""podman's networks, the default one and those of `podman network create`, with only podwire's plugins.

One rule: a test removes its networks, too, and compares the machine's whole state before and after.
"""

import pytest

from tests.clients.podman import serving
from tests.support import netstate
from tests.support.attaching import reaches
from tests.support.machine import ADDRESS, ADDRESS6, CONF_DIR, PEER_ADDRESS, PEER_ADDRESS6
from tests.support.sockets import Reached, call, is_unreachable

pytestmark = pytest.mark.usefixtures("machine_unchanged")

SUBNET = "--subnet=10.68.0.0/24"
MACVLAN, LAN = ("--driver=macvlan", "--opt=parent=up0", "--ip-range=203.0.113.128/26"), "--subnet=203.0.113.0/24"
GATEWAY = f"--gateway={PEER_ADDRESS}"
DUAL = ("--ipv6", SUBNET, "--subnet=fd00:68::/64")


@pytest.fixture(scope="module", autouse=True)
def dual_stack_used(podman, default_network_used):
    """Runs one container on a network of both families, because the first leaves what stays by design."""
    with podman.network("dual", *DUAL) as dual:
        podman.start("second", "--publish=8081:80", network=dual)


def test_default_network_works(podman):
    """Podman's default network, which no file describes, has bridge, portmap, firewall and tuning."""
    machine = podman.machine
    web = podman.start("web", "--publish=8080:80", "--mac-address=02:00:00:00:00:07", network="")
    assert web.addresses() == [f"{web.address('podman')}/16"]
    assert netstate.links(web.namespace)["eth0"]["address"] == "02:00:00:00:00:07"
    with serving(web) as services:
        assert call(services, machine.peer, "tcp", ADDRESS, 8080) == Reached("web", PEER_ADDRESS)
        assert call(services, machine.network, "udp", web.address("podman"), 80) == Reached("web", "10.88.0.1")
    assert reaches(web.namespace, PEER_ADDRESS)
    assert "podman" not in machine.run("ls", str(CONF_DIR))


def test_created_network_provides_fixed_addresses_and_ports(podman):
    """It provides the requested address and MAC address, and ports on all addresses or only on 127.0.0.1."""
    machine = podman.machine
    with podman.network("auto", SUBNET) as auto:
        assert [plugin["type"] for plugin in podman.plugins(auto)] == ["bridge", "portmap", "firewall", "tuning"]
        fixed = ("--ip=10.68.0.77", "--mac-address=02:00:00:00:00:77")
        web = podman.start("web", *fixed, "--publish=8081:80", "--publish=127.0.0.1:8082:80", network=auto)
        assert web.addresses() == ["10.68.0.77/24"]
        assert netstate.links(web.namespace)["eth0"]["address"] == "02:00:00:00:00:77"
        settings = web.networks[auto]
        assert (settings["IPAddress"], settings["MacAddress"]) == ("10.68.0.77", "02:00:00:00:00:77")
        with serving(web) as services:
            assert call(services, machine.peer, "tcp", ADDRESS, 8081) == Reached("web", PEER_ADDRESS)
            assert call(services, machine.network, "tcp", "127.0.0.1", 8081) == Reached("web", "10.68.0.1")
            assert call(services, machine.network, "tcp", "127.0.0.1", 8082) == Reached("web", "10.68.0.1")
            assert is_unreachable(services, machine.peer, "tcp", ADDRESS, 8082)
            assert is_unreachable(services, machine.network, "tcp", ADDRESS, 8082)


def test_dual_stack_network_works(podman):
    """A network with --ipv6 provides both families, other machines and ports by both, and removes both."""
    machine = podman.machine
    with podman.network("dual", *DUAL) as dual:
        web = podman.start("web", "--publish=8080:80", network=dual)
        settings = web.networks[dual]
        assert web.addresses() == [f"{settings['IPAddress']}/24", f"{settings['GlobalIPv6Address']}/64"]
        assert (settings["Gateway"], settings["IPv6Gateway"]) == ("10.68.0.1", "fd00:68::1")
        assert reaches(web.namespace, PEER_ADDRESS6, options=("-6",))
        assert reaches(web.namespace, PEER_ADDRESS)
        with serving(web) as services:
            assert call(services, machine.peer, "tcp", ADDRESS, 8080) == Reached("web", PEER_ADDRESS)
            assert call(services, machine.peer, "tcp", ADDRESS6, 8080) == Reached("web", PEER_ADDRESS6)


@pytest.mark.parametrize("options", [(SUBNET,), (*MACVLAN, LAN)], ids=["bridge", "macvlan"])
def test_internal_network_has_no_default_route(podman, options):
    """Containers of an --internal network reach each other, by no gateway; on a bridge they reach no other machine."""
    with podman.network("internal", "--internal", *options) as name:
        one, two = podman.start("one", network=name), podman.start("two", network=name)
        with serving(one) as services:
            assert call(services, two.namespace, "tcp", one.address(name), 80) == Reached("one", two.address(name))
        assert "default" not in one.namespace.ip("route")
        assert reaches(one.namespace, PEER_ADDRESS, within_s=5 if LAN in options else 1) == (LAN in options)


@pytest.mark.parametrize(
    "options", [(SUBNET,), (*MACVLAN, LAN, f"--gateway={PEER_ADDRESS}")], ids=["bridge", "macvlan"]
)
def test_connect_and_disconnect_of_a_second_network(podman, options):
    """`podman network connect` adds an interface to a running container, disconnect removes only that."""
    machine = podman.machine
    with podman.network("more", *options) as more:
        podman.start("first", "--publish=8081:80", network=more)  # leaves the guard of its bridge
        podman.remove()
        podman.start("web", "--publish=8080:80")
        before = machine.picture()
        podman("network", "connect", more, "web")
        web = podman.inspect("web")
        assert web.addresses("eth1") == [f"{web.address(more)}/24"]
        near = (machine.peer, PEER_ADDRESS) if LAN in options else (machine.network, "10.68.0.1")
        with serving(web) as services:
            assert call(services, near[0], "tcp", web.address(more), 80) == Reached("web", near[1])
            # a container with an address in the peer's network answers there, without the translation of the port
            assert LAN in options or call(services, machine.peer, "tcp", ADDRESS, 8080) == Reached("web", PEER_ADDRESS)
        with machine.unchanged(before):
            podman("network", "disconnect", more, "web")
        assert sorted(netstate.links(web.namespace)) == ["eth0", "lo"]
        with serving(web) as services:
            assert call(services, machine.peer, "tcp", ADDRESS, 8080) == Reached("web", PEER_ADDRESS)
