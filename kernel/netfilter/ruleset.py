"""Reads the whole packet filter of this namespace as values: base chains, rules, sets, of every family.

This module only reads; podwire.predictions predicts from these values what happens to a packet.

Cost: one dump each of tables, chains, rules and sets, and one for each set that a packet is looked up in.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernel import device
from kernel.codec_netfilter import ChainMessage, RuleMessage, SetMessage, TableMessage
from kernel.device import Device
from kernel.netfilter import nft, nft_set
from kernel.netfilter.nft import NftSocket, Table
from kernel.netfilter.nft_expression import attributes, parse_content
from kernel.netfilter.nft_rule import parse_comment, parse_expressions
from kernel.netfilter.rule_index import RuleIndex
from kernel.rtnl import NLM_F_DUMP, Request, Socket
from process.values import dataclass, field, replace

NETDEV, ARP = 5, 3  # NFPROTO_*
FAMILY_NAMES = {nft.INET: "inet", nft.IPV4: "ip", nft.IPV6: "ip6", nft.BRIDGE: "bridge", NETDEV: "netdev", ARP: "arp"}
_GETTABLE, _GETCHAIN, _GETRULE, _GETSET = (10 << 8 | number for number in (1, 4, 7, 10))
_DORMANT = 1  # NFT_TABLE_F_DORMANT
_ELEM_KEY, _ELEM_DATA, _ELEM_FLAGS, _ELEM_KEY_END = 1, 2, 3, 10  # NFTA_SET_ELEM_*
_INTERVAL, _INTERVAL_END = 4, 1  # NFT_SET_INTERVAL, NFT_SET_ELEM_INTERVAL_END
_WORD = 4
MOST_ELEMENTS = 20_000  # a packet's look-up in a larger set stays undecided

_NO_RULES: list[FilterRule] = []
Expression = tuple[str, dict[int, bytes]]


@dataclass(frozen=True)
class FilterRule:
    """A rule: its place, and its parts for the evaluation: expressions of nftables, or words of iptables-legacy."""

    chain: FilterChain
    handle: int
    expressions: tuple[Expression, ...] = ()
    words: tuple[str, ...] = ()
    comment: str = ""
    data: bytes = b""


@dataclass(frozen=True)
class FilterChain:
    """A chain; `hook` is None for one that only jumps lead to. `tool` is iptables-legacy's program, or ""."""

    family: int
    table: str
    name: str
    kind: str = ""
    hook: int | None = None
    priority: int = 0
    drops: bool = False
    devices: tuple[str, ...] = ()
    tool: str = ""

    @property
    def place(self) -> tuple[int, str, str, str]:
        """The identity of the chain."""
        return self.family, self.table, self.name, self.tool

    def __str__(self) -> str:
        if self.tool:
            return f"{self.name} in table {self.table} of {self.tool}"
        return f"{FAMILY_NAMES.get(self.family, self.family)} {self.table} {self.name}"


@dataclass(frozen=True)
class Elements:
    """The elements of a set or map: exact keys, and ranges; the values of a map are raw attributes."""

    exact: dict[bytes, bytes]
    ranges: tuple[tuple[bytes, bytes, bytes], ...]
    is_concatenation: bool

    def find(self, key: bytes) -> bytes | None:
        """Returns the value of the element that contains `key` (b"" in a set), None without one."""
        if key in self.exact:
            return self.exact[key]
        for first, last, value in self.ranges:
            if self.is_concatenation:
                words = range(0, len(key), _WORD)
                if all(first[at : at + _WORD] <= key[at : at + _WORD] <= last[at : at + _WORD] for at in words):
                    return value
            elif first <= key <= last:
                return value
        return None


@dataclass(frozen=True)
class Ruleset:
    """All chains and rules, the rules by the place of their chain; `interfaces` are the devices by name.

    No packet passes the chains of a `dormant` table: they have no hook here.
    """

    chains: tuple[FilterChain, ...] = ()
    rules: dict[tuple[int, str, str, str], list[FilterRule]] = field(default_factory=dict)
    interval_sets: frozenset[tuple[int, str, str]] = frozenset()
    interfaces: dict[str, Device] = field(default_factory=dict)
    dormant: frozenset[tuple[int, str]] = frozenset()
    _sets: dict[tuple[int, str, str], Elements | None] = field(default_factory=dict)
    _indexes: dict[tuple[int, str, str, str], RuleIndex] = field(default_factory=dict)

    def get_set(self, family: int, table: str, name: str) -> Elements | None:
        """Returns the elements of a set, None if they cannot be used; read at the first use."""
        place = family, table, name
        if place not in self._sets:
            with nft.open_socket() as socket:
                self._sets[place] = _read_elements(socket, place, is_interval=place in self.interval_sets)
        return self._sets[place]

    def candidates(self, chain: FilterChain, port: int | None) -> list[FilterRule]:
        """Returns the rules of a chain that may match a packet to a destination port, all if that is None."""
        rules, index = self.rules.get(chain.place, _NO_RULES), self._indexes.get(chain.place)
        if index is None or index.rules is not rules:  # a copy of this ruleset may have other rules
            index = self._indexes[chain.place] = RuleIndex(rules)
        return index.candidates(port)

    def base_chains(self, families: tuple[int, ...], hook: int) -> list[FilterChain]:
        """Returns the base chains of a hook, in the order in which a packet passes them."""
        matching = [chain for chain in self.chains if chain.hook == hook and chain.family in families]
        return sorted(matching, key=lambda chain: chain.priority)


def read_ruleset() -> Ruleset:
    """Reads the rules of nftables, none if the kernel has no netfilter; raises KernelError."""
    try:
        socket = nft.open_socket()
    except nft.UnavailableError:
        return Ruleset()
    with socket:
        dormant = frozenset(
            (one["family"], one.get_attr("NFTA_TABLE_NAME") or "")
            for one in _dump(socket, "tables", TableMessage, _GETTABLE)
            if (one.get_attr("NFTA_TABLE_FLAGS") or 0) & _DORMANT
        )
        chains = {one.place: one for one in map(_chain, _dump(socket, "chains", ChainMessage, _GETCHAIN))}
        for place, chain in chains.items():
            if (chain.family, chain.table) in dormant:
                chains[place] = replace(chain, hook=None)
        rules: dict[tuple[int, str, str, str], list[FilterRule]] = {}
        if chains:
            for message in _dump(socket, "rules", RuleMessage, _GETRULE):
                table, name = message.get_attr("NFTA_RULE_TABLE") or "", message.get_attr("NFTA_RULE_CHAIN") or ""
                place = message["family"], table, name, ""
                if place in chains:
                    rules.setdefault(place, []).append(_rule(chains[place], message))
        intervals = set()
        if rules:
            for message in _dump(socket, "sets", SetMessage, _GETSET):
                if (message.get_attr("NFTA_SET_FLAGS") or 0) & _INTERVAL:
                    table, name = message.get_attr("NFTA_SET_TABLE") or "", message.get_attr("NFTA_SET_NAME") or ""
                    intervals.add((message["family"], table, name))
    with Socket() as links:
        interfaces = {one.link.name: one for one in device.list_all(links)}
    return Ruleset(tuple(chains.values()), rules, frozenset(intervals), interfaces, dormant)


def _dump(socket: NftSocket, what: str, kind: type[object], number: int) -> list[ChainMessage]:
    request = Request(f"list the {what} of nftables", kind, number, NLM_F_DUMP, {"family": 0}, ignore=nft.ABSENT_ERRNOS)
    return socket.dump(request)


def _chain(message: ChainMessage) -> FilterChain:
    get = message.get_attr
    place = message["family"], get("NFTA_CHAIN_TABLE") or "", get("NFTA_CHAIN_NAME") or ""
    hook = get("NFTA_CHAIN_HOOK")
    if hook is None:
        return FilterChain(*place)
    number, priority = hook.get_attr("NFTA_HOOK_HOOKNUM") or 0, hook.get_attr("NFTA_HOOK_PRIORITY") or 0
    devices = [content for _, _, content in attributes(hook.get_attr("NFTA_HOOK_DEVS") or b"")]
    names = [one.rstrip(b"\0").decode(errors="replace") for one in devices]
    if device := hook.get_attr("NFTA_HOOK_DEV"):
        names.append(device)
    drops = get("NFTA_CHAIN_POLICY") == 0  # NF_DROP
    return FilterChain(*place, get("NFTA_CHAIN_TYPE") or "", number, priority, drops, tuple(dict.fromkeys(names)))


def _rule(chain: FilterChain, message: RuleMessage) -> FilterRule:
    data = message.get_attr("NFTA_RULE_EXPRESSIONS") or b""
    comment = parse_comment(message.get_attr("NFTA_RULE_USERDATA") or b"")
    expressions = tuple(parse_expressions(data))
    return FilterRule(chain, message.get_attr("NFTA_RULE_HANDLE") or 0, expressions, (), comment, data)


def _read_elements(socket: NftSocket, place: tuple[int, str, str], *, is_interval: bool) -> Elements | None:
    family, table, name = place
    exact: dict[bytes, bytes] = {}
    ranges: list[tuple[bytes, bytes, bytes]] = []
    bounds: list[tuple[bytes, bool, bytes]] = []
    for number, content in enumerate(nft_set.list_encoded(socket, nft_set.Set(Table(family, table), name, ()))):
        if number > MOST_ELEMENTS:
            return None
        element = parse_content(content)
        key, key_end = (parse_content(element.get(kind, b"")).get(1, b"") for kind in (_ELEM_KEY, _ELEM_KEY_END))
        value = element.get(_ELEM_DATA, b"")
        if key_end:
            ranges.append((key, key_end, value))
        elif is_interval:
            bounds.append((key, int.from_bytes(element.get(_ELEM_FLAGS, b""), "big") & _INTERVAL_END != 0, value))
        else:
            exact[key] = value
    return Elements(exact, tuple(ranges) if ranges else tuple(_intervals(bounds)), bool(ranges))


def _intervals(bounds: list[tuple[bytes, bool, bytes]]) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yields the ranges between the starts and the ends of an interval set; an end is not part of its range."""
    start: tuple[bytes, bytes] | None = None
    for key, is_end, value in sorted(bounds, key=lambda bound: (bound[0], not bound[1])):
        if start is not None:
            yield start[0], _before(key), start[1]
        start = None if is_end else (key, value)
    if start is not None:
        yield start[0], b"\xff" * len(start[0]), start[1]


def _before(key: bytes) -> bytes:
    return (int.from_bytes(key, "big") - 1).to_bytes(len(key), "big") if any(key) else key
