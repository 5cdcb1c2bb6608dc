"""The tool on a node with Multus: pods with a second network, both caches, no file in net.d for the second network."""

import json

import pytest

from tests.support.multus_node import MultusNode


@pytest.fixture
def node(bin_dir, host, new_sandbox, tmp_path):
    """A node with Multus and an uplink."""
    return MultusNode(host, tmp_path, new_sandbox())


@pytest.fixture
def storage(node):
    """The second network."""
    return node.bridge("storage", "10.56.0.0/24")


@pytest.fixture
def pods(node, storage, new_sandbox):
    """Two pods with both networks, the first with a host port."""
    both = new_sandbox(), new_sandbox()
    for pod, name in zip(both, "ab", strict=True):
        node.run_pod(pod, storage, name=name, ports=name == "a")
    return both


def show(node, *arguments):
    """Returns the document of `podwire show`."""
    return json.loads(node.podwire("show", "--json", *arguments).stdout)


def test_show_has_one_row_for_each_interface(node, pods):
    """Each interface is listed once, with its network, its pod and its host ports; the networks have no problem."""
    document = show(node)
    rows = [(one["network"], one["pod"], one["ifname"], one["state"]) for one in document["attachments"]]
    assert [row for row in rows if row[2] != "lo"] == [
        (network, f"default/{pod}", ifname, "ok")
        for network, ifname in (("cluster", "eth0"), ("storage", "net1"))
        for pod in "ab"
    ]
    assert [port["hostPort"] for one in document["attachments"] for port in one["hostPorts"]] == [8080]
    assert [one["problem"] for one in document["networks"]] == [""] * 4
    assert (document["complete"], document["leaks"]) == (True, [])


def test_doctor_finds_nothing_on_a_healthy_node(node, pods):
    """Doctor is complete and has no finding: it checks the attachments of every network of Multus."""
    assert node.list_findings() == []


def test_doctor_names_a_fault_of_the_second_network(node, pods, host):
    """A bridge of a second network that is down is a finding, although no file of net.d defines the network."""
    host.ip("link", "set", "br-storage", "down")
    assert "br-storage" in str(node.find("bridge-down"))


def test_repair_and_metrics_know_the_second_network(node, pods, storage):
    """Repair goes through the attachments of both networks, and metrics count them."""
    lines = node.podwire("repair", "--dry-run").stdout.splitlines()
    assert sum(line.startswith(("cluster ", "storage ")) and line.endswith("in order") for line in lines) == 4
    metrics = node.podwire("metrics").stdout
    for network in ("cluster", "storage"):
        assert f'podwire_attachments{{network="{network}",state="ok"}} 2' in metrics
