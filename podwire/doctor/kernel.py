"""Checks the kernel's settings: forwarding, IPv6, bridged frames, tables that are nearly full.

A setting that ADD writes itself is reported only if running pods lack it.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernel import advertised_route, modules, sysctl
from podwire.doctor.finding import Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.gateways import gateway_commands, ipv6_of
from podwire.doctor.node import CheckedNode, InterfaceConf
from podwire.doctor.shell_command import ShellCommand

_GROUP = "kernel"
_FORWARDING = {4: "ipv4/ip_forward", 6: "ipv6/conf/all/forwarding"}
_BRIDGED = "bridge/bridge-nf-call-iptables"
_COUNT, _MAX = "netfilter/nf_conntrack_count", "netfilter/nf_conntrack_max"
_FULL_PERCENT = 90
_NEIGHBOURS = {4: "ipv4/neigh/default/gc_thresh3", 6: "ipv6/neigh/default/gc_thresh3"}

_FORWARD = Fault(
    "forwarding-off",
    Severity.PROBLEM,
    "the host does not forward packets, and running pods need that: they reach only the host and their bridge",
)
_ONE_OFF = Fault(
    "interface-forwarding-off",
    Severity.PROBLEM,
    "forwarding is on, but off for one interface: packets from a pod's bridge, or from outside, are not forwarded",
)
_NO_IPV6 = Fault(
    "ipv6-off",
    Severity.PROBLEM,
    "a network has IPv6 ranges, but IPv6 is disabled on the host, on its bridge, or on the bridge that ADD will create",
)
_ADVERTISED = Fault(
    "router-advertisements-ignored",
    Severity.WARNING,
    "the IPv6 default route was learned by router advertisement, which the kernel ignores with forwarding on: the "
    "route will expire",
)
_UNSEEN = Fault(
    "bridged-frames-pass-by",
    Severity.WARNING,
    "kube-proxy serves this host, but frames between pods of one bridge bypass iptables: a pod gets no answer from a "
    "service whose backend is on the same bridge",
)
_CONNECTIONS = Fault(
    "conntrack-full",
    Severity.WARNING,
    "the connection tracking table is full or nearly full: the kernel drops new connections when it is full",
)
_TABLE = Fault(
    "neighbours-full",
    Severity.WARNING,
    "the neighbour table (ARP, NDP) is too small for the number of pods: some are not reachable",
)


def _forwarding(node: CheckedNode) -> Iterator[Finding]:
    for version, name in _FORWARDING.items():
        users = [item.network.name for item in _with_pods(node) if version in _versions(node, item)]
        if not users:
            continue
        if _setting(name) == "0":
            text = f"IPv{version} forwarding is off, and pods of {', '.join(dict.fromkeys(users))} are running"
            yield _FORWARD.finding(f"net/{name}", text, ShellCommand(sysctl.command(name, "1")))
            continue
        if version == 4:
            yield from _each_interface(node)


def _each_interface(node: CheckedNode) -> Iterator[Finding]:
    """Yields the interfaces with forwarding off; for IPv6 the kernel uses only the setting of `all`."""
    bridges = [item.bridge for item in _with_pods(node) if item.bridge]
    for interface in dict.fromkeys([*bridges, *(link.name for link in node.uplinks)]):
        name = f"ipv4/conf/{interface}/forwarding"
        if _setting(name) == "0":
            # Whether another interface may forward is the administrator's decision: no command for that.
            advice = f'"{interface}" is not podwire\'s: decide whether it may forward, then change the setting'
            fix = ShellCommand(sysctl.command(name, "1")) if interface in bridges else advice
            yield _ONE_OFF.finding(f"net/{name}", f'packets received on "{interface}" are not forwarded', fix)


def _ipv6(node: CheckedNode) -> Iterator[Finding]:
    for item in node.interfaces:
        if 6 not in item.versions:
            continue
        value = _setting("ipv6/conf/all/disable_ipv6")
        if value is None:
            text = f"{item.network.path} has IPv6 ranges, but the kernel was booted without IPv6"
            fix = f"boot without ipv6.disable=1, or remove the IPv6 ranges from {item.network.path}"
            yield _NO_IPV6.finding(item.network.name, text, fix)
            continue
        # A bridge that does not exist will get the setting of new interfaces.
        is_new = item.bridge and node.link(item.bridge) is None
        for name in ("all", "default" if is_new else item.bridge):
            setting = f"ipv6/conf/{name}/disable_ipv6"
            if name and _setting(setting) == "1":
                text = f"{item.network.path} has IPv6 ranges, but net/{setting} is 1"
                again = gateway_commands(node, item) if item.bridge else []
                fix = ShellCommand(" && ".join([sysctl.command(setting, "0"), *again]))
                yield _NO_IPV6.finding(item.network.name, text, fix, objects=(ipv6_of(item.bridge),))
                break


def _advertisements(node: CheckedNode) -> Iterator[Finding]:
    if _setting(_FORWARDING[6]) != "1":
        return
    for interface in advertised_route.list_endangered():
        name = advertised_route.setting_of(interface)
        text = f'the default route through "{interface}" came by router advertisement, and further ones are ignored'
        yield _ADVERTISED.finding(f"net/{name}", text, ShellCommand(sysctl.command(name, "2")))


def _bridged(node: CheckedNode) -> Iterator[Finding]:
    services = ("nat", "KUBE-SERVICES"), ("kube-proxy", "services")
    served = any((chain.table, chain.name) in services for chain in node.ruleset.chains)
    value = _setting(_BRIDGED)
    affected = (item for item in node.interfaces if not item.filters_bridged or node.list_attached(item))
    bridges = [item.bridge for item in affected if item.bridge]
    if served and bridges and value != "1":
        fix: str = ShellCommand(sysctl.command(_BRIDGED, "1"))
        if value is None:
            fix = modules.get_obstacle("br_netfilter") or ShellCommand(f"modprobe br_netfilter && {fix}")
        yield _UNSEEN.finding(f"net/{_BRIDGED}", f"kube-proxy needs it for pods on {', '.join(bridges)}", fix)


def _connections(node: CheckedNode) -> Iterator[Finding]:
    count, maximum = _number(_COUNT), _number(_MAX)
    if count is None or not maximum:
        return
    if count * 100 >= maximum * _FULL_PERCENT:
        text = f"{count} of {maximum} connections are tracked"
        yield _CONNECTIONS.finding(f"net/{_MAX}", text, ShellCommand(sysctl.command(_MAX, str(2 * maximum))))
    else:
        yield ok_finding("connections", f"net/{_MAX}", f"{count} of {maximum} connections are tracked")


def _neighbours(node: CheckedNode) -> Iterator[Finding]:
    # All namespaces share the tables: they have the host's entry for each pod, and the pod's for its gateway.
    for version, name in _NEIGHBOURS.items():
        maximum = _number(name)
        pods = sum(any(ip.address.version == version for ip in one.typed_result.ips) for one in node.running)
        neighbours = 2 * pods
        if maximum and neighbours * 100 >= maximum * _FULL_PERCENT:
            text = f"{pods} pods are {neighbours} neighbours, but the table has at most {maximum}"
            yield _TABLE.finding(f"net/{name}", text, ShellCommand(sysctl.command(name, str(4 * maximum))))


def _with_pods(node: CheckedNode) -> list[InterfaceConf]:
    return [item for item in node.interfaces if item.routed and node.list_attached(item)]


def _versions(node: CheckedNode, item: InterfaceConf) -> frozenset[int]:
    """Returns the IP versions of a network's ranges and of its running pods."""
    ips = (ip for one in node.list_attached(item) for ip in one.typed_result.ips)
    return item.versions | {ip.address.version for ip in ips}


def _setting(name: str) -> str | None:
    """Returns the value of a sysctl setting, None if this kernel does not have it."""
    try:
        return sysctl.get(name)
    except FileNotFoundError:
        return None


def _number(name: str) -> int | None:
    value = _setting(name)
    return int(value) if value and value.isdigit() else None


CHECKS = (
    Check(_GROUP, "forwarding", "pods' packets are forwarded", _forwarding, (_FORWARD, _ONE_OFF)),
    Check(_GROUP, "ipv6", "IPv6 is enabled where networks need it", _ipv6, (_NO_IPV6,)),
    Check(_GROUP, "advertisements", "no default route will expire", _advertisements, (_ADVERTISED,)),
    Check(_GROUP, "bridged", "bridged frames pass iptables where that is needed", _bridged, (_UNSEEN,)),
    Check(_GROUP, "connections", "the kernel tracks no connections", _connections, (_CONNECTIONS,)),
    Check(_GROUP, "neighbours", "the neighbour tables are large enough for the pods", _neighbours, (_TABLE,)),
)
