"""The guard of an interface: a rule that drops packets for 127.0.0.0/8 that arrive there, before address translation.

The guard is in nftables; only where the kernel has no nftables it is in table mangle of iptables.

One rule: a guard is removed only when rtnetlink reports that its interface is gone, or when route_localnet of the
interface is off. A path that is missing below /proc/sys proves neither: /proc may be mounted with subset=pid.
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


def setting(interface: str) -> str:
    """Returns the name of the setting that lets the kernel route 127.0.0.0/8 by an interface."""
    return f"ipv4/conf/{interface}/route_localnet"


def ensure_by_nftables(interface: str) -> bool:
    """Creates the guard unless it exists; returns False where the kernel has no nftables that can do it.

    It deletes nothing: what a failing ADD has not deleted it need not restore.
    """
    try:
        with nft.open_socket() as socket:
            nft.retry(lambda: _ensure(socket, interface))
    except KernelError:
        return False  # whatever the reason: iptables is next, and its error is reported
    return True


def ensure_by_iptables(interface: str) -> None:
    """Creates the guard unless it exists, with one or two processes; raises CniError."""
    line = _line(interface)
    for listing in iptables.read([4], _TABLE, [_ENTRY]).values():
        if line not in listing:
            written = line.replace(f" -i {interface} ", f" -i {quoted(interface)} ", 1)
            iptables.apply({4: [written]}, _TABLE, f"guard 127.0.0.0/8 from {interface}")


def may_be_in_iptables() -> bool:
    """Returns whether iptables may have a guard, by asking the kernel and no program."""
    return bool(iptables.get_candidate_families([4], _TABLE, _ENTRY))


def is_there(interface: str) -> bool:
    """Returns whether the interface has its guard; False also where the packet filter cannot be read."""
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
    """Closes a pod's guarded `host_veth`, then deletes its guard and stale guards from nftables; raises KernelError.

    The guard of a `host_veth` that may still be open stays. The guards of the pod's `others`, such as its bridge, stay
    without a look-up.
    """

    def attempt() -> set[str]:
        rules = {rule: name for rule in nft.list_rules(socket, _CHAIN) if (name := _interface(rule))}
        gone, closed = _close_and_list(rules.values(), host_veth, others)
        _delete(socket, (rule for rule, name in rules.items() if name in gone or name in closed))
        return gone

    # A pod that is attached at this moment may have found the guard of an interface that had the same name.
    for name, found in _links(nft.retry(attempt)).items():
        if found:
            nft.retry(partial(_ensure, socket, name))


def remove_legacy(host_veth: str = "", others: Collection[str] = ()) -> None:
    """Does what `remove` does for the guards in iptables-legacy, where it has made table mangle; raises CniError."""

    def stale(family: int, listing: list[str]) -> list[str]:
        lines = {line: name for line in listing if (name := _interface_in(line))}
        gone, closed = _close_and_list(lines.values(), host_veth, others)
        return iptables_chains.deletion_lines(line for line, name in lines.items() if name in gone or name in closed)

    iptables_chains.change_legacy(_TABLE, stale, "remove guards of 127.0.0.0/8")


def _close_and_list(names: Iterable[str], host_veth: str, others: Collection[str]) -> tuple[set[str], set[str]]:
    """Closes the pod's own interface; returns the guarded interfaces that are gone, and the own one if it is closed."""
    links = _links({name for name in names if name == host_veth or name not in others})
    gone = {name for name, found in links.items() if found is None}
    return gone, {name for name, found in links.items() if name == host_veth and found and _close(found)}


def _links(names: Iterable[str]) -> dict[str, Link | None]:
    """Returns the links by name, None for those that are gone; raises KernelError."""
    listed = list(names)
    if not listed:
        return {}
    with Socket() as socket:
        return dict(zip(listed, link.get(socket, *map(link.by_name_request, listed)), strict=True))


def _close(found: Link) -> bool:
    """Switches route_localnet of a pod's own host veth off; returns False where it may still be on.

    Runtimes call DEL of the plugin that deletes the interface later. No other pod is behind a veth that is no port and
    whose other end is in another namespace.
    """
    if found.kind != "veth" or found.master or found.lower_nsid is None:
        return False
    try:
        sysctl.ensure(setting(found.name), "0")
        return sysctl.get(setting("all")) == "0"
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
    nft.retry(lambda: _unite(socket, interface))


def _unite(socket: NftSocket, interface: str) -> None:
    """Deletes duplicate guards, which first pods make that start in parallel; fails when another pod does the same."""
    nft.change(socket, *map(_deletion, _guards(nft.list_rules(socket, _CHAIN), interface)[1:]))


def _delete(socket: NftSocket, rules: Iterable[Rule]) -> None:
    """Deletes rules, each in a transaction of its own: a stale one that another DEL deletes first is deleted.

    In one transaction it would make every other deletion fail, and of many DELs in parallel some would always lose.
    """
    for rule in rules:
        try:
            nft.change(socket, _deletion(rule))
        except KernelError as error:
            if error.errno != errno.ENOENT:
                raise


def _deletion(rule: Rule) -> Request:
    return nft.delete_rule_request(_CHAIN, rule)


def _guards(rules: Iterable[Rule], interface: str) -> list[Rule]:
    """Returns the guards of an interface among the rules."""
    expressions = _expressions(interface)
    return [rule for rule in rules if nft_rule.is_same_rule(expressions, rule.expressions)]


def _expressions(interface: str) -> bytes:
    return nft_rule.from_interface(interface) + nft_rule.destination(_LOOPBACK) + DROP


def _interface(rule: Rule) -> str:
    """Returns the interface of a guard, "" for any other rule; a colon is in no interface's name."""
    interface, _, purpose = rule.comment.partition(": ")
    return interface if purpose == _PURPOSE and _guards([rule], interface) else ""


def _line(interface: str) -> str:
    """Returns the guard as `iptables -S` prints it."""
    return f'-A {_ENTRY} -d {_LOOPBACK} -i {interface} -m comment --comment "{_PURPOSE}" -j DROP'


def _interface_in(line: str) -> str:
    """Returns the interface of a guard, "" for any other line."""
    words = line.split(" ", 6)
    return words[5] if len(words) == 7 and line == _line(words[5]) else ""
