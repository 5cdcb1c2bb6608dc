"""Recognises the shared rules in the form in which iptables-nft stores them in the kernel, without running a program.

One rule: only the exact rule is recognised. An additional or inverted match or another option makes it a different
rule; a form that we do not know stays unknown, and then the program lists it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

from kernel.netfilter import nft_expression, nft_rule
from kernel.netfilter.nft import Rule
from plugins.portmap.iptables_rules import DNAT, MASQ, SETMARK, packet_mark
from plugins.portmap.spec import HostPorts

_COMMENT = re.compile(r'--comment "([^"]*)"')
_COUNTER = b"counter\0"
_NAME_AT = 2 * nft_expression.ATTRIBUTE.size  # of an expression, as the kernel lists it

# Parameters of the extensions: sizes and contents of their structs in linux/netfilter/xt_*.h, nf_nat.h.
_COMMENT_BYTES = 256
_ADDRTYPE = struct.Struct("=HHI")  # xt_addrtype_info_v1: source and destination by bits, flags
_MARKED = struct.Struct("=IIB")  # xt_mark_mtinfo1: mark, mask, inverted
_MARK = struct.Struct("=II")  # xt_mark_tginfo2
_ANY_ADDRESS = {4: struct.pack("=I20x", 1), 6: bytes(40)}  # nf_nat_ipv4_multi_range_compat of one, nf_nat_range


def is_shared(rule: str, existing: Rule, host_ports: HostPorts, version: int) -> bool:
    """Returns whether an existing rule is certainly the shared `rule`; ignores its counters."""
    match = _COMMENT.search(rule)
    text = match[1] if match else ""
    content = b"".join(
        part for part in nft_rule.split_expressions(existing.expressions) if not part.startswith(_COUNTER, _NAME_AT)
    )
    forms = _forms(rule.split()[1], host_ports, version)
    if existing.comment:  # newer versions store it in userdata
        return existing.comment == text and nft_rule.is_any_of(forms, content)
    start = _match("comment", 0, text.encode().ljust(_COMMENT_BYTES, b"\0")) if text else b""
    return nft_rule.is_any_of((start + form for form in forms), content)


def _forms(chain: str, host_ports: HostPorts, version: int) -> Iterable[bytes]:
    """Returns the forms of the shared rule in `chain`, without its comment."""
    mark = packet_mark(host_ports)
    if chain == SETMARK:
        return [_target("MARK", 2, _MARK.pack(mark, mark))]
    if chain == MASQ:
        marked = nft_rule.mark_match(host_ports.mark_bit), _match("mark", 1, _MARKED.pack(mark, mark, 0))
        return [form + _target("MASQUERADE", 0, _ANY_ADDRESS[version]) for form in marked]
    if chain == "POSTROUTING":
        return [nft_rule.jump(MASQ)]
    return [_match("addrtype", 1, _ADDRTYPE.pack(0, 1 << nft_expression.LOCAL, 0)) + nft_rule.jump(DNAT)]


def _match(name: str, revision: int, info: bytes) -> bytes:
    return nft_expression.extension("match", name, revision, info)


def _target(name: str, revision: int, info: bytes) -> bytes:
    return nft_expression.extension("target", name, revision, info)
