"""host-local as built, with many addresses in use: what a verb does is counted, since times depend on the machine.

The store is as the reference plugin leaves it, without an index; a first ADD takes it over.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from tests.support import binaries
from tests.support.invocation import environment

FEW, MANY = 10, 20_000
FIRST = int(ip_address("10.16.0.2"))
_CALL = re.compile(r"^\d+ +(\w+)\(.* = (-?\d+)")
_READING = ("read", "pread64", "getdents64")


@dataclass(frozen=True)
class Counted:
    """The system calls of one verb by name, and how many bytes it read."""

    calls: Counter[str]
    bytes_read: int


@dataclass(frozen=True)
class Taken:
    """A network in `store` of whose addresses the first `number` are taken."""

    store: Path
    number: int

    @property
    def directory(self) -> Path:
        return self.store / f"net{self.number}"

    def fill(self) -> None:
        self.directory.mkdir(parents=True)
        for at in range(self.number):
            (self.directory / str(ip_address(FIRST + at))).write_bytes(b"c%d\r\neth0" % at)
        self.turn_at(self.number)

    def turn_at(self, number: int) -> None:
        """Has the next search begin at the address of that number."""
        (self.directory / "last_reserved_ip.0").write_text(str(ip_address(FIRST + number - 1)))

    def count(self, command: str, container_id: str = "cid", **keys: Any) -> Counted:
        """Runs a verb, which must succeed, and counts what it does."""
        ipam = {"type": "host-local", "dataDir": str(self.store), "ranges": [[{"subnet": "10.16.0.0/12"}]]}
        config = {"cniVersion": "1.1.0", "name": self.directory.name, "type": "bridge", "ipam": ipam, **keys}
        names = {"CNI_CONTAINERID": container_id, "CNI_IFNAME": "eth0", "CNI_NETNS": "/dev/null", "CNI_PATH": "/"}
        trace = self.store / "trace"
        done = subprocess.run(
            ["strace", "-f", "-o", str(trace), str(binaries.directory() / "host-local")],
            input=json.dumps(config).encode(),
            env=environment(command, **names),
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        made = [found.groups() for line in trace.read_text().splitlines() if (found := _CALL.match(line))]
        return Counted(
            Counter(name for name, _ in made),
            sum(max(0, int(answer)) for name, answer in made if name in _READING),
        )

    def collect(self, living: int) -> Counted:
        """Runs GC, with so many of the containers alive."""
        valid = [{"containerID": f"c{at}", "ifname": "eth0"} for at in range(living)]
        return self.count("GC", **{"cni.dev/valid-attachments": valid})

    def reserved(self) -> int:
        return sum(1 for path in self.directory.iterdir() if path.name[0].isdigit())


@pytest.fixture(scope="module")
def crowds(bin_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Taken]:
    """Networks with few and with many addresses in use, both taken over from the reference."""
    found = {number: Taken(tmp_path_factory.mktemp("crowds"), number) for number in (FEW, MANY)}
    for taken in found.values():
        taken.fill()
        taken.count("ADD", "first")
    return found


def test_a_verb_does_the_same_with_few_and_with_many(crowds):
    """ADD, CHECK, STATUS and DEL make the same system calls and read as much, however many addresses are in use."""
    counted = {
        number: [taken.count(command) for command in ("ADD", "CHECK", "STATUS", "DEL")]
        for number, taken in crowds.items()
    }
    for few, many in zip(counted[FEW], counted[MANY], strict=True):
        assert many.calls == few.calls
        assert abs(many.bytes_read - few.bytes_read) < 100  # addresses and sizes have more digits
        assert many.calls["getdents64"] == 0


def test_taken_addresses_in_the_way_are_passed_by_without_reading_them(crowds):
    """When the turn comes to many taken addresses in a row, ADD lists their names once, and STATUS not even that."""
    taken = crowds[MANY]
    taken.turn_at(MANY - 500)
    few = taken.count("ADD", "b")
    assert few.calls["getdents64"] == 0
    taken.turn_at(0)
    status, add = taken.count("STATUS"), taken.count("ADD", "c")
    assert (status.calls["getdents64"], add.calls["openat"] - few.calls["openat"]) == (0, 1)
    assert sum(status.calls.values()) < 300
    assert sum(add.calls.values()) < 2000
    for container_id in "bc":
        taken.count("DEL", container_id)


def test_a_store_that_grows_is_read_once(bin_dir, tmp_path):
    """Hundreds of ADDs after the take-over read no reservation but their own."""
    taken = Taken(tmp_path, FEW)
    taken.fill()
    counts = [taken.count("ADD", f"d{number}").calls["openat"] for number in range(300)]
    assert counts[0] > counts[1] + FEW - 3
    assert max(counts[1:]) <= counts[1] + 1  # a larger index is another file


def test_gc_takes_as_long_for_each(bin_dir, tmp_path):
    """GC opens, reads, closes and removes each reservation once, and writes its index once for all."""
    counted = {}
    for number in (1000, 3000):
        taken = Taken(tmp_path, number)
        taken.fill()
        counted[number] = taken.collect(living=10)
        assert taken.reserved() == 10
    more = counted[3000].calls - counted[1000].calls
    assert {name for name, times in more.items() if times >= 100} == {"openat", "read", "close", "unlink"}
    assert all(more[name] <= 2000 + 40 for name in more)


def test_gc_of_the_living_changes_nothing(crowds):
    """GC with all alive reads each reservation once, and removes and writes none."""
    taken = crowds[MANY]
    counted = taken.collect(living=MANY).calls
    assert (counted["unlink"], counted["linkat"]) == (1, 0)  # the one of the fixture
    assert counted["read"] < MANY + 200
    assert counted["pwrite64"] <= 2
    assert taken.reserved() == MANY
