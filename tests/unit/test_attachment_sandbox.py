"""The number of comparisons of CHECK in a sandbox (attachment.sandbox), and the host veth of a container."""

from ipaddress import ip_address, ip_interface
from unittest.mock import Mock

import pytest

from attachment import sandbox as sandbox_module
from attachment.host_veth import HostVeth, host_veth
from attachment.sandbox import Sandbox
from attachment.veth import refuse_small_mtu
from cni.errors import CniError
from cni.result import Interface, IPConfig, Result, Route
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


POD = "/run/netns/pod"
BRIDGE, VETH, OTHER_VETH = Interface("cni0", "02:00:00:00:00:01"), Interface("veth1"), Interface("veth2")
CONTAINER, OTHER = Interface("eth0", sandbox=POD), Interface("eth1", sandbox=POD)


@pytest.mark.parametrize(
    ("interfaces", "expected"),
    [
        ([], HostVeth()),
        ([CONTAINER], HostVeth()),
        ([VETH, CONTAINER], HostVeth("veth1")),
        ([BRIDGE, VETH, CONTAINER], HostVeth("veth1", "cni0", BRIDGE.mac)),
        ([BRIDGE, VETH, CONTAINER, Interface("ifb0")], HostVeth("veth1", "cni0", BRIDGE.mac)),
        ([BRIDGE, VETH, OTHER, OTHER_VETH, CONTAINER], HostVeth("veth2")),
        ([BRIDGE, VETH, OTHER, CONTAINER], HostVeth()),
        ([BRIDGE, VETH], HostVeth()),
    ],
)
def test_the_interface_listed_before_the_containers_is_its_host_veth(interfaces, expected):
    """The host veth is the interface of the host right before the container's, the bridge the one before that."""
    assert host_veth(interfaces, "eth0") == expected


@pytest.mark.parametrize(("netns", "expected"), [("", "veth1"), (POD, "veth1"), ("/run/netns/other", "")])
def test_result_of_another_container_has_no_host_veth(netns, expected):
    """With a namespace, only the interface in that namespace counts."""
    assert host_veth([BRIDGE, VETH, CONTAINER], "eth0", netns).name == expected


def test_an_mtu_without_ipv6_is_refused_for_ipv6_only():
    """Below 1,280 bytes the kernel would remove IPv6 addresses; IPv4 needs less, and 0 is the kernel's default."""
    one, two = IPConfig(ip_interface("10.1.2.3/24")), IPConfig(ip_interface("fd00::3/64"))
    with pytest.raises(CniError, match='"mtu" 1279 is too small'):
        refuse_small_mtu(1279, [one, two])
    refuse_small_mtu(1279, [one])
    refuse_small_mtu(1280, [one, two])
    refuse_small_mtu(0, [one, two])
