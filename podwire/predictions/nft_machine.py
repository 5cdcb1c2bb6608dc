"""Runs one rule of nftables on a packet, as the kernel's virtual machine does, with values that may be unknown."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

from cni.address import Address
from kernel.netfilter.nft_expression import CT_DIRECTION, CT_MARK, CT_STATE, CT_STATUS, parse_content
from kernel.netfilter.packet import NETWORK, TRANSPORT, Packet, host_number
from kernel.netfilter.ruleset import Expression, FilterRule, Ruleset
from podwire.predictions import xt_rules
from podwire.predictions.verdicts import UNCHANGED, Match, RuleAction

# linux/netfilter/nf_tables.h
_PROTOCOL, _MARK, _IIF, _OIF, _IIFNAME, _OIFNAME, _IIFTYPE, _OIFTYPE, _NFPROTO, _L4PROTO = (
    1,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    15,
    16,
)
_IIFGROUP, _OIFGROUP, _RANDOM = 20, 21, 24
_ETHERNET = 1  # ARPHRD_ETHER
_ETHERTYPES = {4: 0x0800, 6: 0x86DD, 0: 0x0806}
DEEPEST = 16  # NFT_JUMP_STACK_SIZE: jumps within each other
VERDICTS = {0: "drop", 1: "accept", 3: "queue", -3: "jump", -4: "goto", -5: "return"}
_SOME = ("limit", "quota", "connlimit")
_RANDOM_VALUES = {"numgen": 1, "hash": 2}  # the attribute with the register
# Statements after which the packet continues; some change it.
_CONTINUES = ("counter", "log", "last", "dup", "fwd", "tproxy", "synproxy", "flow_offload", "dynset")
_SOME_OBJECTS = (2, 4, 5)  # NFT_OBJECT_QUOTA, _LIMIT, _CONNLIMIT
CONTINUING_OBJECTS = (1, 3, 7, 8, 9)  # NFT_OBJECT_COUNTER, _CT_HELPER, _CT_TIMEOUT, _SECMARK, _CT_EXPECT
_QUEUE_BYPASS = 1  # NFT_QUEUE_FLAG_BYPASS: without a listener the packet continues
_CT_ZONE = 17
_FIB_TYPE, _FIB_SADDR, _FIB_DADDR = 3, 1, 2
_WORD = 4
_COMPARED = {
    0: lambda value, data: value == data,
    1: lambda value, data: value != data,
    2: lambda value, data: value < data,
    3: lambda value, data: value <= data,
    4: lambda value, data: value > data,
    5: lambda value, data: value >= data,
}


_Fields = dict[int, bytes]


def number_of(fields: dict[int, bytes], key: int) -> int:
    """Returns a big-endian number of an attribute, 0 without it."""
    return int.from_bytes(fields.get(key, b""), "big", signed=len(fields.get(key, b"")) == _WORD)


class Machine:
    """A run of a rule; afterwards `action` and `mark` are the rule's, if it matches.

    With `is_free` the packet's protocol and port take the values that the rule compares them with (`services`).
    """

    def __init__(self, ruleset: Ruleset, rule: FilterRule, packet: Packet, *, is_free: bool = False) -> None:
        self._ruleset = ruleset
        self._rule = rule
        self._packet = packet
        self._is_free = is_free
        self._registers: dict[int, bytes | None] = {}
        self._loaded: dict[int, str] = {}
        self._ports: list[int] = []
        self._protocol = 0
        self.match = Match.YES
        self.action: RuleAction | None = None
        self.mark: object = UNCHANGED

    def run(self) -> Match:
        """Runs the rule; returns whether it matches."""
        for expression in self._rule.expressions:
            step = self._step(expression)
            if step is Match.NO:
                return Match.NO
            self.match = min(self.match, step)
        return self.match

    def services(self) -> list[tuple[int, int]]:
        """Returns the protocol with each destination port that the rule compares."""
        protocols = [self._protocol] if self._protocol else [6, 17]
        return [(protocol, port) for port in self._ports for protocol in protocols]

    def _step(self, expression: Expression) -> Match:
        name, fields = expression
        if name in _SOME:
            return Match.SOME
        if name in _RANDOM_VALUES:
            self._load(number_of(fields, _RANDOM_VALUES[name]), None, "random")
            return Match.YES
        run = _STEPS.get(name)
        if run is not None:
            return run(self, fields)
        return Match.YES if name in _CONTINUES else Match.MAYBE

    def _load(self, register: int, data: bytes | None, what: str = "") -> None:
        start = _WORD * (register - 1) if 1 <= register <= 4 else register - 8
        self._loaded[start] = what
        if data is None:
            self._registers[start] = None
            return
        for offset in range(0, max(len(data), 1), _WORD):
            self._registers[start + offset // _WORD] = data[offset : offset + _WORD].ljust(_WORD, b"\0")

    def _read(self, register: int, length: int) -> bytes | None:
        start = _WORD * (register - 1) if 1 <= register <= 4 else register - 8
        words = [self._registers.get(start + index) for index in range((length + 3) // _WORD)]
        if any(word is None for word in words):
            return None
        return b"".join(word for word in words if word is not None)[:length]

    def _kind(self, register: int) -> str:
        return self._loaded.get(_WORD * (register - 1) if 1 <= register <= 4 else register - 8, "")

    def _undecided(self, register: int) -> Match:
        return Match.SOME if self._kind(register) == "random" else Match.MAYBE

    def _payload(self, fields: _Fields) -> Match:
        if 5 in fields:  # it changes the packet
            return Match.YES
        base, offset, length = (number_of(fields, key) for key in (2, 3, 4))
        if self._is_free and base == TRANSPORT and (offset, length) == (2, 2):
            self._load(number_of(fields, 1), None, "port")
            return Match.YES
        is_protocol = base == NETWORK and (offset, length) == ((9, 1) if self._packet.version == 4 else (6, 1))
        what = "protocol" if is_protocol and self._is_free else "random" if self._is_varying(base, offset) else ""
        self._load(number_of(fields, 1), None if what else self._packet.payload(base, offset, length), what)
        return Match.YES

    def _is_varying(self, base: int, offset: int) -> bool:
        """Returns whether a field differs between a connection's packets: length, ID, checksum, DSCP."""
        return base == NETWORK and offset in ((1, 2, 4, 6, 10) if self._packet.version == 4 else (4,))

    def _meta(self, fields: _Fields) -> Match:
        key, packet = number_of(fields, 2), self._packet
        if 3 in fields:
            if key == _MARK:
                data = self._read(number_of(fields, 3), _WORD)
                self.mark = None if data is None else int.from_bytes(data, "little")
            return Match.YES
        family = {4: 2, 6: 10, 0: 3}[packet.version]
        values: dict[int, bytes | None] = {
            _PROTOCOL: _ETHERTYPES[packet.version].to_bytes(2, "big"),
            _MARK: None if packet.mark is None else host_number(packet.mark),
            _IIF: self._index(packet.iif),
            _OIF: self._index(packet.oif),
            _IIFGROUP: self._group(packet.iif),
            _OIFGROUP: self._group(packet.oif),
            _IIFNAME: packet.iif.encode().ljust(16, b"\0"),
            _OIFNAME: packet.oif.encode().ljust(16, b"\0"),
            _IIFTYPE: host_number(_ETHERNET, 2),
            _OIFTYPE: host_number(_ETHERNET, 2),
            _NFPROTO: bytes([family]),
            _L4PROTO: None if self._is_free else bytes([packet.protocol]),
        }
        what = {_L4PROTO: "protocol", _RANDOM: "random", 0: "random"}.get(key, "")  # 0: the packet's length
        self._load(number_of(fields, 1), values.get(key), what)
        return Match.YES

    def _index(self, name: str) -> bytes | None:
        """Returns an interface's index, 0 for none; None for an interface that is not known."""
        if not name:
            return host_number(0)
        device = self._ruleset.interfaces.get(name)
        return host_number(device.link.index) if device else None

    def _group(self, name: str) -> bytes | None:
        device = self._ruleset.interfaces.get(name)
        return host_number(device.group) if device else None

    def _objref(self, fields: _Fields) -> Match:
        kind = number_of(fields, 1)
        if kind in CONTINUING_OBJECTS:
            return Match.YES
        return Match.SOME if kind in _SOME_OBJECTS else Match.MAYBE

    def _ct(self, fields: _Fields) -> Match:
        key, packet = number_of(fields, 2), self._packet
        if 4 in fields:
            if key == _CT_ZONE:
                self.action = RuleAction("zone")
            return Match.YES
        values = {
            CT_STATE: host_number(packet.state),
            CT_DIRECTION: bytes([packet.state != 8]),
            CT_STATUS: host_number(packet.connection_status),
            CT_MARK: host_number(0) if packet.state == 8 else None,
        }
        self._load(number_of(fields, 1), values.get(key))
        return Match.YES

    def _fib(self, fields: _Fields) -> Match:
        flags = number_of(fields, 3)
        data = None
        if number_of(fields, 2) == _FIB_TYPE and flags in (_FIB_SADDR, _FIB_DADDR):
            kind = self._packet.source_type if flags == _FIB_SADDR else self._packet.destination_type
            data = host_number(kind)
        self._load(number_of(fields, 1), data)
        return Match.YES

    def _bitwise(self, fields: _Fields) -> Match:
        source, target, length = (number_of(fields, key) for key in (1, 2, 3))
        value = self._read(source, length)
        mask, flipped = (parse_content(fields.get(key, b"")).get(1) for key in (4, 5))
        kind = self._kind(source)
        if value is None or mask is None or flipped is None:
            self._load(target, None, kind)
        else:
            self._load(target, bytes(v & m ^ x for v, m, x in zip(value, mask, flipped, strict=False)), kind)
        return Match.YES

    def _byteorder(self, fields: _Fields) -> Match:
        source, target, length, size = (number_of(fields, key) for key in (1, 2, 4, 5))
        value = self._read(source, length)
        kind = self._kind(source)
        if value is None or not size:
            self._load(target, None, kind)
        else:
            parts = (value[at : at + size][::-1] for at in range(0, length, size))
            self._load(target, b"".join(parts), kind)
        return Match.YES

    def _cmp(self, fields: _Fields) -> Match:
        register, operation = number_of(fields, 1), number_of(fields, 2)
        data = parse_content(fields.get(3, b"")).get(1, b"")
        value = self._read(register, len(data))
        if value is None:
            return self._compare_unknown(register, operation, data)
        return Match.YES if _COMPARED[operation](value, data) else Match.NO

    def _compare_unknown(self, register: int, operation: int, data: bytes) -> Match:
        kind = self._kind(register)
        if kind == "port" and operation in (0, 3, 5):
            self._ports.append(int.from_bytes(data, "big"))
            return Match.YES
        if kind == "protocol" and operation == 0 and self._is_free:
            self._protocol = data[0]
            return Match.YES
        return self._undecided(register)

    def _range(self, fields: _Fields) -> Match:
        register = number_of(fields, 1)
        first, last = (parse_content(fields.get(key, b"")).get(1, b"") for key in (3, 4))
        value = self._read(register, len(first))
        if value is None:
            if self._kind(register) == "port":
                self._ports.append(int.from_bytes(first, "big"))
            return self._undecided(register)
        return Match.YES if (first <= value <= last) == (number_of(fields, 2) == 0) else Match.NO

    def _lookup(self, fields: _Fields) -> Match:
        chain, name = self._rule.chain, fields.get(1, b"").rstrip(b"\0").decode(errors="replace")
        elements = self._ruleset.get_set(chain.family, chain.table, name)
        register, target = number_of(fields, 2), number_of(fields, 3) if 3 in fields else None
        if elements is None:
            return Match.MAYBE
        key = next(iter(elements.exact), elements.ranges[0][0] if elements.ranges else b"")
        if not key:
            return Match.YES if number_of(fields, 5) & 1 else Match.NO
        if self._is_free and self._kind(register) == "port" and len(key) == 2:
            self._ports += [
                int.from_bytes(one, "big") for one in (*elements.exact, *(item[0] for item in elements.ranges))
            ]
            return Match.YES
        value = self._read(register, len(key))
        if value is None:
            return self._undecided(register)
        data = elements.find(value)
        if target is None:
            return Match.YES if (data is not None) != bool(number_of(fields, 5) & 1) else Match.NO
        if data is None:
            return Match.NO
        return self._store(target, data)

    def _store(self, register: int, data: bytes) -> Match:
        content = parse_content(data)
        if 2 in content:
            verdict = parse_content(content[2])
            self._set_verdict(number_of(verdict, 1), verdict.get(2, b""))
        elif 1 in content:
            self._load(register, content[1])
        return Match.YES

    def _immediate(self, fields: _Fields) -> Match:
        return self._store(number_of(fields, 1), fields.get(2, b""))

    def _set_verdict(self, code: int, chain: bytes) -> None:
        self.action = RuleAction(VERDICTS.get(code, "queue"), chain.rstrip(b"\0").decode(errors="replace"))

    def _notrack(self, _fields: _Fields) -> Match:
        self.action = RuleAction("untrack")
        return Match.YES

    def _reject(self, _fields: _Fields) -> Match:
        self.action = RuleAction("reject")
        return Match.YES

    def _queue(self, fields: _Fields) -> Match:
        if not number_of(fields, 3) & _QUEUE_BYPASS:
            self.action = RuleAction("queue", port=number_of(fields, 1))
        return Match.YES

    def _masq(self, fields: _Fields) -> Match:
        first, last = self._port(fields, 2), self._port(fields, 3) or self._port(fields, 2)
        self.action = RuleAction("masquerade", ports=last - first + 1 if first else 0)
        return Match.YES

    def _redir(self, fields: _Fields) -> Match:
        self.action = RuleAction("redirect", port=self._port(fields, 1))
        return Match.YES

    def _nat(self, fields: _Fields) -> Match:
        kind = "dnat" if number_of(fields, 1) == 1 else "snat"
        size = 4 if number_of(fields, 2) == 2 else 16
        address: Address | None = None
        if 3 in fields and (data := self._read(number_of(fields, 3), size)):
            address = ip_address(data)
        self.action = RuleAction(kind, address=address, port=self._port(fields, 5))
        return Match.YES

    def _port(self, fields: dict[int, bytes], key: int) -> int:
        data = self._read(number_of(fields, key), 2) if key in fields else None
        return int.from_bytes(data, "big") if data else 0

    def _match(self, fields: _Fields) -> Match:
        name = fields.get(1, b"").rstrip(b"\0").decode(errors="replace")
        info = fields.get(3, b"")
        if self._is_free:
            protocol, ports = xt_rules.services(name, info)
            self._protocol = self._protocol or protocol
            self._ports += ports
        if name == "devgroup":
            interfaces = self._ruleset.interfaces
            return xt_rules.match_groups(info, *(interfaces.get(one) for one in (self._packet.iif, self._packet.oif)))
        return xt_rules.match(name, number_of(fields, 2), info, self._packet)

    def _target(self, fields: _Fields) -> Match:
        name = fields.get(1, b"").rstrip(b"\0").decode(errors="replace")
        action, mark = xt_rules.target(name, number_of(fields, 2), fields.get(3, b""), self._packet)
        self.action = action or self.action
        if mark is not UNCHANGED:
            self.mark = mark
        return Match.YES


_STEPS: dict[str, Callable[[Machine, _Fields], Match]] = {
    "payload": Machine._payload,
    "meta": Machine._meta,
    "ct": Machine._ct,
    "fib": Machine._fib,
    "bitwise": Machine._bitwise,
    "byteorder": Machine._byteorder,
    "cmp": Machine._cmp,
    "range": Machine._range,
    "lookup": Machine._lookup,
    "immediate": Machine._immediate,
    "notrack": Machine._notrack,
    "objref": Machine._objref,
    "reject": Machine._reject,
    "queue": Machine._queue,
    "masq": Machine._masq,
    "redir": Machine._redir,
    "nat": Machine._nat,
    "match": Machine._match,
    "target": Machine._target,
}
