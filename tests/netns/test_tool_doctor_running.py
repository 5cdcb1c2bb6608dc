"""`podwire doctor` agrees with `podwire gc`: objects of running pods are never stale, whatever the cache contains."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.doctor_node import DoctorNode, list_problems
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList

MAPPING = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
SAMPLES = [
    "60-podman.conflist",
    pytest.param("50-nftables.conflist", marks=pytest.mark.needs("nft_nat")),
]


@pytest.fixture(params=SAMPLES)
def network(node: DoctorNode, new_sandbox: Callable[[], Namespace], request: pytest.FixtureRequest) -> NetworkList:
    """A network with host ports and one pod, which keeps its entry in the cache."""
    network_list = node.add_sample(request.param)
    node.attach(network_list.with_capabilities(portMappings=[{**MAPPING, "hostPort": 8081}]), new_sandbox())
    return network_list.with_capabilities(portMappings=[MAPPING])


def test_running_pod_without_cache_entry(node: DoctorNode, network: NetworkList, sandbox: Namespace):
    """A running pod whose entry in the cache is deleted has no stale rules and no stale address."""
    node.attach(network, sandbox)
    node.cache_file(network, sandbox).unlink()
    assert list_problems(node.list_findings()) == []


def test_running_pod_with_truncated_cache_entry(node: DoctorNode, network: NetworkList, sandbox: Namespace):
    """For a running pod with a truncated entry the advice is not gc, but del and add, which write the whole entry."""
    node.attach(network, sandbox)
    entry = node.cache_file(network, sandbox)
    entry.write_text(entry.read_text()[:300])
    findings = node.list_findings()
    assert list_problems(findings) == []
    (unseen,) = (one for one in findings if one["name"] == "not-seen")
    assert "if the container is running, do not delete the file" in unseen["cure"]
    for verb in ("del", "add"):
        words = [verb, network.name, sandbox.path, "--container-id", sandbox.name, f"--bin-dir={node.bin_dir}"]
        done = node.podwire(*words)
        assert done.returncode == 0, done
    findings = node.list_findings()
    assert [one for one in findings if one["name"] == "not-seen"] + list_problems(findings) == []


def test_address_of_a_running_add(node: DoctorNode, network: NetworkList):
    """An address that was reserved less than a minute ago, without an entry in the cache, is not stale."""
    (store,) = (path for path in (node.directory / "leases").iterdir() if path.is_dir())
    first = next(path for path in store.iterdir() if path.name[0].isdecimal() and ":" not in path.name)
    (store / f"{first.name.rpartition('.')[0]}.201").write_bytes(b"abc\r\neth0")
    assert list_problems(node.list_findings()) == []
