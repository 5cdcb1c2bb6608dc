"""bandwidth with real packets: what passes through the limits, and what does not have to.

The limits are those of the golden state bandwidth-both: 8 Mbit/s towards the pod, 16 from it.
"""

import json

import pytest

from tests.support import rates
from tests.support.attaching import address
from tests.support.bandwidth_network import BOTH, EGRESS, INGRESS
from tests.support.binaries import ROOT
from tests.support.hostports import ports
from tests.support.invocation import run_plugin
from tests.support.netlist import NetworkList
from tests.support.publishing import NODE
from tests.support.rates import Transfer

pytestmark = pytest.mark.needs("ifb", "tbf")

GATEWAY, OTHER_GATEWAY = "10.22.0.1", "192.0.2.1"  # the host's
DIRECTIONS = ("ingress", "egress")
PROTOCOLS = ("tcp", "udp")
UNLIMITED = {"tcp": 10, "udp": 1.5}  # times as much as a limit, at least; over UDP twice as much is sent
RUNTIMES = ROOT / "tests" / "data" / "runtimes"


def ways(host, pod, result, gateway=GATEWAY):
    """Returns the ways into a pod and out of it, by direction."""
    return {"ingress": Transfer(host, pod, address(result)), "egress": Transfer(pod, host, gateway)}


def passing(way, limit, protocol="tcp", **how):
    """Returns what arrives, as a part of `limit`."""
    how = {"after": limit // 8 // 5, **how}  # twice the burst
    found = rates.tcp(way, **how) if protocol == "tcp" else rates.udp(way, 2 * limit, **how)
    return found / limit


def is_held(part):
    """Tells whether a limit is kept and can be used up, within 10 %."""
    return part == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_direction_has_its_limit(shaped, sandbox, protocol):
    """What a pod receives is held to its limit within 10 %, and what it sends to another one."""
    for direction, way in ways(shaped.host, sandbox, shaped.add(sandbox)).items():
        assert is_held(passing(way, BOTH[f"{direction}Rate"], protocol))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("limits", "free"), [(INGRESS, "egress"), (EGRESS, "ingress")], ids=DIRECTIONS)
def test_one_direction_leaves_the_other_alone(shaped, sandbox, limits, free, protocol):
    """With a limit of one direction that direction is held to it, and the other is not."""
    found = ways(shaped.host, sandbox, shaped.with_runtime_limits(**limits).add(sandbox))
    (limit, _), unlimited = limits.values(), found.pop(free)
    (limited,) = found.values()
    assert passing(unlimited, limit, protocol, seconds=0.2) > UNLIMITED[protocol]
    assert is_held(passing(limited, limit, protocol))


def test_a_neighbour_is_not_limited(shaped, new_sandbox):
    """A limited pod's neighbour is not limited in either direction, except in what it has from the limited pod."""
    pod, other = new_sandbox(), new_sandbox()
    shaped.add(pod)
    result = shaped.bridge.add(other)
    limit = BOTH["egressRate"]
    for way in ways(shaped.host, other, result).values():
        assert passing(way, limit, seconds=0.2) > UNLIMITED["tcp"]
    assert is_held(passing(Transfer(pod, other, address(result)), limit))


@pytest.mark.parametrize("runtime", ["containerd", "cri-o"])
def test_the_kubernetes_annotations_limit_a_pod_from_its_first_second_on(shaped, sandbox, runtime):
    """With exactly what a runtime sends for 10M each way, burst included, the first second passes no more than that."""
    prev_result = shaped.bridge.add(sandbox)
    asked = (RUNTIMES / f"{runtime}.json").read_text().strip()
    # As libcni composes it: a Go map, whose keys are sorted, with "capabilities" left in.
    config = '{"capabilities":{"bandwidth":true},"cniVersion":"1.0.0","name":"net",'
    config += f'"prevResult":{json.dumps(prev_result)},"runtimeConfig":{asked},"type":"bandwidth"}}'
    how = {"host": shaped.host, "netns": sandbox, "container_id": sandbox.name}
    outcome = run_plugin("bandwidth", "ADD", config.encode(), **how)
    result = outcome.result()
    assert [item["name"][:3] for item in result["interfaces"][3:]] == ["bwp"]
    for way in ways(shaped.host, sandbox, result).values():
        assert is_held(passing(way, 10_000_000, after=0, seconds=1))


def test_a_host_port_is_limited_too(bin_dir, host, sandbox, client, store):
    """Who calls a host port of the whole chain from outside gets what the limits allow in both directions."""
    network = NetworkList.load(ROOT / "conf" / "10-podwire.conflist")
    network = network.asking(portMappings=ports("8080:80"), bandwidth=BOTH)
    network.plugins[0]["ipam"]["dataDir"] = str(store)

    def run(plugin, command, config):
        return run_plugin(plugin, command, config, host=host, netns=sandbox, container_id=sandbox.name)

    result = network.add(run)
    network.check(run, result)
    called = {"ip": address(result), "destination": (NODE, 8080)}
    assert is_held(passing(Transfer(client, sandbox, **called), BOTH["ingressRate"]))
    assert is_held(passing(Transfer(sandbox, client, **called, server_sends=True), BOTH["egressRate"]))


def test_two_interfaces_of_a_container_on_one_network_are_limited_each(shaped, sandbox):
    """A container that is on one network twice has limits of its own for each interface."""
    first = shaped.add(sandbox)
    bridge, eth1 = shaped.bridge.having(isDefaultGateway=None), {"ifname": "eth1"}
    second = shaped.limit(sandbox, bridge.add(sandbox, **eth1), **eth1)
    # An address of the host for each, and each interface answers for its own address alone.
    shaped.host.ip("address", "add", f"{OTHER_GATEWAY}/32", "dev", "cni0")
    sandbox.ip("route", "add", OTHER_GATEWAY, "dev", "eth1", "src", address(second))
    sandbox.set_sysctl("net/ipv4/conf/all/arp_ignore", "1")
    other = ways(shaped.host, sandbox, second, OTHER_GATEWAY)
    for way in (ways(shaped.host, sandbox, first)["egress"], other["egress"]):
        assert is_held(passing(way, BOTH["egressRate"]))
    assert is_held(passing(other["ingress"], BOTH["ingressRate"]))
