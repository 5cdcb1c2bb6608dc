"""The reverse path filters of links (net.ipv4.conf.*.rp_filter), read in the namespace of a netlink socket."""

from __future__ import annotations

import errno
from socket import AF_INET

from kernel.codec_vxlan import NetconfMessage
from kernel.link import Link
from kernel.rtnl import Request, Socket

_RTM_GETNETCONF = 82
_ALL, _STRICT = -1, 1  # NETCONFA_IFINDEX_ALL (linux/netconf.h)


def is_strict(socket: Socket, link: Link) -> bool:
    """Returns whether a link drops an IPv4 packet if the route to its source leaves by another link.

    The greater value of the link and of "all" counts: 0 off, 1 strict, 2 loose. Raises KernelError.
    """
    answers = socket.get(_get_request(_ALL), _get_request(link.index))
    return max(answer.get_attr("NETCONFA_RP_FILTER") or 0 if answer else 0 for answer in answers) == _STRICT


def _get_request(index: int) -> Request:
    description = f"look up the reverse path filter of interface {index}"
    missing = (errno.EINVAL, errno.ENODEV, errno.EOPNOTSUPP)  # a link that has no IPv4 settings, or has disappeared
    values = {"family": int(AF_INET)}
    return Request(description, NetconfMessage, _RTM_GETNETCONF, 0, values, [("NETCONFA_IFINDEX", index)], missing)
