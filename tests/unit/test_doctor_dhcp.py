"""The doctor's checks of dhcp, and `podwire ipam list` of its leases: the daemon's socket, lease files, their ends."""

import socket
import time
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path

import pytest

from cni.result import DNS
from ipam.dhcp.lease import Lease
from ipam.dhcp.options import INFINITE_S
from ipam.dhcp.record import LeaseOwner, LeaseRecord, Target
from ipam.dhcp.store import LeaseStore
from kernel.boot import get_boot_id
from podwire.doctor.node import CheckedNode
from podwire.node import dhcp_leases
from tests.support.unit_node import new_node, run_check

BOOT = get_boot_id()


@pytest.fixture
def node(tmp_path) -> CheckedNode:
    """A node with one network of dhcp, whose socket and lease files are below the test's directory."""
    (tmp_path / "cni" / "results").mkdir(parents=True)
    return new_node(tmp_path, "macvlan", type="dhcp", subnet="", daemonSocketPath=str(tmp_path / "sock"))


def write_lease(
    directory: Path, container_id: str = "c", *, granted_ago_s: float = 0, lifetime_s: float = 3600, boot: str = BOOT
) -> LeaseRecord:
    """Writes the file of a lease that was granted some time ago."""
    granted_s = time.clock_gettime(time.CLOCK_BOOTTIME) - granted_ago_s
    times = (granted_s, lifetime_s / 2, lifetime_s, lifetime_s)
    address = IPv4Interface("10.9.0.7/24")
    lease = Lease(address, IPv4Address("10.9.0.1"), None, (), DNS(), 0, *times)
    target = Target(2, "02:00:00:00:00:01")
    record = LeaseRecord(
        LeaseOwner("net", container_id, "eth0", "/run/netns/pod", "", b"{}"), target, boot, lease, None
    )
    LeaseStore(str(directory)).write(record)
    return record


def list_states(directory: Path) -> list[tuple[str, str]]:
    """Returns end and state of each lease, by container ID."""
    leases, unreadable = dhcp_leases.read_leases([str(directory)])
    assert unreadable == ()
    return [(one.expiry, str(one.state)) for one in sorted(leases, key=lambda one: one.attachment)]


def test_unreachable_daemon_is_reported_with_its_networks(node, tmp_path):
    """A missing socket, and one on which no process listens, are a problem; a listening one is not."""
    path = tmp_path / "sock"
    (missing,) = run_check(node, "dhcp")
    assert (missing.name, missing.subject) == ("dhcp-daemon-unreachable", "net")
    assert missing.text == f"{path}: No such file or directory"
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(path))
        assert run_check(node, "dhcp")[0].text == f"{path}: Connection refused"
        daemon.listen()
        assert run_check(node, "dhcp") == []


def test_expired_and_unreadable_leases_are_reported(node, tmp_path):
    """An expired lease is a problem, a file that is no lease a warning, and other leases are neither."""
    directory = tmp_path / "leases"
    write_lease(directory, "running")
    write_lease(directory, "ended", granted_ago_s=400, lifetime_s=100)
    (directory / "net" / "broken:eth0.json").write_text("{")
    findings = {one.name: one for one in run_check(node, "leases")}
    assert set(findings) == {"dhcp-lease-expired", "dhcp-lease-unreadable"}
    assert findings["dhcp-lease-expired"].subject == "net: ended eth0"
    assert "10.9.0.7 from 10.9.0.1 expired 5 min ago" in findings["dhcp-lease-expired"].text
    assert "broken:eth0.json cannot be read" in findings["dhcp-lease-unreadable"].text


def test_states_and_ends_of_leases(tmp_path, monkeypatch):
    """A lease is renewed, expired, of another boot, to be released, or has no end."""
    monkeypatch.setattr(time, "clock_gettime", lambda clock: 1_000_000.0)
    write_lease(tmp_path, "a", lifetime_s=2520)
    write_lease(tmp_path, "b", granted_ago_s=90, lifetime_s=60)
    write_lease(tmp_path, "c", boot="another")
    write_lease(tmp_path, "d", lifetime_s=INFINITE_S)
    write_lease(tmp_path, "e", lifetime_s=3 * 86400)
    LeaseStore(str(tmp_path)).note_release("net", "e", "eth0")
    assert list_states(tmp_path) == [
        ("in 42 min", "leased"),
        ("30 s ago", "expired"),
        ("unknown", "another boot"),
        ("never", "leased"),
        ("in 3 d", "to be released"),
    ]


def test_json_of_a_lease(tmp_path):
    """The document of a lease has the keys of a reservation, its server and its end."""
    write_lease(tmp_path, granted_ago_s=1000, lifetime_s=10_000)
    ((lease,), _) = dhcp_leases.read_leases([str(tmp_path)])
    document = lease.to_json("default/web")
    assert document.pop("since") == time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(lease.granted))
    assert abs(lease.granted - (time.time() - 1000)) < 300
    expires_in_s = document.pop("expiresInS")
    assert isinstance(expires_in_s, int)
    assert 8700 < expires_in_s <= 9000
    reservation = {"address": "10.9.0.7", "network": "net", "dataDir": str(tmp_path), "state": "leased"}
    owner = {"containerID": "c", "ifname": "eth0", "pod": "default/web", "beforeBoot": False}
    assert document == {**reservation, **owner, "server": "10.9.0.1"}
