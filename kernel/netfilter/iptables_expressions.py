"""Renders iptables' rules as the nftables expressions that iptables-nft sends to the kernel, and recognises them there.

This module is pure, and returns exactly the expressions that `iptables-restore` (1.8.9) sends. It does not render rules
with options that it does not know: the program applies them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from socket import AF_INET, AF_INET6, inet_pton
from typing import NamedTuple, Protocol

from kernel.netfilter import nft, nft_rule
from kernel.netfilter import nft_expression as expression
from kernel.netfilter.iptables_rule import COMMENT_MAX, IptablesChange, IptablesRule
from kernel.netfilter.nft import Chain, Table
from kernel.netfilter.nft_expression import EQ, NEQ
from kernel.rtnl import Request

_FAMILIES = {4: AF_INET, 6: AF_INET6}
_NETWORKS: dict[int, type[IPv4Network] | type[IPv6Network]] = {4: IPv4Network, 6: IPv6Network}
_IFNAMSIZ = 16  # linux/if.h, with the NUL

_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
_ESCAPED = re.compile(r"\\(.)")
_VERDICTS = {"ACCEPT": nft_rule.ACCEPT, "DROP": nft_rule.DROP, "RETURN": nft_rule.RETURN}
_BUILT_IN_TARGETS = re.compile(r"[A-Z]+[0-9]*")  # other than those above: extensions, which this module does not know
_STATES = {"ESTABLISHED": 1 << 1, "RELATED": 1 << 2}  # XT_CONNTRACK_STATE_BIT (linux/netfilter/xt_conntrack.h)
_RULES_MAX = 60  # recognising more takes longer than running the program
_PORTS_MAX = 15  # XT_MULTI_PORTS (linux/netfilter/xt_multiport.h)
_DESTINATION = 1  # XT_MULTIPORT_DESTINATION
_MULTIPORT = struct.Struct("=BB15H15xx")  # struct xt_multiport_v1
_CONNTRACK = struct.Struct("=136x10xHHHxx8x6x")  # struct xt_conntrack_mtinfo3: match_flags, invert_flags, state_mask
_MATCH_STATE = 1  # XT_CONNTRACK_STATE
_ADDRTYPE = struct.Struct("=HHI")  # struct xt_addrtype_info_v1 (linux/netfilter/xt_addrtype.h): by bits, flags
_MARK = struct.Struct("=II")  # struct xt_mark_tginfo2 (linux/netfilter/xt_mark.h): packet mark, mask
_MARK_MATCH = struct.Struct("=IIB")  # struct xt_mark_mtinfo1: packet mark, mask, inverted
_RANGE = struct.Struct("=I16s16s2s2s4x")  # struct nf_nat_range2 (linux/netfilter/nf_nat.h)
_MAP_IPS, _PROTO_SPECIFIED = 1, 2  # NF_NAT_RANGE_*
_ANY_ADDRESS = {4: struct.pack("=I16x", 1), 6: bytes(40)}  # nf_nat_ipv4_multi_range_compat of one range; nf_nat_range


class Expressions(NamedTuple):
    """A rule's expressions; `protocol` (IPPROTO_*) is sent beside them, for the matches.

    `other_matches` are the matches as other versions write them: older ones compare the packet mark by an extension,
    newer ones store the `comment` as userdata.
    """

    matches: bytes
    other_matches: bytes
    comment: str
    action: bytes
    protocol: int

    def written(self) -> bytes:
        """Returns the expressions to send, with a counter of 0."""
        return self.matches + expression.COUNTER + self.action

    def is_rule(self, existing: nft.NftRule) -> bool:
        """Returns whether an existing rule equals this one, ignoring counters, whatever version wrote it."""
        end = expression.ANY_COUNTER + self.action
        if not existing.userdata and nft_rule.is_same_rule(self.matches + end, existing.expressions):
            return True
        has_other_form = self.other_matches != self.matches and existing.comment == self.comment
        return has_other_form and nft_rule.is_same_rule(self.other_matches + end, existing.expressions)


def change_request(version: int, table: Table, change: IptablesChange) -> Request | None:
    """Builds the request for a change of an IP version's table, None for one that this module does not know."""
    chain = Chain(table, change.chain)
    if change.verb == "-N":
        return nft.chain_request(chain, new=True)
    if change.verb == "-A" or (change.verb == "-I" and change.position == 1):
        rule = render_expressions(version, change.spec)
        return rule and nft.rule_request(chain, rule.written(), first=change.verb == "-I", protocol=rule.protocol)
    return None


class _UnknownError(ValueError):
    """A rule has a word that this module does not know."""


def render_expressions(version: int, spec: str) -> Expressions | None:
    """Renders a rule of IP `version`, given its matches and target; None for words that this module does not know."""
    try:
        return _expressions(version, _words(spec))
    except (StopIteration, ValueError, KeyError, OverflowError, OSError, struct.error):
        return None  # the program runs and reports the error, if there is one


def select_equal(version: int, rule: IptablesRule, existing: Iterable[nft.NftRule]) -> list[nft.NftRule]:
    """Returns the existing rules that certainly equal `rule`."""
    rendered = render_expressions(version, rule.spec)
    return [item for item in existing if rendered.is_rule(item)] if rendered else []


class RuleMatcher:
    """Recognises rules of one IP version among the existing rules of a chain.

    Does not recognise those that render_expressions() does not know. A rule is rendered when it is first compared.
    """

    def __init__(self, version: int, rules: Iterable[IptablesRule]) -> None:
        self._version = version
        self._rendered: dict[IptablesRule, Expressions | None] = {}
        self._rules = list(dict.fromkeys(rules))

    def match(self, existing: nft.NftRule) -> IptablesRule | None:
        """Returns the rule that equals an existing one, None if none does; each rule matches one existing rule only."""
        for rule in self._rules:
            if rule not in self._rendered:
                self._rendered[rule] = render_expressions(self._version, rule.spec)
            rendered = self._rendered[rule]
            if rendered and rendered.is_rule(existing):
                self._rules.remove(rule)
                return rule
        return None


def match_rules(
    version: int, rules: Sequence[IptablesRule], existing: Iterable[nft.NftRule]
) -> list[IptablesRule] | None:
    """Returns the `rules` that equal a chain's existing ones, in their order; None if one is not recognised."""
    if len(rules) > _RULES_MAX:
        return None
    matcher = RuleMatcher(version, rules)
    matched = [matcher.match(item) for item in existing]
    known = [rule for rule in matched if rule]
    return known if len(known) == len(matched) else None


def _words(spec: str) -> Iterator[str]:
    for quoted, plain in _WORD.findall(spec):
        yield plain or (_ESCAPED.sub(_unescaped, quoted) if "\\" in quoted else quoted)


def _unescaped(match: re.Match[str]) -> str:
    return match[1]


def _expressions(version: int, words: Iterator[str]) -> Expressions:
    """Renders a rule: the header's matches come first, in iptables-nft's order, then extensions in the rule's order."""
    header: dict[str, bytes] = {}
    matches, other_matches, comment, action, protocol = b"", b"", "", b"", 0
    positive = True
    for word in words:
        if action:
            raise _UnknownError  # the target is the last word
        if word == "!":
            positive = False
            continue
        if word in _HEADER:
            if word in header:
                raise _UnknownError
            value = next(words)
            header[word] = _HEADER[word](version, value, positive)
            protocol = nft_rule.PROTOCOLS[value] if word == "-p" else protocol
        elif not positive:
            raise _UnknownError
        elif word == "-m":
            name, option, value = next(words), next(words), next(words)
            match = _match(name, option, value, protocol)
            matches += match
            comment = value if name == "comment" else comment
            other_matches += _OTHER_FORMS[name](value) if name in _OTHER_FORMS else match
        elif word == "-j":
            action = _target(version, next(words), words)
        else:
            raise _UnknownError
        positive = True
    start = b"".join(header[word] for word in _HEADER if word in header)
    return Expressions(start + matches, start + other_matches, comment, action, protocol)


def _interface(key: int) -> Callable[[int, str, bool], bytes]:
    def match(_version: int, name: str, positive: bool) -> bytes:
        data = name.encode() + b"\0"
        if name.endswith("+") or not 1 < len(data) <= _IFNAMSIZ:
            raise _UnknownError
        return expression.meta(key) + expression.compare(EQ if positive else NEQ, data)

    return match


def _protocol(_version: int, name: str, positive: bool) -> bytes:
    if not positive:
        raise _UnknownError
    return nft_rule.transport(name)


class _AddressMatch(Protocol):
    def __call__(self, where: IPv4Network | IPv6Network, *, positive: bool) -> bytes: ...


def _address(match: _AddressMatch) -> Callable[[int, str, bool], bytes]:
    def parse(version: int, text: str, positive: bool) -> bytes:
        host, slash, prefix = text.partition("/")
        packed = inet_pton(_FAMILIES[version], host)
        bits = _port(prefix) if slash else len(packed) * 8  # iptables reads other masks otherwise
        if not bits:
            raise _UnknownError
        return match(_NETWORKS[version]((packed, bits)), positive=positive)

    return parse


# In the order in which iptables-nft sends them.
_HEADER: dict[str, Callable[[int, str, bool], bytes]] = {
    "-i": _interface(expression.META_IIFNAME),
    "-o": _interface(expression.META_OIFNAME),
    "-p": _protocol,
    "-s": _address(nft_rule.source),
    "-d": _address(nft_rule.destination),
}


def _match(name: str, option: str, value: str, protocol: int) -> bytes:
    if (name, option) in (("tcp", "--dport"), ("udp", "--dport")) and protocol == nft_rule.PROTOCOLS[name]:
        return nft_rule.destination_port(_port(value))
    if (name, option) == ("comment", "--comment"):
        text = value.encode("utf-8", "surrogateescape")
        if len(text) > COMMENT_MAX:
            raise _UnknownError
        return _extension("match", name, 0, text.ljust(COMMENT_MAX + 1, b"\0"))
    if (name, option) == ("multiport", "--dports"):
        ports = [_port(port) for port in value.split(",")]
        if len(ports) > _PORTS_MAX:
            raise _UnknownError
        padding = [0] * (_PORTS_MAX - len(ports))
        return _extension("match", name, 1, _MULTIPORT.pack(_DESTINATION, len(ports), *ports, *padding))
    if (name, option) == ("conntrack", "--ctstate"):
        states = sum({_STATES[state] for state in value.split(",")})
        return _extension("match", name, 3, _CONNTRACK.pack(_MATCH_STATE, 0, states))
    if (name, option, value) == ("addrtype", "--dst-type", "LOCAL"):
        return _extension("match", name, 1, _ADDRTYPE.pack(0, 1 << expression.LOCAL, 0))
    if (name, option) == ("mark", "--mark"):
        return nft_rule.mark_match(_bit(value))
    raise _UnknownError


# The matches in the form of other versions.
_OTHER_FORMS: dict[str, Callable[[str], bytes]] = {
    "comment": lambda text: b"",
    "mark": lambda text: _extension("match", "mark", 1, _MARK_MATCH.pack(1 << _bit(text), 1 << _bit(text), 0)),
}


def _port(text: str) -> int:
    if str(int(text)) != text:  # iptables reads 010 as 8
        raise _UnknownError
    return int(text)


def _bit(text: str) -> int:
    """Returns the number of the bit to match or to set: 13 for "0x2000/0x2000"."""
    number = int(text.partition("/")[0], 16)
    if text != f"{number:#x}/{number:#x}" or number.bit_count() != 1:
        raise _UnknownError
    return number.bit_length() - 1


def _target(version: int, name: str, words: Iterator[str]) -> bytes:
    if name in _VERDICTS:
        return _VERDICTS[name]
    if name == "MASQUERADE":
        return _extension("target", name, 0, _ANY_ADDRESS[version])
    if name == "MARK":
        if next(words) != "--set-xmark":
            raise _UnknownError
        mark = 1 << _bit(next(words))
        return _extension("target", name, 2, _MARK.pack(mark, mark))
    if name == "DNAT":
        if next(words) != "--to-destination":
            raise _UnknownError
        host, _, port = next(words).rpartition(":")
        address = ip_address(host.strip("[]"))
        if address.version != version:
            raise _UnknownError
        packed = address.packed.ljust(16, b"\0")
        number = _port(port).to_bytes(2, "big")
        info = _RANGE.pack(_MAP_IPS | _PROTO_SPECIFIED, packed, packed, number, number)
        return _extension("target", name, 2, info)
    if _BUILT_IN_TARGETS.fullmatch(name):
        raise _UnknownError
    return nft_rule.jump(name)


def _extension(kind: str, name: str, revision: int, info: bytes) -> bytes:
    return expression.extension(kind, name, revision, info)
