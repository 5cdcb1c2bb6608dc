"""podwire's dhcp beside the reference's: each plugin with the other's daemon, and a node that changes its daemon."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support import binaries, dhcp_node
from tests.support.attaching import address, reaches
from tests.support.dhcp import SERVER
from tests.support.dhcp_node import Node


@pytest.fixture
def node(host, new_sandbox, bin_dir, tmp_path) -> Iterator[Node]:
    """A node whose server runs, without a daemon."""
    with dhcp_node.created(host, new_sandbox(), tmp_path) as node:
        node.start_server()
        yield node


@pytest.mark.parametrize("kind", ["bridge", "host-device", "macvlan"])
@pytest.mark.parametrize(
    ("dhcp", "daemon"), [("reference", "podwire"), ("podwire", "reference"), ("reference", "reference")]
)
def test_plugin_with_the_others_daemon(node, sandbox, reference, tmp_path, kind, dhcp, daemon):
    """A pod gets a lease that CHECK accepts, and DEL releases it while the interface exists."""
    if daemon == "reference":
        node.use_reference_daemon(reference)
    node.start_daemon()
    net = node.network(kind)
    if dhcp == "reference":
        (tmp_path / "dhcp").symlink_to(reference / "dhcp")
        net = replace(net, path=f"{tmp_path}:{binaries.directory()}")
    else:
        net.having(cniVersion="1.1.0").run("STATUS").assert_silent()
    result = net.add(sandbox)
    assert node.list_leases() == [address(result)]
    assert reaches(sandbox, SERVER)
    if dhcp != daemon:
        net.check(sandbox, result)
    net.delete(sandbox, result)
    assert node.has_released(), node.list_leases()


def test_pod_of_the_references_daemon_keeps_its_address_under_ours(node, sandbox, reference):
    """After a change of the daemon, ADD of dhcp for a running pod gets the same address: its identifier is the same."""
    ours = node.daemon
    node.use_reference_daemon(reference)
    node.start_daemon()
    result = node.network().add(sandbox)
    node.daemon.stop()
    node.socket.unlink(missing_ok=True)
    node.daemon = ours
    node.start_daemon()
    again = node.network(type="dhcp").add(sandbox)
    assert address(again) == address(result)
