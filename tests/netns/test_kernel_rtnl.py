"""Netlink on the real kernel (kernel.rtnl, kernel.netns): many requests, many answers, notifications."""

import errno
import os
import socket as stdlib_socket
import sys
from functools import partial

import pytest

from cni.errors import CniError
from kernel import child_link, link
from kernel.codec import LinkMessage
from kernel.errors import KernelError
from kernel.link import VethEnd
from kernel.netns import Netns, NetnsMissingError, entered
from kernel.rtnl import NLM_F_ACK, NLM_F_DUMP, Request, Socket
from tests.support.errors import error_of
from tests.support.netlink_faults import Disturbance, disturbed
from tests.support.netstate import links
from tests.support.processes import output

MAC = bytes.fromhex("0200000000aa")


def test_a_namespace_is_left_again(host):
    """Only the block of `entered` runs in the namespace, also if the block fails."""
    home = os.stat("/proc/self/ns/net").st_ino
    with Netns(host.path) as namespace:
        with entered(namespace):
            assert os.stat("/proc/self/ns/net").st_ino == os.stat(host.path).st_ino
        assert os.stat("/proc/self/ns/net").st_ino == home
        with pytest.raises(FileNotFoundError), entered(namespace):
            os.stat("/absent")
    assert os.stat("/proc/self/ns/net").st_ino == home


def test_only_namespaces_can_be_opened(tmp_path):
    """A missing path, an ordinary file and a path below a file raise NetnsMissingError; a NUL is CniError(8)."""
    file = tmp_path / "file"
    file.touch()
    for path in (tmp_path / "absent", file, file / "below"):
        with pytest.raises(NetnsMissingError):
            Netns(str(path))
    assert error_of(lambda: Netns("\0"), CniError).code == 8


def test_each_request_of_a_send_is_executed(socket, host, sandbox):
    """If the kernel refuses one of several requests, it executes the others, and the refused one is the error."""
    with Netns(sandbox.path) as namespace:
        pair = link.create_veth_request(VethEnd("a0", MAC), VethEnd("a1", MAC), namespace, master=0, mtu=0)
        socket.change(link.create_bridge_request("br0", MAC, 0))
        with pytest.raises(KernelError) as caught:
            socket.change(pair, pair, link.create_bridge_request("br1", MAC, 1400))
    assert caught.value.errno == errno.EEXIST
    assert caught.value.msg == 'failed to make veth pair "a0" - "a1": file exists'
    assert set(links(host)) == {"lo", "br0", "br1", "a0"}
    assert links(host)["br1"]["mtu"] == 1400
    assert set(links(sandbox)) == {"lo", "a1"}


def test_many_requests_without_privilege(root):
    """Without the right to enlarge buffers, tens of thousands of requests are sent and answered."""
    program = "from kernel import link; from kernel.rtnl import Socket; "
    program += 'links = link.get(Socket(), *[link.by_name_request("lo")] * 50_000, link.by_name_request("absent0"));'
    program += "print({item and item.name for item in links[:-1]}, len(links), links[-1])"
    drop = ("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin")
    assert output("timeout", "100", *drop, sys.executable, "-c", program) == "{'lo'} 50001 None\n"


def test_lost_answers(socket):
    """Lost answers raise ENOBUFS, and the same socket answers the next request."""
    socket._socket.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_RCVBUF, 0)  # the minimum
    with pytest.raises(KernelError, match='look up "absent0": no buffer space') as caught:
        link.get(socket, *[link.by_name_request("absent0")] * 60)
    assert caught.value.errno == errno.ENOBUFS
    (loopback,) = link.get(socket, link.by_name_request("lo"))
    assert loopback
    assert loopback.index == 1


def test_the_kernels_explanation_is_in_the_error(socket):
    """The kernel's extended error is in the error's details: here, why a bridge cannot be a port of another."""
    socket.change(link.create_bridge_request("br0", MAC, 0), link.create_bridge_request("br1", MAC, 0))
    bridge, other = link.get(socket, link.by_name_request("br0"), link.by_name_request("br1"))
    assert bridge
    assert other
    attachment = Request(
        "join", LinkMessage, link.RTM_NEWLINK, NLM_F_ACK, {"index": other.index}, [("IFLA_MASTER", bridge.index)]
    )
    error = error_of(lambda: socket.change(attachment), KernelError)
    assert (error.errno, "bridge" in error.details, error.details in str(error)) == (errno.ELOOP, True, True)


def test_a_dump_of_many_messages_is_read_to_its_end(socket, host):
    """A listing that needs several answers is complete, and filtered as requested."""
    socket.change(
        link.create_bridge_request("br0", MAC, 0),
        *(link.create_bridge_request(f"x{number}", MAC, 0) for number in range(120)),
    )
    (bridge,) = link.get(socket, link.by_name_request("br0"))
    assert bridge
    assert list(link.list_ports(socket, bridge.index)) == []
    request = Request("list", LinkMessage, link.RTM_GETLINK, NLM_F_DUMP)
    assert len(socket.dump(request)) == len(links(host)) == 122


def test_an_incomplete_dump_is_repeated(host):
    """A listing during which the kernel reports a change (NLM_F_DUMP_INTR) is repeated, and then complete."""
    host.ip("link", "add", "br0", "type", "bridge")
    host.ip("link", "add", "br1", "type", "bridge")
    disturbance = Disturbance(1, "incomplete")
    with host.entered(), disturbed(disturbance), Socket() as socket:
        assert {item.name for item in link.list_of_kind(socket, "bridge")} == {"br0", "br1"}
    assert len(disturbance.seen) == 2


def test_notifications_of_this_processes_changes_arrive(socket, host):
    """A subscribed socket receives notifications of changes by another socket of the same process, without delay."""
    with host.entered():
        listener = Socket()
    with listener:
        listener.subscribe(link.RTNLGRP_LINK)
        assert listener.wait_notifications(LinkMessage, 0) is None
        socket.change(link.create_bridge_request("br0", MAC, 0))
        notifications = listener.wait_notifications(LinkMessage, 20.0)
    assert notifications
    assert [link.from_message(message).name for kind, message in notifications if kind == link.RTM_NEWLINK] == ["br0"]


@pytest.mark.needs("macvlan")
def test_a_link_that_cannot_get_its_name_is_deleted(socket, host, sandbox):
    """A name that another program gives to a link of the pod first is an error, and no temporary link is left."""
    sandbox.ip("link", "add", "eth0", "type", "veth", "peer", "name", "p")
    host.ip("link", "add", "up0", "type", "veth", "peer", "name", "up1")
    (parent,) = link.get(socket, link.by_name_request("up0"))
    assert parent
    with Netns(sandbox.path) as namespace, sandbox.entered(), Socket() as sandbox_socket:
        create = partial(child_link.create, socket, sandbox_socket, "macvlan", "eth0", parent, namespace, [])
        assert error_of(create, KernelError).errno == errno.EEXIST
    assert set(links(sandbox)) == {"lo", "eth0", "p"}


def test_the_peer_is_not_identified_by_indexes_alone(socket, host, sandbox):
    """Veth pairs with the same indexes in the host and in a sandbox are not mistaken for each other's peers."""
    for namespace in (host, sandbox):
        namespace.ip("link", "add", "a0", "index", "100", "type", "veth", "peer", "name", "a1", "index", "101")
    with Netns(sandbox.path) as namespace, Netns(host.path) as host_namespace:
        with entered(namespace), Socket() as host_socket:
            (sandbox_end,) = link.get(host_socket, link.by_name_request("a0"))
        with entered(host_namespace):
            host_end, host_peer = link.get(socket, link.by_name_request("a0"), link.by_name_request("a1"))
            assert sandbox_end
            assert host_end
            assert host_peer
            assert sandbox_end.iflink == host_end.iflink == host_peer.index
            assert link.get_local_peer(socket, sandbox_end, namespace) is None
            assert link.get_local_peer(socket, host_end, host_namespace) == host_peer
