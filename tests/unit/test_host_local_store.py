"""host-local's store: the reference's files byte for byte, the lock, and errors of disks."""

import errno
import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

from cni.errors import CniError
from ipam.host_local import store as store_module
from ipam.host_local.store import ReservationStore, owner_of
from process.signals import Terminated

OWNER = owner_of("cid", "eth0")


@pytest.fixture
def net(tmp_path):
    return ReservationStore(str(tmp_path / "a" / "leases"), "net", lock_wait_s=60)


def add(net, name, owner=OWNER):
    with net.locked() as held:
        done = held.reserve(name, owner)
        if done:
            held.note_last_reserved(0, name)
        return done


def content(net, name):
    return Path(net.directory, name).read_bytes()


@pytest.mark.parametrize("before", ["10.1.2.9", "10.1.2.254", "10.1.2.10", ""])
def test_last_address_is_replaced_completely(net, before):
    """The new last address replaces all of the old one, whatever their lengths are."""
    with net.locked() as held:
        held.note_last_reserved(0, before)
        held.note_last_reserved(0, "10.1.2.11")
        held.note_last_reserved(0, "10.1.2.9")
        assert held.last_reserved(0) == "10.1.2.9"
    assert content(net, "last_reserved_ip.0") == b"10.1.2.9"


@pytest.mark.parametrize("text", [b"cid\r\neth0\n", b"  cid\r\neth0 \t\r\n"])
def test_white_space_around_an_owner_is_ignored(net, text):
    """A reservation that was edited by hand is found although white space surrounds its content."""
    add(net, "10.1.2.2", b"other")
    Path(net.directory, "10.1.2.3").write_bytes(text)
    with net.locked() as held:
        assert held.find(OWNER) == ["10.1.2.3"]


def test_address_of_an_empty_file_is_reserved(net):
    """An address whose file a crash left empty is free; then its file names the owner, as other programs expect."""
    assert add(net, "10.1.2.2")
    Path(net.directory, "10.1.2.3").touch()
    assert add(net, "10.1.2.3")
    assert content(net, "10.1.2.3") == OWNER


def test_second_reservation_and_release(net):
    """Reserving an address in use changes nothing; releasing an address that is not reserved succeeds."""
    assert add(net, "10.1.2.2")
    assert not add(net, "10.1.2.2", b"other\r\neth0")
    assert content(net, "10.1.2.2") == OWNER
    with net.locked() as held:
        held.release("10.1.2.2", OWNER)
        held.release("10.1.2.2", OWNER)
        assert held.find(OWNER) == []


def test_without_nameless_files_reservations_are_created_in_place(net, monkeypatch):
    """On a file system without O_TMPFILE, or without /proc, files are created as by the reference plugin."""
    real = os.open

    def refuse(path, flags, *rest, **keys):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no")
        return real(path, flags, *rest, **keys)

    monkeypatch.setattr(os, "open", refuse)
    assert add(net, "10.1.2.2")
    assert not add(net, "10.1.2.2")
    assert content(net, "10.1.2.2") == OWNER
    monkeypatch.undo()
    monkeypatch.setattr(os, "link", lambda *args, **keys: (_ for _ in ()).throw(FileNotFoundError(2, "no /proc")))
    assert add(net, "10.1.2.3")
    assert not add(net, "10.1.2.3")


@pytest.mark.parametrize("in_place", [False, True])
def test_full_disk_leaves_no_reservation(net, monkeypatch, in_place):
    """If a reservation cannot be written, it does not exist, and the error names the store."""
    add(net, "10.1.2.2")
    if in_place:
        monkeypatch.setattr(store_module, "_create", lambda directory, *rest: store_module._create_in_place(*rest))
    monkeypatch.setattr(os, "write", lambda fd, data: len(data) - 1)
    with pytest.raises(CniError, match=r"cannot use the reservations in .*/leases/net: No space left") as caught:
        add(net, "10.1.2.3", b"other\r\neth0")
    assert caught.value.code == 5
    monkeypatch.undo()
    assert not os.path.exists(f"{net.directory}/10.1.2.3")
    with net.locked() as held:
        assert held.find(b"other\r\neth0") == []


def test_unusable_path_is_named(tmp_path):
    """If dataDir is a file, or the network's name is too long, the error names the path."""
    (tmp_path / "file").write_text("")
    cases = ((f"{tmp_path}/file", "net", "Not a directory"), (str(tmp_path), "n" * 300, "too long"))
    for data_dir, name, reason in cases:
        with pytest.raises(CniError, match=reason) as caught:
            add(ReservationStore(data_dir, name), "10.1.2.2")
        assert (caught.value.code, f"{data_dir}/{name}" in caught.value.msg) == (5, True)


def lock_in_child(net):
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        fd = os.open(f"{net.directory}/lock", os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.write(writable, b"x")
        signal.pause()
    os.read(readable, 1)
    os.close(readable)
    os.close(writable)
    return pid


@pytest.fixture
def holder(net):
    add(net, "10.1.2.2")
    pid = lock_in_child(net)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_wait_for_the_lock_has_a_limit(tmp_path, net, holder):
    """After the time limit the error is "try again later" and names the process that holds the lock."""
    net = ReservationStore(os.path.dirname(net.directory), "net", lock_wait_s=0.1)
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(CniError, match=r"could not lock .*/net/lock within 0.1 s") as caught:
        add(net, "10.1.2.3")
    assert caught.value.code == 11
    assert f"/net/lock is held by process {holder} (" in caught.value.details
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def soon(action):
    """Runs an action in another process a little later, when this one waits."""
    pid = os.fork()
    if pid == 0:
        time.sleep(0.2)
        action()
        os._exit(0)
    return pid


def test_waiting_verb_continues_when_the_lock_is_released(net):
    """A waiting verb continues as soon as the lock is free."""
    add(net, "10.1.2.2")
    holder = lock_in_child(net)
    killer = soon(lambda: os.kill(holder, signal.SIGKILL))
    assert add(net, "10.1.2.3")
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    for pid in (holder, killer):
        os.waitpid(pid, 0)


def test_signal_ends_the_wait_for_the_lock(net, holder):
    """SIGTERM is delivered while a verb waits for a lock that another process holds."""

    def handler(signum, frame):
        raise Terminated

    before = signal.signal(signal.SIGTERM, handler)
    pid = soon(lambda: os.kill(os.getppid(), signal.SIGTERM))
    with pytest.raises(Terminated):
        add(net, "10.1.2.3")
    signal.signal(signal.SIGTERM, before)
    os.waitpid(pid, 0)
    assert net.list_owners() == {OWNER: ["10.1.2.2"]}


FOREIGN = {"a FIFO": os.mkfifo, "a link to itself": lambda path: os.symlink(path, path), "a directory": os.mkdir}


@pytest.mark.every_case
@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("name", ["10.1.2.77", "last_reserved_ip.0"])
def test_foreign_entries_do_not_block(tmp_path, make, name):
    """A FIFO, a looping link or a directory with one of podwire's names neither blocks nor fails a verb."""
    store = ReservationStore(str(tmp_path), "net")
    with store.locked() as held:
        make(f"{store.directory}/{name}")
        assert held.find(b"a\r\neth0") == []
        assert not name.startswith("10") or not held.reserve(name, b"a\r\neth0")
        assert held.reserve("10.1.2.3", b"a\r\neth0")
        held.note_last_reserved(0, "10.1.2.3")
    with store.locked() as held:
        assert held.find(b"a\r\neth0") == ["10.1.2.3"]


def test_directories_may_be_created_in_parallel(tmp_path, monkeypatch):
    """Another process that creates the missing directories at the same time causes no failure."""
    mkdir = os.mkdir

    def mkdir_twice(path, mode):
        mkdir(path, mode)
        if path == f"{tmp_path}/leases":
            mkdir(f"{path}/net", mode)

    monkeypatch.setattr(os, "mkdir", mkdir_twice)
    with ReservationStore(f"{tmp_path}/leases", "net").locked() as held:
        assert held.reserve("10.1.2.3", b"a\r\neth0")


def test_relative_directory_is_checked(tmp_path, monkeypatch):
    """A store below the working directory can be checked without creating it."""
    monkeypatch.chdir(tmp_path)
    ReservationStore("a/b", "net").check_usable()
    assert list(tmp_path.iterdir()) == []
