"""host-local's allocator on a store in a temporary directory: which address, and what is told when there is none."""

import os
from ipaddress import ip_address

import pytest

from ipam.host_local import allocator
from tests.support.host_local import Net, pool


def test_addresses_go_round(tmp_path):
    """A freed address is given again only when the turn comes back to it."""
    net = Net(tmp_path, pool("10.1.2.0/29"))
    assert [net.add(f"c{i}") for i in range(3)] == [["10.1.2.2/29"], ["10.1.2.3/29"], ["10.1.2.4/29"]]
    net.release("c0")
    assert [net.add(f"d{i}") for i in range(3)] == [["10.1.2.5/29"], ["10.1.2.6/29"], ["10.1.2.2/29"]]


def test_one_address_of_each_set_with_the_prefix_of_its_subnet(tmp_path):
    """Every set gives one address, and a set's second subnet is used when the first is full."""
    net = Net(tmp_path, pool("10.1.2.0/30", "10.1.3.0/24"), pool("fd00::/64", last=9))
    assert net.add("a") == ["10.1.2.2/30", "fd00::2/64"]
    assert net.add("b") == ["10.1.3.2/24", "fd00::3/64"]


def test_the_same_attachment_gets_no_second_address(tmp_path):
    """A second ADD is refused with the file and its age; another interface of the container is served."""
    net = Net(tmp_path, pool("10.1.2.0/29"))
    net.add("a")
    os.utime(f"{net.store.directory}/10.1.2.2", (0, os.stat(f"{net.store.directory}/10.1.2.2").st_mtime - 3 * 86400))
    error = net.refusal("a")
    expected = "failed to allocate for range 0: 10.1.2.2 has been allocated to a, duplicate allocation is not allowed"
    assert error.msg == expected
    assert f"{net.store.directory}/10.1.2.2 has been held by a eth0 for 3 days" in error.details
    assert net.add("a", ifname="eth1") == ["10.1.2.3/29"]


def test_a_legacy_entry_counts_for_every_interface(tmp_path):
    """A reservation that names the container only is the container's, whatever the interface."""
    net = Net(tmp_path, pool("10.1.2.0/29"))
    net.file("10.1.2.4", "a\n")
    assert "10.1.2.4 has been allocated to a" in net.refusal("a").msg


def test_a_second_address_in_another_range_is_no_duplicate(tmp_path):
    """Only addresses of the set count as duplicates, as in the reference."""
    net = Net(tmp_path, pool("10.1.2.0/29"))
    net.file("10.9.9.9", "a\r\neth0")
    assert net.add("a") == ["10.1.2.2/29"]


def test_a_requested_address_is_given_and_moves_the_turn(tmp_path):
    """A requested address is given even if the attachment has one, and the next search begins behind it."""
    net = Net(tmp_path, pool("10.1.2.0/24"), pool("fd00::/64", last=99))
    assert net.add("a", "fd00::9", "10.1.2.50") == ["10.1.2.50/24", "fd00::9/64"]
    assert net.add("b") == ["10.1.2.51/24", "fd00::a/64"]
    assert net.add("a", "10.1.2.60", "fd00::20") == ["10.1.2.60/24", "fd00::20/64"]
    assert sorted(net.list_owners()[b"a\r\neth0"]) == ["10.1.2.50", "10.1.2.60", "fd00::20", "fd00::9"]


@pytest.mark.parametrize(
    ("requested", "msg"),
    [
        (["10.1.2.1"], "failed to allocate for range 0: requested ip 10.1.2.1 is subnet's gateway"),
        (
            ["10.1.2.2"],
            "failed to allocate for range 0: requested IP address 10.1.2.2 is not available in range set 10.",
        ),
        (["10.9.9.9"], "failed to allocate all requested IPs: 10.9.9.9"),
        (["10.1.2.9", "10.1.2.8", "fd00::8"], "failed to allocate all requested IPs: 10.1.2.8"),
    ],
)
def test_a_request_that_cannot_be_met_leaves_nothing(tmp_path, requested, msg):
    """When one requested address is not to be had, the error says which and nothing stays reserved."""
    net = Net(tmp_path, pool("10.1.2.0/24"), pool("fd00::/64", last=99))
    net.add("a", "10.1.2.2", "fd00::2")
    before = net.list_owners()
    error = net.refusal("b", *requested)
    assert (error.code, error.msg[: len(msg)]) == (999, msg)
    assert net.list_owners() == before


def test_a_set_that_is_full_releases_the_sets_before(tmp_path):
    """When the second set has no address left, the one of the first set is free again."""
    net = Net(tmp_path, pool("10.1.2.0/24"), pool("fd00::/64", last=2))
    net.add("a")
    assert net.refusal("b").msg == (
        "failed to allocate for range 1: no IP addresses available in range set: fd00::1-fd00::2"
    )
    assert list(net.list_owners()) == [b"a\r\neth0"]


def test_what_the_attachment_had_before_survives_a_failure(tmp_path):
    """A failing ADD releases only what it reserved itself."""
    net = Net(tmp_path, pool("10.1.2.0/24"), pool("10.1.3.0/24"))
    net.file("10.1.3.7", "a\r\neth0")
    assert "duplicate" in net.refusal("a").msg
    assert net.list_owners() == {b"a\r\neth0": ["10.1.3.7"]}


def test_exhaustion_writes_nothing_and_tells_who_has_the_addresses(tmp_path):
    """A full set has the reference's text, and the numbers of addresses in use and of those whose container is gone."""
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


def test_status_looks_without_touching(tmp_path):
    """STATUS is content with an absent store, a free address, and one that a crash left empty; it changes nothing."""
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


@pytest.mark.parametrize("free", [2, 17, 18, 19, 200, 253, 254])
def test_a_free_address_is_found_behind_many_taken(tmp_path, free):
    """However many addresses in a row are taken, the next free one is found, by ADD and by STATUS."""
    net = Net(tmp_path, pool("10.1.2.0/24"))
    for number in range(2, 255):
        if number != free:
            net.file(f"10.1.2.{number}", f"c{number}\r\neth0")
    assert net.status() is None
    assert net.add("new") == [f"10.1.2.{free}/24"]
    assert net.status() is not None


def test_empty_files_are_taken_back(tmp_path):
    """A file that a crash left empty is free: met on the way, or found when nothing else is."""
    net = Net(tmp_path, pool("10.1.2.0/24"))
    for number in range(2, 100):
        net.file(f"10.1.2.{number}", "" if number in (3, 90) else f"c{number}\r\neth0")
    net.pools = (pool("10.1.2.0/24", last=99),)
    assert net.add("a") == ["10.1.2.3/24"]
    assert net.add("b") == ["10.1.2.90/24"]
    assert "98 of 98" in net.refusal("c").details


def test_what_lost_its_content_is_found_when_nothing_else_is_free(tmp_path):
    """The last free address may be a file that a crash emptied, behind many that are taken."""
    net = Net(tmp_path, pool("10.1.2.0/24", last=60))
    for number in range(2, 61):
        net.add(f"c{number}")
    os.truncate(f"{net.store.directory}/10.1.2.50", 0)
    assert net.status() is None
    assert net.add("new") == ["10.1.2.50/24"]


@pytest.mark.parametrize("content", ["", "rubbish", "10.9.9.9", "10.1.2.3\n", "fd00::1", "\xff"])
def test_rubbish_for_the_last_address_starts_anew(tmp_path, content):
    """What is not an address of the set begins the search at the start of the range."""
    net = Net(tmp_path, pool("10.1.2.0/24"))
    net.file("last_reserved_ip.0", content)
    assert net.add("a") == ["10.1.2.2/24"]
    with open(f"{net.store.directory}/last_reserved_ip.0") as file:
        assert file.read() == "10.1.2.2"


def test_foreign_files_do_no_harm(tmp_path):
    """Other files, directories and names that only look like addresses are left alone."""
    net = Net(tmp_path, pool("10.1.2.0/24"))
    for name in ("README", "a.b", "10.1.2", "10.1.2.3.bak", ":::"):
        net.file(name)
    os.mkdir(f"{net.store.directory}/10.1.2.2")
    assert net.add("a") == ["10.1.2.3/24"]
    with net.store.locked() as held:
        assert held.scan() == {b"a\r\neth0": ["10.1.2.3"], b"": ["10.1.2.2"]}
    names = set(os.listdir(net.store.directory))
    assert names >= {"README", "a.b", "10.1.2", "10.1.2.3.bak", ":::", "10.1.2.2"}


@pytest.mark.parametrize("looks", [3, 1000])
@pytest.mark.parametrize("free", ["10.1.4.99", "10.1.7.254", "10.1.4.2"])
def test_one_free_address_among_many_taken_is_found(tmp_path, monkeypatch, looks, free):
    """However many addresses in a row are taken, ADD finds the free one, STATUS is ready until then and not after."""
    monkeypatch.setattr(allocator, "_MAX_TESTS", looks)
    net = Net(tmp_path, pool("10.1.4.0/22"))
    for value in range(int(ip_address("10.1.4.2")), int(ip_address("10.1.7.255"))):
        if (name := str(ip_address(value))) != free:
            net.file(name, f"c{value}\r\neth0")
    net.file("last_reserved_ip.0", "10.1.4.50")
    assert net.status() is None
    assert net.add("a") == [f"{free}/22"]
    assert net.status() is not None
    assert "no IP addresses available in range set" in net.refusal("b").msg
