"""The built host-local with many addresses in use: the tests count operations, since times depend on the machine.

The store is the reference plugin's, without an index; the first ADD builds the index.
"""

import json
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import binaries
from tests.support.invocation import environment

FEW, MANY = 10, 20_000
FIRST = int(ip_address("10.16.0.2"))
_CALL = re.compile(r"^\d+ +(\w+)\(.* = (-?\d+)")
_READING = ("read", "pread64", "getdents64")


class Counts(NamedTuple):
    """The system calls of one verb by name, and the number of bytes it read."""

    calls: Counter[str]
    bytes_read: int


@dataclass(frozen=True)
class FilledNetwork:
    """A network in `store` with its first `number` addresses in use."""

    store: Path
    number: int

    @property
    def directory(self) -> Path:
        return self.store / f"net{self.number}"

    def fill(self) -> None:
        self.directory.mkdir(parents=True)
        for at in range(self.number):
            (self.directory / str(ip_address(FIRST + at))).write_bytes(b"c%d\r\neth0" % at)
        self.set_next(self.number)

    def set_next(self, number: int) -> None:
        """Makes the next search begin at the address of that number."""
        (self.directory / "last_reserved_ip.0").write_text(str(ip_address(FIRST + number - 1)))

    def count(self, command: str, container_id: str = "cid", **keys: Any) -> Counts:
        """Runs a verb, which must succeed, and counts its system calls."""
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
        calls = [match.groups() for line in trace.read_text().splitlines() if (match := _CALL.match(line))]
        return Counts(
            Counter(name for name, _ in calls), sum(max(0, int(result)) for name, result in calls if name in _READING)
        )

    def reserved(self) -> int:
        return sum(1 for path in self.directory.iterdir() if path.name[0].isdigit())


@pytest.fixture(scope="module")
def networks(bin_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, FilledNetwork]:
    """Networks with few and with many addresses in use, both created by the reference plugin."""
    filled = {number: FilledNetwork(tmp_path_factory.mktemp("networks"), number) for number in (FEW, MANY)}
    for network in filled.values():
        network.fill()
        network.count("ADD", "first")
    return filled


@pytest.mark.long
def test_verbs_do_the_same_with_few_and_with_many_addresses(networks):
    """ADD, CHECK, STATUS and DEL make the same system calls and read as much, whatever the number of addresses is."""
    counted = {
        number: [network.count(command) for command in ("ADD", "CHECK", "STATUS", "DEL")]
        for number, network in networks.items()
    }
    for few, many in zip(counted[FEW], counted[MANY], strict=True):
        assert many.calls == few.calls
        assert abs(many.bytes_read - few.bytes_read) < 100  # addresses and sizes have more digits
        assert many.calls["getdents64"] == 0


def test_addresses_in_use_are_skipped_without_reading_them(networks):
    """If many addresses in a row are in use, ADD lists their names once, and STATUS does not even do that."""
    network = networks[MANY]
    network.set_next(MANY - 500)
    few = network.count("ADD", "b")
    assert few.calls["getdents64"] == 0
    network.set_next(0)
    status, add = network.count("STATUS"), network.count("ADD", "c")
    assert (status.calls["getdents64"], add.calls["openat"] - few.calls["openat"]) == (0, 1)
    assert sum(status.calls.values()) < 300
    assert sum(add.calls.values()) < 2000
    for container_id in "bc":
        network.count("DEL", container_id)


def test_gc_cost_is_linear(bin_dir, tmp_path):
    """GC opens, reads, closes and removes each reservation once, and writes its index once for all."""
    valid: Any = [{"containerID": f"c{at}", "ifname": "eth0"} for at in range(10)]
    counted = {}
    for number in (1000, 3000):
        network = FilledNetwork(tmp_path, number)
        network.fill()
        counted[number] = network.count("GC", **{"cni.dev/valid-attachments": valid})
        assert network.reserved() == 10
    more = counted[3000].calls - counted[1000].calls
    assert {name for name, times in more.items() if times >= 100} == {"openat", "read", "close", "unlink"}
    assert all(more[name] <= 2000 + 40 for name in more)
