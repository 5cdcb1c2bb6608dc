"""The firewall by nftables: a table of our own, whose rules never change; a pod is elements of its sets.

One rule: a verb changes everything in one transaction, made for what it saw, and no process is started. What is to be
there stands in nftables_rules. What firewalld was told of is kept in the same table: nftables_records.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from cni.conf import Attachment
from cni.errors import CniError, UnchangedError
from kernel import link
from kernel.errors import KernelError
from kernel.netfilter import nft, nft_set
from kernel.netfilter.nft import Chain, NftSocket, Table
from kernel.netfilter.nft_set import byte_filter, interface_key
from kernel.rtnl import Request, Socket
from plugins.firewall import nftables_check
from plugins.firewall import nftables_rules as rules
from plugins.firewall.nftables_rules import BASE, MEMBERS, OWNED, POLICED, SAME_BRIDGE_PAIRS, BaseTable, ElementFilter
from plugins.firewall.spec import ISOLATED, SAME_BRIDGE, FirewallSpec

_IPTABLES = {version: Chain(Table(family, "filter"), "FORWARD") for version, family in nft.NFPROTO.items()}
_TOOLS = {4: "iptables", 6: "ip6tables"}
_NEEDS = "the firewall with nftables needs a kernel with sets and connection tracking in tables of family"


def add(spec: FirewallSpec) -> None:
    """Makes table and elements; those that are there stay, and what was another attachment's is this one's now.

    Raises CniError(999) with a hint where the kernel cannot do it; UnchangedError where it said so.
    """
    with nft.open_socket() as socket:
        try:
            _add_surely(socket, spec)
        except KernelError as error:
            kind = CniError if _is_lost(error) else UnchangedError
            raise kind(error.code, error.msg, _problem(socket, rules.required_tables(spec)) or error.details) from error
        if spec.accepts:
            _tell_of_drop(socket, spec.versions)
    if spec.policy == ISOLATED and not spec.ports:
        _tell_of_unknown_port(spec.bridge)


def check(spec: FirewallSpec) -> None:
    """Checks that packets come to the elements and that these are there; raises CniError(999), KernelError."""
    with nft.open_socket() as socket:
        nftables_check.check(socket, spec)


def get_problem() -> str:
    """Tells what the kernel lacks for this, "" when nothing; tries it and leaves nothing behind."""
    try:
        with nft.open_socket() as socket:
            return _problem(socket, [BASE])
    except nft.UnavailableError as error:
        return str(error)


def delete(socket: NftSocket, spec: FirewallSpec) -> None:
    """Deletes the attachment's elements, whatever addresses are known; absent is success. Raises KernelError."""
    _delete(socket, ElementFilter.attachments(spec))


def gc(socket: NftSocket, network: str, valid: Collection[Attachment]) -> None:
    """Deletes the elements of a network's attachments that are not `valid`; raises KernelError."""
    _delete(socket, ElementFilter.stale(network, valid))


def _add_surely(socket: NftSocket, spec: FirewallSpec) -> None:
    """Makes what is missing; once more where the answer was lost, and with it what came of that. Raises KernelError."""
    attempt = partial(nft.retry_with_generation, socket, lambda generation: _add(socket, spec, generation))
    try:
        attempt()
    except KernelError as error:
        if not _is_lost(error):
            raise
        attempt()


def _is_lost(error: KernelError) -> bool:
    """Tells whether it was the conversation that failed, so that the kernel may have done what it was asked for."""
    return isinstance(error.__cause__, OSError)


def _add(socket: NftSocket, spec: FirewallSpec, generation: int) -> None:
    requests = [request for base in rules.required_tables(spec) for request in _made(socket, base)]
    requests += _changes(socket, ElementFilter.attachments(spec), spec)
    nft.change(socket, *requests, generation=generation)


def _delete(socket: NftSocket, whose: ElementFilter) -> None:
    nft.retry_with_generation(
        socket, lambda generation: nft.change(socket, *_changes(socket, whose, None), generation=generation)
    )


def _made(socket: NftSocket, base: BaseTable) -> list[Request]:
    """Returns what makes a table, nothing if it is there.

    How many rules its chains have is enough here, as nobody else's belong there; CHECK looks at each.
    """
    found = nft.get_chains(socket, *base.uses)
    if all(chain == own and chain.uses == uses for chain, (own, uses) in zip(found, base.uses.items(), strict=True)):
        return []
    return _requests(base)


def _requests(base: BaseTable) -> list[Request]:
    requests = [
        nft.table_request(base.table),
        *map(nft_set.set_request, base.sets),
        *map(nft.chain_request, base.chains),
    ]
    for chain, content in base.rules.items():
        # Flushed even when it is empty: another first pod may fill it before us.
        requests += [nft.flush_chain_request(chain), *(nft.rule_request(chain, rule.expressions) for rule in content)]
    return requests


def _changes(socket: NftSocket, whose: ElementFilter, spec: FirewallSpec | None) -> list[Request]:
    """Returns what leaves of the elements that are `whose` those that are `spec`, and adds what is missing."""
    requests: list[Request] = []
    left: set[bytes] = set()  # members that go
    expected = rules.desired_elements(spec) if spec else {}
    for own in OWNED:
        new = {element.key: element for element in expected.get(own, ())}
        found = nft_set.list_elements(socket, own, byte_filter({*whose.hints, *new}))
        right = {
            item.key
            for item in found
            if item.key in new and spec and rules.element_owner(item) == rules.spec_owner(spec)
        }
        old = [item.key for item in found if item.key not in right and (item.key in new or whose.has(item))]
        left.update(old if own in MEMBERS.values() else ())
        requests += nft_set.delete_element_requests(own, old)
        if lacking := [element for key, element in new.items() if key not in right]:
            requests += [nft_set.set_request(own), *nft_set.add_element_requests(own, lacking)]
    return requests + _policies(socket, spec, left)


def _policies(socket: NftSocket, spec: FirewallSpec | None, left: Collection[bytes]) -> list[Request]:
    """Returns what gives the attachment's bridge its policy, and takes theirs from those whose last member goes."""
    bridge = interface_key(spec.bridge) if spec and spec.bridge else b""
    gone = {rules.bridge_of(key) for key in left} - {bridge}
    if gone:
        members = [
            item.key for own in MEMBERS.values() for item in nft_set.list_elements(socket, own, byte_filter(gone))
        ]
        gone &= {rules.bridge_of(key) for key in members}  # where even ours was not seen, nothing is known
        gone -= {rules.bridge_of(key) for key in members if key not in left}
    requests: list[Request] = []
    same = spec is not None and spec.policy == SAME_BRIDGE
    for own, key, wished in ((POLICED, 1, True), (SAME_BRIDGE_PAIRS, 2, same)):
        new = {bridge * key} if bridge and wished else set()
        old = {each * key for each in gone} | ({bridge * key} if bridge and not wished else set())
        found = (
            {item.key for item in nft_set.list_elements(socket, own, byte_filter(new | old))} if new or old else set()
        )
        requests += nft_set.delete_element_requests(own, old & found)
        requests += nft_set.add_element_requests(own, map(nft_set.Element, new - found))
    return requests


def _tell_of_drop(socket: NftSocket, versions: Sequence[int]) -> None:
    """Tells on stderr where iptables drops what is accepted here: that is each table's own decision."""
    found = nft.get_chains(socket, *(_IPTABLES[version] for version in versions))
    if names := [_TOOLS[version] for version, chain in zip(versions, found, strict=True) if chain and chain.drops]:
        print(
            f"firewall: chain FORWARD of {' and '.join(names)} drops what it does not accept itself: an accept in a "
            'table of nftables does not change that; set "backend" to "iptables"',
            file=sys.stderr,
        )


def _tell_of_unknown_port(bridge: str) -> None:
    """Tells on stderr that a pod on a bridge may not be apart from the others there; of ptp's interface nothing."""
    with Socket() as socket:
        (found,) = link.get(socket, link.by_name_request(bridge))
    if found and found.kind == "bridge":
        print(
            f"firewall: prevResult does not name the pod's port of {bridge}: what passes within that bridge is dropped "
            "only if net.bridge.bridge-nf-call-iptables is 1",
            file=sys.stderr,
        )


def _problem(socket: NftSocket, bases: Iterable[BaseTable]) -> str:
    """Has the kernel try what ADD would make, under the same names: others may have made such a table otherwise."""
    for base in bases:
        try:
            nft.dry_run(socket, *_requests(base))
        except KernelError as error:
            if error.errno == errno.EPERM:
                return str(error)
            family = "inet" if base is BASE else "bridge"
            if _is_otherwise(socket, base):
                table = f"{family} {base.table.name}"
                return f"another program created it with other properties: nft list table {table} ({error})"
            return f"{_NEEDS} {family} ({error})"
    return ""


def _is_otherwise(socket: NftSocket, base: BaseTable) -> bool:
    """Tells whether chains or sets of our names are of another kind: what the kernel answers then differs."""
    chains = zip(base.chains, nft.get_chains(socket, *base.chains), strict=True)
    return any(found not in (None, own) for own, found in chains) or False in nft_set.get_key_matches(
        socket, *base.sets
    )
