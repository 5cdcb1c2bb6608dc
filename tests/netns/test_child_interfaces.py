"""ipvlan and vlan: STATUS, GC, CHECK, and DEL of an attachment whose master or namespace no longer exists."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import master_changes, uplink
from tests.support.attaching import address, reaches
from tests.support.master_changes import Change
from tests.support.netstate import links, shown, state
from tests.support.uplink import UPLINK, WIRE

IPVLAN = pytest.param("ipvlan", marks=pytest.mark.needs("ipvlan"))
VLAN = pytest.param("vlan", marks=pytest.mark.needs("vlan_device"))
KEYS: dict[str, dict[str, Any]] = {"ipvlan": {"type": "ipvlan"}, "vlan": {"type": "vlan", "vlanId": 100}}
NEIGHBOUR = [item.partition("/")[0] for item in uplink.NEIGHBOUR]
EMPTY: list[object] = []


@pytest.fixture(params=[IPVLAN, VLAN])
def net(macvlan, request):
    """A dual-stack network of each plugin on the host's uplink, with GC and STATUS."""
    return macvlan.having(**KEYS[request.param], cniVersion="1.1.0")


def tag(neighbour, vlan_id):
    """Moves the addresses of the machine on the wire to a VLAN interface."""
    neighbour.ip("address", "flush", "dev", WIRE)
    neighbour.ip("link", "add", "link", WIRE, "name", "tagged", "type", "vlan", "id", str(vlan_id))
    neighbour.ip("link", "set", "tagged", "up")
    for item in uplink.NEIGHBOUR:
        neighbour.ip("address", "add", item, "dev", "tagged")


def test_pod_and_a_machine_on_the_wire(net, sandbox, neighbour):
    """Pod and machine reach each other through the master, by IPv4 and IPv6."""
    if net.config["type"] == "vlan":
        tag(neighbour, 100)
    result = net.add(sandbox)
    for number in (0, 1):
        assert reaches(sandbox, NEIGHBOUR[number])
        assert reaches(neighbour, address(result, number))


@pytest.mark.needs("vlan_device")
@pytest.mark.parametrize("vlan_id", [0, 1, 4094])
def test_smallest_and_largest_ids(macvlan, sandbox, neighbour, vlan_id):
    """The smallest and the largest VLAN ID work, and ID 0, whose frames belong to no VLAN."""
    net = macvlan.having(type="vlan", vlanId=vlan_id)
    if vlan_id:
        tag(neighbour, vlan_id)
    result = net.add(sandbox)
    assert shown(sandbox, "eth0")["linkinfo"]["info_data"]["id"] == vlan_id
    net.check(sandbox, result)
    assert not vlan_id or reaches(sandbox, NEIGHBOUR[0])
    net.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo"}


CHANGES = master_changes.CHANGES | {
    "another MTU": Change(("link", "set", "eth0", "mtu", "1300"), {}, "Interface eth0 MTU doesn't match: 1500"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_check_reports_changes(net, sandbox, change):
    """CHECK passes after ADD, and reports what has changed since."""
    master_changes.assert_reported(net, sandbox, change)


def test_another_kind(net, sandbox):
    """CHECK refuses an interface of another kind, and DEL leaves it alone."""
    master_changes.assert_another_kind_is_refused(net, sandbox)


@pytest.mark.needs("vlan_device")
def test_check_reports_another_protocol(macvlan, sandbox):
    """CHECK compares the protocol of a VLAN interface."""
    net = macvlan.having(**KEYS["vlan"])
    result = net.add(sandbox)
    error = net.having(protocol="802.1ad").run("CHECK", sandbox, prev_result=result).error()
    assert error["msg"] == "Error: VLAN protocol of eth0 is 802.1Q, the configuration has 802.1ad"


@pytest.mark.parametrize("missing", ["interface", "namespace", "path", "master"])
def test_del_succeeds_without(net, sandbox, missing):
    """DEL releases the addresses when the interface, the namespace, its path or the master is missing, and twice."""
    result = net.add(sandbox)
    if missing == "interface":
        sandbox.ip("link", "del", "eth0")
    elif missing == "namespace":
        sandbox.delete()
    elif missing == "master":
        net.host.ip("link", "del", UPLINK)
        assert set(links(sandbox)) == {"lo"}
    for _ in range(2):
        net.delete("" if missing == "path" else sandbox, result, container_id=sandbox.name)
    assert net.leases() == {}
    assert missing in ("namespace", "path") or set(links(sandbox)) == {"lo"}


def test_gc_releases_unlisted_addresses(net, new_sandbox):
    """GC keeps the listed attachments, whose interfaces remain, and releases the addresses of others."""
    one, two = new_sandbox(), new_sandbox()
    result = net.add(one)
    net.having(vlanId=101).add(two)
    listed = [{"containerID": one.name, "ifname": "eth0"}]
    net.having(**{"cni.dev/valid-attachments": listed}).run("GC").assert_silent()
    assert net.leases() == {"10.25.0.2": one.name, "fd00:25::2": one.name}
    net.check(one, result)
    net.having(**{"cni.dev/valid-attachments": EMPTY}).run("GC").assert_silent()
    assert net.leases() == {}


def test_status(net, tmp_path):
    """STATUS checks configuration, master and IPAM, and prints nothing on success."""
    net.run("STATUS").assert_silent()
    (tmp_path / "file").write_text("")
    ipam = {**net.config["ipam"], "dataDir": str(tmp_path / "file")}
    for broken in (net.having(master="zz"), net.having(master="lo"), net.having(ipam=ipam), net.having(mtu=1501)):
        assert broken.run("STATUS").error()["code"] == 50
    for in_pods in (net.having(ipam=None), net.having(master="zz", linkInContainer=True)):
        in_pods.run("STATUS").assert_silent()


@pytest.mark.parametrize("dns", [{"nameservers": ["10.25.0.1"], "search": ["b"]}, {"nameservers": []}, {}, None])
def test_dns(net, sandbox, tmp_path, dns):
    """`dns` with a member replaces IPAM's DNS settings, otherwise these are in the result."""
    (tmp_path / "resolv.conf").write_text("nameserver 10.25.0.9\nsearch a\n")
    ipam = {**net.config["ipam"], "resolvConf": str(tmp_path / "resolv.conf")}
    result = net.having(ipam=ipam, dns=dns).add(sandbox)
    expected = (
        {key: value for key, value in dns.items() if value} if dns else {"nameservers": ["10.25.0.9"], "search": ["a"]}
    )
    assert result.get("dns", {}) == expected


@pytest.mark.needs("ipvlan")
def test_ipvlan_on_a_master_in_the_container(ipvlan, sandbox):
    """With `linkInContainer` the master, and without `master` the default route, is in the pod."""
    sandbox.ip("link", "add", "net1", "type", "veth", "peer", "name", "net2")
    sandbox.ip("link", "set", "net1", "up")
    sandbox.ip("address", "add", "192.0.2.2/24", "dev", "net1")
    before = state(ipvlan.host), state(sandbox)
    net = ipvlan.having(master="net1", linkInContainer=True)
    result = net.add(sandbox)
    assert shown(sandbox, "eth0")["link"] == "net1"
    net.check(sandbox, result)
    error = net.having(linkInContainer=False, master=UPLINK).run("CHECK", sandbox, prev_result=result).error()
    assert error["msg"] == f'Container interface eth0 is not on master "{UPLINK}"'
    net.delete(sandbox, result)
    assert (state(net.host), state(sandbox)) == before
    unnamed = net.having(master=None)
    assert unnamed.run("ADD", sandbox).error()["msg"] == "no default route interface found"
    sandbox.ip("route", "add", "default", "via", "192.0.2.1")
    unnamed.add(sandbox)
    assert shown(sandbox, "eth0")["link"] == "net1"


@pytest.mark.needs("ipvlan")
def test_chained_ipvlan_with_ipam(ipvlan, sandbox):
    """A chained ipvlan with `ipam` uses the interface of prevResult as its master, but IPAM's addresses."""
    prev = {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": UPLINK}],
        "ips": [{"address": "192.0.2.9/24", "interface": 0}],
        "routes": [{"dst": "198.51.100.0/24"}],
        "dns": {"nameservers": ["192.0.2.1"]},
    }
    net = ipvlan.having(master=None)
    result = net.run("ADD", sandbox, prev_result=prev).result()
    assert [ip["address"] for ip in result["ips"]] == ["10.25.0.2/24", "fd00:25::2/64"]
    assert (result.get("routes"), result.get("dns", {})) == (None, {})
    assert shown(sandbox, "eth0")["link_index"] == shown(net.host, UPLINK)["ifindex"]
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert (set(links(sandbox)), net.leases()) == ({"lo"}, {})
