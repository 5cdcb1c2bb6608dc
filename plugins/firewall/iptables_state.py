"""What is there of the firewall's rules in iptables, as `iptables -S` lists it.

One rule: nothing is changed, and no program is run where netlink tells all: of iptables-nft's tables it tells rules
that are surely understood. What cannot matter is not decoded, since a host may have a thousand pods.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable

from cni.address import Address
from cni.conf import Attachment
from kernel.errors import KernelError
from kernel.netfilter import iptables, iptables_listing, nft, nft_rule
from kernel.netfilter.iptables import NFPROTO
from kernel.netfilter.iptables_direct import LineMatcher
from kernel.netfilter.nft import Chain, NftSocket, Table
from plugins.firewall.iptables_rules import (
    ENTRY,
    FORWARD,
    FORWARD_JUMP,
    OWNERS,
    STAGE_1,
    STAGE_2,
    TABLE,
    address_rules,
    admin_jump,
    owner,
    owner_text,
    record,
    records,
)
from plugins.firewall.iptables_update import accepted_addresses, required_chains
from plugins.firewall.spec import FirewallSpec
from process.values import dataclass

_RETURN = struct.pack(">i", -5)  # NFT_RETURN: a verdict's code in a rule's message
_OWN_CHAINS = (OWNERS, FORWARD, STAGE_1, STAGE_2)

Wanted = Callable[[bytes], object]  # tells by a rule's message whether the rule matters


@dataclass(frozen=True)
class ExistingRule:
    """A rule where it stands; `line` is "" for one that is not surely understood."""

    chain: Chain
    handle: int
    line: str


def get_listings(spec: FirewallSpec) -> dict[int, list[str]]:
    """Returns for each IP version what matters to `spec`, from one netlink conversation where that tells all.

    Else one program for each version is run. Raises RefusedError for what it cannot list, UnusableError, CniError(11).
    """
    found: dict[int, list[str]] = {}
    asked: dict[int, list[str]] = {}
    for version in spec.versions:
        if iptables.has_legacy(version, TABLE):
            asked[version] = []  # the whole table
    try:
        with nft.open_socket() as socket:
            for version in spec.versions:
                if version not in asked:
                    present, rules = _relevant(socket, spec, version)
                    if all(rule.line for rule in rules):
                        found[version] = listed(present, rules)
                    else:
                        asked[version] = list(dict.fromkeys((*present, *(rule.chain.name for rule in rules))))
    except KernelError:  # a kernel without nftables, or one that does not tell us: the programs will
        asked = {version: [] for version in spec.versions}
        found = {}
    return found | iptables.list_chains(asked, TABLE)


def listed(present: Iterable[str], rules: Iterable[ExistingRule]) -> list[str]:
    """Returns chains and rules as `-S` lists them."""
    return [*(f"-N {name}" for name in present), *(rule.line for rule in rules)]


def removable(socket: NftSocket, spec: FirewallSpec, version: int) -> tuple[dict[str, int], list[ExistingRule]]:
    """Returns the chains that are there, each with the number of its rules, and the rules that matter to DEL.

    Those are the attachment's records, what there is of its addresses, and each bridge's policy.
    """
    present = there(socket, version, _OWN_CHAINS)
    text = owner_text(spec.network, Attachment(spec.container_id, spec.ifname))
    own = owner(spec.network, Attachment(spec.container_id, spec.ifname))
    addresses = {address for address in spec.addresses if address.version == version}
    table = Table(NFPROTO[version], TABLE)

    def recorded(parts: set[bytes]) -> list[ExistingRule]:
        return placed(socket, Chain(table, OWNERS), version, _having(parts)) if OWNERS in present else []

    found = recorded(_values(addresses) | {text.encode(errors="surrogateescape")})
    of_records = {item.address for item in records(rule.line for rule in found) if item.match == own}
    if further := of_records - addresses:
        addresses |= further
        found += [rule for rule in recorded(_values(further)) if rule not in found]
    if FORWARD in present and addresses:
        found += placed(socket, Chain(table, FORWARD), version, _having(_values(addresses)))
    return present, found + _of_stages(socket, present, version)


def collectable(socket: NftSocket, version: int) -> tuple[dict[str, int], list[ExistingRule]]:
    """Returns the same for GC, to which all records and addresses matter."""
    present = there(socket, version, _OWN_CHAINS)
    table = Table(NFPROTO[version], TABLE)
    names = [name for name in (OWNERS, FORWARD) if name in present]
    found = [rule for name in names for rule in placed(socket, Chain(table, name), version)]
    return present, found + _of_stages(socket, present, version)


def _relevant(socket: NftSocket, spec: FirewallSpec, version: int) -> tuple[dict[str, int], list[ExistingRule]]:
    """Returns the chains that are there of those that are needed, and the rules that matter to ADD and CHECK."""
    table = Table(NFPROTO[version], TABLE)
    present = there(socket, version, (*required_chains(spec), STAGE_1))
    values = _values(accepted_addresses(spec, version))
    bridge = {spec.bridge.encode(errors="surrogateescape") + b"\0", _RETURN}
    matters: dict[str, Wanted] = {
        ENTRY: _having({name.encode() + b"\0" for name in (FORWARD, STAGE_1)}),
        FORWARD: _having(values | {spec.admin_chain.encode() + b"\0"}),
        OWNERS: _having(values),
        STAGE_1: _having(bridge),
        STAGE_2: _having(bridge),
    }
    looked_at = [name for name in matters if name in required_chains(spec) and name in present]
    if FORWARD in present or STAGE_1 in present:
        looked_at.insert(0, ENTRY)
    found = []
    expected = _expected(spec, version)
    for name in looked_at:
        lines = [line for line in expected if line.startswith(f"-A {name} ")]
        found += placed(socket, Chain(table, name), version, matters[name], lines)
    return present, found


def _expected(spec: FirewallSpec, version: int) -> list[str]:
    """Returns the rules that are most likely there, each chain's in order."""
    addresses = accepted_addresses(spec, version)
    own = [line for address in addresses for line in (*address_rules(address), record(spec, address))]
    return [FORWARD_JUMP, admin_jump(spec.admin_chain), *own]


def there(socket: NftSocket, version: int, names: Iterable[str]) -> dict[str, int]:
    """Returns those of the chains that are there, each with how many rules it has and rules that lead to it."""
    own = [Chain(Table(NFPROTO[version], TABLE), name) for name in dict.fromkeys(names)]
    return {chain.name: chain.uses for chain in nft.get_chains(socket, *own) if chain}


def placed(
    socket: NftSocket, chain: Chain, version: int, spec: Wanted | str = "", expected: Collection[str] = ()
) -> list[ExistingRule]:
    """Returns the `spec` rules of a chain, in order; to recognise those that are `expected` is quicker."""
    known = LineMatcher(version, expected)
    return [
        ExistingRule(chain, rule.handle, known.line(rule) or iptables_listing.render_line(chain.name, rule, version))
        for rule in nft.list_rules(socket, chain, spec)
    ]


def _of_stages(socket: NftSocket, present: Collection[str], version: int) -> list[ExistingRule]:
    names = [name for name in (STAGE_1, STAGE_2) if name in present]
    table = Table(NFPROTO[version], TABLE)
    return [rule for name in names for rule in placed(socket, Chain(table, name), version)]


def _values(addresses: Iterable[Address]) -> set[bytes]:
    """Returns what stands in a message whose rule is about one of the addresses."""
    return {nft_rule.compared_value(address.packed) for address in addresses}


def _having(parts: Collection[bytes]) -> Wanted:
    return lambda message: any(part in message for part in parts)
