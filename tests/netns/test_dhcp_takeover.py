"""podwire's dhcp beside the reference's: each plugin with the other's daemon, and a node that changes its daemon."""

import json
from collections.abc import Callable, Iterator
from ipaddress import ip_address, ip_interface

import pytest

from cni.result import DNS, Interface, IPConfig, Result, Route
from ipam.dhcp import rpc
from ipam.dhcp.rpc import CallArgs, RpcError
from process.values import replace
from tests.support import binaries, dhcp_node
from tests.support.attaching import address, reaches
from tests.support.dhcp import SERVER, answering_calls
from tests.support.dhcp_node import Node
from tests.support.invocation import Outcome, run_plugin
from tests.support.uplink import UPLINK

# With all fields that the reference's plugin 1.1.1 knows.
RESULT = Result(
    interfaces=(Interface("eth0", "02:00:00:00:00:01", 0, "/run/netns/a"),),
    ips=(
        IPConfig(ip_interface("10.1.2.5/24"), ip_address("10.1.2.1"), 1),
        IPConfig(ip_interface("fd00::5/64"), ip_address("fd00::1")),
    ),
    routes=(Route(ip_interface("0.0.0.0/0"), ip_address("10.1.2.1")), Route(ip_interface("fd01::/16"))),
    dns=DNS(("10.1.2.1", "fd00::1"), "example.org", ("a.example", "b.example"), ("ndots:2",)),
)


@pytest.fixture
def node(host, new_sandbox, bin_dir, tmp_path) -> Iterator[Node]:
    """A node whose server runs, without a daemon."""
    with dhcp_node.created(host, new_sandbox(), tmp_path) as node:
        node.start_server()
        yield node


@pytest.mark.parametrize("kind", ["bridge", "host-device", "macvlan"])
@pytest.mark.parametrize(
    ("dhcp", "daemon"), [("reference", "podwire"), ("podwire", "reference"), ("reference", "reference")]
)
def test_plugin_with_the_others_daemon(node, sandbox, reference, tmp_path, kind, dhcp, daemon):
    """A pod gets a lease that CHECK accepts, and DEL releases it while the interface exists."""
    if daemon == "reference":
        node.use_reference_daemon(reference)
    node.start_daemon()
    net = node.network(kind)
    if dhcp == "reference":
        (tmp_path / "dhcp").symlink_to(reference / "dhcp")
        net = replace(net, path=f"{tmp_path}:{binaries.directory()}")
    else:
        net.having(cniVersion="1.1.0").run("STATUS").assert_silent()
    result = net.add(sandbox)
    assert node.list_leases() == [address(result)]
    assert reaches(sandbox, SERVER)
    if dhcp != daemon:
        net.check(sandbox, result)
    net.delete(sandbox, result)
    assert node.has_released(), node.list_leases()


def test_pod_of_the_references_daemon_keeps_its_address_under_ours(node, sandbox, reference):
    """After a change of the daemon, ADD of dhcp for a running pod gets the same address: its identifier is the same."""
    ours = node.daemon
    node.use_reference_daemon(reference)
    node.start_daemon()
    result = node.network().add(sandbox)
    node.daemon.stop()
    node.socket.unlink(missing_ok=True)
    node.daemon = ours
    node.start_daemon()
    again = node.network(type="dhcp").add(sandbox)
    assert address(again) == address(result)


def test_reference_daemon_refuses(node, sandbox, reference):
    """The reference's daemon answers podwire's side with its errors, also for a method that it lacks."""
    node.use_reference_daemon(reference)
    node.start_daemon()
    for method, netns, ipam, text in (
        (rpc.ALLOCATE, sandbox.path, {"request": [{"option": "foo"}]}, 'Can not parse option "foo"'),
        (rpc.ALLOCATE, "/run/netns/none", {}, 'Statfs "/run/netns/none"'),
        (rpc.CHECK, sandbox.path, {}, "rpc: can't find method DHCP.Check"),
    ):
        conf = {"cniVersion": "1.0.0", "name": "net", "type": "host-device", "ipam": {"type": "dhcp", **ipam}}
        args = CallArgs("c1", netns, UPLINK, "", "/opt/cni/bin", stdin=json.dumps(conf).encode())
        with pytest.raises(RpcError, match=text):
            rpc.call(str(node.socket), method, args, limit_s=30)
    assert node.list_leases() == []


@pytest.fixture
def run(host, sandbox, reference, tmp_path) -> Callable[..., Outcome]:
    """A function that runs a verb of the reference's plugin."""

    def run_verb(command: str, version: str = "1.0.0") -> Outcome:
        ipam = {"type": "dhcp", "daemonSocketPath": str(tmp_path / "dhcp.sock")}
        conf = {"cniVersion": version, "name": "net", "type": "bridge", "ipam": ipam}
        return run_plugin("dhcp", command, conf, container_id="c1", netns=sandbox, host=host, bin_dir=reference)

    return run_verb


@pytest.mark.every_case
@pytest.mark.parametrize("version", ["0.2.0", "0.4.0", "1.0.0"])
def test_reference_plugin_prints_the_result(run, tmp_path, version):
    """ADD of the reference's plugin prints podwire's result in the configuration's version, of it what it knows."""
    route = replace(RESULT.routes[0], mtu=1300, priority=7, table=5, scope=253)
    sent = replace(RESULT, interfaces=(replace(RESULT.interfaces[0], mtu=1400),), routes=(route, RESULT.routes[1]))
    with answering_calls(tmp_path / "dhcp.sock", lambda server, call: server.reply(call, sent)):
        printed = run("ADD", version).result()
    assert printed == (sent if binaries.reference_is_new() else RESULT).to_json(version)


def test_reference_plugin_prints_the_error(run, tmp_path):
    """ADD and DEL of the reference's plugin print an error that podwire's side sent."""
    with answering_calls(tmp_path / "dhcp.sock", lambda server, call: server.refuse(call, "no lease: äö")):
        assert run("ADD").error()["msg"] == "error calling DHCP.Allocate: no lease: äö"
        assert run("DEL").error()["msg"] == "error calling DHCP.Release: no lease: äö"
