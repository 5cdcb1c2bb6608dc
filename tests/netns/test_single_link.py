"""ADD of plugins that create or move one interface: the result, layer 2, DNS, MAC addresses and names in use."""

from typing import Any

import pytest

from tests.support import uplink
from tests.support.attaching import address, reaches
from tests.support.netstate import links, shown, state
from tests.support.single_link import CREATED, ON_MASTER, each
from tests.support.uplink import UPLINK

MAC, OTHER_MAC, THIRD_MAC = (f"02:00:00:00:00:0{digit}" for digit in (1, 2, 3))
IPAM_DNS = {"nameservers": ["10.0.0.53"], "search": ["ipam.example"]}


@each()
@pytest.mark.parametrize(("version", "mtu"), [("1.0.0", None), ("1.1.0", 1400)])
def test_result_lists_the_interface(net, sandbox, version, mtu):
    """The result lists the interface with all addresses, with its MTU since 1.1.0; the host gets none."""
    kind, ipam = net.config["type"], {**net.config["ipam"], "routes": [{"dst": "192.0.2.0/24"}]}
    net = net.having(cniVersion=version, mtu=None if kind == "dummy" else mtu, ipam=ipam)
    before = state(net.host), state(sandbox)
    result = net.add(sandbox)
    link = shown(sandbox, "eth0")
    assert (link["linkinfo"].get("info_kind"), "UP" in link["flags"]) == ("tun" if kind == "tap" else kind, True)
    assert link["mtu"] == (1500 if kind == "dummy" else mtu or 1500)
    listed = {"name": "eth0", "mac": link["address"], "sandbox": sandbox.path}
    assert result["interfaces"] == [listed | ({"mtu": link["mtu"]} if version == "1.1.0" else {})]
    assert result["ips"] == [
        {"address": "10.25.0.2/24", "gateway": "10.25.0.1", "interface": 0},
        {"address": "fd00:25::2/64", "gateway": "fd00:25::1", "interface": 0},
    ]
    assert kind not in ON_MASTER or link["link_index"] == shown(net.host, UPLINK)["ifindex"]
    assert "192.0.2.0/24 via 10.25.0.1 dev eth0" in sandbox.ip("route")
    for key in ("ipv4/conf/eth0/arp_notify", "ipv6/conf/eth0/ndisc_notify"):
        assert sandbox.sysctl(f"net/{key}") == "1"
    assert set(links(net.host)) == set(before[0]["links"])
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert (state(net.host), state(sandbox), net.leases()) == (*before, {})


@each(*ON_MASTER)
def test_pod_and_a_machine_on_the_wire(net, sandbox, neighbour):
    """Pod and machine reach each other through the master, by IPv4 and IPv6, in vlan's case with its tag."""
    if net.config["type"] == "vlan":
        uplink.tag(neighbour, net.config["vlanId"])
    result = net.add(sandbox)
    for number in (0, 1):
        assert reaches(sandbox, uplink.NEIGHBOUR[number].partition("/")[0])
        assert reaches(neighbour, address(result, number))


@each()
def test_name_of_a_host_interface(net, sandbox):
    """The interface may have the name of an interface of the host, also of the master."""
    before = state(net.host), state(sandbox)
    result = net.add(sandbox, ifname=UPLINK)
    assert set(links(sandbox)) == {"lo", UPLINK}
    net.check(sandbox, result, ifname=UPLINK)
    net.delete(sandbox, result, ifname=UPLINK)
    assert (state(net.host), state(sandbox)) == before


@each("macvlan", "ipvlan", "vlan", "tap", "host-device", "ptp")
def test_layer_2(net, sandbox):
    """Without `ipam` the interface is up and has no address; CHECK and DEL succeed, and DEL restores the host."""
    net = net.having(ipam=None, cniVersion="1.0.0")
    before = state(net.host)
    result = net.add(sandbox)
    assert set(result) == {"cniVersion", "interfaces"}
    assert ("UP" in shown(sandbox, "eth0")["flags"], links(sandbox)["eth0"]["addresses"]) == (True, [])
    assert sandbox.sysctl("net/ipv4/conf/eth0/arp_notify") == "0"
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert (state(net.host), set(links(sandbox))) == (before, {"lo"})


@each(*CREATED, "ptp")
@pytest.mark.parametrize("dns", [None, {}, {"search": ["own.example"]}, {"nameservers": []}])
def test_configured_dns_replaces_that_of_ipam(net, sandbox, dns):
    """The result has IPAM's DNS settings unless the network has its own, even an empty list, which dummy ignores."""
    addresses = [{"address": "10.25.0.9/24", "gateway": "10.25.0.1"}]
    result = net.having(ipam={"type": "static", "addresses": addresses, "dns": IPAM_DNS}, dns=dns).add(sandbox)
    kept = dns if net.config["type"] != "dummy" else None
    assert result.get("dns", {}) == ({key: value for key, value in kept.items() if value} if kept else IPAM_DNS)


@each("macvlan", "tap")
def test_mac_addresses_by_precedence(net, new_sandbox):
    """RuntimeConfig wins over CNI_ARGS, and CNI_ARGS over the key `mac`; CHECK and ADD refuse invalid CNI_ARGS."""
    net = net.having(mac=MAC)
    arguments = {"args": f"IgnoreUnknown=1;MAC={OTHER_MAC}"}
    for keys, how, expected in (
        ({}, {}, MAC),
        ({"args": {"cni": {"mac": THIRD_MAC}}}, {}, MAC),
        ({}, arguments, OTHER_MAC),
        ({"runtimeConfig": {"mac": THIRD_MAC}}, arguments, THIRD_MAC),
    ):
        pod = new_sandbox()
        network = net.having(**keys)
        result = network.add(pod, **how)
        assert (result["interfaces"][0]["mac"], shown(pod, "eth0")["address"]) == (expected, expected)
        network.check(pod, result, **how)
        assert network.run("CHECK", pod, prev_result=result, args="X=1").error()["msg"].startswith("ARGS: unknown args")
        network.delete(pod, result, args="rubbish")
        assert (network.run("ADD", pod, args="X=1").error()["code"], set(links(pod))) == (4, {"lo"})


EXISTING = {
    "dummy": "failed to create dummy: file exists",
    "host-device": 'failed to move link failed to move "eth0" (host: "hd0") to container NS: file exists',
    "ptp": 'container veth name ("eth0") peer provided ("veth',
    "bridge": 'container veth name ("eth0") peer provided ("veth',
}


@each(*CREATED, *EXISTING)
@pytest.mark.parametrize("existing", ["its own", "veth", "tap"])
def test_existing_name_is_refused(net, sandbox, existing):
    """ADD leaves an interface of the name as it is, also that of a running attachment, which still passes CHECK."""
    kind = net.config["type"]
    result: dict[str, Any] = {}
    if existing == "tap":
        sandbox.ip("tuntap", "add", "eth0", "mode", "tap")
    elif existing == "veth" or kind == "host-device":  # after ADD the host has no device
        sandbox.ip("link", "add", "eth0", "type", "veth", "peer", "name", "p")
    else:
        result = net.add(sandbox)
    before = state(net.host), state(sandbox), net.leases()
    for container_id in ("another",) if kind == "ptp" else (sandbox.name, "another"):  # IPAM refuses ptp's second ADD
        error = net.run("ADD", sandbox, container_id=container_id).error()
        assert error["msg"].startswith(EXISTING.get(kind, f'failed to rename {kind} to "eth0": file exists'))
        assert kind == "host-device" or "run DEL first" in error["details"]
    assert (state(net.host), state(sandbox), net.leases()) == before
    if result:
        net.check(sandbox, result)


@each(*ON_MASTER)
def test_master_in_the_container(net, sandbox):
    """With `linkInContainer` the master, which STATUS does not look for on the host, is an interface of the pod."""
    sandbox.ip("link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
    for name in ("veth0", "veth1"):
        sandbox.ip("link", "set", name, "up")
    before = state(net.host), state(sandbox)
    in_container = net.having(master="veth0", linkInContainer=True)
    result = in_container.add(sandbox)
    assert shown(sandbox, "eth0")["link"] == "veth0"
    in_container.run("STATUS").assert_silent()
    in_container.check(sandbox, result)
    for keys, text in (
        ({"master": "veth0"}, 'failed to lookup master "veth0": Link not found'),
        ({}, f'Container interface eth0 is not on master "{UPLINK}"'),
    ):
        assert net.having(**keys).run("CHECK", sandbox, prev_result=result).error()["msg"] == text
    in_container.delete(sandbox, result)
    assert (state(net.host), state(sandbox)) == before


@each("macvlan", "ipvlan")
@pytest.mark.parametrize("option", ["-4", "-6"])
@pytest.mark.parametrize("in_pod", [False, True])
def test_without_master_the_default_routes_interface_is_used(net, sandbox, option, in_pod):
    """Without `master` the interface of the default route with the lowest metric is the master."""
    place, master = (sandbox, "net1") if in_pod else (net.host, UPLINK)
    net = net.having(master=None, linkInContainer=in_pod, ipam=None)
    assert net.run("ADD", sandbox).error()["msg"] == "no default route interface found"
    if in_pod:
        place.ip("link", "add", "net1", "type", "veth", "peer", "name", "net2")
    place.ip("link", "add", "up1", "type", "veth", "peer", "name", "up2")
    for name, metric in (("up1", "20"), (master, "10")):
        place.ip("link", "set", name, "up")
        place.ip(option, "route", "add", "default", "dev", name, "metric", metric)
    result = net.add(sandbox)
    shown_link = shown(sandbox, "eth0")
    assert shown_link.get("link", shown_link.get("link_index")) == (
        "net1" if in_pod else shown(net.host, UPLINK)["ifindex"]
    )
    net.check(sandbox, result)
    for name in ("up1", master):
        place.ip(option, "route", "del", "default", "dev", name)
    if net.config["type"] == "ipvlan":
        net.check(sandbox, result)
    net.delete(sandbox, result)
    assert "eth0" not in links(sandbox)
