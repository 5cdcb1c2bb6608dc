"""Checks kernel settings of the host's interfaces that stop the pods' packets, and what they are changed to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kernel import sysctl
from podwire.doctor import local_ports
from podwire.doctor.finding import Check, Fault, Finding, Severity
from podwire.doctor.node import CheckedNode
from podwire.doctor.pods import list_pods, list_uplinks
from podwire.doctor.shell_command import ShellCommand

_GROUP = "kernel"

_STOPS = Fault(
    "setting-stops-packets",
    Severity.PROBLEM,
    "a kernel setting of the pods' bridge or interface stops their packets: no answers to ARP, or no requests",
)
_HINDERS = Fault(
    "setting-hinders",
    Severity.WARNING,
    "a kernel setting of the host has a value with which connections fail under load or after a while: very short "
    "timeouts of connection tracking, few local ports, packets with a small TTL",
)
_UNUSUAL = Fault(
    "setting-unusual",
    Severity.NOTE,
    "a kernel setting of the host changes what pods see: no answers to pings, answers to ARP requests for others",
)


class _Setting(NamedTuple):
    """A setting: its name with {} for the interface, when it is bad, the kernel's default, and what happens.

    `uplinks`: it is read for the host's uplinks, not for the pods' interfaces.
    """

    fault: Fault
    name: str
    is_bad: Callable[[int], bool]
    good: str
    effect: str
    uplinks: bool = False


def _is(number: int) -> Callable[[int], bool]:
    return lambda value: value == number


def _below(number: int) -> Callable[[int], bool]:
    return lambda value: 0 <= value < number


_CT = "netfilter/nf_conntrack_"
_NO_ANSWERS, _NO_REQUESTS = "the host does not answer ARP requests", "the host does not look for neighbours"
_FRAGMENTS, _DATAGRAM = "packets that arrive in fragments are lost: there is no room for the fragments", 65536
_EXPIRE = "the host's own packets expire on the way"
_LATE = "answers to UDP packets come too late"
_SETTINGS = (
    _Setting(_STOPS, "ipv4/conf/{}/arp_ignore", _is(8), "0", _NO_ANSWERS),
    _Setting(_STOPS, "ipv4/conf/all/arp_ignore", _is(8), "0", _NO_ANSWERS),
    _Setting(_STOPS, "ipv4/neigh/{}/mcast_solicit", _is(0), "3", _NO_REQUESTS),
    _Setting(_STOPS, "ipv6/neigh/{}/mcast_solicit", _is(0), "3", _NO_REQUESTS),
    _Setting(_STOPS, "ipv4/neigh/{}/mcast_solicit", _is(0), "3", _NO_REQUESTS, uplinks=True),
    _Setting(_STOPS, "ipv4/neigh/default/gc_thresh3", _below(8), "1024", "the ARP table has no room"),
    _Setting(_STOPS, "ipv6/neigh/default/gc_thresh3", _below(8), "1024", "the NDP table has no room"),
    _Setting(_STOPS, f"{_CT}max", lambda value: 0 < value < 64, "262144", "few connections are possible"),
    _Setting(_STOPS, "ipv4/ipfrag_high_thresh", _below(_DATAGRAM), "4194304", _FRAGMENTS),
    _Setting(_STOPS, "netfilter/nf_conntrack_frag6_high_thresh", _below(_DATAGRAM), "4194304", _FRAGMENTS),
    _Setting(_HINDERS, "ipv6/conf/{}/hop_limit", _below(10), "64", _EXPIRE, uplinks=True),
    _Setting(_HINDERS, "ipv4/ip_default_ttl", _below(10), "64", _EXPIRE),
    _Setting(
        _HINDERS, f"{_CT}tcp_timeout_established", _below(300), "432000", "idle connections are forgotten and hang"
    ),
    _Setting(
        _HINDERS, f"{_CT}tcp_timeout_syn_sent", _below(5), "120", "slow connections are forgotten before they open"
    ),
    _Setting(_HINDERS, f"{_CT}udp_timeout", _below(5), "30", _LATE),
    _Setting(_HINDERS, f"{_CT}udp_timeout_stream", _below(5), "120", _LATE),
    _Setting(_HINDERS, f"{_CT}icmp_timeout", _below(2), "30", "answers to pings are lost"),
    _Setting(_HINDERS, f"{_CT}generic_timeout", _below(5), "600", "flows are forgotten"),
    _Setting(_HINDERS, "core/netdev_max_backlog", _below(16), "1000", "packets in bursts are dropped"),
    _Setting(_HINDERS, "core/somaxconn", _below(8), "4096", "connections in bursts are refused"),
    _Setting(_UNUSUAL, "ipv4/icmp_echo_ignore_all", _is(1), "0", "the host does not answer pings"),
    _Setting(_UNUSUAL, "ipv4/conf/{}/proxy_arp", _is(1), "0", "the host answers ARP requests for others"),
    _Setting(_UNUSUAL, "ipv4/conf/{}/proxy_arp_pvlan", _is(1), "0", "traffic between pods passes the host"),
    _Setting(_UNUSUAL, "ipv4/conf/{}/arp_filter", _is(1), "0", "ARP is answered only on the way back"),
    _Setting(_UNUSUAL, "ipv4/conf/all/arp_filter", _is(1), "0", "ARP is answered only on the way back"),
)


def _check(node: CheckedNode) -> Iterator[Finding]:
    pods = list_pods(node)
    if not pods:
        return
    gates = list(dict.fromkeys(pod.gate.name for pod in pods if pod.gate))
    uplinks = [link.name for link in list_uplinks(node)]
    for one in _SETTINGS:
        for interface in (uplinks if one.uplinks else gates) if "{}" in one.name else [""]:
            name = one.name.format(interface)
            value = node.sysctl_number(name)
            if value is not None and one.is_bad(value):
                fix = ShellCommand(sysctl.command(name, one.good))
                yield one.fault.finding(f"net/{name}", f"it is {value}: {one.effect}", fix)
    if few := local_ports.find(node.sysctl):
        change: str = ShellCommand(f"sysctl -w net/{few.assignment}") if few.assignment else few.advice
        yield _HINDERS.finding(f"net/{few.setting}", f"{few.text}: the host can open few connections at a time", change)


CHECKS = (
    Check(_GROUP, "settings", "no setting of the pods' interfaces stops packets", _check, (_STOPS, _HINDERS, _UNUSUAL)),
)
