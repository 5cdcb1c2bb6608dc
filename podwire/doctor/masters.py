"""Checks the masters of networks with macvlan, ipvlan or vlan: they exist, are up, and have a carrier.

Without pods, STATUS of the plugin reports a missing master.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from kernel.link import OPERSTATE_UP, OPERSTATES
from podwire.doctor.finding import Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.node import CheckedNode
from podwire.doctor.shell_command import ShellCommand
from podwire.networks import Network

_GROUP = "links"
_ON_MASTER = ("macvlan", "ipvlan", "vlan")

_MISSING = Fault(
    "master-missing",
    Severity.PROBLEM,
    "the host's interface that pods of a network are built on does not exist: they have no connection",
)
_DOWN = Fault(
    "master-down",
    Severity.PROBLEM,
    "the host's interface that pods of a network are built on is down: they have no connection",
)
_NO_CARRIER = Fault(
    "master-without-carrier",
    Severity.PROBLEM,
    "the host's interface that pods of a network are built on is up, but has no carrier: a cable or a peer is missing",
)


def _masters(node: CheckedNode) -> Iterator[Finding]:
    for network in node.networks:
        for kind, name in _list_masters(network, node):
            yield from _master(node, network.name, kind, name)


def _list_masters(network: Network, node: CheckedNode) -> Iterator[tuple[str, str]]:
    """Yields a plugin's type, and the name of its master on the host: the configured one, or the default route's."""
    for plugin in network.plugins:
        kind = str(plugin["type"])
        if kind in _ON_MASTER and plugin.get("linkInContainer") is not True and node.has_pods(network.name):
            name = plugin.get("master")
            if isinstance(name, str) and name:
                yield kind, name
            elif plugin is network.plugins[0]:  # a chained ipvlan uses the interface of prevResult
                yield from ((kind, uplink.name) for uplink in node.used_uplinks[:1])


def _master(node: CheckedNode, network: str, kind: str, name: str) -> Iterator[Finding]:
    master = node.link(name)
    if master is None:
        text = f'its pods are running, but their master "{name}" does not exist'
        command = node.command("repair", network)
        fix = f"create {name} again, then: {command}"
        if kind == "vlan":
            fix = f"create {name} again, then remove the pods and create them again: their VLAN interfaces are lost"
        yield _MISSING.finding(network, text, fix, objects=(name,))
    elif not master.is_up:
        yield _DOWN.finding(
            network, f'its master "{name}" is down', ShellCommand(f"ip link set {quote(name)} up"), objects=(name,)
        )
    elif master.operstate not in (OPERSTATE_UP, OPERSTATES.index("unknown")):
        text = f'its master "{name}" is up, but has no carrier ({OPERSTATES[master.operstate]})'
        fix = f"connect {name}, or bring up its other end"
        yield _NO_CARRIER.finding(network, text, fix, objects=(name,))
    else:
        yield ok_finding("masters", network, f'its master "{name}" is up')


CHECKS = (
    Check(
        _GROUP,
        "masters",
        "no network with pods is built on an interface of the host",
        _masters,
        (_MISSING, _DOWN, _NO_CARRIER),
    ),
)
