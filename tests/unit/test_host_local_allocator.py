"""host-local's allocator on a store in a temporary directory: the choice of addresses, and the errors."""

import os
from pathlib import Path

import pytest

from ipam.host_local import allocator
from tests.support.host_local import Net, pool


def test_each_set_allocates_one_address(tmp_path):
    """Every set allocates one address with its subnet's prefix, and a full subnet is followed by the next."""
    net = Net(tmp_path, pool("10.1.2.0/30", "10.1.3.0/24"), pool("fd00::/64", last=9))
    assert net.add("a") == ["10.1.2.2/30", "fd00::2/64"]
    assert net.add("b") == ["10.1.3.2/24", "fd00::3/64"]


def test_second_address_for_an_attachment_is_refused(tmp_path):
    """A second ADD fails with the file and its age; another interface of the container gets an address."""
    net = Net(tmp_path, pool("10.1.2.0/29"))
    net.add("a")
    os.utime(f"{net.store.directory}/10.1.2.2", (0, os.stat(f"{net.store.directory}/10.1.2.2").st_mtime - 3 * 86400))
    error = net.refusal("a")
    expected = "failed to allocate for range 0: 10.1.2.2 has been allocated to a, duplicate allocation is not allowed"
    assert error.msg == expected
    assert f"{net.store.directory}/10.1.2.2 has been held by a eth0 for 3 days" in error.details
    assert net.add("a", ifname="eth1") == ["10.1.2.3/29"]


def test_duplicates_are_addresses_of_the_set(tmp_path):
    """A reservation with only the container ID counts for every interface; one of another set does not count."""
    net = Net(tmp_path, pool("10.1.2.0/29"))
    net.file("10.9.9.9", "a\r\neth0")
    assert net.add("a") == ["10.1.2.2/29"]
    net.file("10.1.2.4", "b\n")
    assert "10.1.2.4 has been allocated to b" in net.refusal("b").msg


def test_requested_address_is_allocated(tmp_path):
    """A requested address is allocated even if the attachment has one, and the next search begins after it."""
    net = Net(tmp_path, pool("10.1.2.0/24"), pool("fd00::/64", last=99))
    assert net.add("a", "fd00::9", "10.1.2.50") == ["10.1.2.50/24", "fd00::9/64"]
    assert net.add("b") == ["10.1.2.51/24", "fd00::a/64"]
    assert net.add("a", "10.1.2.60", "fd00::20") == ["10.1.2.60/24", "fd00::20/64"]
    assert sorted(net.list_owners()[b"a\r\neth0"]) == ["10.1.2.50", "10.1.2.60", "fd00::20", "fd00::9"]


@pytest.mark.parametrize(
    ("requested", "msg"),
    [
        (["10.1.2.1"], "failed to allocate for range 0: requested ip 10.1.2.1 is subnet's gateway"),
        (["10.1.2.2"], "failed to allocate for range 0: requested IP address 10.1.2.2 is not available in range set"),
        (["10.9.9.9"], "failed to allocate all requested IPs: 10.9.9.9"),
        (["10.1.2.9", "10.1.2.8", "fd00::8"], "failed to allocate all requested IPs: 10.1.2.8"),
    ],
)
def test_failed_request_leaves_no_reservation(tmp_path, requested, msg):
    """If a requested address is not available, the error names it and no address stays reserved."""
    net = Net(tmp_path, pool("10.1.2.0/24"), pool("fd00::/64", last=99))
    net.add("a", "10.1.2.2", "fd00::2")
    before = net.list_owners()
    error = net.refusal("b", *requested)
    assert (error.code, error.msg[: len(msg)]) == (999, msg)
    assert net.list_owners() == before


def test_full_set_releases_addresses_of_earlier_sets(tmp_path):
    """If the second set is full, the address of the first set is released."""
    net = Net(tmp_path, pool("10.1.2.0/24"), pool("fd00::/64", last=2))
    net.add("a")
    assert net.refusal("b").msg == (
        "failed to allocate for range 1: no IP addresses available in range set: fd00::1-fd00::2"
    )
    assert list(net.list_owners()) == [b"a\r\neth0"]


def test_earlier_address_survives_a_failed_add(tmp_path):
    """A failed ADD releases only the addresses that it reserved."""
    net = Net(tmp_path, pool("10.1.2.0/24"), pool("10.1.3.0/24"))
    net.file("10.1.3.7", "a\r\neth0")
    assert "duplicate" in net.refusal("a").msg
    assert net.list_owners() == {b"a\r\neth0": ["10.1.3.7"]}


def test_exhausted_set_is_reported_and_writes_nothing(tmp_path):
    """The error has the reference's text, and the numbers of addresses in use and of containers no longer running."""
    net = Net(tmp_path, pool("10.1.2.0/24", last=4))
    for name in "abc":
        net.add(name)
    net.cached("a", f"/proc/{os.getpid()}/ns/net")
    net.cached("b", str(tmp_path / "gone"))
    before = sorted(os.listdir(net.store.directory))
    error = net.refusal("d")
    assert error.msg == "failed to allocate for range 0: no IP addresses available in range set: 10.1.2.1-10.1.2.4"
    assert error.details.startswith("3 of 3 in use, 2 of them by containers that are no longer running; ")
    assert sorted(os.listdir(net.store.directory)) == before
    status = net.status()
    assert status is not None
    assert status.code == 50
    assert "3 of 3 in use, 2 of them by containers that are no longer running" in status.msg


def test_status_changes_nothing(tmp_path):
    """STATUS accepts a missing store, a free address, and an empty file of a crash, and changes nothing."""
    net = Net(tmp_path, pool("10.1.2.0/24", last=4))
    assert net.status() is None
    for name in "ab":
        net.add(name)
    assert net.status() is None
    net.file("10.1.2.4")
    before = {entry.name: entry.stat() for entry in os.scandir(net.store.directory)}
    assert net.status() is None
    assert {entry.name: entry.stat() for entry in os.scandir(net.store.directory)} == before
    net.file("10.1.2.4", "c\r\neth0")
    assert net.status() is not None


@pytest.mark.parametrize("tests_max", [3, 1000])
@pytest.mark.parametrize("free", [2, 17, 18, 19, 200, 253, 254])
def test_only_free_address_is_allocated(tmp_path, monkeypatch, tests_max, free):
    """ADD and STATUS find the only free address after any number of addresses in use, before or after the last one."""
    monkeypatch.setattr(allocator, "_MAX_TESTS", tests_max)
    net = Net(tmp_path, pool("10.1.2.0/24"))
    net.file("last_reserved_ip.0", "10.1.2.50")
    for number in range(2, 255):
        if number != free:
            net.file(f"10.1.2.{number}", f"c{number}\r\neth0")
    assert net.status() is None
    assert net.add("new") == [f"10.1.2.{free}/24"]
    assert net.status() is not None
    assert "no IP addresses available in range set" in net.refusal("b").msg


def test_empty_files_count_as_free(tmp_path):
    """A file that a crash left empty is free, next in order or as the last free one."""
    net = Net(tmp_path, pool("10.1.2.0/24"))
    for number in range(2, 100):
        net.file(f"10.1.2.{number}", "" if number in (3, 90) else f"c{number}\r\neth0")
    net.pools = (pool("10.1.2.0/24", last=99),)
    assert net.add("a") == ["10.1.2.3/24"]
    assert net.status() is None
    assert net.add("b") == ["10.1.2.90/24"]
    assert "98 of 98" in net.refusal("c").details


@pytest.mark.parametrize("content", ["", "rubbish", "10.9.9.9", "10.1.2.3\n", "fd00::1", "\xff"])
def test_invalid_last_address_starts_at_the_beginning(tmp_path, content):
    """If the last address is not one of the set, the search begins at the start of the range."""
    net = Net(tmp_path, pool("10.1.2.0/24"))
    net.file("last_reserved_ip.0", content)
    assert net.add("a") == ["10.1.2.2/24"]
    assert Path(net.store.directory, "last_reserved_ip.0").read_text() == "10.1.2.2"


def test_foreign_files_are_kept(tmp_path):
    """Other files, directories and names that resemble addresses are ignored."""
    net = Net(tmp_path, pool("10.1.2.0/24"))
    for name in ("README", "a.b", "10.1.2", "10.1.2.3.bak", ":::"):
        net.file(name)
    os.mkdir(f"{net.store.directory}/10.1.2.2")
    assert net.add("a") == ["10.1.2.3/24"]
    with net.store.locked() as held:
        assert held.scan() == {b"a\r\neth0": ["10.1.2.3"], b"": ["10.1.2.2"]}
    names = set(os.listdir(net.store.directory))
    assert names >= {"README", "a.b", "10.1.2", "10.1.2.3.bak", ":::", "10.1.2.2"}
