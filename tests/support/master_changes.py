"""What CHECK of macvlan, ipvlan and vlan reports: changes of an interface on a master, of its master and its addresses.

One rule: each change is to a pod that has just passed CHECK.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.support.attaching import Network
from tests.support.namespaces import Namespace
from tests.support.netstate import links


class Change(NamedTuple):
    """Arguments of `ip` in the pod, changed keys of the configuration, and the beginning of CHECK's message."""

    command: tuple[str, ...]
    keys: dict[str, Any]
    text: str


CHANGES = {
    "another master": Change((), {"master": "up9"}, 'Container interface eth0 is not on master "up9"'),
    "no master": Change((), {"master": "zz"}, 'failed to lookup master "zz": Link not found'),
    "down": Change(("link", "set", "eth0", "down"), {}, "Interface eth0 is down"),
    "no address": Change(("addr", "del", "10.25.0.2/24", "dev", "eth0"), {}, "Expected address 10.25.0.2/24 is not on"),
    "no IPv6 address": Change(
        ("addr", "del", "fd00:25::2/64", "dev", "eth0"),
        {},
        "Expected address fd00:25::2/64 is not on",
    ),
    "deleted": Change(("link", "del", "eth0"), {}, "Container Interface name in prevResult: eth0 not found"),
}


def assert_another_kind_is_refused(net: Network, sandbox: Namespace) -> None:
    """Asserts that CHECK refuses an interface of another kind, and that DEL leaves it alone."""
    result = net.add(sandbox)
    sandbox.ip("link", "del", "eth0")
    sandbox.ip("link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
    error = net.run("CHECK", sandbox, prev_result=result).error()
    assert error["msg"] == f"Error: Container interface eth0 not of type {net.config['type']}"
    net.delete(sandbox, result)
    assert set(links(sandbox)) == {"lo", "eth0", "eth1"}
    assert net.leases() == {}


def assert_reported(net: Network, sandbox: Namespace, change: Change) -> None:
    """Asserts that CHECK passes after ADD, and reports the change."""
    net.host.ip("link", "add", "up9", "up", "type", "veth", "peer", "name", "up8")
    net.host.ip("link", "set", "up8", "up")
    result = net.add(sandbox)
    net.check(sandbox, result)
    if change.command:
        sandbox.ip(*change.command)
    error = net.having(**change.keys).run("CHECK", sandbox, prev_result=result).error()
    assert error["msg"].startswith(change.text)
