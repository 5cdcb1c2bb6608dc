"""The MTU of bridge's attachments, as a number or "auto", and the MTU of the bridge."""

import pytest

from tests.support.attaching import address, count_messages, host_end, reaches
from tests.support.netstate import links, shown, state

# The MTUs of the uplinks, commands that create other links on the host, and the expected MTU.
VXLAN = "link add podwire-vxlan mtu 1450 type vxlan id 112 dstport 4789 local 192.0.2.1; link set podwire-vxlan up"
VETH = "link add name x mtu 1300 type veth peer name y mtu 1300; link set x up; link set y up"
AUTO = {
    "no interface but lo": ((), "", 1460),
    "one uplink": ((1450,), "", 1450),
    "jumbo frames": ((9000,), "", 9000),
    "the least of two": ((9000, 1450), "", 1450),
    "an uplink that is down": ((1300,), "link set up0 down", 1460),
    "less than any host must take": ((1500, 575), "", 1460),
    "the least that counts": ((576,), "", 576),
    "point-to-point": ((1500,), "tuntap add name x mode tun; link set x mtu 1300 up", 1500),
    "the agent's VXLAN device": ((1500,), VXLAN, 1450),
    "another bridge": ((1500,), "link add name x mtu 1300 type bridge; link set x up", 1500),
    "a pair within the host": ((1500,), VETH, 1500),
}


@pytest.mark.parametrize("case", AUTO)
def test_auto_is_the_lowest_mtu_of_the_uplinks(network, sandbox, uplink, case):
    """With "auto" both veth ends and a new bridge get the lowest MTU of the host's uplinks that are up."""
    uplinks, commands, expected = AUTO[case]
    for number, mtu in enumerate(uplinks):
        uplink(f"up{number}", mtu)
    for command in filter(None, commands.split("; ")):
        network.host.ip(*command.split())
    result = network.having(mtu="auto", cniVersion="1.1.0").add(sandbox)
    assert [item["mtu"] for item in result["interfaces"]] == [expected] * 3
    host_links = links(network.host)
    assert (host_links["cni0"]["mtu"], host_links[host_end(result)]["mtu"]) == (expected, expected)
    assert links(sandbox)["eth0"]["mtu"] == expected


def test_auto_follows_a_rising_uplink(network, new_sandbox, uplink):
    """A low value does not persist: bridge and pods that have it do not count."""
    network = network.having(mtu="auto")
    uplink("up0", 1000)
    for mtu in (1400, 1500):
        network.host.ip("link", "set", "up0", "mtu", str(mtu))
        network.add(pod := new_sandbox())
        assert links(pod)["eth0"]["mtu"] == mtu
    assert shown(network.host, "cni0")["mtu"] == 1400


@pytest.mark.parametrize("family", [4, 6])
def test_fixed_bridge_mtu_is_lowered_to_the_pods(dual_network, sandbox, family):
    """A bridge with an explicit MTU gets the pod's lower one, so the host's large packets arrive."""
    network = with_explicit_mtu(dual_network, 1500)
    result = network.having(mtu=1400).add(sandbox)
    number = 0 if family == 4 else 1
    # The IPv6 gateway is usable only after a while, later on a loaded machine.
    assert reaches(network.host, address(result, number), within_s=20, options=("-s", "1440"))
    assert shown(network.host, "cni0")["mtu"] == 1400


def test_fixed_bridge_mtu_is_raised_to_the_pods(network, new_sandbox):
    """A bridge with an explicit MTU gets the lowest MTU of its ports if that is higher."""
    network = with_explicit_mtu(network, 1500).having(mtu=9000)
    result = network.add(new_sandbox())
    assert reaches(network.host, address(result), options=("-M", "do", "-s", "8000"))
    assert shown(network.host, "cni0")["mtu"] == 9000


def test_bridge_gets_the_lowest_mtu_of_its_ports(network, new_sandbox):
    """Pods of other networks keep their MTU; the bridge gets the lowest, and stderr says so."""
    network = with_explicit_mtu(network, 1500)
    first = network.having(mtu=1450).add(new_sandbox())
    outcome = network.having(mtu=9000, cniVersion="1.1.0").run("ADD", new_sandbox())
    second = outcome.result()
    assert [item["mtu"] for item in second["interfaces"]] == [1450, 9000, 9000]
    host_links = links(network.host)
    assert [host_links[name]["mtu"] for name in ("cni0", host_end(first), host_end(second))] == [1450, 1450, 9000]
    assert outcome.stderr == 'bridge: bridge "cni0" has ports with MTU 1450 and 9000: its MTU is set to 1450\n'


def test_an_uplink_among_the_ports_counts(network, sandbox, uplink):
    """A bridge does not get a larger MTU than an uplink that is its port."""
    network = with_explicit_mtu(network, 1400)
    uplink("up0", 1500)
    network.host.ip("link", "set", "up0", "master", "cni0")
    network.having(mtu=9000).add(sandbox)
    host_links = links(network.host)
    assert (host_links["cni0"]["mtu"], host_links["up0"]["mtu"]) == (1500, 1500)


@pytest.mark.needs("vlan_filtering")
def test_in_a_vlan_the_gateway_interface_gets_the_mtu(network, sandbox):
    """In a VLAN the gateway interface gets the configured MTU, and the bridge's does not change."""
    network = with_explicit_mtu(network, 1500)
    result = network.having(mtu=1400, vlan=100).add(sandbox)
    host_links = links(network.host)
    assert (host_links["cni0"]["mtu"], host_links["cni0.100"]["mtu"]) == (1500, 1400)
    assert reaches(network.host, address(result), options=("-s", "1440"))


def test_bridge_keeps_its_mtu_without_a_configured_one(network, sandbox):
    """Without a configured MTU an existing bridge's MTU does not change."""
    network = with_explicit_mtu(network, 1300)
    network.add(sandbox)
    assert shown(network.host, "cni0")["mtu"] == 1300


def test_bridge_mtu_stays_large_enough_for_ipv6(dual_network, new_sandbox):
    """A pod with a small MTU does not lower the bridge's below what its IPv6 gateway needs; stderr says so."""
    network = with_explicit_mtu(dual_network, 1400)
    network.add(new_sandbox())
    before = links(network.host)["cni0"]
    ranges = [dual_network.config["ipam"]["ranges"][0]]
    outcome = network.having(mtu=1000, ipam={**dual_network.config["ipam"], "ranges": ranges}).run("ADD", new_sandbox())
    outcome.result()
    assert links(network.host)["cni0"] == before
    assert "keeps MTU 1400: below 1280 it would lose its IPv6 addresses" in outcome.stderr


def test_failing_add_does_not_change_the_bridge_mtu(scripted_network, sandbox):
    """An ADD that fails does not change the MTU of an existing bridge."""
    network = with_explicit_mtu(scripted_network(body='[ "$CNI_COMMAND" != ADD ] || exit 1'), 1500)
    before = state(network.host)
    network.having(mtu=1400).run("ADD", sandbox).error()
    assert state(network.host) == before


def test_number_of_netlink_messages(network, new_sandbox, uplink):
    """An MTU that the bridge has costs no message, "auto" costs one, another MTU two."""
    network.having(mtu=1400).add(new_sandbox())
    plain = count_messages(network, new_sandbox())
    assert count_messages(network.having(mtu=1400), new_sandbox()) == plain
    uplink("up0", 1400)
    assert count_messages(network.having(mtu="auto"), new_sandbox()) == plain + 1
    network.host.ip("link", "set", "cni0", "mtu", "1500")
    assert count_messages(network.having(mtu=1400), new_sandbox()) == plain + 2


def test_check_before_1_1_0_accepts_any_mtu(network, sandbox):
    """Before CNI 1.1.0 results have no MTU, and tuning behind bridge may have set another one."""
    network = network.having(mtu=1400)
    result = network.add(sandbox)
    sandbox.ip("link", "set", "eth0", "mtu", "1300")
    network.check(sandbox, result)


def test_check_of_auto_uses_the_result(network, sandbox, uplink):
    """CHECK takes the value of "auto" from a 1.1.0 result: the host's interfaces may have changed since."""
    network = network.having(mtu="auto", cniVersion="1.1.0")
    result = network.add(sandbox)
    uplink("up0", 1300)
    network.check(sandbox, result)
    sandbox.ip("link", "set", "eth0", "mtu", "1300")
    assert "MTU doesn't match: 1460" in network.run("CHECK", sandbox, prev_result=result).error()["msg"]


def test_check_accepts_other_pods_mtu(network, new_sandbox):
    """CHECK accepts a smaller pod on the same bridge, and a changed MTU if none is configured."""
    one, two = new_sandbox(), new_sandbox()
    first = network.having(mtu=1500).add(one)
    network.having(mtu=1300).add(two)
    network.having(mtu=1500).check(one, first)
    plain = network.add(three := new_sandbox())
    three.ip("link", "set", "eth0", "mtu", "1200")
    network.check(three, plain)


def with_explicit_mtu(network, mtu):
    """Returns the network on a bridge with an explicit MTU, which the kernel no longer adapts."""
    network.host.ip("link", "add", "name", "cni0", "up", "type", "bridge")
    for value in (mtu - 1, mtu):  # setting the current value does not count as setting it explicitly
        network.host.ip("link", "set", "cni0", "mtu", str(value))
    return network
