"""The daemon of dhcp in a container with exactly the manifest's permissions: leases of pods on the node."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import container, dhcp_node, manifests
from tests.support.attaching import address, reaches
from tests.support.dhcp import SERVER
from tests.support.dhcp_node import Node
from tests.support.machine import eventually


@pytest.fixture
def node(bin_dir, host, new_sandbox, tmp_path) -> Iterator[Node]:
    """A node whose daemon is the container of the DaemonSet."""
    pod = manifests.pod(manifests.DHCP)
    (spec,) = pod["containers"]
    with dhcp_node.created(host, new_sandbox(), tmp_path) as node:
        node.data.mkdir()
        (tmp_path / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
        volumes = {
            "leases": node.data,
            "socket": node.socket.parent,
            "namespaces": Path("/run/netns"),
            "machine-id": tmp_path / "machine-id",
        }
        image = {"/podwire": bin_dir / "podwire"}
        node.daemon.argv = container.command_line(pod, spec, image, volumes)
        node.start_server()
        node.start_daemon()
        yield node


@pytest.mark.parametrize("kind", ["bridge", "macvlan"])
def test_daemon_in_a_container_maintains_leases(kind, node, new_sandbox):
    """A pod that was created after the container gets a lease, which the next container continues and releases."""
    net, pod = node.network(kind), new_sandbox()
    result = net.add(pod)
    assert node.list_leases() == [address(result)]
    assert reaches(pod, SERVER)
    node.daemon.stop(signal.SIGTERM)
    node.start_daemon()
    net.check(pod, result)
    net.delete(pod, result)
    assert eventually(lambda: node.list_leases() == []), node.daemon.log.read_text()
    assert node.list_files() == {}


def test_identifier_is_that_of_the_node(node, new_sandbox):
    """The client identifier of a pod depends on the node's machine ID, not on the container's."""
    pod = new_sandbox()
    net = node.network(ipam={"clientIdentifier": "duid"})
    first = node.read_server_lease(address(net.add(pod)))[4]
    (node.directory / "machine-id").write_text("fedcba9876543210fedcba9876543210\n")
    node.daemon.stop(signal.SIGTERM)
    node.start_daemon()
    assert node.read_server_lease(address(net.add(pod, ifname="net1")))[4] != first
