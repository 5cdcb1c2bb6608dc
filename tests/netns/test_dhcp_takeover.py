"""podwire's dhcp beside the reference's: each plugin with the other's daemon, and a node that changes its daemon."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support import binaries, dhcp_node
from tests.support.attaching import Network, address, reaches
from tests.support.dhcp import SERVER
from tests.support.dhcp_node import Node, Program
from tests.support.machine import eventually


@pytest.fixture
def node(host, new_sandbox, bin_dir, tmp_path) -> Iterator[Node]:
    """A node whose server runs, without a daemon."""
    with dhcp_node.created(host, new_sandbox(), tmp_path) as node:
        node.start_server()
        yield node


def use_reference_daemon(node: Node, reference) -> None:
    """Makes the reference's daemon the node's."""
    argv = (str(reference / "dhcp"), "daemon", "-socketpath", str(node.socket))
    node.daemon = Program(node.host, argv, node.directory / "reference.log")


def with_reference_plugin(net: Network, reference, directory) -> Network:
    """Returns the network with the reference's dhcp as its IPAM plugin."""
    only = directory / "only-dhcp"
    only.mkdir(exist_ok=True)
    (only / "dhcp").symlink_to(reference / "dhcp")
    return replace(net, path=f"{only}:{binaries.directory()}")


def test_references_plugin_with_our_daemon(node, sandbox, reference, tmp_path):
    """The reference's plugin gets a lease from podwire's daemon, checks it and releases it."""
    node.start_daemon()
    net = with_reference_plugin(node.network(), reference, tmp_path)
    result = net.add(sandbox)
    assert node.list_leases() == [address(result)]
    assert reaches(sandbox, SERVER)
    net.check(sandbox, result)
    net.delete(sandbox, result)
    assert eventually(lambda: node.list_leases() == [])


def test_our_plugin_with_the_references_daemon(node, sandbox, reference):
    """Podwire's plugin gets a lease from the reference's daemon, checks it and releases it."""
    use_reference_daemon(node, reference)
    node.start_daemon()
    net = node.network(cniVersion="1.0.0")
    result = net.add(sandbox)
    assert node.list_leases() == [address(result)]
    assert reaches(sandbox, SERVER)
    net.check(sandbox, result)
    net.having(cniVersion="1.1.0").run("STATUS").assert_silent()
    net.delete(sandbox, result)


def test_pod_of_the_references_daemon_keeps_its_address_under_ours(node, sandbox, reference):
    """After a change of the daemon, ADD of dhcp for a running pod gets the same address: its identifier is the same."""
    ours = node.daemon
    use_reference_daemon(node, reference)
    node.start_daemon()
    result = node.network().add(sandbox)
    node.daemon.stop()
    node.socket.unlink(missing_ok=True)
    node.daemon = ours
    node.start_daemon()
    again = node.network(type="dhcp").add(sandbox)
    assert address(again) == address(result)
