"""The netlink conversation on the real kernel (kernel.rtnl, kernel.netns): many requests, many answers, news."""

import errno
import os
import socket as stdlib_socket
import sys

import pytest

from cni.errors import CniError
from kernel import link
from kernel.codec import LinkMessage
from kernel.errors import KernelError
from kernel.link import Link, VethEnd
from kernel.netns import Netns, NetnsMissingError, entered
from kernel.rtnl import NLM_F_ACK, NLM_F_DUMP, Request, Socket
from tests.support.netstate import links
from tests.support.processes import output

MAC = bytes.fromhex("0200000000aa")


@pytest.fixture
def opened(host):
    """The host's namespace, opened."""
    with Netns(host.path) as namespace:
        yield namespace


@pytest.fixture
def socket(opened):
    """A netlink socket in the host's namespace."""
    with entered(opened):
        inner = Socket()
    with inner:
        yield inner


def test_a_namespace_is_left_again(opened, host):
    """The block of `entered` runs in the namespace, and later code does not, also after a failure in the block."""
    home = os.stat("/proc/self/ns/net").st_ino
    with entered(opened):
        assert os.stat("/proc/self/ns/net").st_ino == os.stat(host.path).st_ino
    assert os.stat("/proc/self/ns/net").st_ino == home
    with pytest.raises(FileNotFoundError), entered(opened):
        os.stat("/absent")
    assert os.stat("/proc/self/ns/net").st_ino == home


def test_what_is_no_namespace_cannot_be_opened(tmp_path):
    """An absent path and an ordinary file raise an error of their own; so does a file in place of a directory."""
    file = tmp_path / "file"
    file.touch()
    for path in (tmp_path / "absent", file, file / "below"):
        with pytest.raises(NetnsMissingError):
            Netns(str(path))
    with pytest.raises(CniError) as caught:
        Netns("\0")
    assert caught.value.code == 8


def test_each_request_of_a_send_is_tried(socket, host, sandbox):
    """When one of several requests is refused the others are still tried, and the refused one is the error."""
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


def test_answers_that_need_more_room_than_a_socket_has(socket):
    """Thousands of requests of one send are all answered, though their answers wait together to be read."""
    socket.change(*(link.delete_request(_absent(1_000_000 + number)) for number in range(3000)))
    with pytest.raises(KernelError) as caught:
        socket.change(*(link.set_alias_request(1_000_000 + number, "x") for number in range(3000)))
    assert caught.value.errno == errno.ENODEV


def test_more_requests_than_usual_without_privilege(root):
    """Without the right to enlarge buffers, tens of thousands of requests are sent, and all are answered."""
    program = "from kernel import link; from kernel.rtnl import Socket; "
    program += 'found = link.get(Socket(), *[link.by_name_request("lo")] * 50_000, link.by_name_request("absent0"));'
    program += "print({item and item.name for item in found[:-1]}, len(found), found[-1])"
    drop = ("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin")
    assert output("timeout", "30", *drop, sys.executable, "-c", program) == "{'lo'} 50001 None\n"


def test_answers_that_are_lost(socket):
    """Lost answers raise ENOBUFS, and the same socket answers the next request."""
    socket._socket.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_RCVBUF, 0)  # the least there is
    with pytest.raises(KernelError, match='look up "absent0": no buffer space') as caught:
        link.get(socket, *[link.by_name_request("absent0")] * 60)
    assert caught.value.errno == errno.ENOBUFS
    assert link.get(socket, link.by_name_request("lo"))[0].index == 1


def _absent(index):
    """Returns a link that is not there."""
    return Link(index, "absent0", "", 0, 0, "", 0, 0, None, 0)


def test_the_kernels_explanation_is_in_the_error(socket):
    """What the kernel says beyond the errno becomes the error's details: here, why a bridge cannot join another."""
    socket.change(link.create_bridge_request("br0", MAC, 0), link.create_bridge_request("br1", MAC, 0))
    bridge, other = link.get(socket, link.by_name_request("br0"), link.by_name_request("br1"))
    joining = Request(
        "join", LinkMessage, link.RTM_NEWLINK, NLM_F_ACK, {"index": other.index}, [("IFLA_MASTER", bridge.index)]
    )
    with pytest.raises(KernelError) as caught:
        socket.change(joining)
    assert caught.value.errno == errno.ELOOP
    assert "bridge" in caught.value.details
    assert caught.value.details in str(caught.value)


def test_a_dump_of_many_messages_is_read_to_its_end(socket, host):
    """A list that does not fit in one answer is complete, and filtered as requested."""
    socket.change(
        link.create_bridge_request("br0", MAC, 0),
        *(link.create_bridge_request(f"x{number}", MAC, 0) for number in range(120)),
    )
    (bridge,) = link.get(socket, link.by_name_request("br0"))
    assert list(link.list_ports(socket, bridge.index)) == []
    request = Request("list", LinkMessage, link.RTM_GETLINK, NLM_F_DUMP)
    assert len(socket.dump(request)) == len(links(host)) == 122


def test_news_of_our_own_changes_arrive(socket, opened):
    """A subscribed socket receives notifications of changes by another socket of the same process, without delay."""
    with entered(opened):
        news = Socket()
    with news:
        news.subscribe(link.RTNLGRP_LINK)
        assert news.wait_notifications(LinkMessage, 0) is None
        socket.change(link.create_bridge_request("br0", MAC, 0))
        notifications = news.wait_notifications(LinkMessage, 1.0)
    assert notifications
    assert [link.from_message(message).name for kind, message in notifications if kind == link.RTM_NEWLINK] == ["br0"]


def test_the_other_end_is_proven_by_more_than_indexes(socket, host, sandbox):
    """Of pairs with the same indexes within the host and within a sandbox, none is taken for the other's end."""
    for namespace in (host, sandbox):
        namespace.ip("link", "add", "a0", "index", "100", "type", "veth", "peer", "name", "a1", "index", "101")
    with Netns(sandbox.path) as namespace, Netns(host.path) as host_namespace:
        with entered(namespace), Socket() as inner:
            (theirs,) = link.get(inner, link.by_name_request("a0"))
        with entered(host_namespace):
            ours, ours_too = link.get(socket, link.by_name_request("a0"), link.by_name_request("a1"))
            assert theirs.iflink == ours.iflink == ours_too.index
            assert link.get_local_peer(socket, theirs, namespace) is None
            assert link.get_local_peer(socket, ours, host_namespace) == ours_too
