"""podman's networks of the driver macvlan, on the machine's uplink, with only podwire's plugins.

One rule: a test removes its networks, too, and compares the machine's whole state before and after.
"""

import pytest

from tests.support import netstate
from tests.support.attaching import reaches
from tests.support.machine import PEER_ADDRESS, PEER_ADDRESS6, eventually

pytestmark = pytest.mark.usefixtures("default_network_used", "machine_unchanged")

PARENT = ("--driver=macvlan", "--opt=parent=up0")
IPV4 = ("--subnet=203.0.113.0/24", f"--gateway={PEER_ADDRESS}", "--ip-range=203.0.113.128/26")
IPV6 = ("--ipv6", "--subnet=2001:db8::/64", f"--gateway={PEER_ADDRESS6}", "--ip-range=2001:db8::1:0/112")


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
