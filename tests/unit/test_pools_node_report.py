"""The report of this node's blocks, from its files and the manager's status."""

from ipaddress import ip_address, ip_network

import pytest

from agent.pools import grants_file
from agent.pools.block_protocol import Token
from agent.pools.grants_file import BlockState, FileEntry, Grants, PoolHead
from agent.pools.identity import NodeIdentity
from agent.pools.manager import Manager
from agent.pools.memory import NodeFacts
from agent.pools.network_blocks import NetworkOptions
from agent.pools.node_report import LocalReport, ManagerStatus, read_report
from tests.pools_world.node import Reports
from tests.support.admin_world import ONE, World
from tests.support.store_double import Fault

IDENTITY = NodeIdentity(ONE, "machine-1", "boot-1")
STATUS = ManagerStatus()
FIRST = ip_network("10.22.0.0/26")


def entry(number, state):
    """Returns a block of a grants file, whose gateway is the first address of the first block."""
    block = ip_network(f"10.22.0.{number}/26")
    ranges = ((block[1], block[-2]),)
    return FileEntry(block, "default", state, Token("e1", 3), block, ranges, ip_address("10.22.0.1"))


@pytest.fixture
def directory(tmp_path):
    """A `dataDir` with two blocks of the network "podnet" and three reservations."""
    data_dir = tmp_path / "leases"
    (tmp_path / "leases.podwire").mkdir()
    (data_dir / "podnet").mkdir(parents=True)
    entries = (entry(0, BlockState.GRANTED), entry(64, BlockState.DRAINING))
    grants = Grants("boot-1", ONE, (PoolHead("default", (4,)),), entries)
    grants_file.write(f"{data_dir}.podwire/podnet.grants", grants)
    for address in ("10.22.0.2", "10.22.0.3", "10.22.0.70"):
        (data_dir / "podnet" / address).write_text("container\r\neth0")
    return data_dir


def report_of(directory, identity=IDENTITY, status=STATUS):
    return read_report(identity, "worker-1", [NetworkOptions("podnet", "default", str(directory))], status)


def test_report_has_blocks_with_their_numbers(directory):
    """The report has each block with state, token, used and free addresses, and the status of the manager."""
    report = report_of(directory, status=ManagerStatus(3.0, ("late",), is_restored=True))
    assert report.networks == (("podnet", "default"),)
    assert [(block.block, block.state, block.used, block.size) for block in report.blocks] == [
        (FIRST, "granted", 2, 61),
        (ip_network("10.22.0.64/26"), "draining", 1, 62),
    ]
    assert {block.token for block in report.blocks} == {Token("e1", 3)}
    assert (report.contact_s, report.problems, report.is_restored) == (3.0, ("late",), True)
    assert report.has_grants


def test_report_after_a_boot_has_no_grants(directory):
    """After a boot, and without files, the report has no grants."""
    assert not report_of(directory, IDENTITY._replace(boot="boot-2")).has_grants
    assert report_of(directory / "none").blocks == LocalReport(ONE, "worker-1").blocks


def test_status_of_the_manager(tmp_path):
    """The status says when the store answered, why it does not, and whether it was restored."""
    world = World()
    backup = world.store.snapshot()
    world.set_space()
    options = NetworkOptions("podnet", "default", str(tmp_path / "leases"), str(tmp_path / "results"))
    manager = Manager(world.store, IDENTITY, (options,), Reports(), NodeFacts(name="worker-1"))
    assert manager.status() == ManagerStatus()
    for _ in range(30):
        manager.step()
    status = manager.status()
    assert status.contact_s is not None
    assert status.contact_s < 60
    assert not status.problems
    assert read_report(IDENTITY, "worker-1", [options], status).has_grants
    world.store.restore(backup, cluster="another")
    world.set_space()
    manager = Manager(world.store, IDENTITY, (options,), Reports(), NodeFacts(name="worker-1"))
    for _ in range(30):
        manager.step()
    status = manager.status()
    assert status.is_restored
    assert "podwire ipam recover" in status.problems[0]
    world.store.fail_next(Fault.UNREACHABLE, times=10)
    manager.space_changed()
    manager.step()
    assert any("refused" in problem for problem in manager.status().problems)
