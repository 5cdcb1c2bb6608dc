"""Parses simple rules of iptables-nft, as netlink lists them, without a program.

This module parses a rule only if it knows every part. For other matches, options or forms the result is None, and the
caller runs the program.

A simple rule matches networks, interfaces and the states RELATED and ESTABLISHED, may have a comment, and ends in
ACCEPT, DROP, RETURN, a jump, or no target.
"""

from __future__ import annotations

import struct

from kernel.netfilter import nft, nft_rule
from kernel.netfilter import nft_expression as expression
from kernel.netfilter.iptables_rule import IptablesRule, address_text, comment_match

_NUMBER = struct.Struct(">i")
# Attributes of expressions, NFTA_* (linux/netfilter/nf_tables.h, nf_tables_compat.h).
_META_KEY = 2
_PAYLOAD_BASE, _PAYLOAD_OFFSET, _PAYLOAD_LEN = 2, 3, 4
_BITWISE_MASK, _BITWISE_XOR = 4, 5
_CMP_OP, _CMP_DATA = 2, 3
_MATCH_NAME, _MATCH_REV, _MATCH_INFO = 1, 2, 3
_IMMEDIATE_DREG, _IMMEDIATE_DATA = 1, 2
_DATA_VERDICT, _VERDICT_CODE, _VERDICT_CHAIN = 2, 1, 2
_SIZES = {4: 4, 6: 16}  # of an address, by IP version
_FIELDS = {4: {12: "-s", 16: "-d"}, 6: {8: "-s", 24: "-d"}}  # offsets in the IP header, by version
_INTERFACES = {expression.META_IIFNAME: "-i", expression.META_OIFNAME: "-o"}
_ORDER = ("-s", "-d", "-i", "-o")
_VERDICTS = {0: "DROP", 1: "ACCEPT", -5: "RETURN"}  # linux/netfilter/nf_tables.h, linux/netfilter.h
_JUMP = -3
_COMMENT, _STATES = ("comment", 0), ("conntrack", 3)  # extensions and their revisions
# struct xt_conntrack_mtinfo3 (linux/netfilter/xt_conntrack.h): match_flags, invert_flags, state_mask, status_mask.
_ESTABLISHED = struct.pack("=146xHHHH10x", 1, 0, 2 | 4, 0)
_ESTABLISHED_TEXT = "-m conntrack --ctstate RELATED,ESTABLISHED"


def parse_rule(chain: str, rule: nft.NftRule, version: int) -> IptablesRule | None:
    """Returns a rule of `chain` in the table of an IP version, None if any part is unknown."""
    loaded, mask, end = "", b"", ""
    known: str | bytes = ""
    rendered: dict[str, str] = {}
    matches = []
    for name, attributes in nft_rule.parse_expressions(rule.expressions):
        if name == "counter":
            continue
        if end:
            return None
        if name in ("payload", "meta") and not loaded:
            loaded = _loaded(name, attributes, version)
            known, mask = "" if loaded in rendered else loaded, b""
        elif name == "bitwise" and loaded in ("-s", "-d") and not mask:
            known = mask = _mask(attributes)
        elif name == "cmp" and loaded:
            known = rendered[loaded] = _compared(loaded, attributes, mask, version)
            loaded = ""
        elif name == "match":
            matches.append(_match(attributes))
            known = matches[-1]
        else:
            known = end = _verdict(attributes) if name == "immediate" else ""
        if not known:
            return None
    if loaded:
        return None
    if rule.comment:  # newer versions store comments this way
        matches.append(comment_match(rule.comment))
    header = (rendered[key] for key in _ORDER if key in rendered)
    return IptablesRule(chain, " ".join((*header, *matches, *filter(None, [end]))))


def _number(attributes: dict[int, bytes], key: int) -> int | None:
    value = attributes.get(key, b"")
    return _NUMBER.unpack(value)[0] if len(value) == _NUMBER.size else None


def _loaded(name: str, attributes: dict[int, bytes], version: int) -> str:
    """Returns the option for the field that an expression loads."""
    if name == "meta":
        return _INTERFACES.get(_number(attributes, _META_KEY) or 0, "")
    offset, length = _number(attributes, _PAYLOAD_OFFSET), _number(attributes, _PAYLOAD_LEN)
    if _number(attributes, _PAYLOAD_BASE) != expression.NETWORK_HEADER or offset is None or length is None:
        return ""
    return _FIELDS[version].get(offset, "") if length <= _SIZES[version] else ""


def _mask(attributes: dict[int, bytes]) -> bytes:
    """Returns the mask that an expression applies, b"" if it changes bits in another way."""
    mask, flipped = (_value(attributes, key) for key in (_BITWISE_MASK, _BITWISE_XOR))
    return b"" if any(flipped) else mask


def _compared(option: str, attributes: dict[int, bytes], mask: bytes, version: int) -> str:
    """Returns an option with its value, "" for a prefix of interface names, which has no NUL at its end."""
    data = _value(attributes, _CMP_DATA)
    operation = _number(attributes, _CMP_OP)
    if operation not in (expression.EQ, expression.NEQ):
        return ""
    inverted = "! " if operation == expression.NEQ else ""
    if option in ("-s", "-d"):
        network = _network(data, mask, version)
        return f"{inverted}{option} {network}" if network else ""
    name, end, rest = data.partition(b"\0")
    return f"{inverted}{option} {name.decode(errors='surrogateescape')}" if name and end and not any(rest) else ""


def _network(data: bytes, mask: bytes, version: int) -> str:
    """Returns a network; `data` may lack bytes that the prefix does not cover. "" for a mask that is not a prefix."""
    size = _SIZES[version]
    address = data.ljust(size, b"\0")
    prefix = int.from_bytes(mask, "big").bit_count() if mask else len(data) * 8
    host_bits = (1 << max(0, size * 8 - prefix)) - 1
    is_prefix = not mask or int.from_bytes(mask, "big") == (1 << size * 8) - 1 - host_bits
    if not data or len(address) != size or not is_prefix or int.from_bytes(address, "big") & host_bits:
        return ""
    return f"{address_text(address)}/{prefix}"


def _match(attributes: dict[int, bytes]) -> str:
    """Returns the options of an extension."""
    name = attributes.get(_MATCH_NAME, b"").rstrip(b"\0").decode("ascii", "replace")
    kind = name, _number(attributes, _MATCH_REV)
    info = attributes.get(_MATCH_INFO, b"")
    if kind == _COMMENT:
        return comment_match(info.partition(b"\0")[0].decode(errors="surrogateescape"))
    if kind == _STATES:
        return _ESTABLISHED_TEXT if info.rstrip(b"\0") == _ESTABLISHED.rstrip(b"\0") else ""
    return ""


def _value(attributes: dict[int, bytes], key: int) -> bytes:
    return expression.parse_content(attributes.get(key, b"")).get(expression.DATA_VALUE, b"")


def _verdict(attributes: dict[int, bytes]) -> str:
    data = expression.parse_content(attributes.get(_IMMEDIATE_DATA, b""))
    content = expression.parse_content(data.get(_DATA_VERDICT, b""))
    code = _number(content, _VERDICT_CODE)
    if _number(attributes, _IMMEDIATE_DREG) != 0 or code is None:
        return ""
    if code == _JUMP:
        return f"-j {content.get(_VERDICT_CHAIN, b'').rstrip(chr(0).encode()).decode(errors='surrogateescape')}"
    return f"-j {_VERDICTS[code]}" if code in _VERDICTS else ""
