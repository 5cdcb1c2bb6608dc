"""The kernel's settings: forwarding, IPv6, bridged frames, tables that fill up.

One rule: a setting that an ADD makes by itself is told only when pods live that go without it.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernel import sysctl
from podwire.doctor.finding import Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.forward import legacy_program, listed
from podwire.doctor.node import Interface, Node, read_text

_GROUP = "kernel"
_FORWARDING = {4: "ipv4/ip_forward", 6: "ipv6/conf/all/forwarding"}
_BRIDGED = "bridge/bridge-nf-call-iptables"
_COUNT, _MAX = "netfilter/nf_conntrack_count", "netfilter/nf_conntrack_max"
_FULL_PERCENT = 90
_NEIGHBOURS = {4: "ipv4/neigh/default/gc_thresh3", 6: "ipv6/neigh/default/gc_thresh3"}
# /proc/net/ipv6_route: destination, its prefix, ..., flags (linux/ipv6_route.h), interface.
_ROUTES6, _DEFAULT6, _RTF_ADDRCONF = "/proc/net/ipv6_route", "0" * 32, 0x40000

_FORWARD = Fault(
    "forwarding-off",
    Severity.PROBLEM,
    "the host hands on no packets, and pods live that need it: they reach nothing but the host and their bridge",
    "`sysctl -w net/ipv4/ip_forward=1`, `sysctl -w net/ipv6/conf/all/forwarding=1`; for good in /etc/sysctl.d",
)
_ONE_OFF = Fault(
    "interface-forwarding-off",
    Severity.PROBLEM,
    "forwarding is on, but off for one interface: what comes from a pod's bridge, or from outside, is not handed on",
    "of a network's bridge: `sysctl -w net/ipv4/conf/BRIDGE/forwarding=1`; of an interface that is not podwire's: "
    "decide whether it may forward, and take the setting out of /etc/sysctl.d",
)
_NO_IPV6 = Fault(
    "ipv6-off",
    Severity.PROBLEM,
    "a network has IPv6 ranges, and IPv6 is switched off on the host",
    "`sysctl -w net/ipv6/conf/all/disable_ipv6=0`; with ipv6.disable=1 on the kernel's command line: take that away "
    "and reboot, or take the ranges away",
)
_ADVERTISED = Fault(
    "router-advertisements-ignored",
    Severity.WARNING,
    "the IPv6 default route came by router advertisement, and with forwarding the kernel takes no more of them: the "
    "route ends when its time is up",
    "`sysctl -w net/ipv6/conf/INTERFACE/accept_ra=2`",
)
_UNSEEN = Fault(
    "bridged-frames-pass-by",
    Severity.WARNING,
    "kube-proxy serves this host, and frames between pods of one bridge do not pass iptables: a pod that calls a "
    "service which a pod on the same bridge answers gets no answer",
    '`modprobe br_netfilter`, `sysctl -w net/bridge/bridge-nf-call-iptables=1`, or "bridgeNetfilter": true',
)
_CONNECTIONS = Fault(
    "conntrack-full",
    Severity.WARNING,
    "the table of connections is nearly full, or is: new connections are dropped then",
    "`sysctl -w net/netfilter/nf_conntrack_max=NUMBER`",
)
_TABLE = Fault(
    "neighbours-full",
    Severity.WARNING,
    "the host may know fewer neighbours (ARP, NDP) than it has pods: some are not reached",
    "`sysctl -w net/ipv4/neigh/default/gc_thresh3=NUMBER`, the same for ipv6",
)


def _forwarding(node: Node) -> Iterator[Finding]:
    for version, name in _FORWARDING.items():
        users = [item.network.name for item in _with_pods(node) if version in _versions(node, item)]
        if not users:
            continue
        if _setting(name) == "0":
            text = f"IPv{version} is not forwarded, and pods of {', '.join(dict.fromkeys(users))} live"
            yield _FORWARD.finding(f"net/{name}", text, sysctl.command(name, "1"))
            continue
        if version == 4:
            yield from _each_interface(node)


def _each_interface(node: Node) -> Iterator[Finding]:
    """Tells of interfaces that are left out; of IPv6 the kernel asks none but `all`."""
    bridges = [item.bridge for item in _with_pods(node) if item.bridge]
    for interface in dict.fromkeys([*bridges, *(link.name for link in node.uplinks)]):
        name = f"ipv4/conf/{interface}/forwarding"
        if _setting(name) == "0":
            # What another interface may hand on is for its administrator to decide: no command for that.
            advice = f'"{interface}" is not podwire\'s: decide whether it may forward, then change where that is set'
            fix = sysctl.command(name, "1") if interface in bridges else advice
            yield _ONE_OFF.finding(f"net/{name}", f'what comes by "{interface}" is not handed on', fix)


def _ipv6(node: Node) -> Iterator[Finding]:
    for item in node.interfaces:
        if 6 not in item.versions:
            continue
        value = _setting("ipv6/conf/all/disable_ipv6")
        if value is None:
            text = f"{item.network.path} has IPv6 ranges, and this kernel runs without IPv6"
            fix = f"boot without ipv6.disable=1, or take the IPv6 ranges out of {item.network.path}"
            yield _NO_IPV6.finding(item.network.name, text, fix)
            continue
        for name in ("all", item.bridge):
            setting = f"ipv6/conf/{name}/disable_ipv6"
            if name and _setting(setting) == "1":
                text = f"{item.network.path} has IPv6 ranges, and net/{setting} is 1"
                fix = sysctl.command(setting, "0")
                yield _NO_IPV6.finding(item.network.name, text, fix, objects=(ipv6_of(item.bridge),))
                break


def ipv6_of(bridge: str) -> str:
    """Returns a bridge's IPv6 as an object of findings."""
    return f"IPv6 of {bridge}"


def _advertisements(node: Node) -> Iterator[Finding]:
    if _setting(_FORWARDING[6]) != "1":
        return
    for line in read_text(_ROUTES6).splitlines():
        words = line.split()
        if len(words) < 10 or words[:2] != [_DEFAULT6, "00"] or not int(words[8], 16) & _RTF_ADDRCONF:
            continue
        name = f"ipv6/conf/{words[9]}/accept_ra"
        if _setting(name) == "1":
            text = f'the default route by "{words[9]}" came by router advertisement, and no further one is taken'
            yield _ADVERTISED.finding(f"net/{name}", text, sysctl.command(name, "2"))


def _bridged(node: Node) -> Iterator[Finding]:
    served = any(
        (chain.table.name, chain.name) in (("nat", "KUBE-SERVICES"), ("kube-proxy", "services"))
        for chain in node.chains
    )
    served = served or _has_legacy_service()
    value = _setting(_BRIDGED)
    bridges = [item.bridge for item in node.interfaces if item.bridge]
    if served and bridges and value != "1":
        fix = sysctl.command(_BRIDGED, "1")
        if value is None:
            fix = f"modprobe br_netfilter && {fix}"
        yield _UNSEEN.finding(f"net/{_BRIDGED}", f"kube-proxy needs it for pods on {', '.join(bridges)}", fix)


def _has_legacy_service() -> bool:
    """Tells whether kube-proxy has made its chain by iptables-legacy."""
    program = legacy_program(4, "nat")
    return bool(program) and "-N KUBE-SERVICES" in listed(program, "-t", "nat", "-S")


def _connections(node: Node) -> Iterator[Finding]:
    count, most = _number(_COUNT), _number(_MAX)
    if count is None or not most:
        return
    if count * 100 >= most * _FULL_PERCENT:
        text = f"{count} of {most} connections are in use"
        yield _CONNECTIONS.finding(f"net/{_MAX}", text, sysctl.command(_MAX, str(2 * most)))
    else:
        yield ok_finding("connections", f"net/{_MAX}", f"{count} of {most} connections are in use")


def _neighbours(node: Node) -> Iterator[Finding]:
    for version, name in _NEIGHBOURS.items():
        most = _number(name)
        pods = sum(any(ip.address.version == version for ip in one.typed_result.ips) for one in node.living)
        if most and pods * 100 >= most * _FULL_PERCENT:
            text = f"{pods} pods, and no more than {most} neighbours"
            yield _TABLE.finding(f"net/{name}", text, sysctl.command(name, str(4 * most)))


def _with_pods(node: Node) -> list[Interface]:
    return [item for item in node.interfaces if item.routed and node.has_pods(item.network.name)]


def _versions(node: Node, item: Interface) -> frozenset[int]:
    """Returns the IP versions of a network: its ranges', and those of its living pods."""
    ips = (ip for one in node.living if one.network_name == item.network.name for ip in one.typed_result.ips)
    return item.versions | {ip.address.version for ip in ips}


def _setting(name: str) -> str | None:
    """Returns a setting, None where this kernel has none of that name."""
    try:
        return sysctl.get(name)
    except FileNotFoundError:
        return None


def _number(name: str) -> int | None:
    value = _setting(name)
    return int(value) if value and value.isdigit() else None


CHECKS = (
    Check(_GROUP, "forwarding", "pods' packets are handed on", _forwarding, (_FORWARD, _ONE_OFF)),
    Check(_GROUP, "ipv6", "IPv6 is there where it is asked for", _ipv6, (_NO_IPV6,)),
    Check(_GROUP, "advertisements", "no default route runs out", _advertisements, (_ADVERTISED,)),
    Check(_GROUP, "bridged", "bridged frames pass iptables, or need not", _bridged, (_UNSEEN,)),
    Check(_GROUP, "connections", "the kernel keeps no table of connections", _connections, (_CONNECTIONS,)),
    Check(_GROUP, "neighbours", "there is room for the pods among the neighbours", _neighbours, (_TABLE,)),
)
