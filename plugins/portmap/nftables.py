"""The nftables backend: the verbs, over netlink, without child processes. plugins.portmap.nftables_rules has the rules.

A verb changes both IP versions in one transaction. ADD keeps correct rules, since deleting is slow.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from cni.conf import Attachment
from cni.errors import CniError, UnchangedError
from kernel.errors import KernelError
from kernel.netfilter import nft, nft_owner, nft_rule
from kernel.netfilter.nft import NftSocket
from kernel.netfilter.nft_dry_run import dry_run
from kernel.rtnl import Request
from plugins.portmap import nftables_check, nftables_state
from plugins.portmap import nftables_rules as rules
from plugins.portmap.conf import HostPorts
from plugins.portmap.nftables_rules import BASE_CHAIN_RULE, CHAINS, HOSTPORTS_ALL_RULES, TABLES, DesiredRule
from plugins.portmap.nftables_state import LocatedRule, TableReader
from plugins.portmap.port_conflicts import ForeignRule, find_position, overlapping_mapping

_HOSTPORTS_ALL_USES = 4  # hostports_all contains two rules, and two rules jump to it
_BATCH_MAX = 1000  # rules that one transaction deletes; 2,800 fill the send buffer of a socket
_NEEDS = "host ports with nftables need a kernel with NAT and fib for the nftables families ip and ip6"


def add(host_ports: HostPorts) -> None:
    """Creates the attachment's rules; replaces existing ones.

    Raises UnavailableError, UnchangedError(11) for a port in use with `refuse_conflicts`, and CniError(999) with a hint
    if the kernel lacks a feature.
    """
    with nft.open_socket() as socket:
        try:
            nft.retry(lambda: _add(socket, host_ports))
        except KernelError as error:
            msg = f"unable to set up nftables rules for port mappings: {error.msg}"
            raise CniError(error.code, msg, _get_problem(socket, host_ports.ip_versions) or error.details) from error
        except CniError as error:  # a port in use
            raise UnchangedError(error.code, error.msg, error.details) from error


def delete(socket: NftSocket, host_ports: HostPorts) -> None:
    """Deletes the attachment's rules; absent rules are success, and ports and addresses are not needed.

    Raises CniError(999).
    """

    def delete_rules() -> None:
        reader = TableReader(socket)
        _delete_rules(
            socket,
            [
                located
                for version in CHAINS
                for located in reader.list_attachment_rules(host_ports, rules.attachment_chains(version))
            ],
        )

    try:
        nft.retry(delete_rules)
    except KernelError as error:
        raise CniError(error.code, f"error deleting nftables rules: {error.msg}", error.details) from error


def check(host_ports: HostPorts) -> None:
    """Checks the attachment's rules, and that no rule of another container comes before them.

    Raises CniError(999), ShadowedError, KernelError.
    """
    with nft.open_socket() as socket:
        reader = TableReader(socket, host_ports.ip_versions)
        for version in host_ports.ip_versions:
            nftables_check.check(reader, host_ports, version)


def gc(socket: NftSocket, network: str, valid: Iterable[Attachment]) -> None:
    """Deletes the rules of the network's attachments that are not in `valid`.

    Keeps the rules of the reference plugin, which do not name their network, and reports their number on stderr.
    Raises KernelError.
    """
    attachments = list(valid)
    network_hash = nft_owner.hash_name(network)
    valid_owners = {nft_owner.owner_id(network, item.container_id, item.ifname) for item in attachments}
    known_comments = {rules.comment(item.container_id) for item in attachments}
    chains = [chain for version in CHAINS for chain in rules.attachment_chains(version)]

    def delete_stale_rules() -> int:
        reader = TableReader(socket)
        stale, unowned = [], 0
        for located in reader.list_matching(chains, partial(rules.may_be_stale, network_hash, valid_owners)):
            owner, comment = rules.owner(located.rule), located.rule.comment
            if not owner:
                unowned += bool(comment) and comment not in known_comments
            elif owner.startswith(network_hash) and owner not in valid_owners:
                stale.append(located)
        _delete_rules(socket, stale)
        return unowned

    nft_owner.report_unowned("portmap", nft.retry(delete_stale_rules), f"tables {TABLES[4].name}")


def get_problem() -> str:
    """Returns why the kernel cannot publish host ports for IPv4, "" if it can; changes nothing."""
    try:
        with nft.open_socket() as socket:
            return _get_problem(socket, (4,))
    except nft.UnavailableError as error:
        return str(error)


def _add(socket: NftSocket, host_ports: HostPorts) -> None:
    reader = TableReader(socket)
    requests: list[Request] = []
    copies: list[Request] = []
    for version in CHAINS:
        if version in host_ports.ip_versions:
            conditions = _append_shared_chain_requests(reader, host_ports, version, requests)
            requests += _port_rule_requests(reader, host_ports, version)
            requests += _masquerading_requests(reader, host_ports, version)
            copies += _condition_copy_requests(reader, host_ports, version, conditions) if conditions else []
        else:
            existing = reader.list_attachment_rules(host_ports, rules.attachment_chains(version))
            requests += map(_delete_rule_request, existing)
    # The copies come last: they delete rules that the other requests use as positions.
    nft.change(socket, *requests, *copies)


def _append_shared_chain_requests(
    reader: TableReader, host_ports: HostPorts, version: int, requests: list[Request]
) -> set[bytes]:
    """Appends requests that correct the shared chains.

    Returns the conditions that the appended requests remove from the base chains.
    """
    chains = CHAINS[version]
    needed = rules.required_chains(host_ports, version)
    base_chain_rules = [reader.list_rules(chain) for chain in (chains.prerouting, chains.output)]
    accepted_rules = rules.valid_base_chain_rules(host_ports, version)
    is_correct = all(
        len(existing) == 1 and nft_rule.is_any_of(accepted_rules, existing[0].expressions)
        for existing in base_chain_rules
    )
    # Only podwire and the reference plugin write to hostports_all, so ADD counts its rules; CHECK compares each.
    if is_correct and all(map(reader.has, needed)) and reader.use_count(chains.hostports_all) == _HOSTPORTS_ALL_USES:
        return set()
    requests += [nft.table_request(chains.hostports.table), *map(nft.chain_request, needed)]
    contents = (
        (chains.hostports_all, HOSTPORTS_ALL_RULES),
        (chains.prerouting, (BASE_CHAIN_RULE,)),
        (chains.output, (BASE_CHAIN_RULE,)),
    )
    for chain, content in contents:
        # Flush an empty chain, too: a parallel ADD may write to it first.
        requests += [nft.flush_chain_request(chain), *(nft.rule_request(chain, expressions) for expressions in content)]
    return {rules.base_chain_conditions(rule) for existing in base_chain_rules for rule in existing} - {b""}


def _condition_copy_requests(
    reader: TableReader, host_ports: HostPorts, version: int, conditions: Collection[bytes]
) -> list[Request]:
    """Returns requests that copy the conditions of the base chains into each rule of the reference plugin.

    The reference plugin writes the conditions of an ADD to the base chains: they apply to all networks, and its next
    ADD overwrites them. podwire writes conditions to each rule, so that they apply to their own network only.
    """
    candidates = reader.list_matching(rules.port_chains(version), rules.has_no_owner)
    foreign = [
        located
        for located in candidates
        if not (rules.owner(located.rule) or rules.belongs_to(located.rule, host_ports))
    ]
    condition, *others = conditions
    if foreign and (others or rules.cannot_be_copied(condition)):
        text = "rules of the reference plugin lose their conditions, as they would at that plugin's next ADD"
        print(f"portmap: {text}", file=sys.stderr)
        return []
    requests = []
    for located in foreign:
        rule = located.rule
        expressions = condition + rule.expressions
        requests.append(nft.rule_request(located.chain, expressions, rule.userdata, before=rule.handle))
        requests.append(_delete_rule_request(located))
    return requests


def _port_rule_requests(reader: TableReader, host_ports: HostPorts, version: int) -> list[Request]:
    """Returns requests that write the attachment's rules to their place in chain hostports; [] if they are correct."""
    candidates = reader.list_candidates(host_ports, version)
    existing_indexes = [index for index, located in enumerate(candidates) if rules.belongs_to(located.rule, host_ports)]
    foreign_rules = _foreign_rules_with_packets(candidates, existing_indexes, host_ports, version)
    foreign_index = find_position(host_ports, version, [foreign for _, foreign in foreign_rules])
    insertion_index = None if foreign_index is None else foreign_rules[foreign_index][0]
    desired, existing = rules.port_rules(host_ports, version), [candidates[index] for index in existing_indexes]
    userdata = rules.userdata(host_ports)
    if _are_equal(desired, existing, userdata) and (insertion_index is None or insertion_index > existing_indexes[0]):
        return []
    if (
        insertion_index is None
        and existing_indexes
        and not any(overlapping_mapping(host_ports, version, foreign) for _, foreign in foreign_rules)
    ):
        insertion_index = existing_indexes[0]  # keep the position; the address may have changed
    chain, handle = CHAINS[version].hostports, 0  # the end of the chain
    if insertion_index is not None:
        chain, handle = candidates[insertion_index].chain, candidates[insertion_index].rule.handle
    return [nft.rule_request(chain, item.expressions, userdata, before=handle) for item in desired] + [
        *map(_delete_rule_request, existing)
    ]


def _foreign_rules_with_packets(
    candidates: Sequence[LocatedRule], existing_indexes: Iterable[int], host_ports: HostPorts, version: int
) -> list[tuple[int, ForeignRule]]:
    """Returns the rules of other containers among `candidates`, each with its index, except those without packets.

    `existing_indexes` are those of this attachment's rules: a later rule for the same port gets no packets, so it is no
    conflict.
    """
    ports = {index: nft_rule.parse_destination(candidates[index].rule.expressions)[:2] for index in existing_indexes}

    def gets_packets(foreign_index: int, foreign: ForeignRule) -> bool:
        foreign_port = foreign.protocol, foreign.host_port
        return not any(index < foreign_index and port == foreign_port for index, port in ports.items())

    return [
        (index, foreign)
        for index, foreign in nftables_state.foreign_rules(candidates, host_ports, version)
        if gets_packets(index, foreign)
    ]


def _masquerading_requests(reader: TableReader, host_ports: HostPorts, version: int) -> list[Request]:
    """Returns requests that write the attachment's rules to chain masquerading; [] if they are correct."""
    chain = CHAINS[version].masquerading
    desired, existing = rules.masquerading_rules(host_ports, version), reader.list_attachment_rules(host_ports, [chain])
    userdata = rules.userdata(host_ports)
    if _are_equal(desired, existing, userdata):
        return []
    return [nft.rule_request(chain, item.expressions, userdata) for item in desired] + [
        *map(_delete_rule_request, existing)
    ]


def _are_equal(desired: Sequence[DesiredRule], existing: Sequence[LocatedRule], userdata: bytes) -> bool:
    """Returns whether the existing rules equal the desired ones, in order, and have `userdata`."""
    return len(desired) == len(existing) and all(
        located.rule.userdata == userdata and nft_rule.is_same_rule(item.expressions, located.rule.expressions)
        for item, located in zip(desired, existing, strict=True)
    )


def _delete_rules(socket: NftSocket, existing: Sequence[LocatedRule]) -> None:
    for start in range(0, len(existing), _BATCH_MAX):
        nft.change(socket, *map(_delete_rule_request, existing[start : start + _BATCH_MAX]))


def _delete_rule_request(located: LocatedRule) -> Request:
    return nft.delete_rule_request(located.chain, located.rule)


def _get_problem(socket: NftSocket, versions: Iterable[int]) -> str:
    """Returns why the kernel refuses what ADD creates, "" if it accepts it; sends a transaction that is rolled back."""
    for version in versions:
        chains = CHAINS[version]
        examples = ((chains.prerouting, BASE_CHAIN_RULE), (chains.hostports, rules.probe_rule(version)))
        requests = [nft.rule_request(chain, expressions) for chain, expressions in examples]
        requests.append(nft.rule_request(chains.masquerading, nft_rule.masquerade()))
        try:
            dry_run(socket, nft.table_request(chains.hostports.table), *map(nft.chain_request, chains), *requests)
        except KernelError as error:
            if error.errno == errno.EPERM:
                return str(error)
            if error.errno == errno.EEXIST:
                name = f"{rules.nft_family(version)} {TABLES[version].name}"
                return f"another program has created a chain with another hook; see: nft list table {name} ({error})"
            return f"{_NEEDS} ({error})"
    return ""
