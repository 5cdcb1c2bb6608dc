"""Host ports with nftables: the verbs, over netlink, without running programs.

One rule: a verb changes both IP versions in one transaction, and ADD keeps correct rules, since deleting is slow. The
rules themselves are in nftables_rules.
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
from plugins.portmap.nftables_rules import ALL, CHAINS, ENTRY, DesiredRule
from plugins.portmap.nftables_state import LocatedRule, TableReader
from plugins.portmap.port_conflicts import conflicting_mapping, find_position
from plugins.portmap.spec import HostPorts
from plugins.portmap.tables import TABLES

_USES_OF_ALL = 4  # of hostports_all: its two rules, and two jumps to it
_AT_ONCE = 1000  # rules deleted in one transaction: 2,800 fill a socket's send buffer
_NEEDS = "host ports with nftables need a kernel that can do NAT and fib in tables of families ip and ip6"


def add(host_ports: HostPorts) -> None:
    """Publishes the attachment's host ports; replaces its existing rules.

    Raises CniError(11) for a port in use if conflicts are refused, CniError(999) with a hint if the kernel lacks a
    feature, UnavailableError.
    """
    with nft.open_socket() as socket:
        try:
            nft.retry(lambda: _add(socket, host_ports))
        except KernelError as error:
            msg = f"unable to set up nftables rules for port mappings: {error.msg}"
            raise CniError(error.code, msg, _problem(socket, host_ports.families) or error.details) from error


def delete(socket: NftSocket, host_ports: HostPorts) -> None:
    """Deletes the rules of an attachment, also without its ports and addresses; absent is success.

    Raises CniError(999).
    """

    def attempt() -> None:
        reader = TableReader(socket)
        _delete(
            socket,
            [
                located
                for version in CHAINS
                for located in reader.list_of_attachment(host_ports, rules.attachment_chains(version))
            ],
        )

    try:
        nft.retry(attempt)
    except KernelError as error:
        raise CniError(error.code, f"error deleting nftables rules: {error.msg}", error.details) from error


def check(host_ports: HostPorts) -> None:
    """Checks that the host ports reach the attachment, and that no other container's rule comes before them.

    Raises CniError(999), KernelError.
    """
    with nft.open_socket() as socket:
        reader = TableReader(socket, host_ports.families)
        for version in host_ports.families:
            nftables_check.check(reader, host_ports, version)


def gc(socket: NftSocket, network: str, valid: Iterable[Attachment]) -> None:
    """Deletes the rules of a network's attachments that are not `valid`.

    The reference's rules do not name their network: they are kept, and counted on stderr. Raises KernelError.
    """
    attachments = list(valid)
    network_hash = nft_owner.hash_name(network)
    kept = {nft_owner.owner_id(network, item.container_id, item.ifname) for item in attachments}
    known = {rules.comment(item.container_id) for item in attachments}
    chains = [chain for version in CHAINS for chain in rules.attachment_chains(version)]

    def attempt() -> int:
        reader = TableReader(socket)
        stale, unknown = [], 0
        for located in reader.list_in(chains, partial(rules.may_be_stale, network_hash, kept)):
            owner = rules.owner(located.rule)
            if owner.startswith(network_hash) and owner not in kept:
                stale.append(located)
            unknown += not owner and bool(located.rule.comment) and located.rule.comment not in known
        _delete(socket, stale)
        return unknown

    nft_owner.report_unowned("portmap", nft.retry(attempt), f"tables {TABLES[4].name}")


def get_problem() -> str:
    """Returns what the kernel lacks for host ports of IPv4, "" if nothing; tries it and changes nothing."""
    try:
        with nft.open_socket() as socket:
            return _problem(socket, (4,))
    except nft.UnavailableError as error:
        return str(error)


def _add(socket: NftSocket, host_ports: HostPorts) -> None:
    reader = TableReader(socket)
    requests: list[Request] = []
    copies: list[Request] = []
    for version in CHAINS:
        if version in host_ports.families:
            conditions = _base(reader, host_ports, version, requests)
            requests += _ports(reader, host_ports, version) + _masquerading(reader, host_ports, version)
            copies += _copy_with_conditions(reader, host_ports, version, conditions) if conditions else []
        else:
            requests += map(_deletion, reader.list_of_attachment(host_ports, rules.attachment_chains(version)))
    # Last, since these replace rules before which the other requests insert rules.
    nft.change(socket, *requests, *copies)


def _base(reader: TableReader, host_ports: HostPorts, version: int, requests: list[Request]) -> set[bytes]:
    """Adds requests that correct the shared chains; returns the conditions that these requests remove there."""
    chains = CHAINS[version]
    needed = rules.required_chains(host_ports, version)
    entry_rules = [reader.list_rules(chain) for chain in (chains.prerouting, chains.output)]
    right = rules.entry_rules(host_ports, version)
    is_correct = all(len(each) == 1 and nft_rule.is_any_of(right, each[0].expressions) for each in entry_rules)
    # Of hostports_all the count is enough, as it has no rules of other programs; CHECK looks at each.
    if is_correct and all(map(reader.has, needed)) and reader.uses(chains.hostports_all) == _USES_OF_ALL:
        return set()
    requests += [nft.table_request(chains.hostports.table), *map(nft.chain_request, needed)]
    for chain, content in ((chains.hostports_all, ALL), (chains.prerouting, (ENTRY,)), (chains.output, (ENTRY,))):
        # Flushed even if it is empty: a parallel ADD may fill it before us.
        requests += [nft.flush_chain_request(chain), *(nft.rule_request(chain, expressions) for expressions in content)]
    return {rules.entry_conditions(rule) for each in entry_rules for rule in each} - {b""}


def _copy_with_conditions(
    reader: TableReader, host_ports: HostPorts, version: int, conditions: Collection[bytes]
) -> list[Request]:
    """Returns requests that copy the conditions of the base chains into each of the reference's rules.

    The reference keeps the conditions of its last ADD in the base chains, for the ports of all networks, and its next
    ADD loses them. We put them into each rule, so that they apply to their network only.
    """
    candidates = reader.list_in(rules.port_chains(version), rules.names_no_owner)
    foreign = [
        located
        for located in candidates
        if not (rules.owner(located.rule) or rules.belongs_to(located.rule, host_ports))
    ]
    before, *others = conditions
    if foreign and (others or rules.cannot_be_copied(before)):
        print("portmap: the conditions of rules that the reference made are lost, as by its own ADD", file=sys.stderr)
        return []
    requests = []
    for located in foreign:
        rule = located.rule
        requests.append(nft.rule_request(located.chain, before + rule.expressions, rule.userdata, before=rule.handle))
        requests.append(_deletion(located))
    return requests


def _ports(reader: TableReader, host_ports: HostPorts, version: int) -> list[Request]:
    """Returns requests that put the attachment's rules into chain hostports, in position, unless they are correct."""
    candidates = reader.list_candidates(host_ports, version)
    positions = [index for index, located in enumerate(candidates) if rules.belongs_to(located.rule, host_ports)]
    held = {index: nft_rule.parse_destination(candidates[index].rule.expressions)[:2] for index in positions}
    foreign_rules = [
        (index, foreign)
        for index, foreign in nftables_state.foreign_rules(candidates, host_ports, version)
        # A rule behind one of ours for the same port already gets no packets.
        if not any(at < index and target == (foreign.protocol, foreign.host_port) for at, target in held.items())
    ]
    at = find_position(host_ports, version, [foreign for _, foreign in foreign_rules])
    before = None if at is None else foreign_rules[at][0]
    expected, old = rules.port_rules(host_ports, version), [candidates[index] for index in positions]
    userdata = rules.userdata(host_ports)
    if _are_equal(expected, old, userdata) and (before is None or before > positions[0]):
        return []
    if (
        before is None
        and positions
        and not any(conflicting_mapping(host_ports, version, foreign) for _, foreign in foreign_rules)
    ):
        before = positions[0]  # the same position, maybe with another address
    chain, handle = CHAINS[version].hostports, 0
    if before is not None:
        chain, handle = candidates[before].chain, candidates[before].rule.handle
    return [nft.rule_request(chain, item.expressions, userdata, before=handle) for item in expected] + [
        *map(_deletion, old)
    ]


def _masquerading(reader: TableReader, host_ports: HostPorts, version: int) -> list[Request]:
    """Returns requests that put the attachment's rules into chain masquerading, unless they are correct."""
    chain = CHAINS[version].masquerading
    expected, old = rules.masquerading_rules(host_ports, version), reader.list_of_attachment(host_ports, [chain])
    userdata = rules.userdata(host_ports)
    if _are_equal(expected, old, userdata):
        return []
    return [nft.rule_request(chain, item.expressions, userdata) for item in expected] + [*map(_deletion, old)]


def _are_equal(expected: Sequence[DesiredRule], existing: Sequence[LocatedRule], userdata: bytes) -> bool:
    """Returns whether the existing rules equal the expected ones, in order, with our userdata."""
    return len(expected) == len(existing) and all(
        located.rule.userdata == userdata and nft_rule.is_same_rule(item.expressions, located.rule.expressions)
        for item, located in zip(expected, existing, strict=True)
    )


def _delete(socket: NftSocket, existing: Sequence[LocatedRule]) -> None:
    for start in range(0, len(existing), _AT_ONCE):
        nft.change(socket, *map(_deletion, existing[start : start + _AT_ONCE]))


def _deletion(located: LocatedRule) -> Request:
    return nft.delete_rule_request(located.chain, located.rule)


def _problem(socket: NftSocket, versions: Iterable[int]) -> str:
    """Tries what ADD creates and changes nothing; returns why the kernel refuses it, "" if it does not."""
    for version in versions:
        chains = CHAINS[version]
        parts = ((chains.prerouting, ENTRY), (chains.hostports, rules.example(version)))
        tried = [nft.rule_request(chain, expressions) for chain, expressions in parts]
        tried.append(nft.rule_request(chains.masquerading, nft_rule.masquerade()))
        try:
            nft.dry_run(socket, nft.table_request(chains.hostports.table), *map(nft.chain_request, chains), *tried)
        except KernelError as error:
            if error.errno == errno.EPERM:
                return str(error)
            if error.errno == errno.EEXIST:
                name = f"{rules.family(version)} {TABLES[version].name}"
                return f"another program created it differently: nft list table {name} ({error})"
            return f"{_NEEDS} ({error})"
    return ""
