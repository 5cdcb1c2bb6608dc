"""The rules that all containers share as iptables-nft gives them to the kernel, to be recognised without a program.

One rule: only the exact rule is recognised. A further match, an inverted one, another option makes it another rule, and
a form that an unknown version gives it leaves it unknown: then the program tells.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

from kernel.netfilter import nft_expression, nft_rule
from kernel.netfilter.nft import Rule
from plugins.portmap.iptables_rules import DNAT, MASQ, SETMARK, mark_of
from plugins.portmap.spec import HostPorts

_COMMENT = re.compile(r'--comment "([^"]*)"')
_COUNTER = b"counter\0"
_NAME_AT = 2 * nft_expression.ATTRIBUTE.size  # of an expression, as the kernel lists it

# What the extensions are told: sizes and contents of their structs in linux/netfilter/xt_*.h, nf_nat.h.
_COMMENT_BYTES = 256
_ADDRTYPE = struct.Struct("=HHI")  # xt_addrtype_info_v1: source and destination by bits, flags
_MARKED = struct.Struct("=IIB")  # xt_mark_mtinfo1: mark, mask, inverted
_MARK = struct.Struct("=II")  # xt_mark_tginfo2
_ANY_ADDRESS = {4: struct.pack("=I20x", 1), 6: bytes(40)}  # nf_nat_ipv4_multi_range_compat of one, nf_nat_range


def is_shared(rule: str, found: Rule, wanted: HostPorts, version: int) -> bool:
    """Tells whether a rule that was found is surely the shared `rule`, whatever it has counted."""
    said = _COMMENT.search(rule)
    text = said[1] if said else ""
    content = b"".join(
        part for part in nft_rule.split_expressions(found.expressions) if not part.startswith(_COUNTER, _NAME_AT)
    )
    forms = _forms(rule.split()[1], wanted, version)
    if found.comment:  # as newer versions keep it
        return found.comment == text and nft_rule.is_any_of(forms, content)
    start = _match("comment", 0, text.encode().ljust(_COMMENT_BYTES, b"\0")) if text else b""
    return nft_rule.is_any_of((start + form for form in forms), content)


def _forms(chain: str, wanted: HostPorts, version: int) -> Iterable[bytes]:
    """Returns the forms of the shared rule in `chain`, without its comment."""
    mark = mark_of(wanted)
    if chain == SETMARK:
        return [_target("MARK", 2, _MARK.pack(mark, mark))]
    if chain == MASQ:
        marked = nft_rule.mark_match(wanted.mark_bit), _match("mark", 1, _MARKED.pack(mark, mark, 0))
        return [form + _target("MASQUERADE", 0, _ANY_ADDRESS[version]) for form in marked]
    if chain == "POSTROUTING":
        return [nft_rule.jump(MASQ)]
    return [_match("addrtype", 1, _ADDRTYPE.pack(0, 1 << nft_expression.LOCAL, 0)) + nft_rule.jump(DNAT)]


def _match(name: str, revision: int, info: bytes) -> bytes:
    return nft_expression.extension("match", name, revision, info)


def _target(name: str, revision: int, info: bytes) -> bytes:
    return nft_expression.extension("target", name, revision, info)
