"""Renders rules of nftables as text for people, without the `nft` program, which a node may lack.

The text resembles that of `nft list`; it is for reading only. Unknown expressions appear by their name in brackets.
"""

from __future__ import annotations

import struct
import sys
from ipaddress import ip_address

from kernel.netfilter import nft_expression as expression
from kernel.netfilter.nft import BRIDGE, INET, IPV4, IPV6, NftRule
from kernel.netfilter.nft_expression import parse_content
from kernel.netfilter.nft_rule import parse_expressions

FAMILIES = {INET: "inet", IPV4: "ip", IPV6: "ip6", BRIDGE: "bridge", 3: "arp", 5: "netdev"}
_NUMBER = struct.Struct(">I")
_VERDICTS = {0: "drop", 1: "accept", 3: "queue", -1: "continue", -5: "return"}
_JUMP, _GOTO = -3, -4
_OPERATIONS = {0: "", 1: "!= ", 2: "< ", 3: "<= ", 4: "> ", 5: ">= "}
_META = {
    0: "length", 1: "protocol", 2: "priority", 3: "mark", 4: "iif", 5: "oif", 6: "iifname", 7: "oifname", 10: "skuid",
    11: "skgid", 12: "nftrace", 15: "nfproto", 16: "l4proto", 18: "pkttype", 22: "ibrname", 23: "obrname",
}  # fmt: skip
_NAMES, _PROTOCOL_KEYS = (6, 7, 22, 23), (16,)
_CT = {0: "state", 1: "direction", 2: "status", 3: "mark"}
_STATES = {1: "invalid", 2: "established", 4: "related", 8: "new", 64: "untracked"}
_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "ipv6-icmp", 132: "sctp"}
_LINK, _NETWORK, _TRANSPORT = 0, 1, 2
_FIELDS = {
    (_LINK, 0, 6): "ether daddr", (_LINK, 6, 6): "ether saddr", (_LINK, 12, 2): "ether type",
    (_TRANSPORT, 0, 2): "sport", (_TRANSPORT, 2, 2): "dport",
}  # fmt: skip
_IP4 = {(12, 4): "saddr", (16, 4): "daddr"}
_IP6 = {(8, 16): "saddr", (24, 16): "daddr"}
_SILENT = ("counter",)


def render(rule: NftRule) -> str:
    """Returns a rule's matches and statements as text, with its comment."""
    renderer = _Renderer()
    for name, fields in parse_expressions(rule.expressions):
        renderer.add(name, fields)
    words = [word for word in renderer.words if not word.startswith("meta nfproto ")]
    for name in _PROTOCOLS.values():
        if any(word.startswith((f"{name} dport", f"{name} sport")) for word in words):
            words = [word for word in words if word != f"meta l4proto {name}"]
    return " ".join([*words, *([f'comment "{rule.comment}"'] if rule.comment else [])])


class _Renderer:
    """Keeps what the registers hold, by the text of the field that was loaded."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._loaded: dict[int, tuple[str, str]] = {}  # by register: the field, its form
        self._mask = b""

    def add(self, name: str, fields: dict[int, bytes]) -> None:
        """Renders one expression."""
        handler = {
            "payload": self._payload, "meta": self._meta, "ct": self._ct, "cmp": self._compare,
            "bitwise": self._bitwise, "lookup": self._lookup,
            "immediate": self._immediate, "match": self._extension, "target": self._target,
            "reject": self._reject, "masq": self._masquerade, "nat": self._nat, "range": self._range,
            "objref": self._object,
        }.get(name)  # fmt: skip
        if handler:
            handler(fields)
        elif name not in _SILENT:
            self.words.append({"notrack": "notrack", "log": "log", "redir": "redirect"}.get(name, f"[{name}]"))

    def _payload(self, fields: dict[int, bytes]) -> None:
        base, offset, length = (_number(fields, key) for key in (2, 3, 4))
        if 5 in fields:
            self.words.append("[payload set]")
            return
        field = _FIELDS.get((base, offset, length))
        if field and base == _TRANSPORT:
            protocol = next((word.rpartition(" ")[2] for word in self.words if word.startswith("meta l4proto")), "th")
            self._load(fields, f"{protocol} {field}", "number")
        elif field:
            self._load(fields, field, "mac" if length == 6 else "hex")
        elif base == _NETWORK:
            self._load(fields, *_network_field(offset, length))
        else:
            self._load(fields, f"@{base},{offset * 8},{length * 8}", "hex")

    def _meta(self, fields: dict[int, bytes]) -> None:
        key = _number(fields, 2)
        if 1 not in fields:
            self.words.append(f"meta {_META.get(key, key)} set")
            return
        form = "name" if key in _NAMES else "protocol" if key in _PROTOCOL_KEYS else "host"
        prefix = "" if key in _NAMES else "meta "
        self._load(fields, f"{prefix}{_META.get(key, key)}", form)

    def _ct(self, fields: dict[int, bytes]) -> None:
        if 1 not in fields:
            self.words.append("ct set")
            return
        key = _number(fields, 2)
        self._load(fields, f"ct {_CT.get(key, key)}", "state" if key == 0 else "host")

    def _load(self, fields: dict[int, bytes], field: str, form: str) -> None:
        self._loaded[_number(fields, 1)] = field, form
        self._mask = b""

    def _bitwise(self, fields: dict[int, bytes]) -> None:
        self._loaded[_number(fields, 2)] = self._loaded.get(_number(fields, 1), ("?", "hex"))
        self._mask = parse_content(fields.get(4, b"")).get(expression.DATA_VALUE, b"")

    def _compare(self, fields: dict[int, bytes]) -> None:
        field, form = self._loaded.get(_number(fields, 1), ("?", "hex"))
        data = parse_content(fields.get(3, b"")).get(expression.DATA_VALUE, b"")
        operation = _number(fields, 2)
        if form == "state" and self._mask and not any(data):
            self.words.append(f"{field} {_states(self._mask)}")
            return
        text = _value(form, data)
        if self._mask:
            text = f"{text}/{_prefix(self._mask)}" if form == "address" else f"& {_value('host', self._mask)} == {text}"
        elif form == "address" and len(data) not in (4, 16):
            whole = 16 if field.startswith("ip6") else 4
            text = f"{ip_address(data.ljust(whole, bytes(1)))}/{8 * len(data)}"
        self.words.append(f"{field} {_OPERATIONS.get(operation, '? ')}{text}")

    def _range(self, fields: dict[int, bytes]) -> None:
        field, form = self._loaded.get(_number(fields, 1), ("?", "hex"))
        ends = [_value(form, parse_content(fields.get(key, b"")).get(expression.DATA_VALUE, b"")) for key in (3, 4)]
        self.words.append(f"{field} {'!= ' if _number(fields, 2) else ''}{'-'.join(ends)}")

    def _lookup(self, fields: dict[int, bytes]) -> None:
        field, _ = self._loaded.get(_number(fields, 2), ("?", ""))
        negation = "!= " if _number(fields, 5) & 1 else ""
        self.words.append(f"{field} {negation}@{_text(fields.get(1, b''))}")

    def _immediate(self, fields: dict[int, bytes]) -> None:
        if _number(fields, 1) != 0:
            value = parse_content(fields.get(2, b"")).get(expression.DATA_VALUE, b"")
            form = "address" if len(value) in (4, 16) else "number" if len(value) == 2 else "hex"
            self._loaded[_number(fields, 1)] = _value(form, value), ""
            return
        content = parse_content(parse_content(fields.get(2, b"")).get(2, b""))
        (code,) = struct.unpack(">i", content.get(1, bytes(4)))
        word = {_JUMP: "jump ", _GOTO: "goto "}.get(code)
        self.words.append(f"{word}{_text(content.get(2, b''))}" if word else _VERDICTS.get(code, str(code)))

    def _extension(self, fields: dict[int, bytes]) -> None:
        name = _text(fields.get(1, b""))
        if name == "comment":
            self.words.append(f"/* {_text(fields.get(3, b'').partition(bytes(1))[0])} */")
        else:
            self.words.append(f"-m {name}")

    def _target(self, fields: dict[int, bytes]) -> None:
        self.words.append(f"-j {_text(fields.get(1, b''))}")

    def _object(self, fields: dict[int, bytes]) -> None:
        kind = {1: "counter", 2: "quota", 4: "limit"}.get(_number(fields, 1), "object")
        self.words.append(f'{kind} name "{_text(fields.get(2, b""))}"')

    def _reject(self, fields: dict[int, bytes]) -> None:
        self.words.append("reject with tcp reset" if _number(fields, 1) == 1 else "reject")

    def _masquerade(self, fields: dict[int, bytes]) -> None:
        self.words.append("masquerade")

    def _nat(self, fields: dict[int, bytes]) -> None:
        kind = "dnat" if _number(fields, 1) else "snat"
        address, port = (self._loaded.get(_number(fields, key), ("", ""))[0] if key in fields else "" for key in (3, 5))
        self.words.append(f"{kind} to {address}{f':{port}' if port else ''}")


def _network_field(offset: int, length: int) -> tuple[str, str]:
    for version, fields, whole in (("ip", _IP4, 4), ("ip6", _IP6, 16)):
        for (start, _), name in fields.items():
            if start == offset and length <= whole:
                return f"{version} {name}", "address"
    if (offset, length) in ((9, 1), (6, 1)):
        return "ip protocol", "protocol"
    return f"@nh,{offset * 8},{length * 8}", "hex"


def _value(form: str, data: bytes) -> str:
    if form == "address" and len(data) in (4, 16):
        return str(ip_address(data))
    if form == "number":
        return str(int.from_bytes(data, "big"))
    if form == "host":
        return hex(int.from_bytes(data, sys.byteorder))
    if form == "protocol":
        number = int.from_bytes(data, "big")
        return _PROTOCOLS.get(number, str(number))
    if form == "name":
        name, end, _ = data.partition(b"\0")
        return f'"{name.decode(errors="replace")}{"" if end else "*"}"'
    if form == "mac":
        return data.hex(":")
    return f"0x{data.hex()}"


def _states(mask: bytes) -> str:
    bits = int.from_bytes(mask, sys.byteorder)
    return ",".join(name for bit, name in _STATES.items() if bits & bit) or hex(bits)


def _prefix(mask: bytes) -> int:
    return bin(int.from_bytes(mask, "big")).count("1")


def _number(fields: dict[int, bytes], key: int) -> int:
    content = fields.get(key, b"")
    return int(_NUMBER.unpack(content)[0]) if len(content) == 4 else 0


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")
