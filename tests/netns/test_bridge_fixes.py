"""Errors of bridge beyond the reference's texts: the details name the cause, and a fix that works."""

import json

import pytest

from tests.support.netstate import state
from tests.support.processes import output

READ_ONLY = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys"
NO_IPV6 = "nsenter --net={pod} mount -t tmpfs none /proc/sys/net/ipv6"


@pytest.fixture
def refused(network, sandbox):
    """A function that runs a failing ADD, optionally after a shell command; the ADD must not change anything."""

    def refuse(network, preparation="true", wrapper=""):
        before = state(network.host), state(sandbox)
        error = network.run_after(preparation.format(pod=sandbox.path), "ADD", sandbox, wrapper=wrapper).error()
        assert (state(network.host), state(sandbox)) == before
        return error

    return refuse


def test_used_bridge_name(network, refused):
    """The error names the kind of link that has the bridge's name."""
    network.host.ip("link", "add", "name", "cni0", "type", "veth", "peer", "name", "other")
    error = refused(network)
    msg = 'failed to create bridge "cni0": "cni0" already exists but is not a bridge'
    assert (error["code"], error["msg"]) == (7, msg)
    assert error["details"] == 'it is veth; set "bridge" to another name'


@pytest.mark.parametrize("route", [{"dst": "0.0.0.0/0", "gw": "10.99.0.1"}, {"dst": "::/0", "gw": "fd00:99::1"}])
def test_unreachable_gateway(scripted_network, refused, sandbox, route):
    """The error names the gateway, and a route to it, with which ADD succeeds."""
    ips = [{"address": "10.22.0.9/16"}, {"address": "fd00:22::9/64"}]
    error = refused(scripted_network(ips, routes=[route]))
    assert error["msg"].startswith("failed to add route '")
    assert f"the gateway {route['gw']} is in no subnet of the interface" in error["details"]
    (to_gateway,) = json.loads(error["details"].split('"routes": ')[1].replace(", ...", ""))
    scripted_network(ips, routes=[to_gateway, route]).add(sandbox)


@pytest.mark.parametrize("group", ["all", "default"])
@pytest.mark.parametrize("keys", [{}, pytest.param({"vlan": 5}, marks=pytest.mark.needs("vlan_filtering"))])
@pytest.mark.parametrize("verb", ["ADD", "STATUS"])
def test_ipv6_disabled_on_new_interfaces(dual_network, refused, sandbox, group, keys, verb):
    """ADD fails and STATUS has code 50, and with the printed command both succeed; nothing of the ADD remains."""
    network = dual_network.having(cniVersion="1.1.0", **keys)
    network.host.set_sysctl(f"net/ipv6/conf/{group}/disable_ipv6", "1")
    status, added = network.run("STATUS").error(), refused(network)
    assert (status["code"], added["code"]) == (50, 999)
    details = {"ADD": added, "STATUS": status}[verb]["details"]
    assert f"net/ipv6/conf/{group}/disable_ipv6=0" in details
    network.host.run("sh", "-ec", details.rpartition(": ")[2])
    network.run("STATUS").assert_silent()
    network.add(sandbox)


def test_a_kernel_without_ipv6(dual_network, refused):
    """The error says to remove the IPv6 ranges."""
    error = refused(dual_network, NO_IPV6)
    assert error["msg"].startswith("failed to enable IPv6 on interface eth0: ")
    assert error["details"] == "the kernel runs without IPv6; remove the IPv6 ranges from the configuration"


@pytest.mark.parametrize("verb", ["ADD", "STATUS"])
def test_ipv6_disabled_on_the_bridge(dual_network, refused, sandbox, new_sandbox, verb):
    """ADD and STATUS fail, and with the command of either both succeed; a network without IPv6 ranges is ready."""
    network = dual_network.having(cniVersion="1.1.0")
    network.having(isDefaultGateway=None).add(new_sandbox())
    network.host.set_sysctl("net/ipv6/conf/cni0/disable_ipv6", "1")
    ipam = network.config["ipam"]
    network.having(ipam={**ipam, "ranges": ipam["ranges"][:1]}).run("STATUS").assert_silent()
    network = network.having(ipam={**ipam, "ranges": ipam["ranges"][1:]})
    status, added = network.run("STATUS").error(), refused(network)
    assert (status["code"], 'IPv6 is disabled on "cni0"' in status["msg"]) == (50, True)
    assert added["msg"] == 'failed to set bridge addr: failed to add IP addr fd00:22::1/64 to "cni0": permission denied'
    details = {"ADD": added, "STATUS": status}[verb]["details"]
    network.host.run("sh", "-ec", details.partition(": ")[2] if verb == "ADD" else details)
    network.run("STATUS").assert_silent()
    network.add(sandbox)


def test_ipv6_disabled_in_the_pod(dual_network, refused, sandbox):
    """If IPv6 is off in the pod and cannot be enabled, the error says both."""
    sandbox.set_sysctl("net/ipv6/conf/all/disable_ipv6", "1")
    error = refused(dual_network, READ_ONLY)
    assert error["msg"].endswith("/disable_ipv6: Read-only file system")
    assert "IPv6 is disabled in the container" in error["details"]


@pytest.mark.parametrize(
    ("family", "key"), [(0, "net/ipv4/ip_forward"), (1, "net/ipv6/conf/all/forwarding")], ids=["IPv4", "IPv6"]
)
def test_forwarding_on_a_read_only_sys(dual_network, refused, sandbox, family, key):
    """With a read-only /proc/sys the error has the command for the node, after which ADD succeeds."""
    ipam = {**dual_network.config["ipam"], "ranges": [dual_network.config["ipam"]["ranges"][family]]}
    network = dual_network.having(ipam=ipam)
    network.host.set_sysctl(key, "0")
    error = refused(network, READ_ONLY)
    assert error["msg"] == f"failed to enable forwarding: /proc/sys/{key}: Read-only file system"
    assert error["details"].startswith("/proc/sys is mounted read-only here: ")
    network.host.run(*error["details"].rpartition(": ")[2].split())
    network.add(sandbox)


@pytest.mark.parametrize(("capability", "code"), [("net_admin", 999), ("sys_admin", 8)])
def test_missing_capability(network, refused, new_sandbox, capability, code):
    """The error names the missing capability."""
    network.add(new_sandbox())
    error = refused(network, wrapper=f"setpriv --bounding-set=-{capability}")
    assert (error["code"], f"CAP_{capability.upper()}" in error["details"]) == (code, True), error


def test_full_bridge(network, refused, host):
    """STATUS and ADD report a full bridge with a fix; with one free port STATUS succeeds again."""
    host.ip("link", "add", "name", "cni0", "up", "type", "bridge")
    lines = []
    for number in range(512):  # the bridge has no port for the last veth end
        lines.append(f"link add name a{number} type veth peer name b{number}")
        lines += [f"link set {end}{number} master cni0" for end in "ab"]
    output("ip", "-n", host.name, "-force", "-batch", "-", stdin="\n".join(lines), check=False)
    text = 'bridge "cni0" is full: it has 1023 ports, and the kernel allows no more'
    error = refused(network)
    assert error["msg"] == f"failed to make veth pair: {text}"
    status = network.having(cniVersion="1.1.0").run("STATUS").error()
    assert (status["code"], status["msg"], status["details"]) == (50, text, error["details"])
    assert "run fewer pods on this node" in error["details"]
    shown = host.run("sh", "-c", error["details"].rpartition(": ")[2])
    assert len(shown.splitlines()) == 1023
    host.ip("link", "set", "a0", "nomaster")
    network.having(cniVersion="1.1.0").run("STATUS").assert_silent()


def test_check_without_a_fix_recommends_a_new_container(network, sandbox):
    """If no command helps, CHECK's error says to create the container again."""
    result = network.add(sandbox)
    network.host.ip("link", "delete", "cni0")
    error = network.run("CHECK", sandbox, prev_result=result).error()
    assert error["details"] == "remove the container and create it again"
