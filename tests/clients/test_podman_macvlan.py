"""podman's networks of the driver macvlan, on the machine's uplink, with only podwire's plugins.

One rule: a test removes its networks, too, and compares the machine's whole state before and after.
"""

import pytest

from tests.clients.podman import serving
from tests.support import netstate
from tests.support.attaching import reaches
from tests.support.machine import ADDRESS, ADDRESS6, PEER_ADDRESS, PEER_ADDRESS6, eventually
from tests.support.sockets import Reached, call, is_unreachable

pytestmark = pytest.mark.usefixtures("machine_unchanged")

PARENT = ("--driver=macvlan", "--opt=parent=up0")
IPV4 = ("--subnet=203.0.113.0/24", f"--gateway={PEER_ADDRESS}", "--ip-range=203.0.113.128/26")
IPV6 = ("--ipv6", "--subnet=2001:db8::/64", f"--gateway={PEER_ADDRESS6}", "--ip-range=2001:db8::1:0/112")


@pytest.fixture(scope="module", autouse=True)
def previous_containers(podman):
    """Runs one container with a port, because the first leaves what stays by design."""
    podman.start("first", "--publish=8080:80", network="")
    podman.remove()


def test_containers_are_on_the_network_of_the_parent(podman):
    """Containers, and the peer, reach each other by both families with their addresses; the machine does not."""
    machine = podman.machine
    with podman.network("lan", *PARENT, *IPV4, *IPV6) as lan:
        assert [plugin["type"] for plugin in podman.plugins(lan)] == ["macvlan"]
        one, two = podman.start("one", network=lan), podman.start("two", network=lan)
        (ipv4, ipv6), (other, other6) = one.both(lan), two.both(lan)
        assert one.addresses() == [f"{ipv4}/24", f"{ipv6}/64"]
        settings = one.networks[lan]
        assert (settings["Gateway"], settings["IPv6Gateway"]) == (PEER_ADDRESS, PEER_ADDRESS6)
        for ip in (PEER_ADDRESS, PEER_ADDRESS6, other, other6):
            assert reaches(one.namespace, ip), ip
        with serving(one) as services:
            for ip, sources in ((ipv4, (other, PEER_ADDRESS)), (ipv6, (other6, PEER_ADDRESS6))):
                callers = (two.namespace, machine.peer)
                for caller, source in zip(callers, sources, strict=True):
                    assert call(services, caller, "tcp", ip, 80) == Reached("one", source), (ip, caller)
                assert is_unreachable(services, machine.network, "tcp", ip, 80)
        for ip in (ADDRESS, ADDRESS6):
            assert not reaches(one.namespace, ip, within_s=1)


def test_requested_addresses(podman):
    """Podman's --ip, --ip6 and --mac-address are applied, alone and together; options are mode and MTU."""
    mac = "02:00:00:00:00:77"
    with podman.network("lan", *PARENT, *IPV4, *IPV6, "--opt=mode=private", "--opt=mtu=1400") as lan:
        one = podman.start("one", "--ip=203.0.113.177", f"--mac-address={mac}", network=lan)
        assert one.addresses() == ["203.0.113.177/24", f"{one.both(lan)[1]}/64"]
        link = netstate.shown(one.namespace, "eth0")
        assert (link["address"], link["mtu"], link["linkinfo"]["info_data"]["mode"]) == (mac, 1400, "private")
        assert one.networks[lan]["MacAddress"] == mac
        two = podman.start("two", "--ip=203.0.113.178", "--ip6=2001:db8::1:78", network=lan)
        assert two.addresses() == ["203.0.113.178/24", "2001:db8::1:78/64"]
        assert reaches(two.namespace, PEER_ADDRESS)
        assert not reaches(two.namespace, "203.0.113.177", within_s=1)  # mode private
        in_use = podman.fail(*podman.line("three", "--ip=203.0.113.178", network=lan))
        assert "requested IP address 203.0.113.178 is not available" in in_use


def test_container_is_restarted_and_killed(podman):
    """A restarted container keeps its requested address, and a killed one releases its own."""
    with podman.network("lan", *PARENT, *IPV4) as lan:
        podman.start("one", "--ip=203.0.113.177", network=lan)
        podman("restart", "--time=0", "one")
        one = podman.inspect("one")
        assert one.addresses() == ["203.0.113.177/24"]
        assert reaches(one.namespace, PEER_ADDRESS)
        podman("kill", "one")
        assert eventually(lambda: "203.0.113.177" not in podman.machine.run("ls", f"/var/lib/cni/networks/{lan}"))
        assert podman.start("two", "--ip=203.0.113.177", network=lan).address(lan) == "203.0.113.177"
