"""CHECK of addresses and routes in a sandbox (attachment.sandbox): the number of comparisons."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface
from unittest.mock import Mock

from attachment import sandbox as sandbox_module
from attachment.sandbox import Sandbox
from cni.result import Result, Route
from kernel import address, route
from kernel.link import Link
from kernel.netns import Netns
from kernel.route import InstalledRoute

ROUTES = 300


def test_each_route_is_compared_with_those_of_its_destination(monkeypatch):
    """With many routes, CHECK compares each only with the installed routes to the same destination."""
    networks = [ip_interface(f"10.{number >> 8}.{number & 255}.0/24") for number in range(ROUTES)]
    gateway = ip_address("10.22.0.1")
    installed = [InstalledRoute(network, gateway, 2, 254) for network in networks]
    compared = []
    satisfies = sandbox_module._satisfies

    def record_and_compare(one: InstalledRoute, expected: Route) -> bool:
        compared.append(one)
        return satisfies(one, expected)

    monkeypatch.setattr(sandbox_module, "_satisfies", record_and_compare)
    monkeypatch.setattr(route, "list_unicast", lambda socket, version: installed)
    monkeypatch.setattr(address, "list_on_link", lambda socket, link: [])
    monkeypatch.setattr(Sandbox, "socket", None)
    namespace, container_link = Mock(Netns, path="/run/netns/x"), Mock(Link)
    container_link.name = "eth0"
    sandbox_module.check_addresses_and_routes(
        Sandbox(namespace, "eth0"), container_link, Result(routes=tuple(map(Route, networks)))
    )
    assert len(compared) == ROUTES
