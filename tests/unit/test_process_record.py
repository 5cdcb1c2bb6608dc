"""The record of changes and steps (process.record), and changes that a dry run only records."""

from ipaddress import ip_address

import pytest

from ipam.host_local.store import ReservationStore
from kernel import link, sysctl
from kernel.dbus import Bus, MethodCall, Reply
from kernel.netfilter import conntrack, nft, nft_rule, nft_set
from kernel.netfilter.conntrack import TrackedFlow
from kernel.netfilter.nft import Chain, NftRule, NftSocket, Table
from kernel.rtnl import Socket
from process import directories, record

OWNER = b"cid\r\neth0"


def test_without_a_record_changes_are_executed():
    """Without a record every change is to be executed, and neither changes nor steps are recorded."""
    assert (record.allows_change("delete it"), record.is_recording(), record.is_dry_run()) == (True, False, False)
    with record.timed_step("work"):
        assert record.allows_change("delete it")


def test_recording():
    """A record has the changes in order and the steps in the order of their ends, also if the block fails."""

    def work():
        with record.timed_step("outer"):
            with record.timed_step("inner"):
                record.note_change("one", "two")
            raise ValueError("no")

    with record.recording() as recorded, pytest.raises(ValueError, match="no"):
        work()
    assert (recorded.changes, [step.what for step in recorded.steps]) == (["one", "two"], ["inner", "outer"])
    assert 0 <= recorded.steps[0].ms <= recorded.steps[1].ms
    record.note_change("three")
    assert (record.is_recording(), recorded.changes) == (False, ["one", "two"])


def test_dry_run():
    """In a dry run changes are recorded and not to be executed; a nested record counts for its block only."""
    with record.recording(dry_run=True) as outer:
        assert (record.allows_change("one"), record.is_dry_run()) == (False, True)
        with record.recording() as inner:
            assert (record.allows_change("two"), record.is_dry_run()) == (True, False)
        assert not record.allows_change("three")
    assert (outer.changes, inner.changes) == (["one", "three"], ["two"])


def without_descriptor(kind):
    """Returns a socket or a bus that cannot send anything."""
    return kind.__new__(kind)


def test_dry_run_of_netlink():
    """A dry run of changes of links, nftables and conntrack sends nothing, and records names, ports and keys."""
    rule = NftRule(7, nft_rule.transport("tcp") + nft_rule.destination_port(8080), nft_rule.comment_userdata("web"))
    chain, nftables_set = (
        Chain(Table(nft.INET, "t"), "c"),
        nft_set.Set(Table(nft.INET, "t"), "s", (nft_set.IPV4_ADDRESS,)),
    )
    flow = TrackedFlow(ip_address("192.0.2.2"), 5000, ip_address("192.0.2.1"), 53, 1)
    with record.recording(dry_run=True) as recorded:
        without_descriptor(Socket).change(link.create_bridge_request("cni0", b"\2\0\0\0\0\1", 0))
        nft.change(
            without_descriptor(NftSocket),
            nft.delete_rule_request(chain, rule),
            *nft_set.delete_element_requests(nftables_set, [b"\n\1\2\3"]),
        )
        conntrack.delete_flows(without_descriptor(Socket), [flow])
    assert recorded.changes == [
        'create bridge "cni0"',
        'delete rule 7 of chain t c for tcp port 8080 "web"',
        "delete from set t s { 10.1.2.3 }",
        "delete the tracked UDP flow from 192.0.2.2 to 192.0.2.1 port 53",
    ]


def test_dry_run_of_calls_on_the_bus():
    """A dry run sends calls that only read, and records a call that changes something."""
    change = MethodCall("org.x", "/x", "org.x", "removeSource", (), "have firewalld remove 10.1.2.3 from zone trusted")
    with record.recording(dry_run=True) as recorded:
        assert without_descriptor(Bus).call(change) == [Reply()]
        with pytest.raises(AttributeError):  # it would be sent
            without_descriptor(Bus).call(MethodCall("org.x", "/x", "org.x", "getZones"))
    assert recorded.changes == [change.description]


def test_dry_run_of_sysctls():
    """A dry run writes no sysctl, and does not record the value of a secret one."""
    with record.recording(dry_run=True) as recorded:
        sysctl.write("ipv4/no/such", "1")
        sysctl.write("ipv4/tcp_fastopen_key", "00112233-44556677-8899aabb-ccddeeff")
    assert recorded.changes == ["sysctl -w net/ipv4/no/such=1", "sysctl -w net/ipv4/tcp_fastopen_key=..."]


def test_dry_run_of_reservations(tmp_path):
    """A dry run of a release keeps the reservation, other files and the index, and creates no store."""
    store = ReservationStore(str(tmp_path / "leases"), "net")
    with store.locked() as locked:
        locked.reserve("10.1.2.3", OWNER)
    (tmp_path / "leases/net/10.1.2.9").touch()
    (tmp_path / "leases/unlocked").mkdir()
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()}
    with record.recording(dry_run=True) as recorded:
        with store.locked() as locked:
            assert locked.find(OWNER) == ["10.1.2.3"]
            locked.release("10.1.2.3", OWNER)
        for data_dir, name in (("other", "net"), ("leases", "unlocked")):
            with ReservationStore(str(tmp_path / data_dir), name).locked() as locked:
                assert locked.find(OWNER) == []
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()}
    assert (after, (tmp_path / "other").exists()) == (before, False)
    assert recorded.changes == [
        f"remove {tmp_path}/leases/net/10.1.2.9, which a crash left empty",
        "release 10.1.2.3 of cid eth0",
        f"make the directory {tmp_path}/other/net",
    ]


def test_created_directories_are_recorded(tmp_path):
    """Only the creation of a missing directory is recorded."""
    with record.recording() as recorded:
        for _ in range(2):
            directories.create(str(tmp_path / "a" / "b"))
    assert recorded.changes == [f"make the directory {tmp_path}/a", f"make the directory {tmp_path}/a/b"]
