"""The protocol of the DHCP daemon, with the reference's plugin and with the reference's daemon."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address, ip_interface
from pathlib import Path

import pytest

from cni.result import DNS, Interface, IPConfig, Result, Route
from ipam.dhcp import rpc
from ipam.dhcp.rpc import Call, CallArgs, Connection, RpcError
from process.values import replace
from tests.support import binaries, dhcp_node
from tests.support.dhcp import SERVER
from tests.support.dhcp_node import Node
from tests.support.invocation import Outcome, run_plugin
from tests.support.uplink import UPLINK

Answer = Callable[[Connection, Call], bytes]
RESULT = Result(
    interfaces=(Interface("eth0", "02:00:00:00:00:01", 1400, "/run/netns/a"),),
    ips=(
        IPConfig(ip_interface("10.1.2.5/24"), ip_address("10.1.2.1"), 1),
        IPConfig(ip_interface("fd00::5/64"), ip_address("fd00::1")),
    ),
    routes=(
        Route(ip_interface("0.0.0.0/0"), ip_address("10.1.2.1"), mtu=1300, priority=7, table=5, scope=253),
        Route(ip_interface("fd01::/16")),
    ),
    dns=DNS(("10.1.2.1", "fd00::1"), "example.org", ("a.example", "b.example"), ("ndots:2",)),
)


@contextmanager
def serving(path: Path, answer: Answer) -> Iterator[list[Call]]:
    """Runs a daemon that answers every call by a function of the test during the block; yields the calls."""
    calls: list[Call] = []

    def serve() -> None:
        with suppress(OSError):  # until `listening` is shut down
            while True:
                connection, _ = listening.accept()
                with connection:
                    server = Connection()
                    while data := connection.recv(100):
                        received = server.receive(data)
                        connection.sendall(server.data_to_send())
                        for call in received:
                            calls.append(call)
                            connection.sendall(answer(server, call))

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield calls
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(30)


@pytest.fixture
def run(host, sandbox, reference, tmp_path) -> Callable[..., Outcome]:
    """A function that runs a verb of the reference's plugin."""

    def run_verb(command: str, version: str = "1.0.0") -> Outcome:
        ipam = {"type": "dhcp", "daemonSocketPath": str(tmp_path / "dhcp.sock")}
        conf = {"cniVersion": version, "name": "net", "type": "bridge", "ipam": ipam}
        return run_plugin("dhcp", command, conf, container_id="c1", netns=sandbox, host=host, bin_dir=reference)

    return run_verb


def test_reference_plugin_prints_the_result(run, sandbox, tmp_path):
    """ADD of the reference's plugin prints podwire's result; versions before 1.6.0 do not know all fields."""
    with serving(tmp_path / "dhcp.sock", lambda server, call: server.reply(call, RESULT)) as calls:
        printed = run("ADD").result()
    known = replace(
        RESULT,
        interfaces=(replace(RESULT.interfaces[0], mtu=0),),
        routes=(Route(RESULT.routes[0].dst, RESULT.routes[0].gw), RESULT.routes[1]),
    )
    assert printed == (RESULT if binaries.reference_is_new() else known).to_json("1.0.0")
    (call,) = calls
    assert (call.method, call.args.container_id, call.args.netns) == (rpc.ALLOCATE, "c1", sandbox.path)
    assert json.loads(call.args.stdin)["name"] == "net"


@pytest.mark.parametrize("version", ["0.2.0", "0.4.0"])
def test_reference_plugin_converts_the_result(run, tmp_path, version):
    """The reference's plugin can convert a result, which contains no version, to the version of the configuration."""
    with serving(tmp_path / "dhcp.sock", lambda server, call: server.reply(call, RESULT)):
        printed = run("ADD", version).result()
    assert printed["cniVersion"] == version
    assert "10.1.2.5/24" in json.dumps(printed)


def test_reference_plugin_prints_the_error(run, tmp_path):
    """ADD and DEL of the reference's plugin print an error that podwire's side sent."""
    with serving(tmp_path / "dhcp.sock", lambda server, call: server.refuse(call, "no lease: äö")):
        assert run("ADD").error()["msg"] == "error calling DHCP.Allocate: no lease: äö"
        assert run("DEL").error()["msg"] == "error calling DHCP.Release: no lease: äö"


def test_reference_plugin_releases_the_lease(run, sandbox, tmp_path):
    """DEL of the reference's plugin calls Release, and succeeds when the answer is empty."""
    with serving(tmp_path / "dhcp.sock", lambda server, call: server.reply(call, None)) as calls:
        run("DEL").assert_silent()
    (call,) = calls
    assert (call.method, call.args.netns, call.args.ifname) == (rpc.RELEASE, sandbox.path, "eth0")


@pytest.fixture
def node(host, new_sandbox, reference, bin_dir, tmp_path) -> Iterator[Node]:
    """A node whose server and reference daemon run."""
    with dhcp_node.created(host, new_sandbox(), tmp_path) as node:
        node.start_server(f"--dhcp-option=121,10.9.0.0/16,10.25.0.7,0.0.0.0/0,{SERVER}")
        node.use_reference_daemon(reference)
        node.start_daemon()
        yield node


def call_args(netns: str, **ipam: object) -> CallArgs:
    conf = {"cniVersion": "1.0.0", "name": "net", "type": "host-device", "ipam": {"type": "dhcp", **ipam}}
    return CallArgs("c1", netns, UPLINK, "", "/opt/cni/bin", stdin=json.dumps(conf).encode())


def test_reference_daemon_allocates_and_releases(host, sandbox, node):
    """The reference's daemon answers podwire's side with a lease of the server, and then releases it."""
    host.ip("link", "set", UPLINK, "netns", sandbox.name)
    args = call_args(sandbox.path, request=[{"option": "121"}])
    result = rpc.call(str(node.socket), rpc.ALLOCATE, args, limit_s=30)
    (address,) = node.list_leases()
    gateway = ip_address(SERVER)
    assert result == Result(
        ips=(IPConfig(ip_interface(f"{address}/24"), gateway),),
        routes=(Route(ip_interface("10.9.0.0/16"), ip_address("10.25.0.7")), Route(ip_interface("0.0.0.0/0"), gateway)),
    )
    assert rpc.call(str(node.socket), rpc.ALLOCATE, args, limit_s=30) == result
    assert rpc.call(str(node.socket), rpc.RELEASE, args, limit_s=30) == Result()
    assert node.has_released(), node.list_leases()


def test_reference_daemon_refuses(sandbox, node):
    """The reference's daemon answers podwire's side with its errors, also for a method that it lacks."""
    for method, args, text in (
        (rpc.ALLOCATE, call_args(sandbox.path, request=[{"option": "foo"}]), 'Can not parse option "foo"'),
        (rpc.ALLOCATE, call_args("/run/netns/none"), 'Statfs "/run/netns/none"'),
        (rpc.CHECK, call_args(sandbox.path), "rpc: can't find method DHCP.Check"),
    ):
        with pytest.raises(RpcError, match=text):
            rpc.call(str(node.socket), method, args, limit_s=30)
    assert node.list_leases() == []
