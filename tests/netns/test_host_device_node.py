"""host-device: ADD refuses devices that other interfaces need, and a failed ADD restores the host's routes."""

from __future__ import annotations

import pytest

from tests.support.host_device_network import files
from tests.support.netstate import shown, state


@pytest.mark.parametrize("prefix", ["mv", "pwha"])
def test_device_with_interfaces_on_it_is_refused(moved, host, sandbox, prefix):
    """ADD refuses a device that has a macvlan interface on it, names the interface, and changes nothing."""
    name = f"{prefix}{shown(host, 'hd0')['ifindex']}"
    host.ip("link", "add", name, "link", "hd0", "type", "macvlan")
    host.ip("link", "set", name, "up")
    host.ip("route", "add", "10.99.0.5", "dev", name)
    before = state(host), state(sandbox)
    error = moved.run("ADD", sandbox).error()
    assert error["msg"] == f'"hd0" has other interfaces on it: "{name}"'
    assert '"master": "hd0"' in error["details"]
    assert (state(host), state(sandbox), files(moved)) == (*before, [])
    host.ip("link", "del", name)
    moved.delete(sandbox, moved.add(sandbox))


def test_host_link_is_refused(moved, host, sandbox):
    """ADD refuses the host link of macvlan's `hostAccess`."""
    name = f"pwha{shown(host, 'hd0')['ifindex']}"
    host.ip("link", "add", name, "link", "hd0", "type", "macvlan")
    before = state(host), state(sandbox)
    error = moved.having(device=name).run("ADD", sandbox).error()
    assert error["msg"] == f'"{name}" connects the node with its pods ("hostAccess")'
    assert "select another interface" in error["details"]
    assert (state(host), state(sandbox)) == before


def test_failed_add_restores_routes(moved, host, sandbox):
    """If IPAM fails, the host's routes through the device are those before ADD, in all tables."""
    host.ip("route", "add", "198.51.100.1", "dev", "hd0")
    host.ip("route", "add", "203.0.113.0/24", "via", "198.51.100.1", "dev", "hd0", "metric", "7", "table", "99")
    host.ip("route", "add", "10.99.0.0/16", "via", "192.0.2.1", "mtu", "1300")
    host.ip("-6", "route", "add", "2001:db8:1::/64", "via", "2001:db8::1", "dev", "hd0")
    before = state(host)
    moved.having(ipam={"type": "no-such-ipam"}).run("ADD", sandbox).error()
    assert state(host) == before
