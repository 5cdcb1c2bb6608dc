"""The netlink conversation against the real kernel: batches, refusals in the kernel's words, news.

Runs in the test's own process, which enters the throwaway namespace for a moment to open the socket there.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Interface

import pytest

from cni.result import Route
from kernel import address, link, route
from kernel.codec import LinkMessage
from kernel.errors import KernelError
from kernel.netns import Netns, NetnsMissingError, entered
from kernel.rtnl import Socket
from tests.support.namespaces import Namespace


@pytest.fixture
def socket(host: Namespace) -> Iterator[Socket]:
    """A netlink socket in the throwaway host."""
    with Netns(host.path) as namespace, entered(namespace):
        opened = Socket()
    with opened:
        yield opened


def test_several_requests_travel_in_one_send_and_each_has_its_answer(socket: Socket) -> None:
    """Look-ups sent together are answered in their order, with None for what is not there."""
    found = link.get(socket, link.by_name("lo"), link.by_name("nope"), link.by_index(1))
    assert [item and item.name for item in found] == ["lo", None, "lo"]


def test_a_refusal_names_the_request_and_the_others_are_carried_out(socket: Socket) -> None:
    """Of a batch the first refused request is raised, and what came after it is still done."""
    (lo,) = link.get(socket, link.by_name("lo"))
    assert lo is not None
    own = IPv4Interface("127.0.0.1/8")
    with pytest.raises(KernelError, match=r'^add IP address 127\.0\.0\.1/8 to "lo": file exists') as caught:
        socket.change(address.addition(lo, own), link.bridge("br9", link.random_mac(), 0))
    assert caught.value.errno == errno.EEXIST
    assert link.get(socket, link.by_name("br9"))[0] is not None


def test_the_kernels_own_explanation_is_passed_on(socket: Socket) -> None:
    """What the kernel says in an extended acknowledgement stands in the error's text."""
    (lo,) = link.get(socket, link.by_name("lo"))
    assert lo is not None
    unreachable = Route(IPv4Interface("10.9.0.0/16"), gw=IPv4Address("192.0.2.1"))
    with pytest.raises(KernelError, match=r"invalid gateway") as caught:
        socket.change(route.addition(lo, unreachable, unreachable.gw))
    assert "invalid gateway" in caught.value.explanation


def test_a_subscriber_hears_of_new_and_deleted_links(socket: Socket, host: Namespace) -> None:
    """News of a group arrive at a socket that subscribed to it; DEL depends on hearing of the deletion at once."""
    with Netns(host.path) as namespace, entered(namespace):
        news = Socket()
    with news:
        news.subscribe(link.RTNLGRP_LINK)
        assert news.notifications(LinkMessage, 0) is None
        socket.change(link.bridge("br9", link.random_mac(), 0))
        (bridge,) = link.get(socket, link.by_name("br9"))
        assert bridge is not None
        socket.change(link.deletion(bridge))
        heard = []
        while (more := news.notifications(LinkMessage, 0)) is not None:
            heard += [kind for kind, message in more if message["index"] == bridge.index]
        assert heard[0] == link.RTM_NEWLINK
        assert heard[-1] == link.RTM_DELLINK


def test_what_is_no_namespace_is_told_from_what_is_missing(tmp_path: object) -> None:
    """A missing path and a plain file at the path of a namespace are errors of their own, in the reference's words."""
    plain = f"{tmp_path}/plain"
    with open(plain, "w", encoding="ascii"):
        pass
    with pytest.raises(NetnsMissingError, match=f'unknown FS magic on "{plain}"'):
        Netns(plain)
    with pytest.raises(NetnsMissingError, match=r"failed to Statfs .*no such file or directory"):
        Netns(f"{tmp_path}/missing")
