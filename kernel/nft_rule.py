"""The content of nftables rules: expressions, built as the `nft` tool builds them, and comments.

One rule: a rule is the bytes of its expressions, joined; what stands here reads like the rule's text, and `nft list`
prints that text.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from cni.address import Address, Network

# linux/netfilter/nf_tables.h
_VERDICT_REGISTER, _REGISTER = 0, 1  # NFT_REG_VERDICT, NFT_REG_1
_CMP_EQ, _CMP_NEQ = 0, 1
_META_IIFNAME, _META_NFPROTO = 6, 15
_LINK_HEADER, _NETWORK_HEADER = 0, 1  # NFT_PAYLOAD_*
_NF_DROP, _NF_ACCEPT, _JUMP, _GOTO, _RETURN = 0, 1, -3, -4, -5
_LIST_ELEM, _EXPR_NAME, _EXPR_DATA, _DATA_VALUE, _DATA_VERDICT = 1, 1, 2, 1, 2
_NESTED, _TYPE_MASK = 0x8000, 0x3FFF  # linux/netlink.h

_IFNAMSIZ = 16
_NFPROTO = {4: 2, 6: 10}  # by IP version (linux/netfilter.h)
_SADDR = {4: (12, 4), 6: (8, 16)}  # offset and length in the IP header, by version
_DADDR = {4: (16, 4), 6: (24, 16)}

_ATTRIBUTE = struct.Struct("=HH")
_UDATA_COMMENT = 0  # NFTNL_UDATA_RULE_COMMENT, and the same for tables and chains (libnftnl)
COMMENT_MAX = 128  # bytes that nft takes (NFTNL_UDATA_COMMENT_MAXLEN)


def of_version(version: int) -> bytes:
    """Matches packets of an IP version: what nft puts before a rule's first `ip` or `ip6` in a table of family inet."""
    key = _number(1, _REGISTER), _number(2, _META_NFPROTO)
    return _expression("meta", key[1], key[0]) + _compare(_CMP_EQ, bytes([_NFPROTO[version]]))


def source(address: Address) -> bytes:
    """Matches `ip saddr <address>` (or ip6)."""
    return _payload(_NETWORK_HEADER, *_SADDR[address.version]) + _compare(_CMP_EQ, address.packed)


def destination(network: Network, *, inside: bool = True) -> bytes:
    """Matches `ip daddr <network>` (or ip6), or `ip daddr != <network>` with `inside` off.

    Of a prefix of whole bytes only those are looked at, as nft does.
    """
    offset, length = _DADDR[network.version]
    operation = _CMP_EQ if inside else _CMP_NEQ
    packed = network.network_address.packed
    whole, rest = divmod(network.prefixlen, 8)
    if whole and not rest:
        return _payload(_NETWORK_HEADER, offset, whole) + _compare(operation, packed[:whole])
    masked = _expression(
        "bitwise",
        _number(1, _REGISTER),
        _number(2, _REGISTER),
        _number(3, length),
        _value(4, network.netmask.packed),
        _value(5, bytes(length)),
    )
    return _payload(_NETWORK_HEADER, offset, length) + masked + _compare(operation, packed)


def from_interface(name: str) -> bytes:
    """Matches `iifname "<name>"`."""
    meta = _expression("meta", _number(2, _META_IIFNAME), _number(1, _REGISTER))
    return meta + _compare(_CMP_EQ, name.encode().ljust(_IFNAMSIZ, b"\0"))


def value(data: bytes) -> bytes:
    """Returns what stands in a rule that compares something with `data`, whoever made it: to look for."""
    return _attribute(_DATA_VALUE, data)


def ether_source(mac: bytes) -> bytes:
    """Matches `ether saddr <mac>` in a table of family bridge."""
    return _payload(_LINK_HEADER, 6, 6) + _compare(_CMP_EQ, mac)


def masquerade() -> bytes:
    """Gives the packet's connection the address of the interface it leaves by."""
    return _expression("masq")


def jump(chain: str) -> bytes:
    """Goes on in `chain` and comes back after it."""
    return _verdict(_JUMP, _attribute(2, chain.encode() + b"\0"))


def goto(chain: str) -> bytes:
    """Goes on in `chain` and does not come back."""
    return _verdict(_GOTO, _attribute(2, chain.encode() + b"\0"))


def comment(text: str, *further: tuple[int, bytes]) -> bytes:
    """Returns the userdata of a rule, table or chain with a comment, cut at what nft can read, and `further` items.

    The items are (type, bytes); nft passes over types that it does not know.
    """
    items = [(_UDATA_COMMENT, text.encode()[:COMMENT_MAX] + b"\0"), *further]
    return b"".join(bytes([kind, len(value)]) + value for kind, value in items)


def userdata(data: bytes) -> dict[int, bytes]:
    """Returns the items of a rule's userdata by type; what is cut off is left out."""
    found = {}
    while len(data) >= 2:
        found[data[0]] = data[2 : 2 + data[1]]
        data = data[2 + data[1] :]
    return found


def comment_of(data: bytes) -> str:
    """Returns the comment in a rule's userdata, "" when there is none."""
    return userdata(data).get(_UDATA_COMMENT, b"").rstrip(b"\0").decode(errors="replace")


def same(ours: bytes, theirs: bytes) -> bool:
    """Tells whether the kernel's rule is the one that was built here.

    The kernel lists attributes in its own order and adds what it has as a default, more with each version: the
    expressions must be as many and the same, in order, and have all that ours have.
    """
    mine, found = list(_attributes(ours)), list(_attributes(theirs))
    return len(mine) == len(found) and all(_has(a[2], b[2]) for a, b in zip(mine, found, strict=True))


def _has(ours: bytes, theirs: bytes) -> bool:
    """Tells whether every attribute of ours stands in theirs."""
    found = {kind: value for kind, _, value in _attributes(theirs)}
    for kind, nested, value in _attributes(ours):
        if kind not in found or not (_has(value, found[kind]) if nested else value == found[kind]):
            return False
    return True


def _attributes(data: bytes) -> Iterator[tuple[int, bool, bytes]]:
    """Yields type, whether it is nested, and content of the attributes in `data`."""
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        yield kind & _TYPE_MASK, bool(kind & _NESTED), data[offset + _ATTRIBUTE.size : offset + length]
        offset += max(_ATTRIBUTE.size, (length + 3) & ~3)


def _attribute(kind: int, content: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(content), kind) + content + bytes(-len(content) % 4)


def _nested(kind: int, *contents: bytes) -> bytes:
    return _attribute(kind | _NESTED, b"".join(contents))


def _number(kind: int, number: int) -> bytes:
    return _attribute(kind, struct.pack(">i", number))


def _value(kind: int, value: bytes) -> bytes:
    return _nested(kind, _attribute(_DATA_VALUE, value))


def _expression(name: str, *attributes: bytes) -> bytes:
    return _nested(_LIST_ELEM, _attribute(_EXPR_NAME, name.encode() + b"\0"), _nested(_EXPR_DATA, *attributes))


def _payload(header: int, offset: int, length: int) -> bytes:
    return _expression("payload", _number(1, _REGISTER), _number(2, header), _number(3, offset), _number(4, length))


def _compare(operation: int, value: bytes) -> bytes:
    return _expression("cmp", _number(1, _REGISTER), _number(2, operation), _value(3, value))


def _verdict(code: int, *chain: bytes) -> bytes:
    verdict = _nested(2, _nested(_DATA_VERDICT, _number(1, code), *chain))
    return _expression("immediate", _number(1, _VERDICT_REGISTER), verdict)


ACCEPT, DROP, RETURN = _verdict(_NF_ACCEPT), _verdict(_NF_DROP), _verdict(_RETURN)
