"""dhcp with hostile neighbours: forged servers and routers, clients of the socket that are no CNI plugins."""

import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Iterator
from ipaddress import IPv6Address

import pytest

from ipam.dhcp import frame, options, rpc
from ipam.dhcp.rpc import CallArgs, RpcError
from process.values import replace
from tests.support import dhcp_forger, dhcp_node
from tests.support.dhcp_forger import ADDRESS, granting, reply, seconds
from tests.support.dhcp_node import Node
from tests.support.invocation import finish
from tests.support.machine import eventually
from tests.support.netstate import shown
from tests.support.uplink import WIRE

STDIN = b'{"cniVersion": "1.0.0", "name": "net", "ipam": {"type": "dhcp", "ipv6": "dhcp"}}'


@pytest.fixture
def node(host, new_sandbox, bin_dir, tmp_path) -> Iterator[Node]:
    """A node without a server, whose daemon gives up an ADD soon."""
    with dhcp_node.created(host, new_sandbox(), tmp_path, flags=("-resendtimeout", "6s")) as node:
        node.start_daemon()
        yield node
        assert node.daemon.process is not None
        assert node.daemon.process.poll() is None, node.daemon.log.read_text()
        assert not node.daemon.logged("Traceback")


@pytest.mark.parametrize("method", [rpc.ALLOCATE, rpc.RELEASE])
def test_names_of_a_client_of_the_socket(method, node, sandbox):
    """A name that is no part of a path is refused, and the daemon continues."""
    args = CallArgs("c1", sandbox.path, "eth0", stdin=STDIN)
    ids, names = ("../../../evil", "c\0", "c\n2026/01/01 00:00:00 forged"), ("e\0", "../../x")
    for refused in (
        *(replace(args, container_id=name) for name in ids),
        *(replace(args, ifname=name) for name in names),
    ):
        with pytest.raises(RpcError, match=r"invalid characters|contains"):
            rpc.call(str(node.socket), method, refused, limit_s=10)
    assert node.answers()


def test_flood_of_messages_for_other_clients(node, sandbox):
    """A thousand messages for other clients before a server's offer do not displace it from the socket's buffer."""
    pid = node.daemon.process.pid

    def answer(request):
        if options.message_type(request.options) == options.DISCOVER:
            os.kill(pid, signal.SIGSTOP)
            for number in range(1000):
                yield replace(reply(request, options.OFFER), chaddr=b"\2\0\0\0" + number.to_bytes(2, "big"))
            yield reply(request, options.OFFER)
            os.kill(pid, signal.SIGCONT)
        else:
            yield from granting()(request)

    with dhcp_forger.running(node.machine, answer) as forger:
        node.network("bridge").add(sandbox)
        assert forger.kinds() == [options.DISCOVER, options.REQUEST]


@pytest.mark.long
def test_conflicts_without_end(node, sandbox):
    """ADD ends soon after its limit when each address is in use, and then the server is silent."""
    node.machine.ip("address", "add", f"{ADDRESS}/32", "dev", WIRE)
    with dhcp_forger.running(node.machine, granting()) as forger:
        process = node.network(ipam={"conflictDetection": True}).start("ADD", sandbox)
        assert eventually(lambda: options.DECLINE in forger.kinds())
        forger.answer = lambda _: []
        assert "no more tries" in finish(process).error()["msg"]
    assert node.list_files() == {}


@pytest.mark.long
def test_lease_that_is_lost_while_its_address_is_probed(node, sandbox):
    """ADD does not succeed with a lease that the server has refused meanwhile."""
    with dhcp_forger.running(node.machine, granting({options.LEASE_TIME: seconds(2)})) as forger:
        process = node.network(ipam={"conflictDetection": True}).start("ADD", sandbox)
        assert eventually(lambda: forger.kinds().count(options.REQUEST) > 1)  # renewed in the detection
        forger.answer = lambda request: [reply(request, options.NAK)]
        assert "no more tries" in finish(process).error()["msg"]
    assert node.list_files() == {}


def test_conflict_detection_that_cannot_send(node, sandbox):
    """ADD does not wait for answers to probes that were dropped before they left the pod."""

    def answer(request):
        if options.message_type(request.options) == options.REQUEST:
            sandbox.run("tc", "qdisc", "add", "dev", "eth0", "root", "pfifo", "limit", "0")
        return granting()(request)

    with dhcp_forger.running(node.machine, answer):
        node.network(ipam={"conflictDetection": True}).add(sandbox)
    assert dhcp_node.addresses(sandbox) == [str(ADDRESS)]


def test_small_mtu(node, sandbox):
    """An MTU that DHCP's messages do not fit into is ignored, so the lease can be released."""
    with dhcp_forger.running(node.machine, granting({options.INTERFACE_MTU: b"\0\x44"})) as forger:
        net = node.network(ipam={"request": [{"option": "interface-mtu"}]})
        net.add(sandbox)
        assert shown(sandbox, "eth0")["mtu"] == 1500
        net.delete(sandbox)
        assert eventually(lambda: options.RELEASE in forger.kinds())


def test_release_of_an_interface_that_is_down(node, sandbox):
    """The lease of an interface that the pod has set down is released from the host's interface."""
    with dhcp_forger.running(node.machine, granting()) as forger:
        net = node.network()
        result = net.add(sandbox)
        sandbox.ip("link", "set", "eth0", "down")
        net.delete(sandbox, result)
        assert eventually(lambda: options.RELEASE in forger.kinds()), node.daemon.log.read_text()


def test_second_add_after_the_interface_was_deleted(node, sandbox):
    """An ADD that finds no interface releases the lease of the former one, and leaves no file."""
    with dhcp_forger.running(node.machine, granting()) as forger:
        net = node.network()
        net.add(sandbox)
        sandbox.ip("link", "delete", "eth0")
        assert "Link not found" in net.having(type="dhcp").run("ADD", sandbox).error()["msg"]
        assert eventually(lambda: options.RELEASE in forger.kinds()), node.daemon.log.read_text()
    assert node.list_files() == {}


def test_unreadable_lease_file_ends_with_its_pod(node, sandbox):
    """DEL deletes a damaged lease file; a draft that cannot be deleted does not prevent the daemon's start."""
    with dhcp_forger.running(node.machine, granting()):
        net = node.network()
        net.add(sandbox)
        node.daemon.stop()
        (file,) = (node.data / "net").iterdir()
        file.write_text("{")
        (file.parent / "c1:eth0.json.tmp").mkdir()  # as on a disk that has become read-only
        node.start_daemon()
        assert eventually(lambda: node.daemon.logged("cannot read the lease"))
        net.delete(sandbox)
    assert not file.exists()


def test_too_many_connections(node):
    """Clients that exhaust the descriptors, some with malformed calls, do not keep the daemon busy; it continues."""
    pid = node.daemon.process.pid
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (40, 40))
    clients = [socket.socket(socket.AF_UNIX) for _ in range(60)]
    for client in clients:
        client.connect(str(node.socket))
    for client, data in zip(
        clients, (bytes(5000), b"CONNECT /_goRPC_ HTTP/1.0\n\n\xff", b"POST / HTTP/1.1\r\n\r\n"), strict=False
    ):
        client.sendall(data)
    before = cpu_ticks(pid)
    time.sleep(5)
    assert cpu_ticks(pid) - before < os.sysconf("SC_CLK_TCK") // 4
    for client in clients:
        client.close()
    assert "podwire_dhcp" in node.get_metrics()


def cpu_ticks(pid: int) -> int:
    """Returns the processor time of a process."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_mtu_of_a_router_is_no_larger_than_the_interfaces(node, sandbox):
    """A router cannot raise the MTU of a pod."""
    network, router, all_hosts = (IPv6Address(text) for text in ("fd00:25::", "fe80::1", "ff02::1"))
    prefix = struct.pack("!BBBBIII16s", 3, 4, 64, 0xC0, 3600, 1800, 0, network.packed)
    body = struct.pack("!BBHII", 64, 0, 1800, 0, 0) + prefix + struct.pack("!BBHI", 5, 1, 0, 9000)
    macs = bytes.fromhex("020000000001"), bytes.fromhex("333300000001")
    advertisement = frame.build_icmp6(*macs, router, all_hosts, 134, 0, body)
    net = node.network("bridge", ipam={"ipv4": False, "ipv6": "slaac"})
    with dhcp_forger.answering(node.machine, 0x86DD, lambda _: [advertisement]):
        net.add(sandbox)
        assert shown(sandbox, "eth0")["mtu"] == 1500
        net.delete(sandbox)
