"""Bridge with subnets of one address, whose gateway also serves another subnet: of pods that keep their address."""

import pytest

from tests.support.attaching import reaches

SUBNET = [
    {"address": "10.22.0.9/26", "gateway": "10.22.0.1"},
    {"address": "fd00:22::9/122", "gateway": "fd00:22::1"},
]
SINGLE = [
    {"address": "10.24.0.5/32", "gateway": "10.22.0.1"},
    {"address": "fd00:24::5/128", "gateway": "fd00:22::1"},
]


@pytest.mark.parametrize("order", [(SUBNET, SINGLE), (SINGLE, SUBNET)], ids=["subnet first", "single address first"])
def test_one_gateway_serves_a_subnet_and_single_addresses(scripted_network, new_sandbox, order):
    """In any order both pods reach the gateway and each other, the host reaches both, and CHECK passes."""
    one, other = new_sandbox(), new_sandbox()
    attached = []
    for pod, ips in zip((one, other), order, strict=True):
        network = scripted_network(ips)
        attached.append((pod, network, network.add(pod)))
    for pod, target in ((one, order[1]), (other, order[0])):
        for ip in target:
            assert reaches(pod, ip["gateway"])
            assert reaches(pod, ip["address"].partition("/")[0])
            assert reaches(attached[0][1].host, ip["address"].partition("/")[0])
    for pod, network, result in attached:
        network.check(pod, result)
