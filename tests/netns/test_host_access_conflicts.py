"""`hostAccess` when attachments share an address, a mark of their routes, a pod; or an address with the node."""

import json
from typing import Any

import pytest

from tests.netns.conftest import MACVLAN
from tests.support import uplink
from tests.support.attaching import address, reaches
from tests.support.netstate import links, shown, state
from tests.support.uplink import UPLINK, WIRE

NODE = [item.partition("/")[0] for item in uplink.HOST]
POD = ("10.25.0.2/24", "fd00:25::2/64")


def static(*addresses: str) -> dict[str, object]:
    """Returns an `ipam` that allocates the same addresses to each pod."""
    return {"type": "static", "addresses": [{"address": item} for item in addresses]}


def route(host, destination) -> dict[str, Any]:
    """Returns the host's route to one address of a pod."""
    (item,) = json.loads(host.ip("-j", "route", "show", destination, "proto", "112"))
    return dict(item)


@pytest.mark.parametrize("accessible", [MACVLAN], indirect=True)  # the kernel refuses ipvlan a used address
def test_a_failed_add_restores_the_route_that_it_replaced(accessible, new_sandbox):
    """If ADD fails after it has replaced the route of an earlier attachment, the rollback restores that route."""
    first, second = new_sandbox(), new_sandbox()
    accessible.having(ipam=static(POD[0])).add(first)
    before = state(accessible.host)
    link = uplink.host_link(accessible.host)
    accessible.host.set_sysctl(f"net/ipv6/conf/{link}/disable_ipv6", "1")
    error = accessible.having(ipam=static(*POD), name="other").run("ADD", second).error()
    assert error["msg"].startswith("failed to add route fd00:25::2")
    accessible.host.set_sysctl(f"net/ipv6/conf/{link}/disable_ipv6", "0")
    assert state(accessible.host) == before
    accessible.host.ip("neighbour", "flush", "dev", link)
    assert reaches(accessible.host, "10.25.0.2")


@pytest.mark.parametrize("number", [0, 1])
def test_a_route_of_another_master_is_not_replaced(accessible, new_sandbox, number):
    """ADD refuses an address to which the host has a route through another master's host link, and changes nothing."""
    first, second = new_sandbox(), new_sandbox()
    accessible.host.ip("link", "add", "up1", "type", "veth", "peer", "name", "wire1")
    accessible.host.ip("link", "set", "up1", "up")
    network = accessible.having(ipam=static(POD[number]))
    result = network.add(first)
    before = state(accessible.host), state(second)
    error = network.having(name="other", master="up1").run("ADD", second).error()
    pod, link = POD[number].partition("/")[0], uplink.host_link(accessible.host)
    assert error["msg"] == f"the host's route to {pod} is through {link}, for a pod on another master"
    assert (state(accessible.host), state(second)) == before
    network.check(first, result)
    assert reaches(accessible.host, pod)
    accessible.host.ip(*error["details"].partition(": ip ")[2].split())
    network.having(name="other", master="up1").add(second)


@pytest.mark.parametrize("number", [0, 1])
def test_the_address_of_the_node_is_refused(accessible, sandbox, neighbour, number):
    """ADD refuses the node's address for the pod, before the pod announces it to the network."""
    assert reaches(neighbour, NODE[number])
    entry = neighbour.ip("-j", "neighbour", "show", NODE[number], "dev", WIRE)
    error = accessible.having(ipam=static(uplink.HOST[number])).add_error(sandbox)
    assert (error["code"], error["msg"]) == (7, f"the pod's address {NODE[number]} is the node's on \"{UPLINK}\"")
    assert error["details"].startswith("exclude the node's address from IPAM's range")
    later_entry = neighbour.ip("-j", "neighbour", "show", NODE[number], "dev", WIRE)
    assert json.loads(later_entry)[0]["lladdr"] == json.loads(entry)[0]["lladdr"]


@pytest.mark.parametrize("mark", ["metric", "cwnd"])
def test_del_ignores_routes_with_one_equal_mark(accessible, sandbox, mark):
    """DEL without prevResult deletes only routes with both marks of the attachment, not with a single equal one."""
    accessible.add(sandbox)
    marked = route(accessible.host, "10.25.0.2")
    metrics = {"metric": marked["metric"], "cwnd": marked["metrics"][0]["cwnd"]}
    metrics[mark] ^= 0x10000
    words = (str(word) for item in metrics.items() for word in item)
    link = uplink.host_link(accessible.host)
    accessible.host.ip("route", "add", "10.25.0.77", "dev", link, "proto", "112", "scope", "link", *words)
    kept = route(accessible.host, "10.25.0.77")
    accessible.delete("", container_id=sandbox.name)
    assert json.loads(accessible.host.ip("-j", "route", "show", "proto", "112")) == [kept]
    accessible.gc()
    assert (link in links(accessible.host)) == (mark == "cwnd")  # of another network, which GC leaves alone


def test_similar_container_ids_are_distinguished(accessible, new_sandbox):
    """DEL without prevResult keeps the routes of a container whose ID has the same 16-bit hash."""
    first, second = new_sandbox(), new_sandbox()
    accessible.add(first, container_id="pod64")
    result = accessible.add(second, container_id="pod361")
    accessible.delete("", container_id="pod64")
    accessible.check(second, result, container_id="pod361")


@pytest.mark.parametrize("accessible", [MACVLAN], indirect=True)
@pytest.mark.parametrize("with_result", [True, False])
def test_del_of_one_of_two_interfaces(accessible, sandbox, with_result):
    """After DEL of one of a pod's interfaces on a master, the host reaches the other interface at once."""
    first = accessible.add(sandbox)
    second = accessible.having(name="other", ipam=static("10.25.0.200/24")).add(sandbox, ifname="net1")
    link, mac = uplink.host_link(accessible.host), shown(sandbox, "net1")["address"]
    for number in (0, 1):  # what the host has learned if net1 has answered first
        accessible.host.ip(
            "neighbour", "replace", address(first, number), "lladdr", mac, "dev", link, "nud", "reachable"
        )
    kept = ("10.25.0.77", "lladdr", mac, "dev", link)  # an administrator's, which the kernel does not learn again
    accessible.host.ip("neighbour", "replace", *kept, "nud", "permanent")
    accessible.having(name="other", ipam=static("10.25.0.200/24")).delete(
        sandbox, second if with_result else None, ifname="net1"
    )
    for number in (0, 1):
        assert reaches(accessible.host, address(first, number), within_s=2)
    assert kept[0] in accessible.host.ip("neighbour", "show", "dev", link, "nud", "permanent")
    accessible.check(sandbox, first)
