"""host-local after a reboot: which reservations are reclaimed, when, and which never."""

import os
import shutil
import time

import pytest

from ipam.host_local import boots
from ipam.host_local.store import owner_of
from kernel import boot
from tests.support.host_local import Net, pool


class Node:
    """A network with three addresses on a node that can reboot."""

    def __init__(self, tmp_path, monkeypatch):
        self.net = Net(tmp_path, pool("10.1.2.0/24", last=4))
        self._monkeypatch = monkeypatch
        self._boots = 0

    def reboot(self):
        """Starts a new boot a moment later, with the same clocks."""
        time.sleep(0.02)  # two ticks of the clock for file times
        self._boots += 1
        name, began_ns = b"boot %d" % self._boots, time.time_ns()
        self._monkeypatch.setattr(boot, "get_boot_id", lambda: name)
        self._monkeypatch.setattr(boot, "get_boot_time_ns", lambda: began_ns)
        time.sleep(0.02)

    def set_clock_back(self, seconds):
        """Sets the machine's clock back, and with it the time of the boot."""
        began_ns, time_ns = boot.get_boot_time_ns(), time.time_ns
        self._monkeypatch.setattr(boot, "get_boot_time_ns", lambda: began_ns - seconds * 10**9)
        self._monkeypatch.setattr(time, "time_ns", lambda: time_ns() - seconds * 10**9)

    def set_boot_id(self, boot_id):
        """Sets another boot ID, as a container may read, or none."""
        self._monkeypatch.setattr(boot, "get_boot_id", lambda: boot_id)

    def write(self, name, owner):
        """Writes a reservation as the reference plugin does."""
        self.net.file(name, owner.decode())

    def holders(self):
        """Returns the container ID of each reserved address."""
        return {
            name: owner.split(b"\r")[0].decode() for owner, names in self.net.list_owners().items() for name in names
        }


@pytest.fixture
def node(tmp_path, monkeypatch):
    return Node(tmp_path, monkeypatch)


def test_orphaned_addresses_are_reclaimed_if_no_other_is_free(node, capsys):
    """Addresses of an earlier boot stay reserved while others are free; then all are reclaimed."""
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


def test_addresses_are_reclaimed_after_two_reboots(node):
    """Addresses of the boot before the last are reclaimed, although the index was written in between."""
    node.net.add("a")
    node.reboot()
    node.net.add("b")
    node.reboot()
    node.net.add("c")
    node.net.add("d")
    assert node.holders() == {"10.1.2.2": "d", "10.1.2.4": "c"}


def test_rebuilt_index_keeps_origins(node):
    """The reference plugin's changes cause a new index, which still distinguishes earlier boots."""
    node.net.add("a")
    node.reboot()
    node.net.add("b")
    node.write("10.1.2.4", owner_of("c", "eth0"))
    node.net.cached("z", "/run/netns/gone")
    assert node.net.add("d") == ["10.1.2.2/24"]
    node.net.refusal("e")
    assert node.holders() == {"10.1.2.2": "d", "10.1.2.3": "b", "10.1.2.4": "c"}


def test_address_reserved_again_by_the_reference_is_kept(node):
    """A reservation that the reference plugin released and created again is not treated as the old one."""
    node.net.add("a")
    node.reboot()
    os.unlink(f"{node.net.store.directory}/10.1.2.2")
    node.write("10.1.2.2", owner_of("a", "eth0"))
    node.net.add("b")
    node.net.add("c")
    node.net.refusal("d")
    os.unlink(f"{node.net.store.directory}/10.1.2.2")
    node.write("10.1.2.2", owner_of("a", "eth0"))
    node.net.refusal("d")


def test_unindexed_reservations_need_the_cache(node):
    """Reservations in no index are reclaimed if they are older than the boot and gone in the runtime's cache."""
    for number, name in enumerate("abc"):
        node.write(f"10.1.2.{number + 2}", owner_of(name, "eth0"))
    node.reboot()
    node.net.refusal("d")
    node.net.cached("a", f"/proc/{os.getpid()}/ns/net")
    node.net.cached("b", "/run/netns/gone")
    node.net.add("d")
    assert node.holders() == {"10.1.2.2": "a", "10.1.2.3": "d"}


def test_unindexed_reservations_of_this_boot_stay(node):
    """Reservations in no index that are younger than the boot stay, whatever the cache says."""
    node.reboot()
    for number, name in enumerate("abc"):
        node.write(f"10.1.2.{number + 2}", owner_of(name, "eth0"))
    node.net.cached("b", "/run/netns/gone")
    node.net.refusal("d")


def test_requested_orphaned_address_is_reclaimed(node):
    """A requested address is allocated if a reboot ended its container, and refused otherwise."""
    node.net.add("a", "10.1.2.3")
    node.net.refusal("b", "10.1.2.3")
    node.reboot()
    assert node.net.add("b", "10.1.2.3") == ["10.1.2.3/24"]
    node.net.refusal("c", "10.1.2.3")
    assert node.holders() == {"10.1.2.3": "b"}


def test_same_container_after_a_reboot_gets_one_address(node):
    """A restart with the same ID is no duplicate: the old address is released, one is allocated."""
    node.net.add("a")
    node.net.refusal("a")
    node.reboot()
    node.net.add("a")
    assert list(node.holders().values()) == ["a"]
    node.net.refusal("a")


def test_same_container_in_a_new_namespace_gets_one_address(node):
    """A restart in the same boot is no duplicate if the namespace in the cache was deleted."""
    node.net.add("a")
    node.net.cached("a", f"/proc/{os.getpid()}/ns/net")
    node.net.refusal("a")
    node.net.cached("a", "/run/netns/gone")
    node.net.add("a")
    assert list(node.holders().values()) == ["a"]


@pytest.mark.parametrize("content", ["a\r\neth0", "a"])
def test_same_container_in_a_new_namespace_gets_its_requested_address(node, content):
    """Its earlier reservation does not prevent a request for the same address; another container's does."""
    node.write("10.1.2.3", content.encode())
    node.net.cached("a", f"/proc/{os.getpid()}/ns/net")
    node.net.refusal("a", "10.1.2.3")
    node.net.cached("a", "/run/netns/gone")
    node.net.refusal("b", "10.1.2.3")
    assert node.net.add("a", "10.1.2.3") == ["10.1.2.3/24"]
    assert node.net.list_owners() == {owner_of("a", "eth0"): ["10.1.2.3"]}


def test_remark_of_the_administrator_stays(node):
    """An address with a remark in its file is never reclaimed, in any boot."""
    node.net.add("a")
    node.write("10.1.2.3", b"kept for the printer")
    node.net.add("b")
    node.reboot()
    node.net.add("c")
    node.net.add("d")
    node.net.refusal("e")
    assert node.holders()["10.1.2.3"] == "kept for the printer"


def test_restored_index_does_not_apply_to_later_reservations(node, tmp_path):
    """An index from a backup of an earlier boot does not apply to reservations created since."""
    node.net.add("a", "10.1.2.3")
    shutil.copytree(tmp_path / "leases.podwire", tmp_path / "backup")
    node.reboot()
    node.net.add("a", "10.1.2.3")
    shutil.rmtree(tmp_path / "leases.podwire")
    shutil.copytree(tmp_path / "backup", tmp_path / "leases.podwire")
    node.net.refusal("b", "10.1.2.3")
    assert node.holders() == {"10.1.2.3": "a"}


def test_index_without_checksums_is_used_for_origins(node):
    """After an update of podwire and a reboot, reservations in the earlier podwire's index are reclaimed."""
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


def test_index_that_cannot_be_written_keeps_origins(node, monkeypatch):
    """With a full disk after a reboot no origin is lost, and no reservation of this boot looks older."""
    node.net.add("a")
    node.reboot()
    monkeypatch.setattr("ipam.host_local.index.Index._create", raise_no_space)
    node.net.add("b")
    node.net.add("c")
    assert node.net.add("d") == ["10.1.2.2/24"]
    node.net.refusal("e")
    assert node.holders() == {"10.1.2.2": "d", "10.1.2.3": "b", "10.1.2.4": "c"}


def raise_no_space(index, path):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("creator", ["podwire", "reference"])
def test_nothing_is_reclaimed_on_a_shared_file_system(node, monkeypatch, creator):
    """A reservation of another boot on a shared file system may belong to a running container of another machine."""
    monkeypatch.setattr(boots, "get_file_system", lambda directory: "nfs4")
    for number, name in enumerate("abc"):
        if creator == "podwire":
            node.net.add(name)
        else:
            node.write(f"10.1.2.{number + 2}", owner_of(name, "eth0"))
    node.reboot()
    node.net.cached("z", "/run/netns/gone")
    node.net.refusal("d")
    assert node.holders() == {"10.1.2.2": "a", "10.1.2.3": "b", "10.1.2.4": "c"}


@pytest.mark.parametrize("boot_id", [b"another", b""])
def test_boot_id_alone_reclaims_nothing(node, boot_id):
    """Another or unreadable boot ID is no reboot: reservations younger than the boot stay."""
    node.reboot()
    for name in "abc":
        node.net.add(name)
    node.set_boot_id(boot_id)
    for name in "de":
        node.net.refusal(name)
    node.net.cached("a", "/run/netns/gone")
    node.net.refusal("f")
    assert node.holders() == {"10.1.2.2": "a", "10.1.2.3": "b", "10.1.2.4": "c"}


def test_existing_namespace_keeps_its_address(node):
    """A reservation from before the boot stays while the cache names an existing namespace of its attachment."""
    for name in "abc":
        node.net.add(name)
    node.net.cached("a", f"/proc/{os.getpid()}/ns/net")
    node.net.cached("b", "")
    node.reboot()
    node.net.add("d")
    assert node.holders() == {"10.1.2.2": "a", "10.1.2.3": "d"}


def test_cache_decides_while_the_clock_is_behind(node):
    """If the machine booted with its clock behind, earlier reservations need the cache to be reclaimed."""
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


def test_get_file_system_follows_links(tmp_path):
    """The type is that of a link's target, and "" for a missing directory."""
    (tmp_path / "link").symlink_to("/proc/self")
    assert boots.get_file_system(str(tmp_path / "link")) == "proc"
    assert boots.get_file_system("/sys/kernel") == "sysfs"
    assert boots.get_file_system(str(tmp_path / "absent")) == ""


def test_boot_time_equals_the_kernels():
    """The time of the boot equals the kernel's btime (proc_stat(5)), which has full seconds."""
    with open("/proc/stat") as table:
        btime_s = next(int(line.split()[1]) for line in table if line.startswith("btime "))
    assert abs(boot.get_boot_time_ns() / 10**9 - btime_s) < 2
