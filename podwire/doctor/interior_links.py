"""Checks the interface inside a running pod: its MAC address, ARP, settings, and its MTU up to the bridge."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from kernel.link import IFF_NOARP, Link
from podwire.doctor import interior_faults as faults
from podwire.doctor import local_ports
from podwire.doctor.finding import Finding, Severity
from podwire.doctor.gateways import gateway_commands, ipv6_of
from podwire.doctor.interior_pod import InspectedPod
from podwire.doctor.pods import list_uplinks
from podwire.doctor.shell_command import ShellCommand
from podwire.flannel import resolve_delegate
from process.values import replace

_DEFAULT_MTU = 1500  # of a veth, if no MTU is configured


def list_findings(one: InspectedPod, link: Link) -> Iterator[Finding]:
    """Yields the faults of a pod's interface."""
    yield from _link(one, link)
    yield from _settings(one, link)
    yield from _mtus(one, link)


def _link(one: InspectedPod, link: Link) -> Iterator[Finding]:
    if one.pod.mac and link.mac and link.mac != one.pod.mac:
        text = f"its MAC address is {link.mac}, and was {one.pod.mac} at ADD"
        fix = one.inner(f"ip link set {quote(one.ifname)} address {one.pod.mac}")
        yield one.finding(faults.MAC, text, fix, objects=(one.pod.mac_object(link.mac),))
    if link.flags & IFF_NOARP:
        yield one.finding(faults.NOARP, "ARP is off", one.inner(f"ip link set {quote(one.ifname)} arp on"))


def _settings(one: InspectedPod, link: Link) -> Iterator[Finding]:
    read, name = one.interior.sysctl, one.ifname
    has_ipv6 = any(address.version == 6 for address in one.pod.addresses)
    for setting, bad, good, effect in (
        ("ipv4/ip_default_ttl", range(10), "64", "its packets expire on the way"),
        (f"ipv6/conf/{name}/hop_limit", range(10), "64", "its IPv6 packets expire on the way"),
        (f"ipv4/conf/{name}/arp_ignore", (8,), "0", "it does not answer ARP requests"),
        (f"ipv4/neigh/{name}/mcast_solicit", (0,), "3", "it does not ask for MAC addresses"),
        (f"ipv6/conf/{name}/disable_ipv6", (1,) if has_ipv6 else (), "0", "its IPv6 addresses are off"),
    ):
        value = read(setting) or ""
        if value.isdigit() and int(value) in bad:
            text = f"net/{setting} is {value}: {effect}"
            fix = one.inner(f"sysctl -w net/{setting}={good}")
            if setting.endswith("disable_ipv6"):  # the kernel has removed the addresses
                fix = ShellCommand(f"{fix} && {one.restore(link)}")
            yield one.finding(faults.SETTING, text, fix, severity=Severity.PROBLEM)
    if read("ipv4/icmp_echo_ignore_all") == "1":
        text = "net/ipv4/icmp_echo_ignore_all is 1: it does not answer pings"
        yield one.finding(
            faults.SETTING,
            text,
            one.inner("sysctl -w net/ipv4/icmp_echo_ignore_all=0"),
            causes=False,
            severity=Severity.NOTE,
        )
    if few := local_ports.find(read):
        change: str = one.inner(f"sysctl -w net/{few.assignment}") if few.assignment else f"in the pod: {few.advice}"
        text = f"net/{few.setting}: {few.text}: it can open few connections"
        yield one.finding(faults.SETTING, text, change, causes=False)


def _mtus(one: InspectedPod, link: Link) -> Iterator[Finding]:
    veth, bridge = one.pod.host_veth, one.pod.gate if one.pod.item.bridge else None
    name = quote(one.ifname)
    least = 1280 if any(address.version == 6 for address in one.pod.addresses) else 576
    if link.mtu < least:
        yield _too_small(one, link, bridge, least)
    elif veth is not None and veth.mtu != link.mtu and not _has_chained_mtu(one):
        text = f'"{one.ifname}" has MTU {link.mtu}, but its other end "{veth.name}" has {veth.mtu}'
        inner, outer = f"ip link set {name} mtu {veth.mtu}", f"ip link set {quote(veth.name)} mtu {link.mtu}"
        is_pods_wrong = bridge is None or veth.mtu == bridge.mtu
        yield one.finding(faults.MTU, text, one.inner(inner) if is_pods_wrong else ShellCommand(outer))
    elif veth is not None and bridge is not None and bridge.mtu < link.mtu:
        yield from _larger_than_bridge(one, link, veth, bridge, least)


def _too_small(one: InspectedPod, link: Link, bridge: Link | None, least: int) -> Finding:
    veth = one.pod.host_veth
    text = f'"{one.ifname}" has MTU {link.mtu}, and IP needs at least {least}'
    mtu = bridge.mtu if bridge and bridge.mtu >= least else _DEFAULT_MTU
    commands = [f"ip link set {quote(veth.name)} mtu {mtu}"] if veth is not None else []
    commands += [one.inner(f"ip link set {quote(one.ifname)} mtu {mtu}"), one.restore(link)]
    finding = one.finding(faults.MTU, text, "")
    if bridge is not None and bridge.mtu < least:  # it has the smallest MTU of its ports, and no IPv6 then
        commands += gateway_commands(one.node, one.pod.item)
        finding = replace(finding, objects=(*finding.objects, ipv6_of(bridge.name)))
    return replace(finding, fix=ShellCommand(" && ".join(commands)))


def _larger_than_bridge(one: InspectedPod, link: Link, veth: Link, bridge: Link, least: int) -> Iterator[Finding]:
    """Yields the finding about a pod that its bridge limits: the one without the configured MTU is wrong."""
    text = f'it has MTU {link.mtu}, but the bridge "{bridge.name}" has {bridge.mtu}'
    configured = resolve_delegate(one.pod.item.network.plugins[0]).get("mtu")
    expected = configured if isinstance(configured, int) and configured else _DEFAULT_MTU
    if configured == "auto":  # ADD took the MTU of an uplink
        expected = max((uplink.mtu for uplink in list_uplinks(one.node)), default=_DEFAULT_MTU)
    if _has_chained_mtu(one):
        advice = (
            f'set "mtu" of the plugin bridge in {one.pod.item.network.path} to {link.mtu}, and create the pods again'
        )
        yield one.finding(faults.MTU, text, advice, causes=False)
    elif link.mtu > expected:
        mtu = bridge.mtu if bridge.mtu >= least else expected
        inner = one.inner(f"ip link set {quote(one.ifname)} mtu {mtu}")
        yield one.finding(faults.MTU, text, ShellCommand(f"{inner} && ip link set {quote(veth.name)} mtu {mtu}"))
    elif one.pod is next((pod for pod in one.owners.values() if pod.item is one.pod.item), None):
        fix = ShellCommand(f"ip link set {quote(bridge.name)} mtu {link.mtu}")  # once for each network
        yield one.finding(faults.MTU, text, fix, causes=False)


def _has_chained_mtu(one: InspectedPod) -> bool:
    """Returns whether a chained plugin (tuning) sets the MTU of the pod's interface alone."""
    return any("mtu" in plugin for plugin in one.pod.item.network.plugins[1:])
