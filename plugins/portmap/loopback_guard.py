"""The guard of an interface: a rule that drops packets for 127.0.0.0/8 that arrive there, before NAT.

The guard is in nftables, or in table mangle of iptables if the kernel has no nftables.

A guard is deleted only if rtnetlink reports that its interface does not exist, or if route_localnet of the
interface is disabled. A missing path in /proc/sys proves neither: /proc may be mounted with subset=pid.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable
from functools import partial
from ipaddress import IPv4Network

from cni.errors import CniError
from kernel import link, sysctl
from kernel.errors import KernelError
from kernel.link import Link
from kernel.netfilter import iptables, iptables_chains, iptables_rule, nft, nft_rule
from kernel.netfilter.iptables_rule import ChainList, IptablesChange, comment_match, quoted
from kernel.netfilter.nft import Chain, Hook, NftRule, NftSocket
from kernel.netfilter.nft_rule import DROP
from kernel.rtnl import Request, Socket
from plugins.portmap.nftables_rules import TABLES

_LOOPBACK = IPv4Network("127.0.0.0/8")
_CHAIN = Chain(TABLES[4], "localnet", Hook("filter", 0, -300))  # NF_INET_PRE_ROUTING, raw: before conntrack and NAT
_MANGLE, _PREROUTING = "mangle", "PREROUTING"  # table and chain of iptables
_COMMENT = "only this host reaches its 127.0.0.0/8, although route_localnet is on"


def route_localnet_setting(interface: str) -> str:
    """Returns the name of the sysctl that lets the kernel route 127.0.0.0/8 over an interface."""
    return f"ipv4/conf/{interface}/route_localnet"


def ensure_in_nftables(interface: str) -> bool:
    """Creates the guard unless it exists; returns False if nftables cannot be used.

    Keeps the guards of other interfaces, so that a failed ADD has nothing to restore.
    """
    try:
        with nft.open_socket() as socket:
            nft.retry(lambda: _ensure_with_socket(socket, interface))
    except KernelError:
        return False  # the caller tries iptables, and reports the error of iptables
    return True


def ensure_in_iptables(interface: str) -> None:
    """Creates the guard in table mangle unless it exists; costs one or two processes. Raises CniError."""
    for listing in iptables.read([4], _MANGLE, [_PREROUTING]).values():
        if _iptables_guard(interface) not in listing:
            change = IptablesChange.append(_iptables_guard(quoted(interface)))
            iptables.apply({4: [change]}, _MANGLE, f"guard 127.0.0.0/8 from {interface}")


def may_be_in_iptables() -> bool:
    """Returns whether table mangle of iptables may contain a guard; costs no process."""
    return not iptables.get_missing_chains([4], _MANGLE, [_PREROUTING])[4]


def exists(interface: str) -> bool:
    """Returns whether the guard of the interface exists; False if the packet filter cannot be read."""
    try:
        with nft.open_socket() as socket:
            if nft.get_chains(socket, _CHAIN) == [_CHAIN] and _select_guards(nft.list_rules(socket, _CHAIN), interface):
                return True
        if not may_be_in_iptables():
            return False
        return any(
            _iptables_guard(interface) in listing for listing in iptables.read([4], _MANGLE, [_PREROUTING]).values()
        )
    except CniError:
        return False


def remove(socket: NftSocket, host_veth: str = "", kept_interfaces: Collection[str] = ()) -> None:
    """Disables route_localnet of `host_veth`; deletes its guard and the guards of missing interfaces from nftables.

    Changes nothing on a `host_veth` without a guard. Keeps its guard if route_localnet may still be enabled. Keeps the
    guards of `kept_interfaces`, such as the pod's bridge, without reading these links, except that of `host_veth`,
    which may be one of them. Raises KernelError.
    """

    def delete_unneeded_guards() -> set[str]:
        rules = {rule: name for rule in nft.list_rules(socket, _CHAIN) if (name := _interface_of_rule(rule))}
        missing, disabled = _disable_and_find_unneeded(rules.values(), host_veth, kept_interfaces)
        _delete_guards(socket, (rule for rule, name in rules.items() if name in missing or name in disabled))
        return missing

    # If an interface exists again by now, a parallel ADD may have relied on the deleted guard: create it again.
    for name, existing_link in _get_links(nft.retry(delete_unneeded_guards)).items():
        if existing_link:
            nft.retry(partial(_ensure_with_socket, socket, name))


def remove_legacy(host_veth: str = "", kept_interfaces: Collection[str] = ()) -> None:
    """Deletes from iptables-legacy the guards that remove() deletes from nftables; raises CniError."""

    def plan(family: int, listing: ChainList) -> list[IptablesChange]:
        guards = {rule: name for rule in listing.rules(_PREROUTING) if (name := _interface_of_guard(rule))}
        missing, disabled = _disable_and_find_unneeded(guards.values(), host_veth, kept_interfaces)
        return [IptablesChange.delete(rule) for rule, name in guards.items() if name in missing or name in disabled]

    iptables_chains.change_legacy(_MANGLE, plan, "delete guards of 127.0.0.0/8")


def _disable_and_find_unneeded(
    names: Iterable[str], host_veth: str, kept_interfaces: Collection[str]
) -> tuple[set[str], set[str]]:
    """Disables route_localnet of a guarded `host_veth`.

    Returns the interfaces that need no guard: the missing ones, and those whose route_localnet has been disabled.
    """
    links = _get_links({name for name in names if name == host_veth or name not in kept_interfaces})
    missing = {name for name, item in links.items() if item is None}
    return missing, {
        name for name, item in links.items() if name == host_veth and item and _disable_route_localnet(item)
    }


def _get_links(names: Iterable[str]) -> dict[str, Link | None]:
    """Returns the links by name, None for a missing link; raises KernelError."""
    requested = list(names)
    if not requested:
        return {}
    with Socket() as socket:
        return dict(zip(requested, link.get(socket, *map(link.by_name_request, requested)), strict=True))


def _disable_route_localnet(host_veth: Link) -> bool:
    """Disables route_localnet of a pod's host veth; returns False if it may still be enabled.

    Changes only a veth that one pod alone uses: it is no bridge port, and its peer is in another namespace. The veth
    still exists, since DEL runs the plugins in reverse order.
    """
    if host_veth.kind != "veth" or host_veth.master or host_veth.iflink_nsid is None:
        return False
    try:
        sysctl.ensure(route_localnet_setting(host_veth.name), "0")
        return sysctl.get(route_localnet_setting("all")) == "0"
    except OSError:
        return False


def _ensure_with_socket(socket: NftSocket, interface: str) -> None:
    if nft.get_chains(socket, _CHAIN) == [_CHAIN] and _select_guards(nft.list_rules(socket, _CHAIN), interface):
        return
    nft.change(
        socket,
        nft.table_request(_CHAIN.table),
        nft.chain_request(_CHAIN),
        nft.rule_request(_CHAIN, _guard_expressions(interface), nft_rule.comment_userdata(f"{interface}: {_COMMENT}")),
    )
    nft.retry(lambda: _delete_duplicates(socket, interface))


def _delete_duplicates(socket: NftSocket, interface: str) -> None:
    """Deletes duplicate guards, which parallel ADDs create; raises KernelError if another process is faster."""
    nft.change(socket, *map(_delete_request, _select_guards(nft.list_rules(socket, _CHAIN), interface)[1:]))


def _delete_guards(socket: NftSocket, rules: Iterable[NftRule]) -> None:
    """Deletes rules, each in its own transaction; ignores a rule that another DEL has deleted.

    In a common transaction one missing rule would make all deletions fail, so parallel DELs would block each other.
    """
    for rule in rules:
        try:
            nft.change(socket, _delete_request(rule))
        except KernelError as error:
            if error.errno != errno.ENOENT:
                raise


def _delete_request(rule: NftRule) -> Request:
    return nft.delete_rule_request(_CHAIN, rule)


def _select_guards(rules: Iterable[NftRule], interface: str) -> list[NftRule]:
    """Returns those of the rules that are guards of the interface."""
    expressions = _guard_expressions(interface)
    return [rule for rule in rules if nft_rule.is_same_rule(expressions, rule.expressions)]


def _guard_expressions(interface: str) -> bytes:
    return nft_rule.from_interface(interface) + nft_rule.destination(_LOOPBACK) + DROP


def _interface_of_rule(rule: NftRule) -> str:
    """Returns the interface of a guard, "" for another rule; names of interfaces contain no colon."""
    interface, _, purpose = rule.comment.partition(": ")
    return interface if purpose == _COMMENT and _select_guards([rule], interface) else ""


def _iptables_guard(interface: str) -> iptables_rule.IptablesRule:
    """Returns the guard of an interface as a rule of iptables, which lists the interface without quotes."""
    return iptables_rule.IptablesRule(_PREROUTING, f"-d {_LOOPBACK} -i {interface} {comment_match(_COMMENT)} -j DROP")


def _interface_of_guard(rule: iptables_rule.IptablesRule) -> str:
    """Returns the interface of a guard of iptables, "" for another rule."""
    words = rule.spec.split(" ", 4)
    return words[3] if len(words) == 5 and rule == _iptables_guard(words[3]) else ""
