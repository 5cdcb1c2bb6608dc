"""host-local with "pool": addresses from the blocks that podwire-agent wrote, and from nothing else."""

import json
import os
import time
from ipaddress import ip_network
from pathlib import Path

import pytest

from tests.unit.test_host_local_main import Runtime

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def block(subnet, state="granted", gateway=None, first=None, last=None):
    """Returns a block of the file: all addresses of the subnet but its network and broadcast addresses."""
    network = ip_network(subnet)
    return {
        "subnet": subnet,
        "first": first or str(network[1]),
        "last": last or str(network[-2]),
        "gateway": gateway or str(network[1]),
        "state": state,
    }


def pool(*blocks, name="default", versions=(4,), namespaces=()):
    return {"name": name, "versions": list(versions), "namespaces": list(namespaces), "blocks": list(blocks)}


class PoolRuntime(Runtime):
    """A runtime of a network with a pool, and the agent that writes its grants."""

    def __init__(self, data_dir):
        super().__init__(data_dir)
        self.ipam = {"type": "host-local", "dataDir": str(data_dir), "pool": "default"}
        self.grants = f"{data_dir}.podwire/net.grants"

    def grant(self, *pools, **keys):
        keys = {"version": 1, "boot": BOOT, "contact": int(time.time()), "pools": list(pools), **keys}
        self.write_grants(json.dumps(keys))

    def write_grants(self, text):
        Path(self.grants).parent.mkdir(exist_ok=True)
        Path(self.grants).write_text(text)


@pytest.fixture
def run(tmp_path):
    return PoolRuntime(tmp_path / "leases")


def test_addresses_come_from_active_blocks_in_order(run):
    """Addresses come from granted blocks, with the subnet and the gateway that the agent wrote for them."""
    run.grant(
        pool(
            block("10.22.0.64/30"),
            block("10.22.9.0/30", state="draining"),
            block("10.22.1.0/30", gateway="10.22.0.65"),
            block("10.22.8.0/30", state="claimed"),
        )
    )
    ips = [run("ADD", f"c{number}")["ips"] for number in range(3)]
    assert ips == [
        [{"address": "10.22.0.66/30", "gateway": "10.22.0.65"}],
        [{"address": "10.22.1.1/30", "gateway": "10.22.0.65"}],
        [{"address": "10.22.1.2/30", "gateway": "10.22.0.65"}],
    ]
    full = run("ADD", "c3")
    assert full["code"] == 11
    assert full["msg"] == (
        "pool default has no free address on this node: 3 of 3 in use, 0 of them by containers that are no longer "
        "running; 2 blocks"
    )
    assert full["details"].startswith("podwire-agent reached the store ")
    assert run.files() == ["10.22.0.66", "10.22.1.1", "10.22.1.2"]
    assert run("STATUS")["code"] == 50


def test_a_dual_stack_pool_needs_blocks_of_both_versions(run):
    """A pod gets an address of each IP version of the pool, or none."""
    ipv4, ipv6 = block("10.22.0.64/26"), block("fd00:22::40/122")
    run.grant(pool(ipv4, {**ipv6, "state": "claimed"}, versions=(4, 6)))
    answer = run("ADD")
    assert (answer["code"], answer["msg"]) == (11, "this node has no granted block of pool default for IPv6")
    assert run.files() == []
    run.grant(pool(ipv4, ipv6, versions=(4, 6)))
    assert [ip["address"] for ip in run("ADD")["ips"]] == ["10.22.0.66/26", "fd00:22::42/122"]
    assert run("STATUS") is None


def test_a_namespace_has_its_pool(run):
    """The pods of a namespace that a pool names get its addresses, the others those of the network's pool."""
    run.grant(pool(block("10.22.0.0/26")), pool(block("10.23.0.0/26"), name="team", namespaces=["a", "b"]))
    args = "IgnoreUnknown=1;K8S_POD_NAMESPACE={}"
    assert run("ADD", "one", args=args.format("b"))["ips"][0]["address"] == "10.23.0.2/26"
    assert run("ADD", "two", args=args.format("c"))["ips"][0]["address"] == "10.22.0.2/26"
    assert run("ADD", "three")["ips"][0]["address"] == "10.22.0.3/26"


def test_requested_address_of_a_block(run):
    """A requested address of a granted block is allocated; one of another block is not."""
    run.grant(pool(block("10.22.0.0/26"), block("10.22.7.0/26", state="draining")))
    assert run("ADD", "one", runtimeConfig={"ips": ["10.22.0.9"]})["ips"][0]["address"] == "10.22.0.9/26"
    answer = run("ADD", "two", args="IP=10.22.7.9")
    assert answer["code"] == 999
    assert "10.22.7.9" in answer["msg"]
    assert run.files() == ["10.22.0.9"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, 11),
        (json.dumps({"version": 1, "boot": BOOT, "pools": []}), 11),
        (json.dumps({"version": 1, "boot": BOOT, "pools": [pool()]}), 11),
        (json.dumps({"version": 1, "boot": BOOT, "pools": [pool(block("10.22.0.0/26"), name="other")]}), 11),
        ("", 5),
        ("[]", 5),
        ("{", 5),
        (json.dumps({"version": 2, "boot": BOOT, "pools": [pool(block("10.22.0.0/26"))]}), 5),
        (json.dumps({"version": 1, "boot": BOOT, "pools": [pool(block("10.22.0.0/26"), versions=())]}), 5),
        (json.dumps({"version": 1, "boot": BOOT, "pools": [pool(block("10.22.0.0/26"), versions=[[]])]}), 5),
        (json.dumps({"version": 1, "boot": BOOT, "pools": [pool(block("10.22.0.0/26"), block("10.22.0.32/27"))]}), 5),
        (json.dumps({"version": 1, "boot": BOOT, "pools": [pool(block("10.22.0.0/26", last="10.22.0.99"))]}), 5),
        (json.dumps({"version": 1, "boot": BOOT, "pools": [pool(block("10.22.0.0/26", gateway="fd00::1"))]}), 5),
        (json.dumps({"version": 1, "boot": BOOT, "pools": [pool({"subnet": 7})]}), 5),
    ],
)
def test_without_certain_blocks_nothing_is_allocated(run, text, code):
    """Missing, damaged or empty grants are an error that names the file or the pool; nothing is reserved."""
    if text is not None:
        run.write_grants(text)
    answer = run("ADD")
    assert answer["code"] == code
    assert "net.grants" in answer["msg"] or "pool default" in answer["msg"]
    assert "details" in answer
    assert run.files() == []
    assert run("STATUS")["code"] == 50
    assert run("DEL") is None


@pytest.mark.parametrize("boot", ["", "00000000-0000-0000-0000-000000000000"])
def test_a_boot_ends_all_grants(run, boot):
    """After a boot no address is allocated from the blocks of the boot before."""
    run.grant(pool(block("10.22.0.0/26")), boot=boot)
    answer = run("ADD")
    assert (answer["code"], run.files()) == (11, [])
    assert "since the node's boot" in answer["msg"]
    assert run("STATUS")["code"] == 50


def test_check_del_and_gc_need_no_grants(run):
    """DEL, CHECK and GC work as without a pool, also when the grants are gone."""
    run.grant(pool(block("10.22.0.0/26")))
    for name in ("one", "two", "three"):
        answer = run("ADD", name)
    os.unlink(run.grants)
    assert run("CHECK", "three", prevResult=answer) is None
    assert run("DEL", "one") is None
    assert run("GC", **{"cni.dev/valid-attachments": [{"containerID": "two", "ifname": "eth0"}]}) is None
    assert run.files() == ["10.22.0.3"]


def test_add_without_an_address_counts_for_the_agent(run):
    """Each ADD that ends with code 11 adds a byte to its pool's demand file; no other verb and no other error does."""
    run.grant(pool(block("10.22.0.0/26")), pool(name="team", namespaces=["a"]))
    assert run("ADD", "one", args="IgnoreUnknown=1;K8S_POD_NAMESPACE=a")["code"] == 11
    assert {path.name for path in Path(run.grants).parent.glob("*demand*")} == {"net.demand-team"}
    demand = Path(run.grants.replace("net.grants", "net.demand-default"))
    run.grant(pool(block("10.22.0.64/30", state="claiming")))
    assert run("ADD", "one")["code"] == 11
    assert demand.read_bytes() == b"."
    run.grant(pool(block("10.22.0.64/30")))
    assert "ips" in run("ADD", "one")
    assert demand.read_bytes() == b"."
    assert [run("ADD", name)["code"] for name in ("two", "three")] == [11, 11]
    assert demand.read_bytes() == b"..."
    demand.unlink()
    assert run("ADD", "one")["code"] == 999
    assert run("STATUS")["code"] == 50
    assert run("DEL", "two") is None
    assert not demand.exists()
    demand.mkdir()
    assert run("ADD", "two")["code"] == 11  # the count is a remark: a file that cannot be written changes no answer
