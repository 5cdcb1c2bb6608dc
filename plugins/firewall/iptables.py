"""The firewall by iptables: names, rules, comments and their order are the reference's.

One rule: either takes away what the other has made. Ours can also tell whose an address is (iptables_rules).

What it costs: ADD runs no program where rules are only added (kernel.netfilter.iptables_direct), else one for each
family; where netlink does not tell what is there (iptables-legacy, rules that nobody understands) it is two. CHECK runs
none, or one for each family there. DEL and GC run none, except where iptables-legacy has made table filter.
"""

from __future__ import annotations

import re
import socket as stdlib_socket
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from attachment.cache import ResultCache
from cni.conf import Attachment
from cni.errors import CniError, Code, UnchangedError, run_all
from kernel import link, rtnl
from kernel.link import Link
from kernel.netfilter import iptables, nft, nft_owner
from kernel.netfilter.iptables import FAMILIES, NFPROTO, RefusedError, UnusableError
from kernel.netfilter.iptables_chains import change_legacy
from kernel.netfilter.nft import Chain, NftSocket, Table
from kernel.rtnl import Request
from plugins.firewall import bridge_netfilter, iptables_check, iptables_state, iptables_update
from plugins.firewall.iptables_rules import (
    ENTRY,
    FORWARD,
    OWNERS,
    STAGE_1,
    STAGE_2,
    TABLE,
    Record,
    address_rules,
    interface_of,
)
from plugins.firewall.iptables_state import ExistingRule, listed
from plugins.firewall.spec import OPEN, FirewallSpec

_ROUNDS = 10  # each is lost to another verb that changed what we had seen before we wrote
_DOING = "make the firewall's rules"
_SHARED = (ENTRY, STAGE_1, STAGE_2)  # chains with rules that first pods make
_INTERFACE = re.compile(r"""[^\s"'\\!-][^\s"'\\]*(?<!\+)""")  # what is one word to iptables-restore, and one interface


def add(spec: FirewallSpec) -> None:
    """Makes the rules; those that are there stay. Raises iptables.UnusableError, CniError(11), CniError(999).

    Some rules may be there then, which `delete` and `delete_legacy` take away, unless it is an UnchangedError: then
    there is nothing to take away, or an earlier ADD has made some of them.
    """
    _refuse_bridge(spec)
    written, repeated = False, False
    try:
        for tries_left in reversed(range(_ROUNDS)):
            try:
                changes, listings = _changes(spec)
                repeated |= not written and _has_some(spec, listings)
                if not any(changes.values()):
                    break
                written = True
                iptables.apply(changes, TABLE, _DOING)
            except RefusedError:
                if not tries_left:
                    raise
                continue
            # Another first pod may have made what all share at the same time: what is there twice goes.
            if not any(line.split()[1] in _SHARED for lines in changes.values() for line in lines):
                break
    except UnusableError:  # the other backend's turn: one family may have its rules
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
    """Raises CniError(999) for what is missing, and as `add`."""
    for version, listing in iptables_state.get_listings(spec).items():
        iptables_check.check_rules(spec, version, listing)
    if problem := bridge_netfilter.get_problem(spec):
        raise CniError(Code.INTERNAL, problem, bridge_netfilter.HINT)


def get_problem() -> str:
    """Tells what keeps this backend from working for IPv4, "" when it works (IPv6 may not be there)."""
    return iptables.get_problem((4,), TABLE, ENTRY)


def delete(socket: NftSocket, spec: FirewallSpec) -> None:
    """Deletes the attachment's rules of iptables-nft; absent is success. Raises KernelError."""

    def stale(version: int, listing: list[str]) -> list[str]:
        return iptables_update.del_rules(spec, version, listing, _dead(listing, spec.bridge), _Judge())

    _delete(socket, lambda version: iptables_state.removable(socket, spec, version), stale)


def delete_legacy(spec: FirewallSpec) -> None:
    """Deletes the same of iptables-legacy, which takes its lock; raises CniError(11), CniError(999)."""

    def lines(version: int, listing: list[str]) -> list[str]:
        dead = _dead(listing, spec.bridge)
        return iptables_update.removal_lines(iptables_update.del_rules(spec, version, listing, dead, _Judge()), listing)

    change_legacy(TABLE, lines, f"delete the firewall's rules of container {spec.container_id}")


def gc(socket: NftSocket, network: str, valid: Collection[Attachment]) -> None:
    """Deletes the rules of a network's attachments that are not `valid`, of iptables-nft; raises KernelError.

    What has no record stays, and is counted on stderr.
    """
    unnamed: dict[int, int] = {}

    def stale(version: int, listing: list[str]) -> list[str]:
        unnamed[version] = iptables_update.count_unowned(listing)
        return iptables_update.gc_rules(network, valid, listing, _dead(listing))

    _delete(socket, lambda version: iptables_state.collectable(socket, version), stale)
    nft_owner.report_unowned("firewall", sum(unnamed.values()), f"chain {FORWARD}")


def gc_legacy(network: str, valid: Collection[Attachment]) -> None:
    """Deletes the same of iptables-legacy; raises CniError(11), CniError(999)."""
    unnamed: dict[int, int] = {}

    def lines(version: int, listing: list[str]) -> list[str]:
        unnamed[version] = iptables_update.count_unowned(listing)
        return iptables_update.removal_lines(iptables_update.gc_rules(network, valid, listing, _dead(listing)), listing)

    change_legacy(TABLE, lines, f"delete stale rules of network {network}")
    nft_owner.report_unowned("firewall", sum(unnamed.values()), f"chain {FORWARD} of iptables-legacy")


def _refuse_bridge(spec: FirewallSpec) -> None:
    """Refuses a name that iptables would take for something else, as "br+" for all that begin so."""
    if spec.policy != OPEN and not _INTERFACE.fullmatch(spec.bridge):
        msg = f'"ingressPolicy": iptables cannot tell interface "{spec.bridge}" from others'
        raise UnchangedError(Code.INVALID_NETWORK_CONFIG, msg, "name the bridge with letters, digits, . _ and - only")


def _changes(spec: FirewallSpec) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    """Returns what to write in each family, and what there is."""
    listings = iptables_state.get_listings(spec)
    judge = _Judge()
    return {
        version: iptables_update.add_lines(spec, version, listing, judge) for version, listing in listings.items()
    }, listings


def _has_some(spec: FirewallSpec, listings: Mapping[int, Sequence[str]]) -> bool:
    """Tells whether some of the attachment's rules are there."""
    own = {rule for address in spec.addresses for rule in address_rules(address)}
    return any(not own.isdisjoint(listing) for listing in listings.values())


class _Judge:
    """Tells whether an attachment that has a record is surely gone: its namespace is, according to libcni's cache.

    One that the cache does not know may be on its way, and counts as living. Each network's cache is read once.
    """

    def __init__(self) -> None:
        self._caches: dict[str, ResultCache] = {}

    def __call__(self, record: Record) -> bool:
        if not record.owner:
            return False
        network, attachment = record.owner
        if network not in self._caches:
            self._caches[network] = ResultCache.read(network)
        return self._caches[network].namespace_is_gone(attachment)


def _dead(listing: Iterable[str], own: str = "") -> set[str]:
    """Returns the interfaces with a policy that are not there any more, and `own` when it is the attachment's alone.

    That is a veth: ptp's, which goes with the attachment, but after us.
    """
    names = {name for line in listing if (name := interface_of(line))}
    return {name for name in names if not _is_there(name) or (name == own and _is_veth(name))}


def _is_there(name: str) -> bool:
    """Tells whether an interface exists; raises KernelError."""
    try:
        stdlib_socket.if_nametoindex(name)
    except OSError:  # without an errno: the interface is gone, or no descriptor was left, or a filter denies ioctl
        return _get(name) is not None
    return True


def _is_veth(name: str) -> bool:
    found = _get(name)
    return found is not None and found.kind == "veth"


def _get(name: str) -> Link | None:
    with rtnl.Socket() as socket:
        return link.get(socket, link.by_name_request(name))[0]


def _delete(
    socket: NftSocket,
    look: Callable[[int], tuple[dict[str, int], list[ExistingRule]]],
    stale: Callable[[int, list[str]], list[str]],
) -> None:
    """Looks, and deletes what is `stale` in both families, in one transaction; the chain of records with its last.

    Nothing may have changed in between: of two last ones at once each would leave the chain to the other.
    """

    def attempt(generation: int) -> None:
        requests: list[Request] = []
        for version in FAMILIES:
            present, found = look(version)
            lines = {*stale(version, listed(present, found))}
            gone = {rule.handle: rule for rule in found if rule.line in lines}.values()
            for rule in gone:
                requests.append(
                    nft.delete_rule_request(rule.chain, rule.handle)._replace(details=partial(_matches, rule))
                )
            if OWNERS in present and present[OWNERS] == sum(rule.chain.name == OWNERS for rule in gone):
                requests.append(nft.delete_empty_chain_request(Chain(Table(NFPROTO[version], TABLE), OWNERS)))
        nft.change(socket, *requests, generation=generation)

    nft.retry_with_generation(socket, attempt)


def _matches(rule: ExistingRule) -> str:
    """Returns what is behind a rule's chain."""
    return rule.line.split(" ", 2)[-1]
