"""127.0.0.1:hostPort: the setting that lets the kernel route 127.0.0.0/8 to a pod, and a guard for what it opens.

With net.ipv4.conf.<interface>.route_localnet the kernel takes packets for 127.0.0.0/8 from that interface, too: a pod,
or whoever can send frames to the node, reaches what listens on the node's loopback only (CVE-2020-8558). So what
arrives there for 127.0.0.0/8 is dropped, before address translation: the answers to connections from localhost arrive
for the node's own address, and get 127.0.0.1 as their destination only there.

One rule: the guard stands before the setting is on. Both belong to the interface, which other pods share, and stay.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from ipaddress import IPv4Network

from cni.errors import CniError, Code
from kernel import route, sysctl
from kernel.errors import KernelError
from kernel.link import IFF_LOOPBACK
from kernel.netfilter import iptables, nft, nft_rule
from kernel.netfilter.iptables_chains import quoted
from kernel.netfilter.nft import Chain, Hook, NftSocket, Rule
from kernel.netfilter.nft_rule import DROP
from kernel.rtnl import Request, Socket
from plugins.portmap.tables import TABLES
from plugins.portmap.wanted import HostPorts

_LOOPBACK = IPv4Network("127.0.0.0/8")
_CHAIN = Chain(TABLES[4], "localnet", Hook("filter", 0, -300))  # NF_INET_PRE_ROUTING, raw: before conntrack and NAT
_TABLE = "mangle"  # of iptables, where there is no nftables
_PURPOSE = "only this host reaches its 127.0.0.0/8, although route_localnet is on"
_CURE = 'or set "snat" to false: the host port is not served at 127.0.0.1 then'


def ensure(wanted: HostPorts, *, unguarded: bool = False) -> None:
    """Makes 127.0.0.1:hostPort lead to the pod where it is to (snat, IPv4); raises CniError(999), KernelError.

    Where all is as it should be that costs some look-ups by netlink. Only where the kernel has no nftables processes
    are run: when the setting is turned on, or was on (the reference makes no guard) while there is no table for it, or
    when it is known that something is missing (`unguarded`).
    """
    interface = _interface(wanted)
    if not interface:
        return
    name = _setting(interface)
    try:
        if not _guard_by_nftables(interface) and (
            unguarded or not (_is_on(name) and iptables.may_have([4], _TABLE, "PREROUTING"))
        ):
            _guard_by_iptables(interface)
        sysctl.require(name, "1", "turn it on")
    except CniError as error:
        cure = f"{error.details}; {_CURE}" if error.details else _CURE
        raise CniError(error.code, f"unable to enable route_localnet: {error.msg}", cure) from error


def check(wanted: HostPorts) -> None:
    """Checks that localhost is led to the pod; raises CniError(999), KernelError.

    A guard that is missing is told on stderr: the reference makes none, and its pods must pass.
    """
    interface = _checked(wanted)
    if interface and not _is_guarded(interface):
        print(
            f"podwire: packets that arrive by {interface} for 127.0.0.0/8 are not dropped: podwire repair sees to it "
            "(and the next ADD, where the kernel has nftables)",
            file=sys.stderr,
        )


def demand(wanted: HostPorts) -> None:
    """Checks as `check`, and demands the guard; raises CniError(999), KernelError."""
    interface = _checked(wanted)
    if interface and not _is_guarded(interface):
        msg = f"packets that arrive by {interface} for 127.0.0.0/8 are not dropped"
        raise CniError(Code.INTERNAL, msg, "podwire repair or the next ADD sees to it")


def _checked(wanted: HostPorts) -> str:
    """Returns the interface that needs a guard, "" where none does; raises CniError(999) where the setting is off."""
    interface = _interface(wanted)
    name = _setting(interface)
    if interface and not _is_on(name) and not _is_on(_setting("all")):
        cure = f"set it on the node: {sysctl.command(name, '1')}"
        raise CniError(Code.INTERNAL, f"127.0.0.1 does not lead to the pod: net/{name} is off", cure)
    return interface


def gc(socket: NftSocket) -> None:
    """Deletes the guards of interfaces that are gone, as far as nftables has them; raises KernelError."""
    nft.retried(lambda: nft.change(socket, *map(_deletion, _stale(_rules(socket)))))


def _interface(wanted: HostPorts) -> str:
    """Returns the interface that leads to the pod, "" where localhost is not to be served or no route leads there.

    An address of the host itself, which the loopback leads to, needs nothing; a guard there would cut the host off.
    """
    if not (wanted.snat and 4 in wanted.addresses and wanted.of(4)):
        return ""
    with Socket() as socket:
        link = route.interface_to(socket, wanted.addresses[4].ip)
    return link.name if link and not link.flags & IFF_LOOPBACK else ""


def _setting(interface: str) -> str:
    return f"ipv4/conf/{interface}/route_localnet"


def _is_on(name: str) -> bool:
    try:
        return sysctl.get(name) == "1"
    except OSError:
        return False


def _is_guarded(interface: str) -> bool:
    try:
        with nft.opened() as socket:
            if _own(_rules(socket), interface):
                return True
        return any(_line(interface) in listing for listing in _listings(iptables.may_have([4], _TABLE, "PREROUTING")))
    except CniError:
        return False  # what cannot be looked at


def _guard_by_nftables(interface: str) -> bool:
    """Sees to the guard and returns True, False where the kernel has no nftables that can do it."""
    try:
        with nft.opened() as socket:
            nft.retried(lambda: _guard(socket, interface))
    except KernelError:
        return False  # whatever the reason: iptables comes next, and its error is told
    return True


def _guard(socket: NftSocket, interface: str) -> None:
    rules = _rules(socket)
    if _own(rules, interface):
        return
    # Interfaces of single pods come and go; what guarded those that went goes with the next that comes, or with GC.
    nft.change(
        socket,
        nft.table(_CHAIN.table),
        nft.chain(_CHAIN),
        *map(_deletion, _stale(rules)),
        nft.rule(_CHAIN, _expressions(interface), nft_rule.comment(f"{interface}: {_PURPOSE}")),
    )
    nft.retried(lambda: _unite(socket, interface))


def _unite(socket: NftSocket, interface: str) -> None:
    """Leaves one guard where several first pods have made one; looks again when another is at it, too."""
    twice = [rule for rule in _rules(socket) if _own([rule], interface)][1:]
    nft.change(socket, *map(_deletion, twice))


def _deletion(rule: Rule) -> Request:
    return nft.rule_deletion(_CHAIN, rule)


def _stale(rules: list[Rule]) -> list[Rule]:
    """Returns the guards whose interface is not there any more."""
    return [rule for rule in rules if (name := _named(rule)) and not _exists(name) and _own([rule], name)]


def _rules(socket: NftSocket) -> list[Rule]:
    """Returns the rules of the guards' chain, none when it is not called where it should be."""
    return nft.rules(socket, _CHAIN) if nft.get(socket, _CHAIN) == [_CHAIN] else []


def _own(rules: list[Rule], interface: str) -> bool:
    """Tells whether the interface's guard is among the rules."""
    expressions = _expressions(interface)
    return any(nft_rule.same(expressions, rule.expressions) for rule in rules)


def _expressions(interface: str) -> bytes:
    return nft_rule.from_interface(interface) + nft_rule.destination(_LOOPBACK) + DROP


def _named(rule: Rule) -> str:
    """Returns the interface that a guard's comment names; a colon is in no interface's name."""
    interface, _, purpose = rule.comment.partition(": ")
    return interface if purpose == _PURPOSE else ""


def _exists(interface: str) -> bool:
    return os.path.isdir(f"/proc/sys/net/ipv4/conf/{interface}")


def _guard_by_iptables(interface: str) -> None:
    """Makes the guard where there is only iptables, with two processes; raises CniError."""
    own = _line(interface)
    for listing in _listings([4]):
        if own in listing:
            continue
        stale = [line for line in listing if (name := _named_in(line)) and not _exists(name)]
        written = own.replace(f" -i {interface} ", f" -i {quoted(interface)} ", 1)
        changes = [*(line.replace("-A", "-D", 1) for line in stale), written]
        doing = f"guard 127.0.0.0/8 from {interface}"
        try:
            iptables.apply({4: changes}, _TABLE, doing)
        except iptables.RefusedError:  # somebody else took such a line away
            iptables.apply({4: [written]}, _TABLE, doing)


def _listings(families: Iterable[int]) -> Iterable[list[str]]:
    return iptables.read(families, _TABLE, ["PREROUTING"]).values()


def _line(interface: str) -> str:
    """Returns the guard as `iptables -S` prints it."""
    return f'-A PREROUTING -d {_LOOPBACK} -i {interface} -m comment --comment "{_PURPOSE}" -j DROP'


def _named_in(line: str) -> str:
    """Returns the interface of a guard, "" of any other line."""
    words = line.split(" ", 6)
    return words[5] if len(words) == 7 and line == _line(words[5]) else ""
