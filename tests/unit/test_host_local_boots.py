"""host-local after a reboot: which reservations are reclaimed, when, and which never."""

import os
import shutil
import time
from pathlib import Path

import pytest

from ipam.host_local import boots
from ipam.host_local.store import owner_of
from kernel import boot
from tests.support.host_local import Net, pool


class Node:
    """A network with three addresses on a node that can reboot; its methods are the steps of SCENARIOS."""

    def __init__(self, tmp_path, monkeypatch):
        self.net = Net(tmp_path, pool("10.1.2.0/24", last=4))
        self.index = Path(f"{tmp_path}/leases.podwire/net")
        self._monkeypatch = monkeypatch
        self._boots = 0

    def add(self, name, *requested):
        self.net.add(name, *requested)

    def refuse(self, name, *requested):
        self.net.refusal(name, *requested)

    def reboot(self):
        """Starts a new boot a moment later, with the same clocks."""
        time.sleep(0.02)  # two ticks of the clock for file times
        self._boots += 1
        name, began_ns = f"boot {self._boots}", time.time_ns()
        self._monkeypatch.setattr(boot, "get_boot_id", lambda: name)
        self._monkeypatch.setattr(boot, "get_boot_time_ns", lambda: began_ns)
        time.sleep(0.02)

    def clock(self, seconds):
        """Sets the machine's clock back, and with it the time of the boot."""
        began_ns, time_ns = boot.get_boot_time_ns(), time.time_ns
        self._monkeypatch.setattr(boot, "get_boot_time_ns", lambda: began_ns - int(seconds) * 10**9)
        self._monkeypatch.setattr(time, "time_ns", lambda: time_ns() - int(seconds) * 10**9)

    def boot_id(self, boot_id=""):
        """Sets another boot ID, as a container may read, or none."""
        self._monkeypatch.setattr(boot, "get_boot_id", lambda: boot_id)

    def running(self, name):
        self.net.cached(name, f"/proc/{os.getpid()}/ns/net")

    def stopped(self, name):
        self.net.cached(name, "/run/netns/gone")

    def unknown(self, name):
        self.net.cached(name, "")

    def write(self, address, name):
        """Writes a reservation as the reference plugin does."""
        self.net.file(address, f"{name}\r\neth0")

    def remark(self, address):
        self.net.file(address, "kept for the printer")

    def remove(self, address):
        os.unlink(f"{self.net.store.directory}/{address}")

    def back_up(self):
        shutil.copy2(self.index, self.index.with_name("copy"))

    def restore(self):
        os.replace(self.index.with_name("copy"), self.index)

    def downgrade(self):
        """Removes the checksums from the index, as an earlier podwire writes it."""
        with self.index.open("r+b") as file:
            for at in range(2048, self.index.stat().st_size + 1, 1024):
                os.pwrite(file.fileno(), bytes(64), at - 64)

    def fill_disk(self):
        def raise_no_space(index, path):
            raise OSError(28, "No space left on device")

        self._monkeypatch.setattr("ipam.host_local.index.Index._create", raise_no_space)

    def share(self):
        """Moves the store to a file system that several machines share."""
        self._monkeypatch.setattr(boots, "get_file_system", lambda directory: "nfs4")

    def expect(self, *names):
        """Asserts which containers have the three addresses, "-" for none."""
        addresses = zip(("10.1.2.2", "10.1.2.3", "10.1.2.4"), names, strict=True)
        assert self.holders() == {address: name for address, name in addresses if name != "-"}

    def holders(self):
        owners = self.net.list_owners()
        return {name: owner.split()[0].decode() for owner, names in owners.items() for name in names}


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


ABC = "add a; add b; add c"
WRITE_ABC = "write 10.1.2.2 a; write 10.1.2.3 b; write 10.1.2.4 c"
# Steps, and the containers that then have the three addresses.
SCENARIOS = {
    "the boot before the last": "add a; reboot; add b; reboot; add c; add d; expect d - c",
    "a rebuilt index keeps origins": "add a; reboot; add b; write 10.1.2.4 c; stopped z; add d; refuse e; expect d b c",
    "reserved again by the reference plugin": (
        "add a; reboot; remove 10.1.2.2; write 10.1.2.2 a; add b; add c; refuse d; "
        "remove 10.1.2.2; write 10.1.2.2 a; refuse d; expect a b c"
    ),
    "in no index, gone in the cache": f"{WRITE_ABC}; reboot; refuse d; running a; stopped b; add d; expect a d -",
    "in no index, younger than the boot": f"reboot; {WRITE_ABC}; stopped b; refuse d; expect a b c",
    "a requested address": "add a 10.1.2.3; refuse b 10.1.2.3; reboot; add b 10.1.2.3; refuse c 10.1.2.3; expect - b -",
    "the same container": "add a; refuse a; reboot; add a; refuse a; expect - a -",
    "the same container at the same path": "add a; running a; reboot; add a; expect - a -",
    "the same container in a new namespace": "add a; running a; refuse a; stopped a; add a; expect - a -",
    "a remark is never reclaimed": "add a; remark 10.1.2.3; add b; reboot; add c; add d; refuse e; expect c kept d",
    "an index from a backup": (
        "add a 10.1.2.3; back_up; reboot; add a 10.1.2.3; restore; refuse b 10.1.2.3; expect - a -"
    ),
    "an index of an earlier podwire": f"{ABC}; downgrade; reboot; add d; expect d - -",
    "a full disk loses no origin": "add a; reboot; fill_disk; add b; add c; add d; refuse e; expect d b c",
    "on a shared file system": f"share; {ABC}; reboot; stopped z; refuse d; expect a b c",
    "the reference plugin's, shared": f"share; {WRITE_ABC}; reboot; stopped z; refuse d; expect a b c",
    "another boot ID alone": f"reboot; {ABC}; boot_id x; refuse d; refuse e; stopped a; refuse f; expect a b c",
    "an unreadable boot ID": f"reboot; {ABC}; boot_id; refuse d; refuse e; stopped a; refuse f; expect a b c",
    "an existing namespace in the cache": f"{ABC}; running a; unknown b; reboot; add d; expect a d -",
    "a clock that is behind": (
        f"{ABC}; reboot; clock 3600; refuse d; stopped a; unknown b; add d; expect d b -; "
        "clock -3600; add e; add f; refuse g; expect d f e"
    ),
}


@pytest.mark.every_case
@pytest.mark.parametrize("steps", SCENARIOS.values(), ids=SCENARIOS)
def test_reservations_after_a_reboot(node, steps):
    """A reservation is reclaimed, when it is needed, if a reboot ended its container, and only with proof of that."""
    for step in steps.split("; "):
        name, *words = step.split()
        getattr(node, name)(*words)


@pytest.mark.parametrize("content", ["a\r\neth0", "a"])
def test_same_container_in_a_new_namespace_gets_its_requested_address(node, content):
    """Its earlier reservation does not prevent a request for the same address; another container's does."""
    node.net.file("10.1.2.3", content)
    node.running("a")
    node.net.refusal("a", "10.1.2.3")
    node.stopped("a")
    node.net.refusal("b", "10.1.2.3")
    assert node.net.add("a", "10.1.2.3") == ["10.1.2.3/24"]
    assert node.net.list_owners() == {owner_of("a", "eth0"): ["10.1.2.3"]}


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
