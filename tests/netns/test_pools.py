"""Networks with a pool: pods of several blocks behind one gateway, with real packets."""

import json
import time
from ipaddress import ip_network
from pathlib import Path

import pytest

from tests.support.attaching import Network, reaches

GATEWAYS = {4: "10.22.0.65", 6: "fd00:22::41"}
FIRST, SECOND = ("10.22.0.64/30", "fd00:22::40/126"), ("10.22.9.0/30", "fd00:22:9::/126")


def write_grants(store, *subnets):
    """Writes the grants of a dual-stack pool, as podwire-agent does."""
    blocks = [
        {
            "subnet": subnet,
            "first": str(ip_network(subnet)[1]),
            "last": str(ip_network(subnet)[-2]),
            "gateway": GATEWAYS[6 if ":" in subnet else 4],
            "state": "granted",
        }
        for subnet in subnets
    ]
    pools = [{"name": "default", "versions": [4, 6], "namespaces": [], "blocks": blocks}]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    path = store.with_name(f"{store.name}.podwire") / "pool.grants"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"version": 1, "boot": boot, "contact": int(time.time()), "pools": pools}))


@pytest.fixture(params=["bridge", "ptp"])
def pooled(request, bin_dir, host, store):
    """A network whose pods get addresses from a pool."""
    keys = {"bridge": "cni0", "isDefaultGateway": True} if request.param == "bridge" else {}
    ipam: dict[str, object] = {"type": "host-local", "dataDir": str(store), "pool": "default"}
    if request.param == "ptp":
        ipam["routes"] = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    return Network(host, {"cniVersion": "1.1.0", "name": "pool", "type": request.param, **keys, "ipam": ipam})


def addresses(result):
    return [ip["address"].partition("/")[0] for ip in result["ips"]]


def test_pods_of_two_blocks_reach_each_other_and_the_gateway(pooled, new_sandbox, store):
    """A second block changes nothing for the pods of the first; all reach each other, the gateway and the host."""
    write_grants(store, *FIRST)
    one = new_sandbox()
    first = pooled.add(one)
    before = one.ip("route"), one.ip("-6", "route"), one.ip("-o", "address")
    refused = pooled.run("ADD", new_sandbox())
    assert refused.json["code"] == 11
    write_grants(store, *FIRST, *SECOND)
    two, three = new_sandbox(), new_sandbox()
    second, third = pooled.add(two), pooled.add(three)
    assert addresses(second) == ["10.22.9.1", "fd00:22:9::1"]
    assert addresses(third) == ["10.22.9.2", "fd00:22:9::2"]
    for version in (4, 6):
        number = (4, 6).index(version)
        pods = [addresses(result)[number] for result in (first, second, third)]
        for pod, mine in zip((one, two, three), pods, strict=True):
            others = [GATEWAYS[version], *(target for target in pods if target != mine)]
            assert [reaches(pod, target) for target in others] == [True] * 3
        assert [reaches(pooled.host, target) for target in pods] == [True] * 3
    assert (one.ip("route"), one.ip("-6", "route"), one.ip("-o", "address")) == before
    for pod, result in ((one, first), (two, second), (three, third)):
        pooled.check(pod, result)
        pooled.delete(pod, result)
    assert pooled.run("STATUS").status == 0


@pytest.mark.parametrize("version", [4, 6])
def test_no_redirect_to_another_block(pooled, new_sandbox, store, version):
    """A pod sends to another block through its gateway, also after many packets: the block may move to another node."""
    write_grants(store, *FIRST)
    one, two = new_sandbox(), new_sandbox()
    pooled.add(one)
    write_grants(store, *FIRST, *SECOND)
    target = addresses(pooled.add(two))[version == 6]
    one.run("ping", "-c", "8", "-i", "0.2", target)
    assert f"via {GATEWAYS[version]} " in one.ip("route", "get", target)
