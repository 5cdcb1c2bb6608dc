"""host-local after a reboot: whose reservations are taken back, when, and whose never."""

import os
import shutil
import time

import pytest

from ipam.host_local import boots
from ipam.host_local.store import owner_of
from kernel import boot
from tests.support.host_local import Net, pool


class Node:
    """One network with three addresses on a node that can be rebooted."""

    def __init__(self, tmp_path, monkeypatch):
        self.net = Net(tmp_path, pool("10.1.2.0/24", last=4))
        self._monkeypatch = monkeypatch
        self._boots = 0

    def reboot(self):
        """Starts a new boot a moment later, with the clocks where they are."""
        time.sleep(0.02)  # two ticks of the clock that stamps files
        self._boots += 1
        name, began_ns = b"boot %d" % self._boots, time.time_ns()
        self._monkeypatch.setattr(boot, "get_boot_id", lambda: name)
        self._monkeypatch.setattr(boot, "get_boot_time_ns", lambda: began_ns)
        time.sleep(0.02)

    def set_clock_back(self, seconds):
        """Sets the machine's clock, and with it the time of the boot."""
        began_ns, time_ns = boot.get_boot_time_ns(), time.time_ns
        self._monkeypatch.setattr(boot, "get_boot_time_ns", lambda: began_ns - seconds * 10**9)
        self._monkeypatch.setattr(boots.time, "time_ns", lambda: time_ns() - seconds * 10**9)

    def show(self, boot_id):
        """Shows another boot ID, as a container does, or none."""
        self._monkeypatch.setattr(boot, "get_boot_id", lambda: boot_id)

    def written(self, name, owner):
        """Writes a reservation as the reference does."""
        self.net.file(name, owner.decode())

    def holders(self):
        """Returns who has which address."""
        return {
            name: owner.split(b"\r")[0].decode() for owner, names in self.net.list_owners().items() for name in names
        }


@pytest.fixture
def node(tmp_path, monkeypatch):
    return Node(tmp_path, monkeypatch)


def test_what_an_earlier_boot_left_is_taken_back_when_nothing_else_is_free(node, capsys):
    """Addresses of before the reboot stay reserved while there are others, and are all free when there is none."""
    node.net.add("a")
    node.net.add("b")
    node.reboot()
    assert node.net.add("c") == ["10.1.2.4/24"]
    assert node.holders() == {"10.1.2.2": "a", "10.1.2.3": "b", "10.1.2.4": "c"}
    assert node.net.status() is None
    assert node.net.add("d") == ["10.1.2.2/24"]
    assert node.holders() == {"10.1.2.2": "d", "10.1.2.4": "c"}
    assert "reclaimed 2 address(es)" in capsys.readouterr().err
    node.net.add("e")
    error = node.net.refusal("f")
    assert error.details.startswith("3 of 3 in use, 0 of them by containers that are no longer running; ")
    status = node.net.status()
    assert status is not None
    assert status.code == 50


def test_the_present_boot_is_never_touched(node):
    """A full range of this boot stays full, whatever the runtime's cache says of its containers."""
    node.reboot()
    for name in "abc":
        node.net.add(name)
        node.net.cached(name, "/run/netns/gone")
    node.net.refusal("d")
    assert node.holders() == {"10.1.2.2": "a", "10.1.2.3": "b", "10.1.2.4": "c"}


def test_two_reboots_are_as_one(node):
    """What is left of the boot before the last is taken back, too, although the index was written in between."""
    node.net.add("a")
    node.reboot()
    node.net.add("b")
    node.reboot()
    node.net.add("c")
    node.net.add("d")
    assert node.holders() == {"10.1.2.2": "d", "10.1.2.4": "c"}


def test_what_was_known_outlives_the_changes_of_others(node):
    """The reference's changes make the index anew; it goes on knowing what is of an earlier boot and what is not."""
    node.net.add("a")
    node.reboot()
    node.net.add("b")
    node.written("10.1.2.4", owner_of("c", "eth0"))
    node.net.cached("z", "/run/netns/gone")
    assert node.net.add("d") == ["10.1.2.2/24"]
    node.net.refusal("e")
    assert node.holders() == {"10.1.2.2": "d", "10.1.2.3": "b", "10.1.2.4": "c"}


def test_an_address_made_again_by_others_is_theirs(node):
    """A reservation of before the reboot that the reference released and made again is not taken for the old one."""
    node.net.add("a")
    node.reboot()
    os.unlink(f"{node.net.store.directory}/10.1.2.2")
    node.written("10.1.2.2", owner_of("a", "eth0"))
    node.net.add("b")
    node.net.add("c")
    node.net.refusal("d")
    os.unlink(f"{node.net.store.directory}/10.1.2.2")
    node.written("10.1.2.2", owner_of("a", "eth0"))
    node.net.refusal("d")


def test_the_references_own_of_an_earlier_boot_need_the_runtimes_word(node):
    """Reservations that no index knows are taken back if older than the boot, and gone for the runtime's cache."""
    for number, name in enumerate("abc"):
        node.written(f"10.1.2.{number + 2}", owner_of(name, "eth0"))
    node.reboot()
    node.net.refusal("d")
    node.net.cached("a", f"/proc/{os.getpid()}/ns/net")
    node.net.cached("b", "/run/netns/gone")
    node.net.add("d")
    assert node.holders() == {"10.1.2.2": "a", "10.1.2.3": "d"}


def test_the_references_own_of_this_boot_stay(node):
    """Reservations that no index knows, and that are younger than the boot, stay although the cache says gone."""
    node.reboot()
    for number, name in enumerate("abc"):
        node.written(f"10.1.2.{number + 2}", owner_of(name, "eth0"))
    node.net.cached("b", "/run/netns/gone")
    node.net.refusal("d")


def test_a_requested_address_is_taken_back(node):
    """An address asked for is given when a reboot has ended its container, and refused otherwise."""
    node.net.add("a", "10.1.2.3")
    node.net.refusal("b", "10.1.2.3")
    node.reboot()
    assert node.net.add("b", "10.1.2.3") == ["10.1.2.3/24"]
    node.net.refusal("c", "10.1.2.3")
    assert node.holders() == {"10.1.2.3": "b"}


def test_the_same_container_after_a_reboot_gets_one_address(node):
    """A restart with the same id is no duplicate: the old address is released, one is given."""
    node.net.add("a")
    node.net.refusal("a")
    node.reboot()
    node.net.add("a")
    assert list(node.holders().values()) == ["a"]
    node.net.refusal("a")


def test_the_same_container_without_its_old_namespace_gets_one_address(node):
    """A restart in the same boot is no duplicate when the namespace that the runtime noted is gone."""
    node.net.add("a")
    node.net.cached("a", f"/proc/{os.getpid()}/ns/net")
    node.net.refusal("a")
    node.net.cached("a", "/run/netns/gone")
    node.net.add("a")
    assert list(node.holders().values()) == ["a"]


@pytest.mark.parametrize("content", ["a\r\neth0", "a"])
def test_the_same_container_without_its_old_namespace_gets_the_address_it_asks_for(node, content):
    """What it had is not in its way when it comes back and asks for just that; another's stays another's."""
    node.written("10.1.2.3", content.encode())
    node.net.cached("a", f"/proc/{os.getpid()}/ns/net")
    node.net.refusal("a", "10.1.2.3")
    node.net.cached("a", "/run/netns/gone")
    node.net.refusal("b", "10.1.2.3")
    assert node.net.add("a", "10.1.2.3") == ["10.1.2.3/24"]
    assert node.net.list_owners() == {owner_of("a", "eth0"): ["10.1.2.3"]}


def test_a_note_of_the_administrator_stays(node):
    """An address that is kept by a remark in its file is nobody's, in every boot."""
    node.net.add("a")
    node.written("10.1.2.3", b"kept for the printer")
    node.net.add("b")
    node.reboot()
    node.net.add("c")
    node.net.add("d")
    node.net.refusal("e")
    assert node.holders()["10.1.2.3"] == "kept for the printer"


def test_without_an_index_nothing_is_guessed(node):
    """When the index is gone nothing is known of the boot: only the clock and the cache together free an address."""
    for name in "abc":
        node.net.add(name)
    os.unlink(f"{os.path.dirname(node.net.store.directory)}.podwire/net")
    node.reboot()
    node.net.refusal("d")


def test_an_index_out_of_a_backup_knows_nothing_later(node, tmp_path):
    """An index of an earlier boot that is put back does not take what was made since for what it knew."""
    node.net.add("a", "10.1.2.3")
    shutil.copytree(tmp_path / "leases.podwire", tmp_path / "backup")
    node.reboot()
    node.net.add("a", "10.1.2.3")
    shutil.rmtree(tmp_path / "leases.podwire")
    shutil.copytree(tmp_path / "backup", tmp_path / "leases.podwire")
    node.net.refusal("b", "10.1.2.3")
    assert node.holders() == {"10.1.2.3": "a"}


def test_an_index_without_seals_knows_what_is_of_an_earlier_boot(node):
    """After an update of podwire and a reboot, reservations that the former one's index lists are reclaimed."""
    for name in "abc":
        node.net.add(name)
    path = f"{os.path.dirname(node.net.store.directory)}.podwire/net"
    with open(path, "r+b") as file:
        for at in range(2048, os.path.getsize(path) + 1, 1024):
            os.pwrite(file.fileno(), bytes(64), at - 64)
    node.reboot()
    assert node.net.status() is None
    node.net.add("d")
    assert list(node.holders().values()) == ["d"]


def test_an_index_that_cannot_be_written_keeps_what_it_knew(node, monkeypatch):
    """A full disk after a reboot costs the knowledge of nothing, and no reservation of this boot is taken for older."""
    node.net.add("a")
    node.reboot()
    monkeypatch.setattr("ipam.host_local.index.Index._create", _full)
    node.net.add("b")
    node.net.add("c")
    assert node.net.add("d") == ["10.1.2.2/24"]
    node.net.refusal("e")
    assert node.holders() == {"10.1.2.2": "d", "10.1.2.3": "b", "10.1.2.4": "c"}


def _full(index, path):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("maker", ["ours", "the reference's"])
def test_nothing_is_taken_back_where_machines_share_a_store(node, monkeypatch, maker):
    """What another boot made on a file system of several machines may be of a container that lives on one of them."""
    monkeypatch.setattr(boots, "get_file_system", lambda directory: "nfs4")
    for number, name in enumerate("abc"):
        if maker == "ours":
            node.net.add(name)
        else:
            node.written(f"10.1.2.{number + 2}", owner_of(name, "eth0"))
    node.reboot()
    node.net.cached("z", "/run/netns/gone")
    node.net.refusal("d")
    assert node.holders() == {"10.1.2.2": "a", "10.1.2.3": "b", "10.1.2.4": "c"}


@pytest.mark.parametrize("boot_id", [b"another", b""])
def test_a_boot_id_alone_reclaims_nothing(node, boot_id):
    """Another boot ID, or one that cannot be read, is no reboot: reservations younger than the boot stay."""
    node.reboot()
    for name in "abc":
        node.net.add(name)
    node.show(boot_id)
    for name in "de":
        node.net.refusal(name)
    node.net.cached("a", "/run/netns/gone")
    node.net.refusal("f")
    assert node.holders() == {"10.1.2.2": "a", "10.1.2.3": "b", "10.1.2.4": "c"}


def test_a_namespace_that_exists_keeps_its_address(node):
    """A reservation of before the boot stays while the cache names a namespace of its attachment that exists."""
    for name in "abc":
        node.net.add(name)
    node.net.cached("a", f"/proc/{os.getpid()}/ns/net")
    node.net.cached("b", "")
    node.reboot()
    node.net.add("d")
    assert node.holders() == {"10.1.2.2": "a", "10.1.2.3": "d"}


def test_while_the_clock_is_behind_the_cache_has_to_agree(node):
    """On a machine that booted with its clock behind, earlier reservations are reclaimed if their container is gone."""
    for name in "abc":
        node.net.add(name)
    node.reboot()
    node.set_clock_back(3600)
    node.net.refusal("d")
    node.net.cached("a", "/run/netns/gone")
    node.net.cached("b", "")
    node.net.add("d")
    assert node.holders() == {"10.1.2.2": "d", "10.1.2.3": "b"}
    node.set_clock_back(-3600)
    node.net.add("e")
    node.net.add("f")
    node.net.refusal("g")
    assert node.holders() == {"10.1.2.2": "d", "10.1.2.3": "f", "10.1.2.4": "e"}


def test_the_kind_of_afile_system(tmp_path):
    """It is told of directories, also through links; of what is not there it is unknown."""
    (tmp_path / "link").symlink_to("/proc/self")
    assert boots.get_file_system(str(tmp_path / "link")) == "proc"
    assert boots.get_file_system("/sys/kernel") == "sysfs"
    assert boots.get_file_system(str(tmp_path / "absent")) == ""


def test_the_boot_began_when_the_kernel_says():
    """The time of the boot is the kernel's btime (proc_stat(5)), which has full seconds."""
    with open("/proc/stat") as table:
        btime_s = next(int(line.split()[1]) for line in table if line.startswith("btime "))
    assert abs(boot.get_boot_time_ns() / 10**9 - btime_s) < 2
