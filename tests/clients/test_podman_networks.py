"""podman's own networks: the default one, and what `podman network create` writes, by our plugins alone.

One rule: a network is gone, too, when its story ends, and the machine in whole as before.
"""

import json

import pytest

from tests.clients.podman import serving
from tests.support import netstate
from tests.support.attaching import reaches
from tests.support.machine import ADDRESS, ADDRESS6, CONF_DIR, PEER_ADDRESS, PEER_ADDRESS6
from tests.support.sockets import Reached, call, is_unreachable

pytestmark = pytest.mark.usefixtures("all_gone")

SUBNET = "--subnet=10.68.0.0/24"


DUAL = ("--ipv6", SUBNET, "--subnet=fd00:68::/64")


@pytest.fixture(scope="module", autouse=True)
def used_once(podman):
    """What the first container makes for all who follow is not what it leaves: one has used each kind of network."""
    podman.start("first", "--publish=8080:80", network="")
    with podman.network("dual", *DUAL) as dual:
        podman.start("second", "--publish=8081:80", network=dual)


def addresses(container, ifname="eth0"):
    """Returns the addresses of an interface of a container, with their prefixes."""
    found = netstate.links(container.namespace)[ifname]["addresses"]
    return [f"{address['local']}/{address['prefixlen']}" for address in found]


def test_the_default_network(podman):
    """What `podman run` uses unasked, which no file describes, has bridge, portmap, firewall and tuning."""
    machine = podman.machine
    web = podman.start("web", "--publish=8080:80", "--mac-address=02:00:00:00:00:07", network="")
    assert addresses(web) == [f"{web.address('podman')}/16"]
    assert netstate.links(web.namespace)["eth0"]["address"] == "02:00:00:00:00:07"
    with serving(web) as services:
        assert call(services, machine.peer, "tcp", ADDRESS, 8080) == Reached("web", PEER_ADDRESS)
        assert call(services, machine.network, "udp", web.address("podman"), 80) == Reached("web", "10.88.0.1")
    assert reaches(web.namespace, PEER_ADDRESS)
    assert "podman" not in machine.run("ls", str(CONF_DIR))


def test_a_network_of_podman_s(podman):
    """A created network gives the address and MAC that are asked for, and ports on all addresses or 127.0.0.1 only."""
    machine = podman.machine
    with podman.network("auto", SUBNET) as auto:
        plugins = json.loads(machine.run("cat", str(CONF_DIR / "auto.conflist")))["plugins"]
        assert [plugin["type"] for plugin in plugins] == ["bridge", "portmap", "firewall", "tuning"]
        fixed = ("--ip=10.68.0.77", "--mac-address=02:00:00:00:00:77")
        web = podman.start("web", *fixed, "--publish=8081:80", "--publish=127.0.0.1:8082:80", network=auto)
        assert addresses(web) == ["10.68.0.77/24"]
        assert netstate.links(web.namespace)["eth0"]["address"] == "02:00:00:00:00:77"
        told = web.networks[auto]
        assert (told["IPAddress"], told["MacAddress"]) == ("10.68.0.77", "02:00:00:00:00:77")
        with serving(web) as services:
            assert call(services, machine.peer, "tcp", ADDRESS, 8081) == Reached("web", PEER_ADDRESS)
            assert call(services, machine.network, "tcp", "127.0.0.1", 8081) == Reached("web", "10.68.0.1")
            assert call(services, machine.network, "tcp", "127.0.0.1", 8082) == Reached("web", "10.68.0.1")
            assert is_unreachable(services, machine.peer, "tcp", ADDRESS, 8082)
            assert is_unreachable(services, machine.network, "tcp", ADDRESS, 8082)


def test_two_address_families(podman):
    """A network with --ipv6 gives both families, a way out and ports by both, and takes both back."""
    machine = podman.machine
    with podman.network("dual", *DUAL) as dual:
        web = podman.start("web", "--publish=8080:80", network=dual)
        told = web.networks[dual]
        assert addresses(web) == [f"{told['IPAddress']}/24", f"{told['GlobalIPv6Address']}/64"]
        assert (told["Gateway"], told["IPv6Gateway"]) == ("10.68.0.1", "fd00:68::1")
        assert reaches(web.namespace, PEER_ADDRESS6, options=("-6",))
        assert reaches(web.namespace, PEER_ADDRESS)
        with serving(web) as services:
            assert call(services, machine.peer, "tcp", ADDRESS, 8080) == Reached("web", PEER_ADDRESS)
            assert call(services, machine.peer, "tcp", ADDRESS6, 8080) == Reached("web", PEER_ADDRESS6)


def test_an_internal_network(podman):
    """Containers of an --internal network reach each other, and nobody outside."""
    with podman.network("inside", "--internal", SUBNET) as inside:
        one, two = podman.start("one", network=inside), podman.start("two", network=inside)
        with serving(one) as services:
            assert call(services, two.namespace, "tcp", one.address(inside), 80) == Reached("one", two.address(inside))
        assert "default" not in one.namespace.ip("route")
        assert not reaches(one.namespace, PEER_ADDRESS, within_s=1)


def test_a_second_network_comes_and_goes(podman):
    """`podman network connect` gives a running container one more interface, disconnect takes it, the first stays."""
    machine = podman.machine
    with podman.network("auto", SUBNET) as auto:
        podman.start("first", "--publish=8081:80", network=auto)  # the guard of its bridge stays
        podman.remove()
        podman.start("web", "--publish=8080:80")
        before = machine.picture()
        podman("network", "connect", auto, "web")
        web = podman.inspect("web")
        assert addresses(web, "eth1") == [f"{web.address(auto)}/24"]
        with serving(web) as services:
            assert call(services, machine.network, "tcp", web.address(auto), 80) == Reached("web", "10.68.0.1")
            assert call(services, machine.peer, "tcp", ADDRESS, 8080) == Reached("web", PEER_ADDRESS)
        with machine.unchanged(before):
            podman("network", "disconnect", auto, "web")
        assert sorted(netstate.links(web.namespace)) == ["eth0", "lo"]
        with serving(web) as services:
            assert call(services, machine.peer, "tcp", ADDRESS, 8080) == Reached("web", PEER_ADDRESS)


def test_two_networks_from_the_start(podman):
    """A container of two networks has an interface in each, and ports that lead to it."""
    with podman.network("auto", SUBNET) as auto:
        both = podman.start("both", f"--network={auto}", "--publish=8080:80")
        found = {addresses(both, ifname)[0] for ifname in ("eth0", "eth1")}
        assert found == {f"{both.address()}/16", f"{both.address(auto)}/24"}
        with serving(both) as services:
            assert call(services, podman.machine.peer, "tcp", ADDRESS, 8080) == Reached("both", PEER_ADDRESS)
            for ip in (both.address(), both.address(auto)):
                assert call(services, podman.machine.network, "tcp", ip, 80)


def test_what_is_wrong_with_an_address_is_told_in_our_words(podman):
    """An address that is taken, no address left, and the gateway's: podman shows what the plugin says."""
    with podman.network("auto", "--subnet=10.68.0.0/30") as auto:
        podman.start("one", "--ip=10.68.0.2", network=auto)
        taken = podman.refused(*podman.line("two", "--ip=10.68.0.2", network=auto))
        assert "requested IP address 10.68.0.2 is not available in range set 10.68.0.1-10.68.0.2" in taken
        assert f"has been held by {podman('inspect', '--format={{.Id}}', 'one')} eth0" in taken
        full = podman.refused(*podman.line("three", network=auto))
        assert "no IP addresses available in range set: 10.68.0.1-10.68.0.2: 1 of 1 in use" in full
        gateway = podman.refused(*podman.line("four", "--ip=10.68.0.1", network=auto))
        assert "requested ip 10.68.0.1 is subnet's gateway" in gateway


def test_a_port_that_is_taken(podman):
    """Podman itself refuses a port that another container has; that one keeps it, and the other can be removed."""
    with serving(podman.start("one", "--publish=8080:80")) as services:
        assert "address already in use" in podman.refused(*podman.line("two", "--publish=8080:80"))
        podman.remove("two")
        assert call(services, podman.machine.peer, "tcp", ADDRESS, 8080) == Reached("one", PEER_ADDRESS)


def test_what_is_wrong_with_a_file_is_told_in_our_words(podman):
    """A bridge that is none, a VLAN that cannot be, a range with host bits: podman shows what the plugin says."""
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.69.0.0/24"}]]}
    crooked = {"type": "host-local", "ranges": [[{"subnet": "10.69.0.9/24"}]]}
    for keys, told in (
        ({"bridge": "up0"}, '"up0" already exists but is not a bridge: it is veth; set "bridge" to another name'),
        ({"vlan": 5000}, 'invalid VLAN ID 5000 (must be between 0 and 4094): "vlan"'),
        ({"ipam": crooked}, 'the network address is 10.69.0.0: in "ipam.ranges[0][0].subnet"'),
    ):
        plugin = {"type": "bridge", "bridge": "cni7", "ipam": ipam, **keys}
        broken = {"cniVersion": "1.0.0", "name": "broken", "plugins": [plugin]}
        podman.machine.write(CONF_DIR / "20-broken.conflist", json.dumps(broken))
        assert told in podman.refused(*podman.line("one", network="broken"))
        podman.remove()
    podman.machine.run("rm", str(CONF_DIR / "20-broken.conflist"))
