"""Host ports by nftables: the verbs, over netlink, without a process.

One rule: a verb changes everything in one transaction, both IP versions together, and ADD deletes nothing that is
right, since deleting is slow. What the rules are stands in nftables_rules.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from cni.conf import Attachment
from cni.errors import CniError
from kernel.errors import KernelError
from kernel.netfilter import nft, nft_owner, nft_rule
from kernel.netfilter.nft import NftSocket
from kernel.rtnl import Request
from plugins.portmap import nftables_check, nftables_state
from plugins.portmap import nftables_rules as rules
from plugins.portmap.nftables_rules import ALL, CHAINS, ENTRY, Expected
from plugins.portmap.nftables_state import Look, Placed
from plugins.portmap.port_conflicts import contested, place
from plugins.portmap.spec import HostPorts
from plugins.portmap.tables import TABLES

_USES_OF_ALL = 4  # what hostports_all has: two rules, and two that lead to it
_AT_ONCE = 1000  # rules deleted in one transaction: 2,800 fill a socket's send buffer
_NEEDS = "host ports with nftables need a kernel that can do NAT and fib in tables of families ip and ip6"


def add(wanted: HostPorts) -> None:
    """Leads the host ports to the attachment; its own rules that are there already are replaced.

    Raises CniError(11) for a port that is taken if that is refused, CniError(999) with a hint where the kernel cannot
    do it, UnavailableError.
    """
    with nft.open_socket() as socket:
        try:
            nft.retry(lambda: _add(socket, wanted))
        except KernelError as error:
            msg = f"unable to set up nftables rules for port mappings: {error.msg}"
            raise CniError(error.code, msg, _problem(socket, wanted.families) or error.details) from error


def delete(socket: NftSocket, wanted: HostPorts) -> None:
    """Deletes the rules of an attachment, whose ports and addresses need not be known; absent is success.

    Raises CniError(999).
    """

    def attempt() -> None:
        look = Look(socket)
        _delete(socket, [placed for version in CHAINS for placed in look.own(wanted, rules.with_rules(version))])

    try:
        nft.retry(attempt)
    except KernelError as error:
        raise CniError(error.code, f"error deleting nftables rules: {error.msg}", error.details) from error


def check(wanted: HostPorts) -> None:
    """Checks that the host ports lead to the attachment, and that no other container's rule stands before them.

    Raises CniError(999), KernelError.
    """
    with nft.open_socket() as socket:
        look = Look(socket, wanted.families)
        for version in wanted.families:
            nftables_check.check(look, wanted, version)


def gc(socket: NftSocket, network: str, valid: Iterable[Attachment]) -> None:
    """Deletes the rules of a network's attachments that are not `valid`.

    The reference's rules do not tell their network: they stay, and are counted on stderr. Raises KernelError.
    """
    attachments = list(valid)
    own = nft_owner.hash_name(network)
    kept = {nft_owner.owner_id(network, item.container_id, item.ifname) for item in attachments}
    known = {rules.comment(item.container_id) for item in attachments}
    chains = [chain for version in CHAINS for chain in rules.with_rules(version)]

    def attempt() -> int:
        look = Look(socket)
        stale, unknown = [], 0
        for placed in look.placed(chains, partial(rules.may_be_stale, own, kept)):
            owner = rules.owner(placed.rule)
            if owner.startswith(own) and owner not in kept:
                stale.append(placed)
            unknown += not owner and bool(placed.rule.comment) and placed.rule.comment not in known
        _delete(socket, stale)
        return unknown

    nft_owner.report_unowned("portmap", nft.retry(attempt), f"tables {TABLES[4].name}")


def get_problem() -> str:
    """Tells what the kernel lacks for host ports of IPv4, "" when nothing; tries it and leaves nothing behind."""
    try:
        with nft.open_socket() as socket:
            return _problem(socket, (4,))
    except nft.UnavailableError as error:
        return str(error)


def _add(socket: NftSocket, wanted: HostPorts) -> None:
    look = Look(socket)
    requests: list[Request] = []
    carried: list[Request] = []
    for version in CHAINS:
        if version in wanted.families:
            conditions = _base(look, wanted, version, requests)
            requests += _ports(look, wanted, version) + _masquerading(look, wanted, version)
            carried += _carried(look, wanted, version, conditions) if conditions else []
        else:
            requests += map(_deletion, look.own(wanted, rules.with_rules(version)))
    # At the end, since a rule in front of which others are put is replaced by it.
    nft.change(socket, *requests, *carried)


def _base(look: Look, wanted: HostPorts, version: int, requests: list[Request]) -> set[bytes]:
    """Adds what makes the shared chains right; returns the conditions that stand there and that it takes away."""
    own = CHAINS[version]
    needed = rules.needed(wanted, version)
    found = [look.rules(chain) for chain in (own.prerouting, own.output)]
    right = rules.entries(wanted, version)
    leads = all(len(each) == 1 and nft_rule.is_any_of(right, each[0].expressions) for each in found)
    # Of hostports_all the count is enough, as nobody else's rules belong there; CHECK looks at each.
    if leads and all(map(look.has, needed)) and look.uses(own.hostports_all) == _USES_OF_ALL:
        return set()
    requests += [nft.table_request(own.hostports.table), *map(nft.chain_request, needed)]
    for chain, content in ((own.hostports_all, ALL), (own.prerouting, (ENTRY,)), (own.output, (ENTRY,))):
        # Flushed even when it is empty: another first pod may fill it before us.
        requests += [nft.flush_chain_request(chain), *(nft.rule_request(chain, expressions) for expressions in content)]
    return {rules.entry_conditions(rule) for each in found for rule in each} - {b""}


def _carried(look: Look, wanted: HostPorts, version: int, conditions: Collection[bytes]) -> list[Request]:
    """Returns what puts conditions that stood in the base chains in front of each of the reference's rules.

    The reference has the conditions of the last ADD there, for the ports of all networks, and its own next ADD loses
    them. Ours stand in each rule, so they keep to their network.
    """
    found = look.placed(rules.with_ports(version), rules.names_no_owner)
    foreign = [placed for placed in found if not (rules.owner(placed.rule) or rules.is_of(placed.rule, wanted))]
    before, *others = conditions
    if foreign and (others or rules.cannot_be_copied(before)):
        print("portmap: the conditions of rules that the reference made are lost, as by its own ADD", file=sys.stderr)
        return []
    requests = []
    for placed in foreign:
        rule = placed.rule
        requests.append(nft.rule_request(placed.chain, before + rule.expressions, rule.userdata, before=rule.handle))
        requests.append(_deletion(placed))
    return requests


def _ports(look: Look, wanted: HostPorts, version: int) -> list[Request]:
    """Returns what gives the attachment its rules of chain hostports, in their place, unless they are right."""
    candidates = look.candidates(wanted, version)
    own = [index for index, placed in enumerate(candidates) if rules.is_of(placed.rule, wanted)]
    held = {index: nft_rule.parse_destination(candidates[index].rule.expressions)[:2] for index in own}
    claims = [
        (index, claim)
        for index, claim in nftables_state.claims(candidates, wanted, version)
        # What stands behind a rule of ours for the same port does not get it now either.
        if not any(at < index and target == (claim.protocol, claim.host_port) for at, target in held.items())
    ]
    at = place(wanted, version, [claim for _, claim in claims])
    before = None if at is None else claims[at][0]
    expected, old = rules.port_rules(wanted, version), [candidates[index] for index in own]
    userdata = rules.userdata(wanted)
    if _are(expected, old, userdata) and (before is None or before > own[0]):
        return []
    if before is None and own and not any(contested(wanted, version, claim) for _, claim in claims):
        before = own[0]  # the same place, with another address perhaps
    chain, handle = CHAINS[version].hostports, 0
    if before is not None:
        chain, handle = candidates[before].chain, candidates[before].rule.handle
    return [nft.rule_request(chain, item.expressions, userdata, before=handle) for item in expected] + [
        *map(_deletion, old)
    ]


def _masquerading(look: Look, wanted: HostPorts, version: int) -> list[Request]:
    """Returns what gives the attachment its rules of chain masquerading, unless they are right."""
    chain = CHAINS[version].masquerading
    expected, old = rules.masquerading_rules(wanted, version), look.own(wanted, [chain])
    userdata = rules.userdata(wanted)
    if _are(expected, old, userdata):
        return []
    return [nft.rule_request(chain, item.expressions, userdata) for item in expected] + [*map(_deletion, old)]


def _are(expected: Sequence[Expected], found: Sequence[Placed], userdata: bytes) -> bool:
    """Tells whether the rules are the expected ones, all of them, in order, and named as ours."""
    return len(expected) == len(found) and all(
        placed.rule.userdata == userdata and nft_rule.is_same_rule(item.expressions, placed.rule.expressions)
        for item, placed in zip(expected, found, strict=True)
    )


def _delete(socket: NftSocket, found: Sequence[Placed]) -> None:
    for start in range(0, len(found), _AT_ONCE):
        nft.change(socket, *map(_deletion, found[start : start + _AT_ONCE]))


def _deletion(placed: Placed) -> Request:
    return nft.delete_rule_request(placed.chain, placed.rule)


def _problem(socket: NftSocket, versions: Iterable[int]) -> str:
    """Has the kernel try what ADD would make, under the same names: others may have made such chains otherwise."""
    for version in versions:
        own = CHAINS[version]
        parts = ((own.prerouting, ENTRY), (own.hostports, rules.example(version)))
        tried = [nft.rule_request(chain, expressions) for chain, expressions in parts]
        tried.append(nft.rule_request(own.masquerading, nft_rule.masquerade()))
        try:
            nft.dry_run(socket, nft.table_request(own.hostports.table), *map(nft.chain_request, own), *tried)
        except KernelError as error:
            if error.errno == errno.EPERM:
                return str(error)
            if error.errno == errno.EEXIST:
                name = f"{rules.family(version)} {TABLES[version].name}"
                return f"somebody has made it otherwise: nft list table {name} ({error})"
            return f"{_NEEDS} ({error})"
    return ""
