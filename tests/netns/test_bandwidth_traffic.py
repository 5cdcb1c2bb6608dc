"""bandwidth with real packets: traffic that is limited, and traffic that is not.

The limits are those of the golden state bandwidth-both: 8 Mbit/s to the pod, 16 Mbit/s from it.
"""

import json

import pytest

from tests.support import rates
from tests.support.attaching import address
from tests.support.bandwidth_network import BOTH, EGRESS, INGRESS
from tests.support.binaries import ROOT
from tests.support.invocation import run_plugin
from tests.support.publishing import GATEWAY
from tests.support.rates import Transfer

pytestmark = [pytest.mark.needs("ifb", "tbf"), pytest.mark.alone]

DIRECTIONS = ("ingress", "egress")
PROTOCOLS = ("tcp", "udp")
UNLIMITED = {"tcp": 10, "udp": 1.5}  # at least this multiple of a limit; over UDP twice the limit is sent
RUNTIMES = ROOT / "tests" / "data" / "runtimes"


def transfers(host, pod, result):
    """Returns the transfers to a pod and from it, by direction."""
    return {"ingress": Transfer(host, pod, address(result)), "egress": Transfer(pod, host, GATEWAY)}


def assert_unlimited(transfer, limit, protocol):
    """Asserts that one of several measurements is far above a limit; a busy machine slows some of them down."""
    assert any(rates.measure(transfer, limit, protocol, seconds=0.2) > UNLIMITED[protocol] for _ in range(10))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_direction_has_its_limit(shaped, sandbox, protocol):
    """Packets to a pod are limited within 10 % of one limit, packets from it of another."""
    for direction, transfer in transfers(shaped.host, sandbox, shaped.add(sandbox)).items():
        rates.assert_at_limit(transfer, BOTH[f"{direction}Rate"], protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("limits", "free"), [(INGRESS, "egress"), (EGRESS, "ingress")], ids=DIRECTIONS)
def test_limit_of_one_direction_leaves_the_other_unlimited(shaped, sandbox, limits, free, protocol):
    """With a limit of one direction only that direction is limited."""
    flows = transfers(shaped.host, sandbox, shaped.with_runtime_limits(**limits).add(sandbox))
    (limit, _), unlimited = limits.values(), flows.pop(free)
    (limited,) = flows.values()
    assert_unlimited(unlimited, limit, protocol)
    rates.assert_at_limit(limited, limit, protocol)


def test_neighbour_of_a_limited_pod_is_not_limited(shaped, new_sandbox):
    """A limited pod's neighbour is limited in neither direction, except for packets from the limited pod."""
    pod, other = new_sandbox(), new_sandbox()
    shaped.add(pod)
    result = shaped.bridge.add(other)
    limit = BOTH["egressRate"]
    for transfer in transfers(shaped.host, other, result).values():
        assert_unlimited(transfer, limit, "tcp")
    rates.assert_at_limit(Transfer(pod, other, address(result)), limit)


@pytest.mark.parametrize("runtime", ["containerd", "cri-o"])
def test_limits_of_annotations_hold_from_the_first_second(shaped, sandbox, runtime):
    """With a runtime's exact values for 10M, placeholder burst included, the first second already has the limit."""
    prev_result = shaped.bridge.add(sandbox)
    runtime_config = (RUNTIMES / f"{runtime}.json").read_text().strip()
    # In libcni's form: the sorted keys of a Go map, including "capabilities".
    config = '{"capabilities":{"bandwidth":true},"cniVersion":"1.0.0","name":"net",'
    config += f'"prevResult":{json.dumps(prev_result)},"runtimeConfig":{runtime_config},"type":"bandwidth"}}'
    result = run_plugin(
        "bandwidth", "ADD", config.encode(), host=shaped.host, netns=sandbox, container_id=sandbox.name
    ).result()
    assert [item["name"][:3] for item in result["interfaces"][3:]] == ["bwp"]
    for transfer in transfers(shaped.host, sandbox, result).values():
        rates.assert_at_limit(transfer, 10_000_000, after=0, seconds=1)
