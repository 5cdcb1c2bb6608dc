"""What netlink tells of host ports in iptables-nft's tables, so that no program need be run to look.

One rule: what is not surely recognised counts as unknown, and the program is asked.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Iterable

from cni.address import Address
from kernel.errors import KernelError
from kernel.netfilter import iptables, nft
from kernel.netfilter.iptables_chains import TABLE
from kernel.netfilter.iptables_direct import match_lines
from kernel.netfilter.iptables_nft import TABLES, chain_name_pattern
from kernel.netfilter.nft import Chain, NftSocket, Rule
from kernel.rtnl import Request
from plugins.portmap.iptables_rules import (
    CHAINS,
    DNAT,
    chain_of,
    chain_rules,
    entries,
    shared_chains,
    shared_rules,
)
from plugins.portmap.iptables_shared_rules import is_shared
from plugins.portmap.spec import HostPorts
from process.values import dataclass

_BUILT_IN = ("PREROUTING", "OUTPUT", "POSTROUTING")
# struct xt_multiport_v1 (linux/netfilter/xt_multiport.h) behind name and revision of the match, as the kernel lists it.
_MULTIPORT = re.compile(rb"multiport\0..\x08\0\x02\0\0\0\0\x01.{2}\x03\0(.{48})", re.DOTALL)
_PORTS = struct.Struct("=BB15H15BB")
_TO_DESTINATION = 1  # XT_MULTIPORT_DESTINATION
_OWN_CHAIN = chain_name_pattern(CHAINS)


@dataclass(frozen=True)
class Seen:
    """Table nat of one family.

    `listing` has what netlink tells of chains that are ours and of the shared rules, as the program would list it.
    With `clear` that is all there is to know: nothing is in the way of new rules, or all that is there was recognised.
    Else the program is to list `chains`, or all when there are none: no built-in one where it is not needed, since that
    may have rules that iptables cannot express.
    """

    clear: bool
    listing: tuple[str, ...] = ()
    chains: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Tells whether nothing is known: iptables-legacy made the table, or netlink does not tell."""
        return not self.clear and not self.chains


def look(wanted: HostPorts, *, own: bool = False) -> dict[int, Seen]:
    """Returns what is seen of each family; one netlink conversation, no process.

    With `own` also the container's own rules, as far as they are such as we make.
    """
    unknown = Seen(clear=False)
    legacy = {version: unknown for version in wanted.families if iptables.has_legacy(version, TABLE)}
    asked = [version for version in wanted.families if version not in legacy]
    try:
        with nft.open_socket() as socket:
            return legacy | _look(socket, wanted, asked, own=own)
    except KernelError:
        return dict.fromkeys(wanted.families, unknown)


def forwards_elsewhere(socket: NftSocket, ports: HostPorts, chains: Iterable[Chain]) -> bool:
    """Tells whether one of the container's `chains` has a rule that forwards to none of `ports.addresses`.

    Costs a netlink message for each chain. Raises KernelError.
    """
    own = [_range_of(item.ip) for item in ports.addresses.values()]
    rules = [rule for chain in chains for rule in nft.list_rules(socket, chain, "DNAT\0")]
    return any(not any(part in rule.expressions for part in own) for rule in rules)


def tidy(wanted: HostPorts) -> None:
    """Deletes shared rules that are there twice, since two first containers made them at once; raises KernelError.

    iptables-nft, which repeats its commit when another came between, makes them without looking again.
    """
    try:
        with nft.open_socket() as socket:
            nft.retry(lambda: nft.change(socket, *_surplus(socket, wanted)))
    except nft.UnavailableError:
        return


def ports_of(rule: Rule) -> tuple[int, ...]:
    """Returns the ports that an entry is for, none where it does not list them as the reference does."""
    match = _MULTIPORT.search(rule.expressions)
    if not match:
        return ()
    kind, number, *rest = _PORTS.unpack(match[1])
    return () if kind != _TO_DESTINATION or any(rest[15:]) else tuple(rest[:number])


def _range_of(address: Address) -> bytes:
    """Returns the first and last address of a DNAT rule as struct nf_nat_range has them (linux/netfilter/nf_nat.h)."""
    return address.packed.ljust(16, b"\0") * 2


def _surplus(socket: NftSocket, wanted: HostPorts) -> list[Request]:
    found = []
    for version in wanted.families:
        for rule in shared_rules(wanted):
            chain = Chain(TABLES[version], rule.split()[1])
            same = [other for other in nft.list_rules(socket, chain) if is_shared(rule, other, wanted, version)]
            found += [nft.delete_rule_request(chain, other) for other in same[1:]]
    return found


def _look(socket: NftSocket, wanted: HostPorts, versions: Collection[int], *, own: bool) -> dict[int, Seen]:
    names = [chain_of(wanted), *filter(None, [wanted.external_mark_chain]), *shared_chains(wanted)]
    chains = [Chain(TABLES[version], name) for version in versions for name in names]
    present: dict[int, list[str]] = {version: [] for version in versions}
    for chain, found in zip(chains, nft.get_chains(socket, *chains), strict=True):
        if found:
            present[4 if chain.table == TABLES[4] else 6].append(chain.name)
    return {version: _seen(socket, wanted, version, present[version], own=own) for version in versions}


def _seen(socket: NftSocket, wanted: HostPorts, version: int, present: list[str], *, own: bool) -> Seen:
    listing = [f"-N {name}" for name in present]
    unknown = []
    for rule in shared_rules(wanted):
        found = _candidates(socket, wanted, version, rule, present)
        if any(is_shared(rule, candidate, wanted, version) for candidate in found):
            listing.append(rule)
        elif found:
            unknown.append(rule.split()[1])
    # There is an entry for each port, also for one that this IP version does not serve (reference).
    ports = frozenset(mapping.host_port for mapping in (wanted.mappings if own else wanted.of(version)))
    rivals = nft.list_rules(socket, Chain(TABLES[version], DNAT), _perhaps_for(ports)) if DNAT in present else []
    if own and not unknown and (recognised := _recognised(socket, wanted, version, rivals)):
        return Seen(clear=True, listing=(*listing, *recognised))
    clear = not unknown and not rivals and chain_of(wanted) not in present
    names = [name.decode() for rival in rivals for name in _OWN_CHAIN.findall(rival.expressions)]
    needed = [name for name in (chain_of(wanted), DNAT) if name in present]
    return Seen(clear and not own, tuple(listing), tuple(dict.fromkeys((*needed, *unknown, *names))))


def _recognised(socket: NftSocket, wanted: HostPorts, version: int, found: list[Rule]) -> list[str]:
    """Returns the container's rules, those `found` that are for its ports among them; none if one is not such.

    Conditions only the program can read.
    """
    if wanted.conditions.get(version):
        return []
    chain = chain_of(wanted)
    made = [str(rule) for _, marks, dnat in chain_rules(wanted, version) for rule in (*marks, dnat)]
    own = match_lines(version, made, nft.list_rules(socket, Chain(TABLES[version], chain)))
    leading = match_lines(version, entries(wanted, version), found)
    return [] if own is None or leading is None else [*own, *leading]


def _candidates(socket: NftSocket, wanted: HostPorts, version: int, rule: str, present: list[str]) -> list[Rule]:
    """Returns those rules that may be the shared `rule`: in a chain of ours all, else those that lead to ours."""
    name, target = rule.split()[1], rule.rpartition(" ")[2]
    if name in _BUILT_IN:
        return [] if target not in present else nft.list_rules(socket, Chain(TABLES[version], name), f"{target}\0")
    return nft.list_rules(socket, Chain(TABLES[version], name)) if name in present else []


def _perhaps_for(ports: Collection[int]) -> Callable[[bytes], bool]:
    """Returns what tells of a message whether its rule may be for one of `ports`; it is called for each entry."""

    def perhaps(message: bytes) -> bool:
        match = _MULTIPORT.search(message)
        if not match:
            return True
        kind, number, *rest = _PORTS.unpack(match[1])
        ranges_or_inverted = any(rest[15:])
        return kind != _TO_DESTINATION or ranges_or_inverted or any(port in ports for port in rest[:number])

    return perhaps
