"""host-local's index: its answers equal the files, whatever happens to the files or to the index."""

import os
import random
import shutil
import signal
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from cni.errors import CniError
from ipam.host_local import table as table_module
from ipam.host_local.store import Reservations, ReservationStore
from kernel import boot
from tests.support.errors import failure_of

NAMES = [f"10.1.0.{n}" for n in range(2, 30)] + [f"fd00::{n:x}" for n in range(2, 12)]
OWNERS = [b"%s\r\neth%d" % (name, n) for name in (b"a", b"b", b"c") for n in range(3)] + [b"a", b"b"]


@pytest.fixture
def net(tmp_path):
    return ReservationStore(str(tmp_path / "leases"), "net")


@pytest.fixture
def scans():
    with mock.patch.object(Reservations, "scan", autospec=True, side_effect=Reservations.scan) as scan:
        yield scan.mock_calls


def find(net, owner):
    with net.locked() as held:
        return sorted(held.find(owner))


def reserve(net, name, owner):
    with net.locked() as held:
        return held.reserve(name, owner)


def release(net, owner):
    with net.locked() as held:
        for name in held.find(owner):
            held.release(name, owner)


def index_of(net):
    return f"{os.path.dirname(net.directory)}.podwire/net"


def write_as_reference(net, name, owner):
    """Writes a reservation as the reference plugin does: creates the file, then writes it."""
    with open(f"{net.directory}/{name}", "xb") as file:
        file.write(owner)


def test_podwires_changes_need_no_scan(net, scans):
    """A store that only podwire changes is scanned once, whatever the number of changes is."""
    for number, name in enumerate(NAMES):
        assert find(net, b"c%d\r\neth0" % number) == []
        reserve(net, name, b"c%d\r\neth0" % number)
    for number, name in enumerate(NAMES):
        assert find(net, b"c%d\r\neth0" % number) == [name]
        release(net, b"c%d\r\neth0" % number)
    assert len(scans) == 1


# Commands in the network's directory, and the addresses of two owners then.
CHANGES = {
    "create": ("printf 'b\\r\\neth0' > 10.1.0.10", ["10.1.0.9"], ["10.1.0.10"]),
    "remove": ("rm 10.1.0.9", [], []),
    "rename": ("mv 10.1.0.9 10.1.0.11", ["10.1.0.11"], []),
    "touch": ("touch .", ["10.1.0.9"], []),
    "replace": ("rm 10.1.0.9; printf 'b\\r\\neth0' > 10.1.0.9", [], ["10.1.0.9"]),
    "overwrite": ("printf 'b\\r\\neth0' > 10.1.0.9", [], ["10.1.0.9"]),
    "recreate": ("rm -r ../net; mkdir ../net", [], []),
}


@pytest.mark.every_case
@pytest.mark.parametrize(("command", "owned", "others"), CHANGES.values(), ids=CHANGES)
def test_changes_of_other_programs_are_detected(net, command, owned, others):
    """Whatever another program changes in the directory, the answers equal the files."""
    for n in range(2, 6):
        reserve(net, f"10.1.0.{n}", b"x%d\r\neth0" % n)
    reserve(net, "10.1.0.9", b"a\r\neth0")
    assert find(net, b"a\r\neth0") == ["10.1.0.9"]
    subprocess.run(command, shell=True, cwd=net.directory, check=True)
    assert (find(net, b"a\r\neth0"), find(net, b"b\r\neth0")) == (owned, others)


def test_index_of_an_earlier_boot_is_not_used(net, scans, monkeypatch):
    """After a reboot the store is scanned, since the index may not have reached the disk."""
    reserve(net, "10.1.0.9", b"a\r\neth0")
    find(net, b"a\r\neth0")
    before = len(scans)
    monkeypatch.setattr(boot, "get_boot_id", lambda: "another boot")
    assert find(net, b"a\r\neth0") == ["10.1.0.9"]
    assert len(scans) == before + 1


# Commands in the directory above those of the store and of its index.
DAMAGES = {
    "missing": "rm -r leases.podwire",
    "empty": "truncate -s 0 leases.podwire/net",
    "garbage": "head -c 5000 /dev/urandom > leases.podwire/net",
    "directory": "rm leases.podwire/net; mkdir leases.podwire/net",
    "a file as the directory": "rm -r leases.podwire; touch leases.podwire",
}


@pytest.mark.every_case
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_index_changes_no_answer(net, tmp_path, damage):
    """An index that is removed or damaged, or cannot be created, changes no answer."""
    reserve(net, "10.1.0.9", b"a\r\neth0")
    find(net, b"a\r\neth0")
    subprocess.run(damage, shell=True, cwd=tmp_path, check=True)
    for name, owner in (("10.1.0.10", b"b\r\neth0"), ("10.1.0.11", b"c\r\neth0")):
        assert find(net, b"a\r\neth0") == ["10.1.0.9"]
        assert find(net, owner) == []
        reserve(net, name, owner)
        assert find(net, owner) == [name]
    release(net, b"b\r\neth0")
    assert find(net, b"b\r\neth0") == []


def test_equal_recent_times_do_not_validate_an_index(net):
    """Two equal times that the kernel set, as after a kill, do not validate the index."""
    reserve(net, "10.1.0.9", b"a\r\neth0")
    find(net, b"a\r\neth0")
    write_as_reference(net, "10.1.0.10", b"b\r\neth0")
    now = os.stat(net.directory).st_mtime_ns
    os.utime(index_of(net), ns=(now, now))
    assert find(net, b"b\r\neth0") == ["10.1.0.10"]


def rewrite(path, change):
    """Changes a file's content and keeps its modification time, as a defective disk or a tool that restores files."""
    before = os.stat(path)
    content = bytearray(Path(path).read_bytes())
    change(content)
    with open(path, "r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def flip(content):
    at = content.index(b"10.1.0.9")
    content[at] ^= 1


def lose_page(content):
    at = content.index(b"10.1.0.9") // 1024 * 1024
    content[at : at + 1024] = bytes(1024)


def misplace(content):
    at = content.index(b"10.1.0.9") // 1024 * 1024
    other = next(start for start in range(1024, len(content), 1024) if not any(content[start : start + 960]))
    content[at : at + 1024] = content[other : other + 1024]


def remove_checksums(content):
    """Changes the content to that of a podwire without checksums."""
    for at in range(2048, len(content) + 1, 1024):
        content[at - 64 : at] = bytes(64)


@pytest.mark.parametrize("damage", [flip, lose_page, misplace, remove_checksums])
@pytest.mark.parametrize("verb", ["find", "reserve", "release"])
def test_damaged_index_with_restored_times_is_rebuilt(net, damage, verb):
    """An index with damaged content and its earlier times is rebuilt from the files."""
    owner, expected = b"a\r\neth0", ["10.1.0.9"]
    reserve(net, "10.1.0.9", owner)
    reserve(net, "10.1.0.8", b"b\r\neth0")
    find(net, owner)
    rewrite(index_of(net), damage)
    if verb == "reserve":
        reserve(net, "10.1.0.10", owner)
        expected = ["10.1.0.10", "10.1.0.9"]
    elif verb == "release":
        with net.locked() as held:
            held.release("10.1.0.9", owner)
        expected = []
    assert find(net, owner) == expected
    with net.locked() as held:
        assert held._index.complete


def test_damaged_records_are_not_copied_to_a_larger_table(net, monkeypatch):
    """A larger table is not built from damaged records."""
    reserve(net, "10.1.0.9", b"a\r\neth0")
    find(net, b"a\r\neth0")
    rewrite(index_of(net), lose_page)
    monkeypatch.setattr(table_module, "vacant_position", lambda bucket: -1)
    for number in range(40):
        reserve(net, f"10.1.1.{number}", b"c%d\r\neth0" % number)
    assert find(net, b"a\r\neth0") == ["10.1.0.9"]


def test_restored_copy_of_an_index_is_not_used(net):
    """An index that was restored from a copy does not hide later reservations."""
    path = index_of(net)
    assert find(net, b"a\r\neth0") == []
    shutil.copy2(path, f"{path}.copy")
    reserve(net, "10.1.0.9", b"a\r\neth0")
    os.replace(f"{path}.copy", path)
    assert find(net, b"a\r\neth0") == ["10.1.0.9"]


@pytest.mark.parametrize("load", [4, 1000])
def test_growing_store_gets_a_larger_index(net, scans, monkeypatch, load):
    """More than a thousand reservations are found after one scan, however full the first table is."""
    monkeypatch.setattr(table_module, "_LOAD", load)
    for number in range(1200):
        reserve(net, f"10.1.{number >> 8}.{number & 255}", b"c%d\r\neth0" % number)
        if number % 20 == 0:
            assert find(net, b"c%d\r\neth0" % number) == [f"10.1.{number >> 8}.{number & 255}"]
    assert all(find(net, b"c%d\r\neth0" % n) == [f"10.1.{n >> 8}.{n & 255}"] for n in range(0, 1200, 37))
    assert find(net, b"unknown\r\neth0") == []
    assert len(scans) == 1  # a full table is enlarged from its records


@pytest.mark.parametrize("seed", range(20))
def test_answers_equal_the_files(net, seed):
    """After any mixture of podwire's and the reference's changes each owner has the reservations of the files."""
    rng = random.Random(seed)
    find(net, b"x")
    for _ in range(150):
        name, owner = rng.choice(NAMES), rng.choice(OWNERS)
        action = rng.choices(("reserve", "release", "find", "foreign add", "foreign remove"), (8, 4, 4, 1, 1))[0]
        if action == "reserve":
            reserve(net, name, owner)
        elif action == "release":
            release(net, owner)
        elif action == "foreign add" and not os.path.exists(f"{net.directory}/{name}"):
            write_as_reference(net, name, owner)
        elif action == "foreign remove" and os.path.exists(f"{net.directory}/{name}"):
            os.unlink(f"{net.directory}/{name}")
        assert find(net, owner) == sorted(net.list_owners().get(owner, []))
    assert {key: find(net, key) for key in OWNERS} == {key: sorted(net.list_owners().get(key, [])) for key in OWNERS}


CALLS = ("open", "close", "stat", "fstat", "read", "pread", "pwrite", "write", "link", "unlink", "utime", "ftruncate")


def interrupt(step, action, calls=CALLS):
    """Returns functions that run `action` before the `step`-th system call of a store, counted from 0."""
    count = 0

    def wrap(real):
        def wrapped(*args, **keys):
            nonlocal count
            count += 1
            if count == step + 1:
                action()
            return real(*args, **keys)

        return wrapped

    return {name: wrap(getattr(os, name)) for name in calls}


def run_in_child(step, work):
    """Runs `work` in a child that dies before its `step`-th system call; returns whether the work ended."""
    pid = os.fork()
    if pid == 0:
        for name, function in interrupt(step, lambda: os.kill(os.getpid(), signal.SIGKILL)).items():
            setattr(os, name, function)
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFEXITED(os.waitpid(pid, 0)[1])


OLD, NEW, ELSE = b"old\r\neth0", b"new\r\neth0", b"else\r\neth0"


def prepare(net, *, indexed=True):
    """Creates the store anew, with an address for each of two owners."""
    shutil.rmtree(os.path.dirname(net.directory), ignore_errors=True)
    reserve(net, "10.1.0.5", OLD)
    reserve(net, "10.1.0.6", ELSE)
    with net.locked() as held:
        held.note_last_reserved(0, "10.1.0.5")
    if indexed:
        find(net, NEW)


def change(net):
    with net.locked() as held:
        held.find(NEW)
        held.reserve("10.1.0.99", NEW)
        held.note_last_reserved(0, "10.1.0.99")
        held.reserve("10.1.0.98", NEW)
        held.note_last_reserved(0, "10.1.0.9")
    release(net, OLD)


def assert_consistent(net):
    """Asserts that no reservation is empty, and that the answers equal the files."""
    files = {path.name: path.read_bytes() for path in Path(net.directory).iterdir()}
    assert files.pop("lock") == b""
    assert files.pop("last_reserved_ip.0", b"") in (b"10.1.0.5", b"10.1.0.99", b"10.1.0.9", b"")
    assert all(files.values())
    for owner, names in ((NEW, ("10.1.0.98", "10.1.0.99")), (OLD, ("10.1.0.5",)), (ELSE, ("10.1.0.6",))):
        assert find(net, owner) == [name for name in names if name in files]
    assert "10.1.0.6" in files


@pytest.mark.parametrize("indexed", [True, False])
def test_store_is_consistent_after_a_kill_at_any_step(net, indexed):
    """A kill before any system call leaves each file complete or missing, and an index that is right or not used."""
    step, done = 0, False
    while not done:
        prepare(net, indexed=indexed)
        done = run_in_child(step, lambda: change(net))
        assert_consistent(net)
        step += 1
    assert step > 40


def test_store_is_consistent_after_an_error_at_any_step(net, monkeypatch):
    """If any system call fails, each file is complete or missing, and the later answers equal the files."""
    failing = [name for name in CALLS if name != "close"]  # close() closes even if it fails
    failed = 0

    def fail():
        raise OSError(5, "Input/output error")

    for step in range(60):
        prepare(net)
        with monkeypatch.context() as patch:
            for name, function in interrupt(step, fail, failing).items():
                patch.setattr(os, name, function)
            error = failure_of(lambda: change(net), CniError)
        assert error is None or error.code == 5
        failed += error is not None
        assert_consistent(net)
    assert failed >= 8


def test_more_reservations_of_an_owner_than_a_bucket_holds(net):
    """Many addresses with the same remark do not fit into the index, and are found without it."""
    reserve(net, "10.1.1.1", b"other\r\neth0")
    many = sorted(f"10.1.0.{number}" for number in range(2, 60))
    for name in many:
        write_as_reference(net, name, b"a remark")
    assert find(net, b"a remark") == many
    assert find(net, b"other\r\neth0") == ["10.1.1.1"]
    release(net, b"a remark")
    assert find(net, b"a remark") == []
