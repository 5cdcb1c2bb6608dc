"""The record of changes and steps (process.record), and the places that only tell of a change when it is planned."""

from ipaddress import ip_address

import pytest

from ipam.host_local.store import Store
from kernel import link, sysctl
from kernel.dbus import Bus, Call, Reply
from kernel.netfilter import conntrack, iptables, nft, nft_rule, nft_set
from kernel.netfilter.conntrack import Flow
from kernel.netfilter.nft import Chain, NftSocket, Rule, Table
from kernel.rtnl import Socket
from plugins.tuning.backup import Backup
from process import directories, record

OWNER = b"cid\r\neth0"


def test_without_anybody_who_asked_all_is_made():
    """Without a record every change is to be made, and nothing is noted or timed."""
    assert (record.change("delete it"), record.is_recording(), record.is_dry_run()) == (True, False, False)
    with record.timed_step("work"):
        assert record.change("delete it")


def test_recorded():
    """A record has the changes in their order and the steps in the order of their ends, also of a block that fails."""

    def work():
        with record.timed_step("outer"):
            with record.timed_step("inner"):
                assert record.change("one", "two")
            raise ValueError("no")

    with record.recording() as noted, pytest.raises(ValueError, match="no"):
        work()
    assert (noted.changes, [step.what for step in noted.steps]) == (["one", "two"], ["inner", "outer"])
    assert 0 <= noted.steps[0].ms <= noted.steps[1].ms
    assert record.change("three")
    assert (record.is_recording(), noted.changes) == (False, ["one", "two"])


def test_planned():
    """What is only planned is noted and not to be made; a record inside counts for its block alone."""
    with record.recording(dry_run=True) as outer:
        assert (record.change("one"), record.is_dry_run()) == (False, True)
        with record.recording() as inner:
            assert (record.change("two"), record.is_dry_run()) == (True, False)
        assert not record.change("three")
    assert (outer.changes, inner.changes) == (["one", "three"], ["two"])


def unopened(kind):
    """Returns a socket or a bus that cannot send anything."""
    return kind.__new__(kind)


def test_planned_netlink():
    """A planned change of links, nftables or conntrack sends nothing, and is told by name, comment, port and key."""
    rule = Rule(7, nft_rule.transport("tcp") + nft_rule.destination_port(8080), nft_rule.comment_userdata("web"))
    chain, own = Chain(Table(nft.INET, "t"), "c"), nft_set.Set(Table(nft.INET, "t"), "s", (nft_set.IPV4_ADDRESS,))
    flow = Flow(ip_address("192.0.2.2"), 5000, ip_address("192.0.2.1"), 53, 1)
    with record.recording(dry_run=True) as noted:
        unopened(Socket).change(link.create_bridge_request("cni0", b"\2\0\0\0\0\1", 0))
        nft.change(
            unopened(NftSocket),
            nft.delete_rule_request(chain, rule),
            *nft_set.delete_element_requests(own, [b"\n\1\2\3"]),
        )
        conntrack.delete_flows(unopened(Socket), [flow])
    assert noted.changes == [
        'create bridge "cni0"',
        'delete rule 7 of chain t c for tcp port 8080 "web"',
        "delete from set t s { 10.1.2.3 }",
        "delete the tracked UDP flow from 192.0.2.2 to 192.0.2.1 port 53",
    ]


def test_planned_calls_on_the_bus():
    """Of planned calls those that only ask are made, and one that changes something is told of."""
    change = Call("org.x", "/x", "org.x", "removeSource", (), "have firewalld remove 10.1.2.3 from zone trusted")
    with record.recording(dry_run=True) as noted:
        assert unopened(Bus).call(change) == [Reply()]
        with pytest.raises(AttributeError):  # it would be sent
            unopened(Bus).call(Call("org.x", "/x", "org.x", "getZones"))
    assert noted.changes == [change.description]


def test_planned_iptables(monkeypatch):
    """Planned lines for iptables' programs start none, and are told as commands."""
    monkeypatch.setattr(iptables, "_run", None)
    with record.recording(dry_run=True) as noted:
        iptables.apply({4: ["-F CNI-X", "-X CNI-X"], 6: ["-F CNI-X"]}, "nat", "delete it")
    assert noted.changes == ["iptables -t nat -F CNI-X", "iptables -t nat -X CNI-X", "ip6tables -t nat -F CNI-X"]


def test_planned_sysctls():
    """A planned sysctl is not written, and a secret one is not told."""
    with record.recording(dry_run=True) as noted:
        sysctl.write("ipv4/no/such", "1")
        sysctl.write("ipv4/tcp_fastopen_key", "00112233-44556677-8899aabb-ccddeeff")
    assert noted.changes == ["sysctl -w net/ipv4/no/such=1", "sysctl -w net/ipv4/tcp_fastopen_key=..."]


def test_planned_reservations(tmp_path):
    """A planned release leaves the reservation, residue and the index; where there is no store none is made."""
    store = Store(str(tmp_path / "leases"), "net")
    with store.locked() as held:
        held.reserve("10.1.2.3", OWNER)
    (tmp_path / "leases/net/10.1.2.9").touch()
    (tmp_path / "leases/unlocked").mkdir()
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()}
    with record.recording(dry_run=True) as noted:
        with store.locked() as held:
            assert held.find(OWNER) == ["10.1.2.3"]
            held.release("10.1.2.3", OWNER)
        for data_dir, name in (("other", "net"), ("leases", "unlocked")):
            with Store(str(tmp_path / data_dir), name).locked() as held:
                assert held.find(OWNER) == []
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()}
    assert (after, (tmp_path / "other").exists()) == (before, False)
    assert noted.changes == [
        f"remove {tmp_path}/leases/net/10.1.2.9, which a crash left empty",
        "release 10.1.2.3 of cid eth0",
        f"make the directory {tmp_path}/other/net",
    ]


def test_planned_backups(tmp_path):
    """A planned removal of a backup leaves its files, and names those that are there."""
    path = tmp_path / "cid_eth0.json"
    path.write_text("{}")
    with record.recording(dry_run=True) as noted:
        Backup(str(tmp_path), "net", "cid", "eth0").remove()
    assert (path.exists(), noted.changes) == (True, [f"remove {path}"])


def test_directories_that_are_made(tmp_path):
    """Only a directory that was not there is noted."""
    with record.recording() as noted:
        for _ in range(2):
            directories.create(str(tmp_path / "a" / "b"))
    assert noted.changes == [f"make the directory {tmp_path}/a", f"make the directory {tmp_path}/a/b"]
