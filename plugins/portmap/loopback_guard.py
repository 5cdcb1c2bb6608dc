"""The guard of an interface: a rule that drops packets for 127.0.0.0/8 that arrive there, before address translation.

The guard is in nftables, or in table mangle of iptables if the kernel has no nftables.

One rule: a guard is removed only if rtnetlink reports that its interface does not exist, or if route_localnet of the
interface is off. A missing path in /proc/sys proves neither: /proc may be mounted with subset=pid.
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
from kernel.netfilter import iptables, iptables_chains, nft, nft_rule
from kernel.netfilter.iptables_chains import quoted
from kernel.netfilter.nft import Chain, Hook, NftSocket, Rule
from kernel.netfilter.nft_rule import DROP
from kernel.rtnl import Request, Socket
from plugins.portmap.tables import TABLES

_LOOPBACK = IPv4Network("127.0.0.0/8")
_CHAIN = Chain(TABLES[4], "localnet", Hook("filter", 0, -300))  # NF_INET_PRE_ROUTING, raw: before conntrack and NAT
_TABLE, _ENTRY = "mangle", "PREROUTING"  # of iptables
_PURPOSE = "only this host reaches its 127.0.0.0/8, although route_localnet is on"


def route_localnet_setting(interface: str) -> str:
    """Returns the sysctl that lets the kernel route 127.0.0.0/8 over an interface."""
    return f"ipv4/conf/{interface}/route_localnet"


def ensure_in_nftables(interface: str) -> bool:
    """Creates the guard unless it exists; returns False if the kernel's nftables cannot hold it.

    Deletes nothing, so that a failing ADD has nothing to restore.
    """
    try:
        with nft.open_socket() as socket:
            nft.retry(lambda: _ensure(socket, interface))
    except KernelError:
        return False  # for whatever reason: the caller tries iptables, whose error is reported
    return True


def ensure_in_iptables(interface: str) -> None:
    """Creates the guard unless it exists, with one or two processes; raises CniError."""
    line = _line(interface)
    for listing in iptables.read([4], _TABLE, [_ENTRY]).values():
        if line not in listing:
            written = line.replace(f" -i {interface} ", f" -i {quoted(interface)} ", 1)
            iptables.apply({4: [written]}, _TABLE, f"guard 127.0.0.0/8 from {interface}")


def may_be_in_iptables() -> bool:
    """Returns whether iptables may have a guard; reads this from the kernel and runs no program."""
    return bool(iptables.get_candidate_families([4], _TABLE, _ENTRY))


def exists(interface: str) -> bool:
    """Returns whether the interface has its guard; False also if the packet filter cannot be read."""
    try:
        with nft.open_socket() as socket:
            if nft.get_chains(socket, _CHAIN) == [_CHAIN] and _guards(nft.list_rules(socket, _CHAIN), interface):
                return True
        if not may_be_in_iptables():
            return False
        return any(_line(interface) in listing for listing in iptables.read([4], _TABLE, [_ENTRY]).values())
    except CniError:
        return False


def remove(socket: NftSocket, host_veth: str = "", others: Collection[str] = ()) -> None:
    """Turns route_localnet of the pod's guarded `host_veth` off, then deletes its guard and stale ones from nftables.

    Keeps the guard of a `host_veth` whose route_localnet may still be on. Keeps the guards of the pod's `others`, such
    as its bridge, without looking them up. Raises KernelError.
    """

    def attempt() -> set[str]:
        rules = {rule: name for rule in nft.list_rules(socket, _CHAIN) if (name := _interface(rule))}
        missing, closed = _close_and_list(rules.values(), host_veth, others)
        _delete(socket, (rule for rule, name in rules.items() if name in missing or name in closed))
        return missing

    # A parallel ADD may have relied on the guard of an old interface with the same name: create it again.
    for name, link_now in _links(nft.retry(attempt)).items():
        if link_now:
            nft.retry(partial(_ensure, socket, name))


def remove_legacy(host_veth: str = "", others: Collection[str] = ()) -> None:
    """Deletes the same guards from iptables-legacy if its table mangle exists; raises CniError."""

    def stale(family: int, listing: list[str]) -> list[str]:
        lines = {line: name for line in listing if (name := _interface_in(line))}
        missing, closed = _close_and_list(lines.values(), host_veth, others)
        return iptables_chains.deletion_lines(line for line, name in lines.items() if name in missing or name in closed)

    iptables_chains.change_legacy(_TABLE, stale, "remove guards of 127.0.0.0/8")


def _close_and_list(names: Iterable[str], host_veth: str, others: Collection[str]) -> tuple[set[str], set[str]]:
    """Turns route_localnet of `host_veth` off; returns the missing interfaces, and `host_veth` if it is off."""
    links = _links({name for name in names if name == host_veth or name not in others})
    missing = {name for name, item in links.items() if item is None}
    return missing, {name for name, item in links.items() if name == host_veth and item and _close(item)}


def _links(names: Iterable[str]) -> dict[str, Link | None]:
    """Returns the links by name, None for those that do not exist; raises KernelError."""
    listed = list(names)
    if not listed:
        return {}
    with Socket() as socket:
        return dict(zip(listed, link.get(socket, *map(link.by_name_request, listed)), strict=True))


def _close(host_veth: Link) -> bool:
    """Turns route_localnet of a pod's host veth off; returns False if it may still be on.

    DEL runs in reverse order, so the veth still exists. It is turned off only for a veth that one pod alone uses: no
    bridge port, with its peer in another namespace.
    """
    if host_veth.kind != "veth" or host_veth.master or host_veth.iflink_nsid is None:
        return False
    try:
        sysctl.ensure(route_localnet_setting(host_veth.name), "0")
        return sysctl.get(route_localnet_setting("all")) == "0"
    except OSError:
        return False


def _ensure(socket: NftSocket, interface: str) -> None:
    if nft.get_chains(socket, _CHAIN) == [_CHAIN] and _guards(nft.list_rules(socket, _CHAIN), interface):
        return
    nft.change(
        socket,
        nft.table_request(_CHAIN.table),
        nft.chain_request(_CHAIN),
        nft.rule_request(_CHAIN, _expressions(interface), nft_rule.comment_userdata(f"{interface}: {_PURPOSE}")),
    )
    nft.retry(lambda: _delete_duplicates(socket, interface))


def _delete_duplicates(socket: NftSocket, interface: str) -> None:
    """Deletes duplicate guards, which parallel ADDs create; fails if another process deletes them at the same time."""
    nft.change(socket, *map(_delete_request, _guards(nft.list_rules(socket, _CHAIN), interface)[1:]))


def _delete(socket: NftSocket, rules: Iterable[Rule]) -> None:
    """Deletes rules, each in its own transaction; one that another DEL has deleted is success.

    In one transaction, one missing rule would make all deletions fail, and many parallel DELs would block each other.
    """
    for rule in rules:
        try:
            nft.change(socket, _delete_request(rule))
        except KernelError as error:
            if error.errno != errno.ENOENT:
                raise


def _delete_request(rule: Rule) -> Request:
    return nft.delete_rule_request(_CHAIN, rule)


def _guards(rules: Iterable[Rule], interface: str) -> list[Rule]:
    """Returns the guards of an interface among the rules."""
    expressions = _expressions(interface)
    return [rule for rule in rules if nft_rule.is_same_rule(expressions, rule.expressions)]


def _expressions(interface: str) -> bytes:
    return nft_rule.from_interface(interface) + nft_rule.destination(_LOOPBACK) + DROP


def _interface(rule: Rule) -> str:
    """Returns the interface of a guard, "" for any other rule; interface names cannot contain a colon."""
    interface, _, purpose = rule.comment.partition(": ")
    return interface if purpose == _PURPOSE and _guards([rule], interface) else ""


def _line(interface: str) -> str:
    """Returns the guard as `iptables -S` prints it."""
    return f'-A {_ENTRY} -d {_LOOPBACK} -i {interface} -m comment --comment "{_PURPOSE}" -j DROP'


def _interface_in(line: str) -> str:
    """Returns the interface of a guard, "" for any other line."""
    words = line.split(" ", 6)
    return words[5] if len(words) == 7 and line == _line(words[5]) else ""
