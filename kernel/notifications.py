"""The kernel's notifications about links, addresses, routes, neighbours and forwarding entries, on one socket.

One rule: the notifications about the requests of one's own socket are skipped, where the kernel names their sender.
"""

from __future__ import annotations

import errno
import socket as stdlib_socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

from _podwire import messages

from kernel import address, link, neighbour, route
from kernel.codec import AddressMessage, LinkMessage, RouteMessage
from kernel.codec_links import NeighbourMessage
from kernel.errors import KernelError
from kernel.rtnl import Socket
from kernel.wire import DecodedMessage, decode

# RTNLGRP_* (linux/rtnetlink.h)
LINK, NEIGHBOUR, IPV4_ADDRESS, IPV4_ROUTE, IPV6_ADDRESS, IPV6_ROUTE = ALL = (1, 3, 5, 7, 9, 11)
_KINDS: dict[int, type[object]] = {
    link.RTM_NEWLINK: LinkMessage,
    link.RTM_DELLINK: LinkMessage,
    address.RTM_NEWADDR: AddressMessage,
    address.RTM_DELADDR: AddressMessage,
    route.RTM_NEWROUTE: RouteMessage,
    route.RTM_DELROUTE: RouteMessage,
    neighbour.RTM_NEWNEIGH: NeighbourMessage,
    neighbour.RTM_DELNEIGH: NeighbourMessage,
}
_SENDER = struct.Struct("=I")  # nlmsg_pid, at offset 12 of struct nlmsghdr
_SENDER_OFFSET = 12
_RECEIVE_BYTES = 1 << 17


class Notification(NamedTuple):
    """A notification: its type (RTM_*) and its message."""

    type: int
    message: DecodedMessage


class Notifications(Socket):
    """A socket that receives the notifications of several groups; never blocks.

    `requests` is the socket of the requests that are not notified. `buffer_bytes` is the size of the receive buffer;
    when it is full, the kernel drops notifications. Raises KernelError.
    """

    def __init__(self, groups: Sequence[int], requests: Socket, *, buffer_bytes: int) -> None:
        super().__init__()
        self._requests_port = requests.bind_port()
        self.enlarge_receive_buffer(buffer_bytes)
        self.subscribe(*groups)

    def receive(self) -> list[Notification] | None:
        """Returns the notifications that have arrived, [] if there are none; None if some were lost: read the state.

        Returns at most those of one receive buffer. Raises KernelError.
        """
        received: list[Notification] = []
        while True:
            try:
                data = self._socket.recv(_RECEIVE_BYTES, stdlib_socket.MSG_DONTWAIT)
            except BlockingIOError:
                return received
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise KernelError("receive notifications", error.errno or 0) from error
                return None
            for number, _, _, body in messages(data):
                kind = _KINDS.get(number)
                if kind and _SENDER.unpack_from(body, _SENDER_OFFSET)[0] != self._requests_port:
                    received.append(Notification(number, decode(kind, body)))
