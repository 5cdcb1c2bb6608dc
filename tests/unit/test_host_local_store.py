"""host-local's store: the reference's files to the byte, the lock, and what goes wrong with disks."""

import errno
import fcntl
import os
import signal
import stat
import time
from pathlib import Path

import pytest

from cni.errors import CniError
from cni.skel import Terminated
from ipam.host_local import store as store_module
from ipam.host_local.store import Store, owner_of
from process import signals

OWNER = owner_of("cid", "eth0")


@pytest.fixture
def net(tmp_path):
    return Store(str(tmp_path / "a" / "leases"), "net")


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def add(net, name, owner=OWNER):
    with net.locked() as held:
        done = held.reserve(name, owner)
        if done:
            held.note_last_reserved(0, name)
        return done


def content(net, name):
    with open(f"{net.directory}/{name}", "rb") as file:
        return file.read()


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.parametrize("made_before", [False, True])
def test_files_are_the_references(net, umask, made_before):
    """Names, contents and modes of the files and directories are those the reference makes."""
    os.makedirs(net.directory, 0o755) if made_before else None
    add(net, "10.1.2.2")
    add(net, "fd00::2")
    assert content(net, "10.1.2.2") == content(net, "fd00::2") == b"cid\r\neth0"
    assert content(net, "last_reserved_ip.0") == b"fd00::2"
    assert content(net, "lock") == b""
    modes = {name: mode(f"{net.directory}/{name}") for name in os.listdir(net.directory)}
    assert modes == {"10.1.2.2": 0o600, "fd00::2": 0o600, "last_reserved_ip.0": 0o600, "lock": 0o750}
    assert mode(net.directory) == mode(os.path.dirname(net.directory)) == 0o755


def test_the_umask_takes_from_the_modes(net, umask):
    """Modes are subject to the umask, as the reference's."""
    umask(0o077)
    add(net, "10.1.2.2")
    assert (mode(f"{net.directory}/lock"), mode(net.directory)) == (0o700, 0o700)


@pytest.mark.parametrize("before", ["10.1.2.9", "10.1.2.254", "10.1.2.10", ""])
def test_the_last_address_is_written_whole(net, before):
    """Whatever length the last address had, the new one replaces all of it."""
    with net.locked() as held:
        held.note_last_reserved(0, before)
        held.note_last_reserved(0, "10.1.2.11")
        held.note_last_reserved(0, "10.1.2.9")
        assert held.last_reserved(0) == "10.1.2.9"
    assert content(net, "last_reserved_ip.0") == b"10.1.2.9"


def test_a_taken_name_stays_whole(net):
    """Reserving a taken address changes nothing."""
    assert add(net, "10.1.2.2")
    assert not add(net, "10.1.2.2", b"other\r\neth0")
    assert content(net, "10.1.2.2") == OWNER


def test_an_empty_reservation_is_free(net):
    """A file that lost its content can be reserved again."""
    add(net, "10.1.2.2")
    with net.locked() as held:
        assert held.find(OWNER) == ["10.1.2.2"]
    os.truncate(f"{net.directory}/10.1.2.2", 0)
    assert add(net, "10.1.2.2", b"other")
    assert content(net, "10.1.2.2") == b"other"


@pytest.mark.parametrize("text", ["cid\r\neth0\n", "  cid\r\neth0 \t\r\n"])
def test_white_space_around_an_owner_is_not_counted(net, text):
    """A reservation edited by hand is found although white space surrounds its content."""
    add(net, "10.1.2.2", b"other")
    with open(f"{net.directory}/10.1.2.3", "w", newline="") as file:
        file.write(text)
    with net.locked() as held:
        assert held.find(OWNER) == ["10.1.2.3"]


def test_released_twice_is_released(net):
    """Releasing an address that is not reserved succeeds."""
    add(net, "10.1.2.2")
    with net.locked() as held:
        held.release("10.1.2.2", OWNER)
        held.release("10.1.2.2", OWNER)
        assert held.find(OWNER) == []


def test_without_nameless_files_a_reservation_is_made_in_place(net, monkeypatch):
    """On a file system without O_TMPFILE, or without /proc, files are made as the reference does."""
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
def test_a_full_disk_leaves_no_reservation(net, monkeypatch, in_place):
    """When a reservation cannot be written, it is not there, and the error names the store."""
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


def test_a_file_in_the_way_is_named(tmp_path):
    """A dataDir that is no directory, or a network name too long for one, gives an error with the path."""
    (tmp_path / "file").write_text("")
    cases = ((f"{tmp_path}/file", "net", "Not a directory"), (str(tmp_path), "n" * 300, "too long"))
    for data_dir, name, reason in cases:
        with pytest.raises(CniError, match=reason) as caught:
            add(Store(data_dir, name), "10.1.2.2")
        assert (caught.value.code, f"{data_dir}/{name}" in caught.value.msg) == (5, True)


def lock_in_child(net):
    """Starts a process that holds the lock until it is killed; returns its pid."""
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


def test_the_wait_for_the_lock_has_an_end(tmp_path, net, holder):
    """After the time limit the error is "try again later" and names the process that holds the lock."""
    net = Store(os.path.dirname(net.directory), "net", lock_wait_s=0.1)
    before = signal.getsignal(signal.SIGALRM)
    began = time.monotonic()
    with pytest.raises(CniError, match=r"could not lock .*/net/lock within 0.1 s") as caught:
        add(net, "10.1.2.3")
    assert time.monotonic() - began < 5
    assert caught.value.code == 11
    assert f"/net/lock is held by process {holder} (" in caught.value.details
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_lock_that_is_released_in_time_is_taken(net):
    """A waiting verb goes on when the lock becomes free."""
    add(net, "10.1.2.2")
    pid = os.fork()
    if pid == 0:
        fd = os.open(f"{net.directory}/lock", os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        time.sleep(0.3)
        os._exit(0)
    time.sleep(0.1)
    assert add(net, "10.1.2.3")
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    os.waitpid(pid, 0)


@pytest.fixture
def termination():
    """SIGTERM raises, as in the executable."""

    def handler(signum, frame):
        raise Terminated

    before = signal.signal(signal.SIGTERM, handler)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_signal_waits_for_the_end_of_the_block(net, termination):
    """SIGTERM, held back as in each verb, cuts nothing short that is done under the lock, and arrives after it."""
    reached = []

    def reserve_when_told_to_stop():
        with signals.blocked(), net.locked() as held:
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append(held.reserve("10.1.2.2", OWNER))

    with pytest.raises(Terminated):
        reserve_when_told_to_stop()
    assert reached == [True]
    assert net.list_owners() == {OWNER: ["10.1.2.2"]}
    assert add(net, "10.1.2.3")


def test_a_signal_ends_the_wait_for_the_lock(net, holder, termination):
    """SIGTERM is not kept waiting by a lock that somebody else holds."""
    pid = os.fork()
    if pid == 0:
        time.sleep(0.2)
        os.kill(os.getppid(), signal.SIGTERM)
        os._exit(0)
    with pytest.raises(Terminated):
        add(net, "10.1.2.3")
    os.waitpid(pid, 0)
    assert net.list_owners() == {OWNER: ["10.1.2.2"]}


FOREIGN = {
    "a FIFO": os.mkfifo,
    "a link to itself": lambda path: os.symlink(path, path),
    "a directory": os.mkdir,
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("name", ["10.1.2.77", "last_reserved_ip.0"])
def test_what_is_no_file_of_ours_does_no_harm(tmp_path, make, name):
    """A FIFO, a looping link or a directory of one of our names neither hangs nor stops anybody."""
    store = Store(str(tmp_path), "net")
    with store.locked() as held:
        make(f"{store.directory}/{name}")
        assert held.find(b"a\r\neth0") == []
        assert not name.startswith("10") or not held.reserve(name, b"a\r\neth0")
        assert held.reserve("10.1.2.3", b"a\r\neth0")
        held.note_last_reserved(0, "10.1.2.3")
    with store.locked() as held:
        assert held.find(b"a\r\neth0") == ["10.1.2.3"]


def test_a_link_in_the_place_of_the_index_is_not_followed(tmp_path):
    """Somebody's file behind a link named like the index keeps its content."""
    side = Path(f"{tmp_path}.podwire")
    side.mkdir()
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (side / "net").symlink_to(precious)
    with Store(str(tmp_path), "net").locked() as held:
        assert held.reserve("10.1.2.3", b"a\r\neth0")
        assert held.find(b"a\r\neth0") == ["10.1.2.3"]
    assert precious.read_text() == "precious"


def test_two_first_pods_make_the_directory_at_once(tmp_path, monkeypatch):
    """Another process that makes the missing directories between two steps of ours is no failure."""
    mkdir = os.mkdir

    def mkdir_and_be_overtaken(path, mode):
        mkdir(path, mode)
        if path == f"{tmp_path}/leases":
            mkdir(f"{path}/net", mode)

    monkeypatch.setattr(os, "mkdir", mkdir_and_be_overtaken)
    with Store(f"{tmp_path}/leases", "net").locked() as held:
        assert held.reserve("10.1.2.3", b"a\r\neth0")


def test_a_relative_directory_is_no_reason_to_search_for_ever(tmp_path, monkeypatch):
    """A store that would be made below where we are is rehearsed there."""
    monkeypatch.chdir(tmp_path)
    Store("a/b", "net").check_usable()
    assert list(tmp_path.iterdir()) == []
