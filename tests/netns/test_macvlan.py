"""macvlan: links, results, modes, keys and traffic."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import uplink
from tests.support.attaching import Network, address, reaches
from tests.support.netstate import links, shown, state
from tests.support.uplink import UPLINK, WIRE

pytestmark = pytest.mark.needs("macvlan")

MAC, OTHER_MAC, THIRD_MAC = (f"02:00:00:00:00:0{digit}" for digit in (1, 2, 3))


def info(sandbox, name="eth0"):
    """Returns the attributes of the macvlan interface as `ip -d link` shows them."""
    item = shown(sandbox, name)
    assert item["linkinfo"]["info_kind"] == "macvlan"
    return item["linkinfo"]["info_data"]


def test_pods_and_the_wire_reach_each_other(macvlan, new_sandbox, neighbour):
    """Two pods on one master and a machine on the wire reach each other by both IP versions; the host does not."""
    one, two = new_sandbox(), new_sandbox()
    first, second = macvlan.add(one), macvlan.add(two)
    for number in (0, 1):
        assert reaches(one, address(second, number))
        assert reaches(neighbour, address(first, number))
        assert reaches(two, uplink.NEIGHBOUR[number].partition("/")[0])
    macvlan.host.ip("address", "add", uplink.HOST[0], "dev", UPLINK)
    assert not reaches(macvlan.host, address(first), within_s=1)


def test_result_lists_the_interface(macvlan, sandbox):
    """The result lists the interface with all addresses, with its MTU since 1.1.0, and no interface of the host."""
    result = macvlan.having(cniVersion="1.1.0", mtu=1400).add(sandbox)
    link = shown(sandbox, "eth0")
    mac = link["address"]
    assert result["interfaces"] == [{"name": "eth0", "mac": mac, "mtu": 1400, "sandbox": sandbox.path}]
    assert [(ip["address"], ip["gateway"], ip["interface"]) for ip in result["ips"]] == [
        ("10.25.0.2/24", "10.25.0.1", 0),
        ("fd00:25::2/64", "fd00:25::1", 0),
    ]
    assert (link["mtu"], shown(macvlan.host, UPLINK)["ifindex"]) == (1400, link["link_index"])
    for key in ("ipv4/conf/eth0/arp_notify", "ipv6/conf/eth0/ndisc_notify"):
        assert sandbox.sysctl(f"net/{key}") == "1"


@pytest.mark.parametrize("mode", ["", "bridge", "private", "vepa", "passthru", None])
def test_modes(macvlan, sandbox, mode):
    """The interface has the configured mode, by default bridge; CHECK and DEL succeed."""
    net = macvlan.having(mode=mode)
    before = state(net.host)
    result = net.add(sandbox)
    assert info(sandbox)["mode"] == (mode or "bridge")
    macs = {shown(sandbox, "eth0")["address"], shown(net.host, UPLINK)["address"], result["interfaces"][0]["mac"]}
    assert len(macs) == (1 if mode == "passthru" else 2)
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo"}
    assert state(net.host) == before
    assert net.leases() == {}


def test_private_pods_do_not_reach_each_other(macvlan, new_sandbox, neighbour):
    """In mode private pods reach the wire, but not each other."""
    net = macvlan.having(mode="private")
    one, two = new_sandbox(), new_sandbox()
    net.add(one)
    second = net.add(two)
    assert not reaches(one, address(second), within_s=1)
    assert reaches(one, uplink.NEIGHBOUR[0].partition("/")[0])


def test_without_master_the_default_routes_interface_is_used(macvlan, sandbox):
    """Without `master` the interface of the default route with the lowest metric is the master."""
    net = macvlan.having(master=None)
    error = net.run("ADD", sandbox).error()
    assert error["msg"] == "no default route interface found"
    net.host.ip("link", "add", "up1", "type", "veth", "peer", "name", "up2")
    for name, metric in (("up1", "20"), (UPLINK, "10")):
        net.host.ip("link", "set", name, "up")
        net.host.ip("route", "add", "default", "dev", name, "metric", metric)
    result = net.add(sandbox)
    assert shown(sandbox, "eth0")["link_index"] == shown(net.host, UPLINK)["ifindex"]
    net.check(sandbox, result)


def test_ipv6_default_route_names_the_master(macvlan, sandbox):
    """On a host with an IPv6 default route only, its interface is the master."""
    macvlan.host.ip("-6", "route", "add", "default", "dev", UPLINK)
    macvlan.having(master=None).add(sandbox)
    assert shown(sandbox, "eth0")["link_index"] == shown(macvlan.host, UPLINK)["ifindex"]


REFUSED: dict[str, tuple[dict[str, object], int, str]] = {
    "unknown master": ({"master": "zz"}, 999, 'failed to lookup master "zz": Link not found'),
    "impossible master": ({"master": "a/b"}, 7, '"master" is not a valid interface name: "a/b"'),
    "loopback": ({"master": "lo"}, 7, 'master "lo" is the loopback interface'),
    "mode": ({"mode": "Bridge"}, 7, 'unknown macvlan mode: "Bridge"'),
    "negative MTU": ({"mtu": -1}, 7, "invalid MTU -1, must be [0, master MTU(1500)]"),
    "large MTU": ({"mtu": 9000}, 7, "invalid MTU 9000, must be [0, master MTU(1500)]"),
    "MTU without IPv6": ({"mtu": 1279}, 7, '"mtu" 1279 is too small for the IPv6 addresses that IPAM allocates'),
    "small MTU": ({"mtu": 50}, 999, "failed to create macvlan: invalid argument"),
    "MTU of another type": ({"mtu": "1400"}, 7, '"mtu" must be an integer, not a string'),
    "negative queue": ({"bcqueuelen": -1}, 7, '"bcqueuelen" must be between 0 and 4294967295, not -1'),
    "MAC": ({"mac": "zz"}, 7, "invalid args zz for MAC addr: address zz: invalid MAC address"),
    "multicast MAC": ({"mac": "01:00:5e:00:00:01"}, 7, "failed to create macvlan: cannot assign requested address"),
    "zero MAC": ({"mac": "00:00:00:00:00:00"}, 7, "failed to create macvlan: cannot assign requested address"),
    "long MAC": ({"mac": "02:00:00:00:00:00:00:01"}, 7, "failed to create macvlan: cannot assign requested address"),
    "version": ({"cniVersion": "0.2.0", "ipam": None}, 7, "cannot convert: no valid IP addresses"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_keys_are_refused(macvlan, sandbox, case):
    """A wrong value is reported before any change."""
    keys, code, text = REFUSED[case]
    before = state(macvlan.host), state(sandbox)
    error = macvlan.having(**keys).run("ADD", sandbox).error()
    assert error["code"] == code
    assert error["msg"].endswith(text)
    assert (state(macvlan.host), state(sandbox)) == before
    assert macvlan.leases() == {}


def test_mac_addresses_by_precedence(macvlan, new_sandbox):
    """The runtime's MAC address wins over CNI_ARGS, which wins over the key `mac`."""
    net = macvlan.having(mac=MAC)
    from_args: dict[str, Any] = {"env": {"CNI_ARGS": f"IgnoreUnknown=1;MAC={OTHER_MAC}"}}
    cases: tuple[tuple[Network, dict[str, Any], str], ...] = (
        (net, {}, MAC),
        (net, from_args, OTHER_MAC),
        (net.having(runtimeConfig={"mac": THIRD_MAC}), from_args, THIRD_MAC),
    )
    for network, how, expected in cases:
        pod = new_sandbox()
        result = network.add(pod, **how)
        assert (result["interfaces"][0]["mac"], shown(pod, "eth0")["address"]) == (expected, expected)
        network.check(pod, result, **how)
    error = net.run("ADD", new_sandbox(), env={"CNI_ARGS": "X=1"}).error()
    assert error["code"] == 4


def test_broadcast_queue(macvlan, new_sandbox):
    """`bcqueuelen` sets the length of the queue for broadcasts; 0 is the kernel's default."""
    for length, expected in ((500, 500), (0, 1000)):
        pod = new_sandbox()
        macvlan.having(bcqueuelen=length).add(pod)
        assert info(pod)["bcqueuelen"] == expected


def test_layer_2(macvlan, sandbox):
    """Without `ipam` the interface is up and has no address; CHECK and DEL succeed."""
    no_type: dict[str, str] = {}
    for ipam in (None, no_type):
        net = macvlan.having(ipam=ipam)
        result = net.add(sandbox)
        assert set(result) == {"cniVersion", "interfaces"}
        assert "UP" in shown(sandbox, "eth0")["flags"]
        assert links(sandbox)["eth0"]["addresses"] == []
        assert sandbox.sysctl("net/ipv4/conf/eth0/arp_notify") == "0"
        net.check(sandbox, result)
        net.delete(sandbox, result)
        assert set(links(sandbox)) == {"lo"}


@pytest.mark.parametrize("dns", [None, {"nameservers": ["10.25.0.53"]}])
def test_configured_dns_replaces_that_of_ipam(macvlan, scripted_network, sandbox, dns):
    """The result has the DNS settings of the IPAM plugin, or those of the configuration."""
    net = scripted_network([{"address": "10.25.0.9/24"}], dns={"nameservers": ["10.0.0.53"]})
    conf = {"type": "macvlan", "master": UPLINK, "bridge": None, "isDefaultGateway": None, "dns": dns}
    assert net.having(**conf).add(sandbox)["dns"] == (dns or {"nameservers": ["10.0.0.53"]})


def test_second_add_is_refused(macvlan, sandbox):
    """ADD of an attached sandbox is refused with the reference's text, and the attachment still works."""
    result = macvlan.add(sandbox)
    before = state(macvlan.host), state(sandbox), macvlan.leases()
    error = macvlan.run("ADD", sandbox).error()
    assert error["msg"] == 'failed to rename macvlan to "eth0": file exists'
    assert (state(macvlan.host), state(sandbox), macvlan.leases()) == before
    macvlan.check(sandbox, result)


def test_master_in_the_container(macvlan, sandbox):
    """With `linkInContainer` the master is an interface of the pod, also one that is a macvlan interface itself."""
    macvlan.add(sandbox, ifname="net0")
    sandbox.ip("link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
    for name in ("veth0", "veth1"):
        sandbox.ip("link", "set", name, "up")
    for master, ifname in (("veth0", "net1"), ("net0", "net2")):
        net = macvlan.having(master=master, linkInContainer=True, cniVersion="1.1.0")
        result = net.add(sandbox, ifname=ifname)
        if master == "veth0":
            assert shown(sandbox, ifname)["link"] == "veth0"
        net.run("STATUS").assert_silent()
        net.check(sandbox, result, ifname=ifname)
        error = net.having(linkInContainer=None).run("CHECK", sandbox, prev_result=result, ifname=ifname).error()
        assert error["msg"] == f'failed to lookup master "{master}": Link not found'
        net.delete(sandbox, result, ifname=ifname)
    assert set(links(sandbox)) == {"lo", "net0", "veth0", "veth1"}


def test_master_that_is_a_macvlan_interface(macvlan, sandbox):
    """If the master is a macvlan interface of the host, the kernel uses its parent; CHECK accepts that."""
    macvlan.host.ip("link", "add", "m0", "link", UPLINK, "type", "macvlan", "mode", "bridge")
    macvlan.host.ip("link", "set", "m0", "up")
    net = macvlan.having(master="m0")
    net.check(sandbox, net.add(sandbox))
    assert shown(sandbox, "eth0")["link_index"] == shown(macvlan.host, UPLINK)["ifindex"]


def test_busy_masters_are_explained(macvlan, sandbox):
    """The error names the bridge that has the master as a port, and lists it as the master to use."""
    macvlan.host.ip("link", "add", "br0", "type", "bridge")
    macvlan.host.ip("link", "set", UPLINK, "master", "br0")
    error = macvlan.run("ADD", sandbox).error()
    assert error["msg"] == "failed to create macvlan: device or resource busy"
    assert error["details"].endswith('is a port of bridge "br0", which receives its packets; set "master" to "br0"')
    macvlan.host.ip("link", "set", "br0", "up")
    macvlan.having(master="br0").add(sandbox)


@pytest.mark.needs("ipvlan")
def test_master_with_ipvlan_interfaces_is_explained(macvlan, sandbox):
    """The error says that macvlan and ipvlan cannot share a master."""
    macvlan.host.ip("link", "add", "i0", "link", UPLINK, "type", "ipvlan")
    error = macvlan.run("ADD", sandbox).error()
    assert error["msg"] == "failed to create macvlan: device or resource busy"
    assert "macvlan and ipvlan cannot share a master" in error["details"]


@pytest.mark.parametrize(("first", "second"), [("passthru", "bridge"), ("bridge", "passthru")])
def test_passthru_beside_another_interface_is_explained(macvlan, new_sandbox, first, second):
    """An interface of mode passthru needs its master for itself, and the error says so."""
    macvlan.having(mode=first).add(new_sandbox())
    pod = new_sandbox()
    leases = macvlan.leases()
    error = macvlan.having(mode=second).run("ADD", pod).error()
    assert error["msg"] == "failed to create macvlan: invalid argument"
    assert "passthru" in error["details"]
    assert set(links(pod)) == {"lo"}
    assert macvlan.leases() == leases


def test_used_mac_address_is_explained(macvlan, new_sandbox):
    """The error of a MAC address that another interface on the master has says so; ADD leaves nothing."""
    net = macvlan.having(mac=MAC)
    net.add(new_sandbox())
    pod = new_sandbox()
    leases = net.leases()
    error = net.run("ADD", pod).error()
    assert error["msg"] == 'failed to set "eth0" up: address already in use'
    assert f"has the MAC address {MAC}" in error["details"]
    assert set(links(pod)) == {"lo"}
    assert net.leases() == leases


def test_master_that_is_not_ethernet_is_explained(macvlan, sandbox):
    """A tunnel without Ethernet addresses cannot be a master."""
    macvlan.host.run("sh", "-ec", "ip tuntap add tun0 mode tun; ip link set tun0 up")
    error = macvlan.having(master="tun0").run("ADD", sandbox).error()
    assert error["msg"] == "failed to create macvlan: invalid argument"
    assert "it is not an Ethernet interface" in error["details"]


def test_frames_have_the_pods_mac_address(macvlan, sandbox, neighbour):
    """The machine on the wire learns the pod's MAC address."""
    result = macvlan.add(sandbox)
    assert reaches(neighbour, address(result))
    neighbours = neighbour.ip("neighbour", "show", "dev", WIRE)
    assert result["interfaces"][0]["mac"] in neighbours
