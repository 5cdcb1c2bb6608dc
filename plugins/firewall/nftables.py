"""The backend nftables: a table of this plugin, whose rules never change; a pod is represented by elements of its sets.

A verb changes everything in one transaction, which the kernel refuses if the ruleset has changed since it was read. It
runs no program. nftables_rules has the desired objects; nftables_records stores its records in the same table.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from cni.conf import Attachment
from cni.errors import CniError, UnchangedError
from kernel import link
from kernel.errors import KernelError
from kernel.netfilter import base_table, nft, nft_set
from kernel.netfilter.base_table import BaseTable
from kernel.netfilter.iptables import TOOLS
from kernel.netfilter.nft import Chain, NftSocket, Table
from kernel.netfilter.nft_set import byte_filter, interface_key
from kernel.rtnl import Request, Socket
from plugins.firewall import nftables_check
from plugins.firewall import nftables_rules as rules
from plugins.firewall.nftables_rules import BASE, MEMBERS, OWNED, POLICED, SAME_BRIDGE_PAIRS, ElementFilter
from plugins.firewall.spec import ISOLATED, SAME_BRIDGE, FirewallSpec

_IPTABLES = {version: Chain(Table(family, "filter"), "FORWARD") for version, family in nft.NFPROTO.items()}
_NEEDS = "the firewall with nftables needs a kernel with sets and connection tracking in tables of family"


def add(spec: FirewallSpec) -> None:
    """Creates the missing tables and elements; takes over elements of other attachments with the same key.

    Raises CniError(999), with a hint if the kernel lacks a feature; an UnchangedError if it refused.
    """
    with nft.open_socket() as socket:
        try:
            _add_with_retry(socket, spec)
        except KernelError as error:
            kind = CniError if _is_lost(error) else UnchangedError
            raise kind(error.code, error.msg, _problem(socket, rules.required_tables(spec)) or error.details) from error
        if spec.accepts:
            _warn_of_drop(socket, spec.versions)
    if spec.policy == ISOLATED and not spec.ports:
        _warn_of_unknown_port(spec.bridge)


def check(spec: FirewallSpec) -> None:
    """Checks the tables, their rules and the attachment's elements; raises CniError(999), KernelError."""
    with nft.open_socket() as socket:
        nftables_check.check(socket, spec)


def get_problem() -> str:
    """Returns what the kernel lacks for this backend, "" if nothing; tries it and changes nothing."""
    try:
        with nft.open_socket() as socket:
            return _problem(socket, [BASE])
    except nft.UnavailableError as error:
        return str(error)


def delete(socket: NftSocket, spec: FirewallSpec) -> None:
    """Deletes the attachment's elements, also without its addresses; absent is success. Raises KernelError."""
    _delete(socket, ElementFilter.of_attachment(spec))


def gc(socket: NftSocket, network: str, valid: Collection[Attachment]) -> None:
    """Deletes the elements of a network's attachments that are not `valid`; raises KernelError."""
    _delete(socket, ElementFilter.stale(network, valid))


def _add_with_retry(socket: NftSocket, spec: FirewallSpec) -> None:
    """Creates missing objects; tries again if the kernel's answer was lost. Raises KernelError."""
    add = partial(nft.retry_with_generation, socket, lambda generation: _add(socket, spec, generation))
    try:
        add()
    except KernelError as error:
        if not _is_lost(error):
            raise
        add()


def _is_lost(error: KernelError) -> bool:
    """Returns whether the socket failed, so that the kernel may have executed the request."""
    return isinstance(error.__cause__, OSError)


def _add(socket: NftSocket, spec: FirewallSpec, generation: int) -> None:
    requests = [
        request for base in rules.required_tables(spec) for request in base_table.missing_table_requests(socket, base)
    ]
    requests += _changes(socket, ElementFilter.of_attachment(spec), spec)
    nft.change(socket, *requests, generation=generation)


def _delete(socket: NftSocket, owner_filter: ElementFilter) -> None:
    nft.retry_with_generation(
        socket, lambda generation: nft.change(socket, *_changes(socket, owner_filter, None), generation=generation)
    )


def _changes(socket: NftSocket, owner_filter: ElementFilter, spec: FirewallSpec | None) -> list[Request]:
    """Returns the requests that make the elements of the matching owners equal those of `spec`; None deletes all."""
    requests: list[Request] = []
    deleted_members: set[bytes] = set()
    desired_elements = rules.desired_elements(spec) if spec else {}
    for element_set in OWNED:
        desired = {element.key: element for element in desired_elements.get(element_set, ())}
        existing = nft_set.list_elements(socket, element_set, byte_filter({*owner_filter.hints, *desired}))
        correct = {
            item.key
            for item in existing
            if item.key in desired and spec and rules.element_owner(item) == rules.spec_owner(spec)
        }
        obsolete = [
            item.key for item in existing if item.key not in correct and (item.key in desired or owner_filter.has(item))
        ]
        deleted_members.update(obsolete if element_set in MEMBERS.values() else ())
        requests += nft_set.delete_element_requests(element_set, obsolete)
        if missing := [element for key, element in desired.items() if key not in correct]:
            requests += [nft_set.set_request(element_set), *nft_set.add_element_requests(element_set, missing)]
    return requests + _policy_requests(socket, spec, deleted_members)


def _policy_requests(socket: NftSocket, spec: FirewallSpec | None, deleted_members: Collection[bytes]) -> list[Request]:
    """Returns the requests that set the policy of the attachment's bridge, and delete those of bridges without pods."""
    bridge = interface_key(spec.bridge) if spec and spec.bridge else b""
    unused = {rules.bridge_of(key) for key in deleted_members} - {bridge}
    if unused:
        members = [
            item.key
            for member_set in MEMBERS.values()
            for item in nft_set.list_elements(socket, member_set, byte_filter(unused))
        ]
        unused &= {rules.bridge_of(key) for key in members}  # without the deleted member the listing is incomplete
        unused -= {rules.bridge_of(key) for key in members if key not in deleted_members}
    requests: list[Request] = []
    is_same_bridge = spec is not None and spec.policy == SAME_BRIDGE
    for bridge_set, repetitions, is_desired in ((POLICED, 1, True), (SAME_BRIDGE_PAIRS, 2, is_same_bridge)):
        desired = {bridge * repetitions} if bridge and is_desired else set()
        obsolete = {unused_bridge * repetitions for unused_bridge in unused}
        obsolete |= {bridge * repetitions} if bridge and not is_desired else set()
        keys = desired | obsolete
        existing = (
            {item.key for item in nft_set.list_elements(socket, bridge_set, byte_filter(keys))} if keys else set()
        )
        requests += nft_set.delete_element_requests(bridge_set, obsolete & existing)
        requests += nft_set.add_element_requests(bridge_set, map(nft_set.Element, desired - existing))
    return requests


def _warn_of_drop(socket: NftSocket, versions: Sequence[int]) -> None:
    """Prints to stderr that iptables drops packets that this table accepts: each table decides separately."""
    chains = nft.get_chains(socket, *(_IPTABLES[version] for version in versions))
    if names := [TOOLS[version] for version, chain in zip(versions, chains, strict=True) if chain and chain.drops]:
        print(
            f"firewall: chain FORWARD of {' and '.join(names)} drops what it does not accept itself: an accept in a "
            'table of nftables does not change that; set "backend" to "iptables"',
            file=sys.stderr,
        )


def _warn_of_unknown_port(bridge: str) -> None:
    """Prints to stderr that a pod may not be isolated from others on its bridge; prints nothing for ptp's interface."""
    with Socket() as socket:
        (interface,) = link.get(socket, link.by_name_request(bridge))
    if interface and interface.kind == "bridge":
        print(
            f"firewall: prevResult does not name the pod's port of {bridge}: packets within that bridge are dropped "
            "only if net.bridge.bridge-nf-call-iptables is 1",
            file=sys.stderr,
        )


def _problem(socket: NftSocket, bases: Iterable[BaseTable]) -> str:
    """Returns why ADD cannot create the tables, "" if it can: sends the requests to the kernel without a commit.

    It uses the real names, since another program may have created tables of these names.
    """
    for base in bases:
        requirement = f"{_NEEDS} {'inet' if base is BASE else 'bridge'}"
        if problem := base_table.find_obstacle(socket, base, requirement):
            return problem
    return ""
