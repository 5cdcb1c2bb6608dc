"""The built host-local on real files: together with the reference plugin, and with a runtime's cache."""

import fcntl
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import binaries
from tests.support.invocation import Outcome, feed, finish, run_plugin, start_plugin


@dataclass(frozen=True)
class Leases:
    """One network's reservations in `store`, and its plugin: podwire's, unless `bin_dir` has another."""

    store: Path
    ranges: list[list[dict[str, str]]]
    version: str = "1.0.0"  # the newest version of Debian's reference plugins
    bin_dir: Path | None = None

    @property
    def directory(self) -> Path:
        return self.store / "net"

    def config(self, **ipam: Any) -> dict[str, Any]:
        defaults = {"type": "host-local", "dataDir": str(self.store), "ranges": self.ranges}
        return {"cniVersion": self.version, "name": "net", "type": "bridge", "ipam": {**defaults, **ipam}}

    def run(self, command: str, container_id: str = "cid", **options: Any) -> Outcome:
        config = {**self.config(), **options.pop("keys", {})}
        return run_plugin("host-local", command, config, **self.arguments(container_id), **options)

    def start(self, command: str, container_id: str) -> subprocess.Popen[bytes]:
        process = start_plugin("host-local", command, **self.arguments(container_id))
        feed(process, self.config())
        return process

    def arguments(self, container_id: str) -> Mapping[str, Any]:
        return {"netns": "/dev/null", "container_id": container_id, "bin_dir": self.bin_dir}

    def add(self, container_id: str = "cid", **options: Any) -> list[str]:
        return [ip["address"].partition("/")[0] for ip in self.run("ADD", container_id, **options).result()["ips"]]

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.directory.iterdir()}

    def reserved(self) -> dict[str, bytes]:
        return {name: content for name, content in self.files().items() if re.fullmatch(r"[0-9a-f.:]+[.:].*", name)}

    def modes(self) -> dict[str, int]:
        return {path.name: path.stat().st_mode & 0o7777 for path in (self.directory, *self.directory.iterdir())}


POOLS = [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1::/64"}]]


@pytest.fixture
def leases(bin_dir: Path, store: Path) -> Leases:
    """A network with an IPv4 and an IPv6 range."""
    return Leases(store, POOLS)


@pytest.fixture
def reference(leases: Leases) -> Leases:
    """The same network with the reference plugin."""
    assert (binaries.REFERENCE / "host-local").exists(), f"no reference plugins in {binaries.REFERENCE}"
    return replace(leases, bin_dir=binaries.REFERENCE)


def test_files_equal_the_references(leases, reference, tmp_path):
    """The same calls leave the same names and bytes as with the reference plugin."""
    other = replace(reference, store=tmp_path / "other")
    for network in (leases, other):
        for name in ("a", "b", "c"):
            network.add(name)
        network.run("DEL", "b").assert_silent()
        network.add("d", args="IP=10.1.2.77")
    assert leases.files() == other.files()
    modes = leases.modes()
    # Debian's reference plugin is older than 1.4.0, which made files private.
    assert {name: 0o600 if mode == 0o644 else mode for name, mode in other.modes().items()} == modes
    assert {modes["10.1.2.2"], modes["last_reserved_ip.1"], modes["lock"], modes["net"]} == {0o600, 0o750, 0o755}


def test_each_plugin_continues_the_others_store(leases, reference):
    """Round robin, duplicates, CHECK and DEL work with the other plugin's reservations."""
    assert reference.add("a") == ["10.1.2.2", "fd00:1::2"]
    assert leases.add("b") == ["10.1.2.3", "fd00:1::3"]
    assert reference.add("c") == ["10.1.2.4", "fd00:1::4"]
    for owner in "abc":
        for network in (leases, reference):
            network.run("CHECK", owner).assert_silent()
            assert "duplicate allocation is not allowed" in network.run("ADD", owner).error()["msg"]
    leases.run("DEL", "a").assert_silent()
    reference.run("DEL", "b").assert_silent()
    for network in (leases, reference):
        assert network.run("CHECK", "a").status == network.run("CHECK", "b").status == 1
    assert reference.reserved() == {"10.1.2.4": b"c\r\neth0", "fd00:1::4": b"c\r\neth0"}
    assert leases.add("d") == ["10.1.2.5", "fd00:1::5"]
    leases.run("DEL", "c").assert_silent()
    reference.run("DEL", "d").assert_silent()
    assert leases.reserved() == {}


def test_texts_of_refusals_equal_the_references(leases, reference):
    """A configuration that the reference refuses is refused with the same text."""
    leases = replace(leases, ranges=[[{"subnet": "10.1.2.0/30"}]])
    reference = replace(reference, ranges=leases.ranges)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("a", {"keys": {"ipam": leases.config(ranges=[])["ipam"]}}),
        ("a", {"keys": {"ipam": leases.config(ranges=[[{"subnet": "10.1.2.4/24"}]])["ipam"]}}),
        ("a", {"keys": {"ipam": leases.config(subnet="10.1.2.0/24")["ipam"]}}),
        ("a", {"keys": {"ipam": None}}),
        ("a", {"args": "IP=10.1.2.1"}),
        ("a", {"args": "IP=10.9.9.9", "keys": {"ipam": {"subnet": "10.5.5.0/24", "dataDir": str(leases.store)}}}),
        ("first", {}),
        ("a", {"args": "IP=10.1.2.2"}),
        ("a", {}),
    ]
    leases.add("first")
    for container_id, options in cases:
        texts = [network.run("ADD", container_id, **options).error()["msg"] for network in (leases, reference)]
        assert texts[0] == texts[1]


def test_both_plugins_use_the_same_lock(leases, reference):
    """A process that holds the flock makes both plugins wait."""
    leases.add("a")
    for network in (leases, reference):
        with open(leases.directory / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            process = network.start("DEL", "a")
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
        finish(process).assert_silent()


def test_gc_keeps_reservations_that_are_younger_than_the_list(leases):
    """GC keeps a reservation of an ADD that began after the attachments were listed, and releases older ones."""
    leases = replace(leases, version="1.1.0")
    leases.add("old")
    time.sleep(0.05)
    keys = {"cni.dev/valid-attachments": [], "podwire/listed-at": time.time_ns()}
    time.sleep(0.05)
    leases.add("new")
    leases.run("GC", keys=keys).assert_silent()
    assert {*leases.reserved().values()} == {b"new\r\neth0"}
