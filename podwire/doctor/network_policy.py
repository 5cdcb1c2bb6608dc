"""Checks that podwire-agent serves the pods of networks with `networkPolicy`: their ADD waits for it.

What the policies drop is meant, and no finding: `podwire policy` and `podwire trace` name it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

from attachment.policy.table import GATE_SOCKET
from podwire.doctor.finding import Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.node import CheckedNode

_GROUP = "packet filter"
_LIMIT_S = 1.0

_UNSERVED = Fault(
    "policies-unserved",
    Severity.PROBLEM,
    "a network has `networkPolicy`, and podwire-agent with `--network-policy` does not run on the node: pods of "
    "namespaces with policies do not start, after a boot no pods",
)

_ADVICE = (
    "start podwire-agent with --network-policy on this node; if it has ended, its log has the cause. A network whose "
    'pods need no policies does without the key "networkPolicy"'
)


def _check(node: CheckedNode) -> Iterator[Finding]:
    networks = [one for one in node.networks if any(plugin.get("networkPolicy") is True for plugin in one.plugins)]
    if not networks:
        return
    if _is_served():
        yield ok_finding("policies", "", "podwire-agent serves the pods of networks with networkPolicy")
        return
    for network in networks:
        text = (
            f"{network.path} has networkPolicy, and no podwire-agent listens on {GATE_SOCKET}: ADD of pods waits for it"
        )
        yield _UNSERVED.finding(network.name, text, _ADVICE)


def _is_served() -> bool:
    """Returns whether a program listens; raises OSError if that cannot be known."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_LIMIT_S)
        try:
            with suppress(BlockingIOError, TimeoutError):  # its queue is full
                connection.connect(GATE_SOCKET)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


CHECKS = (Check(_GROUP, "policies", "no network has networkPolicy", _check, (_UNSERVED,)),)
