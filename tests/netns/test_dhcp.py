"""dhcp with podwire's daemon, and dnsmasq on the wire: acquiring, checking, listing and releasing leases."""

import json
import re
import signal
from collections.abc import Iterator
from ipaddress import ip_interface, ip_network
from typing import Any

import pytest

from tests.support import dhcp_node
from tests.support.attaching import address, reaches
from tests.support.dhcp import SERVER
from tests.support.dhcp_node import AUTONOMOUS, MANAGED, SERVER6, Node
from tests.support.doctor_node import DoctorNode
from tests.support.machine import eventually
from tests.support.netstate import shown
from tests.support.uplink import WIRE


@pytest.fixture
def node(host, new_sandbox, bin_dir, tmp_path) -> Iterator[Node]:
    """A node whose server and daemon run."""
    with dhcp_node.created(host, new_sandbox(), tmp_path) as node:
        node.start_server()
        node.start_daemon()
        yield node


DUAL, ONLY = {"ipv6": "dhcp"}, {"ipv4": False}


@pytest.mark.parametrize(
    ("kind", "ipam", "options", "lengths"),
    [
        *(pytest.param(kind, {}, (), [24], id=kind) for kind in ("bridge", "host-device", "macvlan")),
        pytest.param("macvlan", DUAL, MANAGED, [24, 128], id="dual-stack"),
        pytest.param("bridge", {"ipv6": "auto"}, MANAGED, [24, 128], id="dual-stack, auto"),
        pytest.param("macvlan", {**ONLY, "ipv6": "slaac"}, AUTONOMOUS, [64], id="advertised prefix"),
        pytest.param("macvlan", {**ONLY, "ipv6": "auto"}, AUTONOMOUS, [64], id="advertised prefix, auto"),
    ],
)
def test_lease_is_acquired_and_released(node, sandbox, kind, ipam, options, lengths):
    """A pod gets the addresses, routes and a file; DEL releases the leases and leaves no file.

    From DHCPv6 it has the address, from the router the prefix and itself; without DHCPv6 it forms an address.
    """
    node.start_server(*options)
    net = node.network(kind, ipam=ipam)
    result = net.add(sandbox)
    interfaces = [ip_interface(item["address"]) for item in result["ips"]]
    assert [interface.network.prefixlen for interface in interfaces] == lengths
    for interface in interfaces:
        assert dhcp_node.addresses(sandbox, interface.version) == [str(interface.ip)]
        assert reaches(sandbox, SERVER if interface.version == 4 else SERVER6)
        assert interface.ip in ip_network("10.25.0.0/24" if interface.version == 4 else "fd00:25::/64")
        assert (str(interface.ip) in node.list_leases()) == (interface.network.prefixlen != 64)
    if 128 in lengths:
        line = node.machine.ip("-6", "-o", "addr", "show", WIRE, "scope", "link")
        assert {"dst": "fd00:25::/64"} in result["routes"]
        assert {"dst": "::/0", "gw": line.split()[3].partition("/")[0]} in result["routes"]
    net.check(sandbox, result)
    assert list(node.list_files()) == [f"{sandbox.name}:eth0.json"]
    net.delete(sandbox, result)
    assert eventually(lambda: node.list_leases() == []), node.list_leases()
    assert node.list_files() == {}


def test_each_interface_of_a_pod_has_its_lease(node, sandbox):
    """Two interfaces get two leases; another ADD of dhcp for an interface that has a lease returns it, unsolicited."""
    first, second = [node.network().add(sandbox, ifname=name) for name in ("eth0", "net1")]
    assert sorted(map(address, (first, second))) == sorted(node.list_leases())
    assert address(first) != address(second)
    logged = node.server.log.read_text()
    again = node.network(type="dhcp").add(sandbox)
    assert again["ips"] == [{"address": first["ips"][0]["address"], "gateway": SERVER}]
    assert node.server.log.read_text() == logged


def test_options_are_sent_and_requested(node, sandbox):
    """Literal values and values of CNI_ARGS are sent; the requested options come before router and mask."""
    ipam = {
        "provide": [
            {"option": "host-name", "value": "nobody", "fromArg": "K8S_POD_NAME"},
            {"option": "60", "value": "a class"},
            {"option": "dhcp-client-identifier", "value": "chosen"},
        ],
        "request": [{"option": "ntp-servers"}],
    }
    result = node.network(ipam=ipam).add(sandbox, args="IgnoreUnknown=1;K8S_POD_NAME=web-0")
    assert node.read_server_lease(address(result))[3:] == ["web-0", b"chosen".hex(":")]
    assert node.server.logged("vendor class: a class")
    assert node.server.logged("requested options: 42:ntp-server, 3:router, 1:netmask")


def test_dns_settings_are_returned_when_they_are_requested(node, sandbox, new_sandbox):
    """The result has the server's DNS settings if the configuration requests them, and only then."""
    node.start_server("--dhcp-option=6,10.25.0.53", "--dhcp-option=15,example.org", "--dhcp-option=119,a.org,b.org")
    names = ("domain-name-servers", "domain-name", "domain-search")
    dns = node.network(ipam={"request": [{"option": name} for name in names]}).add(sandbox)["dns"]
    assert dns == {"nameservers": ["10.25.0.53"], "domain": "example.org", "search": ["a.org", "b.org"]}
    assert "dns" not in node.network().add(new_sandbox())


def test_classless_routes_replace_the_router_and_get_the_priority(node, sandbox):
    """Option 121 replaces the default route; each route has the configured metric."""
    node.start_server("--dhcp-option=121,10.9.0.0/16,10.25.0.7,10.8.0.0/24,0.0.0.0")
    result = node.network(ipam={"request": [{"option": "121"}], "priority": 7}).add(sandbox)
    assert result["routes"] == [
        {"dst": "10.9.0.0/16", "gw": "10.25.0.7", "priority": 7},
        {"dst": "10.8.0.0/24", "gw": "0.0.0.0", "priority": 7, "scope": 253},
    ]
    assert "10.9.0.0/16 via 10.25.0.7 dev eth0 metric 7" in " ".join(sandbox.ip("route").split())


def test_dns_and_mtu_of_ipv6(node, sandbox):
    """DNS settings come from the DHCPv6 server, the MTU from the router."""
    node.start_server(*MANAGED, f"--ra-param={WIRE},mtu:1400,0,0", "--dhcp-option=option6:dns-server,[fd00:25::53]")
    ipam = {"ipv4": False, "ipv6": "dhcp", "request": [{"option": "domain-name-servers"}]}
    assert node.network(ipam=ipam).add(sandbox)["dns"]["nameservers"] == ["fd00:25::53"]
    assert shown(sandbox, "eth0")["mtu"] == 1400


def test_client_identifier_by_duid_stays_with_the_pod(node, new_sandbox):
    """With "duid" a pod that Kubernetes creates again has the same identifier; another pod has another one."""
    net = node.network(ipam={"clientIdentifier": "duid"})
    identifiers = []
    for name in ("db-0", "db-0", "db-1"):
        pod = new_sandbox()
        result = net.add(pod, args=f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}")
        identifiers.append(node.read_server_lease(address(result))[4])
        net.delete(pod, result)
    assert all(identifier.startswith("ff:") for identifier in identifiers)
    assert identifiers[0] == identifiers[1] != identifiers[2]


@pytest.mark.every_case
@pytest.mark.parametrize("ipam", [{}, {"ipv6": "dhcp"}], ids=["IPv4", "IPv6"])
def test_add_fails_without_a_server(node, sandbox, ipam):
    """ADD fails if an IP version has no server when the time is up; the other's lease is released, nothing is left."""
    if not ipam:
        node.server.stop()
    node.daemon.argv = (*node.daemon.argv, "-resendtimeout=3s")
    node.start_daemon()
    message = node.network(ipam=ipam).run("ADD", sandbox).error()["msg"]
    assert message == f"error calling DHCP.Allocate: {'no DHCPv6 server answered' if ipam else 'no more tries'}"
    assert eventually(lambda: node.list_leases() == [])
    assert node.list_files() == {}
    assert "eth0" not in sandbox.ip("-o", "link")


def test_check_fails_without_a_lease_and_acquires_none(node, sandbox):
    """CHECK of an interface whose lease is unknown to the daemon is an error, and no lease is acquired."""
    net = node.network()
    result = net.add(sandbox)
    node.network(type="dhcp").delete(sandbox)
    assert eventually(lambda: node.list_leases() == [])
    outcome = net.run("CHECK", sandbox, prev_result=result)
    assert outcome.error()["msg"] == "error calling DHCP.Check: there is no lease for this interface"
    assert node.list_leases() == []


def test_status_and_add_name_the_missing_daemon(node, sandbox):
    """Without a daemon STATUS has code 50, and ADD and CHECK name the socket."""
    net = node.network(cniVersion="1.1.0")
    net.run("STATUS").assert_silent()
    node.daemon.stop()
    expected = f"error dialing DHCP daemon: dial unix {node.socket}: connect: connection refused"
    status, add = net.run("STATUS").error(), net.run("ADD", sandbox).error()
    assert (status["code"], status["msg"], add["msg"]) == (50, expected, expected)


@pytest.mark.long
def test_conflict_is_detected_and_declined(node, sandbox, new_sandbox):
    """With `conflictDetection` an address that another host uses is declined, and the pod gets another one."""
    used = "10.25.0.100"
    node.network(ipam={"type": "static", "addresses": [{"address": f"{used}/24"}]}).add(new_sandbox())
    identifier = f"{sandbox.name}/net/eth0".encode().hex(":")
    node.start_server(f"--dhcp-host=id:00:{identifier},{used}")
    result = node.network(ipam={"conflictDetection": True}).add(sandbox)
    assert address(result) != used
    assert node.server.logged("DHCPDECLINE")
    assert 'event="declined"} 1' in node.get_metrics()


def test_sigterm_ends_the_daemon_and_keeps_the_leases(node, sandbox):
    """SIGTERM ends the daemon with status 0; it removes its socket and keeps the leases."""
    result = node.network().add(sandbox)
    assert node.daemon.stop(signal.SIGTERM) == 0
    assert not node.socket.exists()
    assert node.list_leases() == [address(result)]
    assert list(node.list_files()) == [f"{sandbox.name}:eth0.json"]


@pytest.fixture
def tool(node, host, tmp_path) -> DoctorNode:
    """The tool, with the node's network in net.d."""
    tool = DoctorNode(host, tmp_path / "tool")
    (tmp_path / "tool").mkdir()
    config = node.network().config
    plugin = {key: config[key] for key in ("type", "master", "ipam")}
    tool.configure("10-net.conflist", {"cniVersion": "1.0.0", "name": "net", "plugins": [plugin]})
    return tool


def list_leases(tool: DoctorNode) -> Any:
    """Returns the document of `podwire ipam list`."""
    return json.loads(tool.podwire("ipam", "list", "--json").stdout)


def test_tool_lists_leases(node, tool, sandbox):
    """The leases of dhcp are printed with server and end, and are in the document."""
    leased = address(node.network().add(sandbox))
    (document,) = list_leases(tool)
    assert (document["address"], document["server"], document["state"]) == (leased, SERVER, "leased")
    assert (document["containerID"], document["ifname"]) == (sandbox.name, "eth0")
    assert 3500 < document["expiresInS"] <= 3600
    lines = tool.podwire("ipam", "list", "net").stdout.splitlines()
    assert " ".join(lines[0].split()) == "DHCP LEASE NETWORK CONTAINER INTERFACE POD SERVER EXPIRES STATE"
    assert lines[1].split()[:4] == [leased, "net", sandbox.name, "eth0"]
    assert re.search(r"in 5\d min", lines[1])


def test_tool_lists_leases_to_be_released(node, tool, sandbox):
    """The lease of a pod whose DEL ran without a daemon is to be released."""
    net = node.network()
    result = net.add(sandbox)
    node.daemon.stop()
    net.run("DEL", sandbox, prev_result=result).assert_silent()
    assert [item["state"] for item in list_leases(tool)] == ["to be released"]


def test_doctor_reports_a_daemon_that_is_not_running(node, tool):
    """Without a daemon doctor reports the networks that need it, once."""
    assert [one for one in tool.list_findings() if "dhcp" in one["name"]] == []
    node.daemon.stop()
    (unreachable,) = [one for one in tool.list_findings() if "dhcp.sock" in one["text"]]
    assert (unreachable["name"], unreachable["subject"]) == ("dhcp-daemon-unreachable", "net")
    assert f"/opt/cni/bin/dhcp daemon -socketpath {node.socket}" in unreachable["cure"]
