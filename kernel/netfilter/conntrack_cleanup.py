"""Deletes the connection tracking entries of packets that podwire itself sent, so that a test leaves none."""

from __future__ import annotations

import errno
import socket as stdlib_socket
from collections.abc import Iterable

from kernel.codec_netfilter import ConntrackMessage
from kernel.errors import KernelError
from kernel.netfilter import nft
from kernel.netfilter.nft_trace import Tuple
from kernel.rtnl import NLM_F_ACK, Request
from kernel.wire import Attributes

_DELETE = 1 << 8 | 2  # NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE
_FAMILIES = {4: int(stdlib_socket.AF_INET), 6: int(stdlib_socket.AF_INET6)}
_ICMP = (1, 58)
# ENOTSUPP, EINVAL: the kernel has no connection tracking, or none for this protocol.
_IGNORED = (errno.ENOENT, errno.EINVAL, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, 524)


def delete_entries(tuples: Iterable[Tuple]) -> None:
    """Deletes the entries with these original directions in the current namespace; missing ones are success.

    Entries of ICMP expire within 30 seconds, and stay. Raises KernelError.
    """
    requests = [_request(item) for item in tuples if item.protocol not in _ICMP]
    if not requests:
        return
    try:
        with nft.open_socket() as socket:
            for request in requests:
                socket.send(request)
    except nft.UnavailableError:
        return
    except KernelError as error:
        if error.errno not in _IGNORED:
            raise


def _request(item: Tuple) -> Request:
    version = item.source.version
    addresses = [(f"CTA_IP_V{version}_SRC", item.source.packed), (f"CTA_IP_V{version}_DST", item.destination.packed)]
    ports = [
        ("CTA_PROTO_NUM", item.protocol),
        ("CTA_PROTO_SRC_PORT", item.source_port),
        ("CTA_PROTO_DST_PORT", item.port),
    ]
    attributes: Attributes = [
        ("CTA_TUPLE_ORIG", {"attrs": [("CTA_TUPLE_IP", {"attrs": addresses}), ("CTA_TUPLE_PROTO", {"attrs": ports})]})
    ]
    description = f"delete the tracked flow from {item.source} to {item.destination} port {item.port}"
    values = {"family": _FAMILIES[version]}
    return Request(description, ConntrackMessage, _DELETE, NLM_F_ACK, values, attributes, _IGNORED)
