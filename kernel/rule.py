"""Policy rules, which choose the routing table for a packet: listing, adding, deleting.

*_request functions return a Request and do no I/O.
"""

from __future__ import annotations

import errno
import socket as stdlib_socket
from typing import NamedTuple

from cni.address import Address
from kernel.codec_routing import FibRuleMessage
from kernel.rtnl import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Request, Socket
from kernel.wire import Attributes, DecodedMessage, attribute_specs

RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34
_TO_TABLE = 1  # FR_ACT_TO_TBL (linux/fib_rules.h)
_L3MDEV_PRIORITY, _BY_KERNEL = 1000, 2  # FIB_RULE_PREF (drivers/net/vrf.c), RTPROT_KERNEL (linux/rtnetlink.h)
_FAMILIES = {4: int(stdlib_socket.AF_INET), 6: int(stdlib_socket.AF_INET6)}
_FAMILY_OFFSET = 16  # the first byte after struct nlmsghdr
# Attributes of every rule that selects packets by their source only: FRA_SRC, FRA_PRIORITY, FRA_SUPPRESS_PREFIXLEN
# (which the kernel always reports), FRA_TABLE, FRA_PAD, FRA_PROTOCOL (who created the rule).
_SOURCE_ONLY = frozenset((2, 6, 14, 15, 18, 21))
_UNSET = 0xFFFFFFFF
_SPECS = attribute_specs(
    FibRuleMessage, FRA_SRC=b"", FRA_TABLE=0, FRA_PRIORITY=0, FRA_SUPPRESS_PREFIXLEN=_UNSET, FRA_L3MDEV=0
)


class PolicyRule(NamedTuple):
    """A policy rule: IP version, the source address that it selects, its table, its priority.

    `source` is the packed address of a rule like "from 10.1.2.3 lookup 100", which has no other condition, and b"" for
    every other rule. `table` is 0 for a rule without one, such as that which selects the table of a packet's VRF
    (`is_l3mdev`).
    """

    version: int
    source: bytes
    table: int
    priority: int
    is_l3mdev: bool = False


def list_request() -> Request:
    """Returns a request for the rules of both IP versions; `from_message` reads its answers."""
    return Request("list the rules", FibRuleMessage, RTM_GETRULE, NLM_F_DUMP, body_filter=_is_ip)


def from_message(message: DecodedMessage) -> PolicyRule:
    """Returns the rule in an RTM_NEWRULE message."""
    source, table, priority, suppressed_prefix, l3mdev = message.get_attributes(_SPECS)
    version = 4 if message["family"] == stdlib_socket.AF_INET else 6
    is_source_only = (
        message["action"] == _TO_TABLE
        and message["src_len"] == 8 * len(source)
        and not (message["dst_len"] or message["tos"] or message["flags"])
        and suppressed_prefix == _UNSET
        and _SOURCE_ONLY.issuperset(message.attribute_numbers())
    )
    return PolicyRule(version, source if is_source_only else b"", table or message["table"], priority, bool(l3mdev))


def list_all(socket: Socket) -> list[PolicyRule]:
    """Returns all policy rules of IPv4 and IPv6; raises KernelError."""
    return [from_message(message) for message in socket.dump(list_request())]


def add_request(source: Address, table: int) -> Request:
    """Returns a request that adds "from `source` lookup `table`"; the kernel chooses a priority above the others."""
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    values, attributes = _content(source, table)
    return Request(f"add rule from {source} lookup {table}", FibRuleMessage, RTM_NEWRULE, flags, values, attributes)


def add_l3mdev_request(version: int) -> Request:
    """Returns a request that adds the rule for the VRFs of an IP version, as the kernel adds it with the first VRF.

    An existing rule is success, and so is the refusal by a kernel without IPv6.
    """
    attributes: Attributes = [("FRA_PRIORITY", _L3MDEV_PRIORITY), ("FRA_L3MDEV", 1), ("FRA_PROTOCOL", _BY_KERNEL)]
    values = {"family": _FAMILIES[version], "action": _TO_TABLE}
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    ignored = errno.EEXIST, errno.EAFNOSUPPORT, errno.EOPNOTSUPP
    description = f"add the IPv{version} rule for VRFs"
    return Request(description, FibRuleMessage, RTM_NEWRULE, flags, values, attributes, ignored)


def delete_request(source: Address, table: int) -> Request:
    """Returns a request that deletes the first rule "from `source` lookup `table`"; a missing rule is success."""
    values, attributes = _content(source, table)
    description = f"delete rule from {source} lookup {table}"
    return Request(description, FibRuleMessage, RTM_DELRULE, NLM_F_ACK, values, attributes, (errno.ENOENT,))


def _content(source: Address, table: int) -> tuple[dict[str, int], Attributes]:
    values = {
        "family": _FAMILIES[source.version],
        "src_len": source.max_prefixlen,
        "table": table if table < 256 else 0,
        "action": _TO_TABLE,
    }
    return values, [("FRA_SRC", source.packed), ("FRA_TABLE", table)]


def _is_ip(body: bytes) -> bool:
    """Returns whether an answer is of IPv4 or IPv6; multicast routing has rules, too. Decoding refuses a short one."""
    return not body[_FAMILY_OFFSET:] or body[_FAMILY_OFFSET] in (stdlib_socket.AF_INET, stdlib_socket.AF_INET6)
