"""The backend iptables: names, rules, comments and their order are the reference plugin's.

podwire and the reference plugin can remove each other's rules. In addition podwire records the owner of each address
(iptables_rules).

Cost: ADD runs no program if it only adds rules (kernel.netfilter.iptables), otherwise one for each family, or
two if netlink cannot list the existing rules (iptables-legacy, rules of an unknown form). CHECK then runs one for each
family, otherwise none. DEL and GC run none, unless iptables-legacy has created table filter.
"""

from __future__ import annotations

import re
import socket as stdlib_socket
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial

from attachment.cache import ResultCache
from cni.conf import Attachment
from cni.errors import CniError, Code, UnchangedError, internal, run_all
from kernel import link, rtnl
from kernel.link import Link
from kernel.netfilter import iptables, nft, nft_owner
from kernel.netfilter.iptables import FAMILIES, NFPROTO
from kernel.netfilter.iptables_chains import change_legacy
from kernel.netfilter.iptables_program import RefusedError, UnusableError
from kernel.netfilter.iptables_rule import ChainList, IptablesChange, IptablesRule
from kernel.netfilter.nft import Chain, NftSocket, Table
from kernel.rtnl import Request
from plugins.firewall import bridge_netfilter, iptables_check, iptables_rules, iptables_state
from plugins.firewall.iptables_rules import (
    ENDS,
    ENTRY,
    FORWARD,
    OWNERS,
    STAGE_1,
    STAGE_2,
    TABLE,
    OwnerRecord,
    address_rules,
    interface_of,
)
from plugins.firewall.iptables_state import ExistingRule, to_listing
from plugins.firewall.spec import OPEN, FirewallSpec

_ROUNDS = 10  # a round fails if another process changes the rules between the read and the write
_DESCRIPTION = "create the firewall's rules"
_Select = Callable[[int, ChainList], list[IptablesRule]]  # from an IP version and its listing to the rules to delete
_SHARED = (ENTRY, STAGE_1, STAGE_2)  # chains whose rules the first pod's ADD creates
_INTERFACE = re.compile(r"""[^\s"'\\!-][^\s"'\\]*(?<!\+)""")  # one word for iptables-restore, and one interface


def add(spec: FirewallSpec) -> None:
    """Creates the missing rules. Raises UnusableError, CniError(11), CniError(999).

    After an error some rules may exist, which `delete` and `delete_legacy` remove. After an UnchangedError there is
    nothing to remove: there are no rules, or an earlier ADD created them.
    """
    _refuse_bridge(spec)
    written, repeated = False, False
    try:
        for tries_left in reversed(range(_ROUNDS)):
            try:
                changes, listings = _compute_changes(spec)
                repeated |= not written and _has_any_rule(spec, listings)
                if not any(changes.values()):
                    break
                written = True
                iptables.apply(changes, TABLE, _DESCRIPTION)
            except RefusedError:
                if not tries_left:
                    raise
                continue
            # A parallel ADD may have created the shared rules, too: the next round deletes duplicates.
            if not any(change.chain in _SHARED for items in changes.values() for change in items):
                break
    except UnusableError:  # nftables is tried next: one family may have its rules already
        if written and not repeated:
            with suppress(CniError):
                run_all(partial(delete_legacy, spec), partial(nft.run_steps, [lambda socket: delete(socket, spec)]))
        raise
    except CniError as error:
        if written and spec.accepts and not repeated:
            raise
        raise UnchangedError(error.code, error.msg, error.details) from error
    if problem := bridge_netfilter.get_problem(spec):
        print(f"firewall: {problem}: {bridge_netfilter.HINT}", file=sys.stderr)


def check(spec: FirewallSpec) -> None:
    """Raises CniError(999) for a missing rule, and errors like `add`."""
    for version, listing in iptables_state.get_listings(spec).items():
        iptables_check.check_rules(spec, version, listing)
    if problem := bridge_netfilter.get_problem(spec):
        raise internal(problem, bridge_netfilter.HINT)


def get_problem() -> str:
    """Returns why this backend cannot work for IPv4, "" if it can; IPv6 may be missing."""
    return iptables.get_problem((4,), TABLE, ENTRY)


def delete(socket: NftSocket, spec: FirewallSpec) -> None:
    """Deletes the attachment's rules of iptables-nft; absent is success. Raises KernelError."""
    _delete(socket, partial(iptables_state.get_state_for_del, socket, spec), partial(_select_for_del, spec))


def delete_legacy(spec: FirewallSpec) -> None:
    """Deletes the attachment's rules of iptables-legacy, under its lock; raises CniError(11), CniError(999)."""
    description = f"delete the firewall's rules of container {spec.container_id}"
    _delete_legacy(description, partial(_select_for_del, spec))


def gc(socket: NftSocket, network: str, valid: Collection[Attachment]) -> None:
    """Deletes the rules of a network's attachments that are not `valid` from iptables-nft; raises KernelError.

    Rules without a record stay, and are counted on stderr.
    """
    delete_selected = partial(_delete, socket, partial(iptables_state.get_state_for_gc, socket))
    _gc(network, valid, delete_selected, f"chain {FORWARD}")


def gc_legacy(network: str, valid: Collection[Attachment]) -> None:
    """Deletes such rules of iptables-legacy; raises CniError(11), CniError(999)."""
    delete_selected = partial(_delete_legacy, f"delete stale rules of network {network}")
    _gc(network, valid, delete_selected, f"chain {FORWARD} of iptables-legacy")


def _refuse_bridge(spec: FirewallSpec) -> None:
    """Refuses a bridge name that iptables would misread, such as "br+", which matches all names with that prefix."""
    if spec.policy != OPEN and not _INTERFACE.fullmatch(spec.bridge):
        msg = f'"ingressPolicy": iptables cannot match interface "{spec.bridge}" exactly'
        raise UnchangedError(Code.INVALID_NETWORK_CONFIG, msg, "name the bridge with letters, digits, . _ and - only")


def _compute_changes(spec: FirewallSpec) -> tuple[dict[int, list[IptablesChange]], dict[int, ChainList]]:
    """Returns for each IP version the changes to apply, and the existing rules."""
    listings = iptables_state.get_listings(spec)
    is_stale = _StaleCheck()
    return {
        version: iptables_rules.changes_for_add(spec, version, listing, is_stale)
        for version, listing in listings.items()
    }, listings


def _has_any_rule(spec: FirewallSpec, listings: Mapping[int, ChainList]) -> bool:
    """Returns whether some of the attachment's rules exist."""
    rules = [rule for address in spec.addresses for rule in address_rules(address)]
    return any(rule in listing for listing in listings.values() for rule in rules)


class _StaleCheck:
    """Returns whether a record is stale: libcni's cache proves that the namespace of its attachment no longer exists.

    An attachment that is not in the cache may be in the middle of its ADD, and counts as running. The cache of each
    network is read once.
    """

    def __init__(self) -> None:
        self._caches: dict[str, ResultCache] = {}

    def __call__(self, record: OwnerRecord) -> bool:
        if not record.owner:
            return False
        network, attachment = record.owner
        if network not in self._caches:
            self._caches[network] = ResultCache.read(network)
        return self._caches[network].namespace_is_gone(attachment)


def _list_stale_interfaces(listing: ChainList, bridge: str = "") -> set[str]:
    """Returns the interfaces with a policy that no longer exist, and `bridge` if it belongs to one attachment only.

    That is the host veth of ptp, which is deleted with the attachment, after DEL of this plugin.
    """
    rules = (rule for chain in ENDS for rule in listing.rules(chain))
    names = {name for rule in rules if (name := interface_of(rule))}
    return {name for name in names if not _exists(name) or (name == bridge and _is_veth(name))}


def _exists(name: str) -> bool:
    """Returns whether an interface exists; raises KernelError."""
    try:
        stdlib_socket.if_nametoindex(name)
    except OSError:  # without errno: the interface is missing, no descriptor is free, or ioctl is denied
        return _get_link(name) is not None
    return True


def _is_veth(name: str) -> bool:
    interface = _get_link(name)
    return interface is not None and interface.kind == "veth"


def _get_link(name: str) -> Link | None:
    with rtnl.Socket() as socket:
        return link.get(socket, link.by_name_request(name))[0]


def _select_for_del(spec: FirewallSpec, version: int, listing: ChainList) -> list[IptablesRule]:
    interfaces = _list_stale_interfaces(listing, spec.bridge)
    return iptables_rules.rules_for_del(spec, version, listing, interfaces, _StaleCheck())


def _gc(network: str, valid: Collection[Attachment], delete_selected: Callable[[_Select], None], where: str) -> None:
    unowned: dict[int, int] = {}

    def select(version: int, listing: ChainList) -> list[IptablesRule]:
        unowned[version] = iptables_rules.count_unowned(listing)
        return iptables_rules.rules_for_gc(network, valid, listing, _list_stale_interfaces(listing))

    delete_selected(select)
    nft_owner.report_unowned("firewall", sum(unowned.values()), where)


def _delete_legacy(description: str, select: _Select) -> None:
    def plan(version: int, listing: ChainList) -> list[IptablesChange]:
        return iptables_rules.changes_to_delete_rules(select(version, listing), listing)

    change_legacy(TABLE, plan, description)


def _delete(
    socket: NftSocket, get_state: Callable[[int], tuple[dict[str, int], list[ExistingRule]]], select: _Select
) -> None:
    """Reads both families and deletes the selected rules in one transaction, with the last record also its chain.

    Repeats if the ruleset changed in between: otherwise two parallel last DELs would both keep the chain.
    """

    def delete_selected(generation: int) -> None:
        requests: list[Request] = []
        for version in FAMILIES:
            chains, rules = get_state(version)
            selected = {*select(version, to_listing(chains, rules))}
            removed = {item.handle: item for item in rules if item.rule in selected}.values()
            for item in removed:
                details = partial(str, item.rule.spec if item.rule else "")
                requests.append(nft.delete_rule_request(item.chain, item.handle)._replace(details=details))
            if OWNERS in chains and chains[OWNERS] == sum(item.chain.name == OWNERS for item in removed):
                requests.append(nft.delete_empty_chain_request(Chain(Table(NFPROTO[version], TABLE), OWNERS)))
        nft.change(socket, *requests, generation=generation)

    nft.retry_with_generation(socket, delete_selected)
