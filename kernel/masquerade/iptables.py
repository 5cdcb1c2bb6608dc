r"""Masquerading with iptables: for each container and network a chain in table nat, and jumps to it from POSTROUTING.

One rule: names, rules and comments are the reference's, so that either can take away what the other has made.

    -A POSTROUTING -s 10.22.0.2/32 -m comment --comment "name: \"net\" id: \"cid\"" -j CNI-2bbe0c48b91a7d1b8a6753a8
    -A CNI-2bbe0c48b91a7d1b8a6753a8 -d 10.22.0.0/16 ... -j ACCEPT
    -A CNI-2bbe0c48b91a7d1b8a6753a8 ! -d 224.0.0.0/4 ... -j MASQUERADE

No rule names the interface: two interfaces of one container on one network share the chain, and only the address in a
jump tells whose it is. So ADD adds what is missing and leaves every other jump alone; DEL is told which addresses the
container still has.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network

from cni.address import Interface, Network
from cni.errors import CniError, Code
from kernel import iptables
from kernel.masquerade.names import ENTRY, TABLE, chain_name
from kernel.masquerade.wanted import Masquerade

_MULTICAST: dict[int, Network] = {4: IPv4Network("224.0.0.0/4"), 6: IPv6Network("ff00::/8")}
_COMMENT_BYTES = 255  # XT_MAX_COMMENT_LEN - 1 (linux/netfilter/xt_comment.h)
_ROUNDS = 3  # another verb may change the chain between our reading and our writing

_RULE = re.compile(
    r"-A (?P<chain>\S+)(?: -s (?P<source>\S+))?(?:(?P<inverted> !)? -d (?P<destination>\S+))?"
    r'(?: -m comment --comment (?:"(?:[^"\\]|\\.)*"|\S+))? -j (?P<target>\S+)'
)
_OWNER = re.compile(r' --comment "name: \\"(?P<network>[^"\\]+)\\" id: \\"(?P<container_id>[^"\\]+)\\"" ')

Plan = Callable[[int, list[str]], list[str]]  # from a family and its listing to the lines to apply


def add(wanted: Masquerade) -> None:
    """Adds what is missing of the chain and of the jumps of `wanted.addresses`; nothing is written when all is there.

    Raises iptables.UnusableError, CniError(11), CniError(999); one family may then have its rules, which `delete`
    takes away.
    """
    chain = chain_name(wanted.network, wanted.container_id)

    def missing(family: int, listing: list[str]) -> list[str]:
        found = _parse(listing)
        exceptions, masquerade, jumps = _rules(wanted, family)
        comment = _comment(wanted.network, wanted.container_id)
        lines = [] if f"-N {chain}" in listing else [f"-N {chain}"]
        absent = [rule for rule in exceptions if rule not in _before(masquerade, found)]
        if masquerade in found:  # exceptions stand before it
            lines += [rule.line("-I", comment) for rule in reversed(absent)]
        else:
            lines += [rule.line("-A", comment) for rule in (*absent, masquerade)]
        return lines + [rule.line("-A", comment) for rule in jumps if rule not in found]

    doing = f"add masquerade rules to chain {chain}"
    _change(_families(wanted), chain, missing, doing)


def delete_legacy(wanted: Masquerade, others: Collection[Interface] = ()) -> None:
    """Deletes of what iptables-legacy made the jumps of the attachment, and the chain with the last; absent is success.

    `others` are the addresses of the container's other interfaces. Their jumps stay; all others go, whatever
    `wanted.addresses` are, since such an address is this interface's or was one in a former life of the container.
    Raises CniError(11), CniError(999).
    """
    chain = chain_name(wanted.network, wanted.container_id)
    kept = _sources(others)

    def present(family: int, listing: list[str]) -> list[str]:
        jumps = _jumps_to(chain, listing)
        gone = [line for line in jumps if _source(line) not in kept]
        last = len(gone) == len(jumps) and f"-N {chain}" in listing
        return _deletions(gone) + (_removal(chain) if last else [])

    _change_legacy(chain, present, f"delete masquerade rules of chain {chain}")


def check(wanted: Masquerade) -> None:
    """Checks that chain, rules and jumps are there; raises CniError(999) naming what is missing, and as `add`."""
    chain = chain_name(wanted.network, wanted.container_id)
    for family, listing in iptables.read(_families(wanted), TABLE, [ENTRY, chain]).items():
        if f"-N {chain}" not in listing:
            raise _missing(f"chain {chain}", family)
        found = _parse(listing)
        exceptions, masquerade, jumps = _rules(wanted, family)
        effective = set(_before(masquerade, found))
        absent = [rule for rule in exceptions if rule not in effective]
        absent += [rule for rule in (masquerade, *jumps) if rule not in found]
        if absent:
            comment = _comment(wanted.network, wanted.container_id)
            raise _missing(f"rule {absent[0].line('-A', comment)}", family)


def gc_legacy(network: str, kept: Collection[str]) -> None:
    """Deletes of what iptables-legacy made the jumps and chains of `network` that are not `kept`; raises as `delete`.

    A jump is the network's when its comment names network and container and its chain is the one that follows from
    both. Where the comment was cut this cannot be proven: such jumps stay, and their number is told on stderr.
    """

    def stale(family: int, listing: list[str]) -> list[str]:
        mark = f' --comment "name: \\"{network}\\" id: '
        own = [line for line in listing if mark in line and not set(line.split()).intersection(kept)]
        chains = dict.fromkeys(chain for line in own if (chain := _proven_chain(line)))
        doubtful = [line for line in own if chains.keys().isdisjoint(line.split())]
        if doubtful:
            what = f"{len(doubtful)} masquerade rules (IPv{family}) seem to be of network {network}"
            print(f"podwire: {what} and stay, since their comments do not prove it", file=sys.stderr)
        lines = []
        for chain in chains:
            lines += _deletions(_jumps_to(chain, listing)) + _removal(chain)
        return lines

    _change_legacy(ENTRY, stale, f"delete stale masquerade rules of network {network}")


def problem() -> str:
    """Returns "" when IPv4 can be masqueraded with iptables, else what is missing (a host may be without IPv6)."""
    return iptables.problem((4,))


@dataclass(frozen=True)
class _Rule:
    """One rule by its meaning: the comment does not count, and a network that is everything is None."""

    chain: str
    target: str
    source: Network | None = None
    destination: Network | None = None
    inverted: bool = False

    def line(self, command: str, comment: str) -> str:
        """Returns the rule as iptables lists it, with `command` ("-A", "-I") in front."""
        source = f" -s {self.source}" if self.source else ""
        destination = f"{' !' if self.inverted else ''} -d {self.destination}" if self.destination else ""
        return f"{command} {self.chain}{source}{destination} -m comment --comment {comment} -j {self.target}"


def _rules(wanted: Masquerade, family: int) -> tuple[list[_Rule], _Rule, list[_Rule]]:
    """Returns what belongs into the chain, traffic that is left as it is and the rest, and the jumps to it."""
    chain = chain_name(wanted.network, wanted.container_id)
    own = [item for item in wanted.addresses if item.version == family]
    spared = [*(item.network for item in own), *(item for item in wanted.exempt if item.version == family)]
    exceptions = [_Rule(chain, "ACCEPT", destination=network if network.prefixlen else None) for network in spared]
    masquerade = _Rule(chain, "MASQUERADE", destination=_MULTICAST[family], inverted=True)
    jumps = [_Rule(ENTRY, chain, source=ip_network(item.ip)) for item in own]
    return list(dict.fromkeys(exceptions)), masquerade, list(dict.fromkeys(jumps))


def _change(families: Iterable[int], chain: str, plan: Plan, doing: str) -> None:
    """Reads POSTROUTING and `chain` where there may be such a chain, plans and applies.

    Again when what was read has changed meanwhile.
    """
    for tries_left in reversed(range(_ROUNDS)):
        present = iptables.may_have(families, TABLE, chain)
        listings = iptables.read(present, TABLE, list(dict.fromkeys((ENTRY, chain))))
        absent: dict[int, list[str]] = {family: [] for family in families if family not in present}
        changes = {family: plan(family, listing) for family, listing in (absent | listings).items()}
        try:
            iptables.apply(changes, TABLE, doing)
        except iptables.RefusedError:
            if not tries_left:
                raise
        else:
            return


def _change_legacy(chain: str, plan: Plan, doing: str) -> None:
    """Has iptables-legacy take rules away, in families whose table it has made; without its program nothing can be."""
    families = iptables.legacy_families(TABLE)
    if families:
        _change(families, chain, plan, doing)


def _families(wanted: Masquerade) -> list[int]:
    return sorted({item.version for item in wanted.addresses})


def _comment(network: str, container_id: str) -> str:
    """Returns the comment of all rules as iptables quotes it, cut as xt_comment demands."""
    text = f'name: "{network}" id: "{container_id}"'[:_COMMENT_BYTES]
    return '"' + text.replace('"', '\\"') + '"'


def _parse(listing: list[str]) -> list[_Rule]:
    """Returns the rules that have the form of ours; other rules are none of them."""
    found = []
    for line in listing:
        if match := _RULE.fullmatch(line):
            source, destination = _network(match["source"]), _network(match["destination"])
            found.append(_Rule(match["chain"], match["target"], source, destination, bool(match["inverted"])))
    return found


def _before(rule: _Rule, found: list[_Rule]) -> list[_Rule]:
    """Returns the rules in front of `rule`: behind it, in its chain, an exception is none."""
    return found[: found.index(rule)] if rule in found else found


def _sources(addresses: Iterable[Interface]) -> set[Network | None]:
    """Returns what a jump may name as the source of an address: the address, or (before 0.7) its whole subnet."""
    return {network for item in addresses for network in (ip_network(item.ip), item.network)}


def _source(line: str) -> Network | None:
    words = line.split()
    return _network(words[words.index("-s") + 1]) if "-s" in words else None


def _network(text: str | None) -> Network | None:
    try:
        return ip_network(text) if text else None
    except ValueError:  # iptables can match on bits that are no prefix
        return None


def _jumps_to(chain: str, listing: list[str]) -> list[str]:
    return [line for line in listing if line.startswith(f"-A {ENTRY} ") and chain in line.split()]


def _deletions(lines: list[str]) -> list[str]:
    """Returns the lines that delete listed rules, in iptables' own words."""
    return ["-D" + line.removeprefix("-A") for line in lines]


def _removal(chain: str) -> list[str]:
    return [f"-F {chain}", f"-X {chain}"]


def _proven_chain(line: str) -> str:
    """Returns the chain a jump goes to when its comment proves whose it is, else ""."""
    owner = _OWNER.search(line)
    chain = chain_name(owner["network"], owner["container_id"]) if owner else ""
    return chain if chain in line.split() else ""


def _missing(what: str, family: int) -> CniError:
    return CniError(
        Code.INTERNAL,
        f"masquerade: {what} is missing in table {TABLE} ({'iptables' if family == 4 else 'ip6tables'})",
        "removed by a firewall's reload perhaps, or asked for only since; remove the container and create it again",
    )
