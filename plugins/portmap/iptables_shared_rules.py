"""Recognises the shared rules as iptables-nft stores them in the kernel, without running iptables-restore.

Only the exact rule is recognised. A rule with an additional or inverted match or another option is a
different rule. A rule in an unknown form is not recognised; the caller then has iptables-restore list it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from kernel.netfilter import nft, nft_expression, nft_rule
from kernel.netfilter.iptables_rule import Rule
from plugins.portmap.host_ports import HostPorts
from plugins.portmap.iptables_rules import DNAT, MASQ, SETMARK, packet_mark

_COUNTER = b"counter\0"
_NAME_OFFSET = 2 * nft_expression.ATTRIBUTE.size  # of the name in an expression, as the kernel lists it

# Parameters of the extensions: structs of linux/netfilter/xt_*.h and nf_nat.h.
_COMMENT_BYTES = 256
_ADDRTYPE = struct.Struct("=HHI")  # xt_addrtype_info_v1: source types, destination types, flags
_MARK_MATCH = struct.Struct("=IIB")  # xt_mark_mtinfo1: packet mark, mask, inverted
_MARK_TARGET = struct.Struct("=II")  # xt_mark_tginfo2: packet mark, mask
_ANY_ADDRESS = {4: struct.pack("=I20x", 1), 6: bytes(40)}  # nf_nat_ipv4_multi_range_compat with one range; nf_nat_range


def is_shared(rule: Rule, existing: nft.Rule, host_ports: HostPorts, version: int) -> bool:
    """Returns whether an existing rule is proven to be the shared `rule`; ignores counters."""
    text = rule.comment
    content = b"".join(
        part for part in nft_rule.split_expressions(existing.expressions) if not part.startswith(_COUNTER, _NAME_OFFSET)
    )
    forms = _forms(rule.chain, host_ports, version)
    if existing.comment:  # newer versions of iptables-nft store the comment in userdata
        return existing.comment == text and nft_rule.is_any_of(forms, content)
    start = _match("comment", 0, text.encode().ljust(_COMMENT_BYTES, b"\0")) if text else b""
    return nft_rule.is_any_of((start + form for form in forms), content)


def _forms(chain: str, host_ports: HostPorts, version: int) -> Iterable[bytes]:
    """Returns the known forms of the shared rule in `chain`, without the comment."""
    mark = packet_mark(host_ports)
    if chain == SETMARK:
        return [_target("MARK", 2, _MARK_TARGET.pack(mark, mark))]
    if chain == MASQ:
        marked = nft_rule.mark_match(host_ports.mark_bit), _match("mark", 1, _MARK_MATCH.pack(mark, mark, 0))
        return [form + _target("MASQUERADE", 0, _ANY_ADDRESS[version]) for form in marked]
    if chain == "POSTROUTING":
        return [nft_rule.jump(MASQ)]
    return [_match("addrtype", 1, _ADDRTYPE.pack(0, 1 << nft_expression.LOCAL, 0)) + nft_rule.jump(DNAT)]


def _match(name: str, revision: int, info: bytes) -> bytes:
    return nft_expression.extension("match", name, revision, info)


def _target(name: str, revision: int, info: bytes) -> bytes:
    return nft_expression.extension("target", name, revision, info)
