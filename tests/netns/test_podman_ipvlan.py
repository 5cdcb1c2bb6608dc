"""ipvlan networks as podman 4.3 writes and calls them (tests/support/podman_ipvlan.py), with real packets."""

from __future__ import annotations

import json

import pytest

from tests.support import podman_ipvlan, uplink
from tests.support.attaching import address, reaches
from tests.support.invocation import run_plugin
from tests.support.netstate import shown, state
from tests.support.podman_ipvlan import INTERNAL, L2, L3
from tests.support.sockets import Reached, call, service

pytestmark = pytest.mark.needs("ipvlan")

NODE, NEIGHBOUR = "10.25.0.250", "10.25.0.251"


class Podman:
    """Runs podman's calls of one network on a host; the containers' addresses are in `store`."""

    def __init__(self, host, kind, store) -> None:
        """Uses the recorded file of this kind."""
        self.host, self.store, self.list = host, store, podman_ipvlan.network(kind)
        self.list.plugins[0]["ipam"]["dataDir"] = str(store)

    def add(self, pod, *, requests=None, ips=()):
        """Attaches a container named "web"; `requests` are in CNI_ARGS, `ips` in the runtime's configuration."""
        return self._list(ips).add(self._run(pod, requests))

    def delete(self, pod, result, *, requests=None, ips=()):
        """Detaches the container, as podman does when it is stopped: with its namespace."""
        self._list(ips).delete(self._run(pod, requests), result)

    def leases(self):
        """Returns the reserved addresses."""
        return {path.name for path in (self.store / podman_ipvlan.NAME).glob("[!l]*")}

    def _list(self, ips):
        return self.list.with_capabilities(ips=list(ips)) if ips else self.list

    def _run(self, pod, requests):
        def run(plugin, command, config):
            how = {"host": self.host, "netns": pod, "container_id": pod.name}
            return run_plugin(plugin, command, config, args=podman_ipvlan.cni_args("web", requests), **how)

        return run


@pytest.fixture
def node(bin_dir, host, neighbour):
    """The host, whose default route is by its uplink, at whose other end is the neighbour."""
    for ip in uplink.HOST:
        host.ip("address", "add", ip, "dev", uplink.UPLINK)
    host.ip("route", "add", "default", "via", NEIGHBOUR)
    return host


@pytest.mark.parametrize("kind", [L2, L3, INTERNAL])
def test_containers_reach_each_other_and_the_neighbour(node, neighbour, new_sandbox, store, kind):
    """Two containers have the file's mode and MTU on the uplink, reach each other and the neighbour; DEL restores."""
    if kind == L3:
        neighbour.ip("route", "add", "10.68.0.0/24", "via", NODE)  # as an operator does for mode l3
    podman, one, two = Podman(node, kind, store), new_sandbox(), new_sandbox()
    before = state(node), state(one)
    first, second = podman.add(one), podman.add(two)
    link = shown(one, "eth0")
    assert link["linkinfo"]["info_data"]["mode"] == (L3 if kind == L3 else L2)
    assert (link["mtu"], link["address"]) == (1400 if kind == L2 else 1500, shown(node, uplink.UPLINK)["address"])
    assert ("default" in one.ip("route")) == (kind != INTERNAL)
    for number in range(len(first["ips"])):
        ip, other = address(first, number), address(second, number)
        with service(one, "tcp", ip, name="one") as server:
            assert call([server], two, "tcp", ip, 80) == Reached("one", other)
            caller = (NEIGHBOUR, "fd00:25::251")[number]
            assert call([server], neighbour, "tcp", ip, 80) == Reached("one", caller)
        assert reaches(one, caller)
    assert podman.leases() == {address(each, number) for each in (first, second) for number in range(len(each["ips"]))}
    for pod, result in ((one, first), (two, second)):
        podman.delete(pod, result)
    assert (state(node), state(one)) == before
    assert podman.leases() == set()


@pytest.mark.parametrize(
    ("requests", "ips", "expected"),
    [
        ({"MAC": "02:00:00:00:00:07", "IP": "10.25.0.140"}, (), ["10.25.0.140/24", "fd00:25::1/64"]),
        ({}, ("10.25.0.140", "fd00:25::77"), ["10.25.0.140/24", "fd00:25::77/64"]),
    ],
)
def test_requested_addresses(node, sandbox, store, requests, ips, expected):
    """The container gets podman's --ip and --ip6; a requested MAC address has no effect, as all share the master's."""
    podman = Podman(node, L2, store)
    result = podman.add(sandbox, requests=requests, ips=ips)
    assert [ip["address"] for ip in result["ips"]] == expected
    assert shown(sandbox, "eth0")["address"] == shown(node, uplink.UPLINK)["address"]
    assert reaches(sandbox, NEIGHBOUR)
    podman.delete(sandbox, result, requests=requests, ips=ips)
    assert podman.leases() == set()


def test_container_is_stopped_after_the_default_route_has_changed(node, sandbox, store):
    """DEL, without a `master` in podman's file, succeeds when the host has no default route any more."""
    podman = Podman(node, L2, store)
    result = podman.add(sandbox)
    node.ip("route", "del", "default")
    podman.delete(sandbox, result)
    assert {link["ifname"] for link in json.loads(sandbox.ip("-j", "link"))} == {"lo"}
    assert podman.leases() == set()
