"""A world that does not help: full and read-only disks, foreign files, limits, no permission, no answer wanted."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import promises
from tests.support import seccomp
from tests.support.chained import CHAIN, differences
from tests.support.fault_scenarios import DRAMAS, told
from tests.support.private_host import mount_disk
from tests.support.processes import output

BACKENDS = ("iptables", "nftables")
VERBS = [(command, kind) for command in DRAMAS for kind in (*CHAIN, "host-local")]


@pytest.fixture(autouse=True)
def counted() -> None:
    """Counts each test here as a fault."""
    promises.record("faults", faults=1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A function that mounts a small disk of a kind where a stage's leases come to lie."""
    with ExitStack() as stack:

        def mount(kind: str, directory: Path) -> None:
            if kind == "tmpfs":
                directory.mkdir()
                output("mount", "-t", "tmpfs", "-o", "size=256k,nr_inodes=64", "podwire", str(directory))
            else:
                mount_disk(directory, 2 << 20)
            stack.callback(output, "umount", "--lazy", str(directory))

        yield mount


def fill(directory: Path, what: str) -> None:
    """Leaves no block, or no inode, on the disk of a directory."""
    try:
        if what == "blocks":
            with (directory / "filler").open("wb") as file:
                for size in (65536, 4096, 512, 1):
                    try:
                        while True:
                            file.write(b"x" * size)
                            file.flush()
                    except OSError:
                        continue
        else:
            for number in range(100_000):
                (directory / f"filler{number}").touch()
    except OSError:
        pass


@pytest.mark.parametrize("what", ["blocks", "inodes"])
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_full_disk(new_stage, disk, kind, what):
    """ADD tells that the store cannot be used and leaves nothing; DEL, CHECK and GC work on the full disk."""
    stage = new_stage("nftables", prepare=lambda store: disk(kind, store))
    chain, pod = stage.chain, stage.pod
    result = chain.add(pod, "bridge")
    fill(chain.store, what)
    chain.run("bridge", "CHECK", pod, result).silence()
    chain.run("bridge", "DEL", pod, result).silence()
    assert not [name for name, owner in chain.leases().items() if pod.name in owner]
    fill(chain.store, what)
    before = chain.everything(pod)
    outcome = chain.run("bridge", "ADD", pod)
    if outcome.status:
        assert outcome.error()["code"] == 5
        assert "No space left on device" in outcome.error()["msg"]
        assert not differences(before, chain.everything(pod))
    else:  # tmpfs keeps what is short in the inode
        chain.run("bridge", "CHECK", pod, outcome.json).silence()
    chain.run("bridge", "GC", pod, None, **{**stage.stale(), "cni.dev/valid-attachments": []}).silence()
    assert chain.leases().keys() <= {"lock"}


def test_a_read_only_store(new_stage):
    """ADD is refused with code 5 and leaves nothing; DEL takes link and rules away, tells, and succeeds later."""
    stage = new_stage("nftables")
    chain, pod = stage.chain, stage.pod
    before = chain.everything(pod)
    result = chain.add(pod, "bridge")
    output("mount", "--bind", str(chain.store), str(chain.store))
    try:
        output("mount", "-o", "remount,bind,ro", str(chain.store))
        chain.run("bridge", "CHECK", pod, result).silence()
        error = chain.run("bridge", "DEL", pod, result).error()
        assert (error["code"], "Read-only file system" in error["msg"]) == (5, True)
        now = chain.everything(pod)
        assert not differences(before["host"], now["host"])
        error = chain.run("bridge", "ADD", pod).error()
        assert chain.store.name in error["msg"] + error.get("details", "")
        assert not differences(now, chain.everything(pod))
    finally:
        output("umount", str(chain.store))
    chain.run("bridge", "DEL", pod, result).silence()
    assert not differences(before, chain.everything(pod))


def test_a_file_in_the_place_of_the_store(new_stage):
    """Every verb that needs the store says what is in the way; DEL takes away all but the lease."""
    stage = new_stage("nftables")
    chain, pod = stage.chain, stage.pod
    before = chain.everything(pod)["host"]
    result = chain.add(pod, "bridge")
    shutil.rmtree(chain.store)
    chain.store.write_text("mine")
    for command in ("CHECK", "DEL", "ADD"):
        error = chain.run("bridge", command, pod, result if command != "ADD" else None).error()
        assert (error["code"], str(chain.store) in error["msg"]) == (5, True), error
    status = chain.run("bridge", "STATUS", pod, cniVersion="1.1.0").error()
    assert (status["code"], str(chain.store) in status["msg"]) == (50, True), status
    assert chain.run("bridge", "GC", pod, **stage.stale()).error()["code"] == 5
    assert not differences(before, chain.everything(pod)["host"])
    assert chain.store.read_text() == "mine"


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(os.path.relpath(path))


FOREIGN: dict[str, Callable[[Path], Any]] = {
    "directory": Path.mkdir,
    "FIFO": os.mkfifo,
    "dangling link": lambda path: path.symlink_to("/nonexistent"),
    "link to a secret": lambda path: path.symlink_to("/etc/passwd"),
    "link to itself": lambda path: path.symlink_to(path),
    "socket": _socket,
    "device": lambda path: output("mknod", str(path), "c", "1", "5"),
    "huge": lambda path: path.open("w").truncate(1 << 40),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 100),
}


@pytest.mark.parametrize("foreign", FOREIGN)
def test_foreign_things_with_the_names_of_addresses(new_stage, monkeypatch, foreign):
    """They are passed over by ADD, and stay, whatever else is added, checked, deleted and collected."""
    stage = new_stage("nftables")
    chain, pod = stage.chain, stage.pod
    net = chain.store / "net"
    monkeypatch.chdir(net)  # a socket's path may have 107 characters
    FOREIGN[foreign](net / "10.22.0.3")
    FOREIGN[foreign](net / "10.22.0.77")
    before = sorted(os.listdir(net))
    result = chain.add(pod, "bridge")
    assert result["ips"][0]["address"] == "10.22.0.4/16"
    chain.run("bridge", "CHECK", pod, result).silence()
    chain.run("bridge", "STATUS", pod, cniVersion="1.1.0").silence()
    chain.delete(pod, "bridge", prev_result=result)
    chain.add(pod, "bridge")
    chain.run("bridge", "GC", pod, **stage.stale()).silence()
    assert sorted(os.listdir(net)) == before


def test_a_lease_that_cannot_be_removed(new_stage, disk):
    """DEL and GC tell of it and take the rest; when it can be removed the next DEL does it."""
    stage = new_stage("nftables", prepare=lambda store: disk("ext4", store))
    chain, pod = stage.chain, stage.pod
    result = chain.add(pod, "bridge")
    lease = chain.store / "net" / result["ips"][0]["address"].partition("/")[0]
    output("chattr", "+i", str(lease))
    try:
        for outcome in (
            chain.run("bridge", "DEL", pod, result),
            chain.run("bridge", "GC", pod, **{**stage.stale(), "cni.dev/valid-attachments": []}),
        ):
            error = outcome.error()
            assert (error["code"], "Operation not permitted" in error["msg"]) == (5, True), error
        assert list(chain.leases()) in ([lease.name, "lock"], ["lock", lease.name])
    finally:
        output("chattr", "-i", str(lease))
    chain.run("bridge", "DEL", pod, result).silence()
    assert list(chain.leases()) == ["lock"]


RESOLVERS: dict[str, Callable[[Path], Any]] = {
    "missing": lambda path: None,
    "directory": Path.mkdir,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "huge": lambda path: path.open("w").truncate(1 << 40),
}


@pytest.mark.parametrize("kind", RESOLVERS)
def test_a_resolver_file_that_is_none(new_stage, tmp_path, kind):
    """ADD names it with code 5, at once, and leaves nothing; DEL does not care."""
    stage = new_stage("nftables")
    chain, pod = stage.chain, stage.pod
    file = tmp_path / "resolv.conf"
    RESOLVERS[kind](file)
    config = chain.config("bridge")
    ipam = {**config["ipam"], "resolvConf": str(file)}
    before = chain.everything(pod)
    error = chain.run("bridge", "ADD", pod, None, "timeout", "20", ipam=ipam).error()
    assert (error["code"], str(file) in error["msg"]) == (5, True), error
    assert not differences(before, chain.everything(pod))
    chain.run("bridge", "DEL", pod, None, ipam=ipam).silence()


_REDIRECTIONS = ("<&-", ">&-", "2>&-", ">/dev/full", "2>/dev/full")

# Words that start a verb in a worse world, each with how often.
WORLDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "descriptors": tuple(("prlimit", f"--nofile={number}") for number in range(3, 16)),
    "memory": tuple(("prlimit", f"--as={number << 20}") for number in (60, 80, 84, 88, 90, 92, 94, 96, 98, 100, 102)),
    "data": tuple(("prlimit", f"--data={number << 10}") for number in (64, 512, 2048, 4096, 8192)),
    "stack": tuple(("prlimit", f"--stack={number << 10}") for number in (64, 128, 256, 512)),
    "file size": (("prlimit", "--fsize=0"), ("prlimit", "--fsize=20")),
    "capabilities": tuple(
        ("setpriv", f"--bounding-set=-{name}")
        for name in ("net_admin", "sys_admin", "dac_override,-dac_read_search", "net_raw", "sys_ptrace", "all")
    ),
    "read-only /proc/sys": (
        (
            "unshare",
            "--mount",
            "sh",
            "-c",
            'mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$0"',
        ),
    ),
    "no /proc": (("unshare", "--mount", "sh", "-c", 'umount -l /proc && exec "$0"'),),
    "closed": tuple(("sh", "-c", f'exec "$0" {redirection}') for redirection in _REDIRECTIONS),
    "seccomp": tuple(seccomp.words(call) for call in seccomp.CALLS),
}


@pytest.mark.parametrize("world", WORLDS)
def test_a_worse_world(new_stage, nightly, world):
    """Under limits and without permissions, too, a verb does all or nothing, and tells."""
    number = list(WORLDS).index(world)
    cases = [(*verb, backend, words) for verb in VERBS for backend in BACKENDS for words in WORLDS[world]]
    some = cases if nightly else cases[number :: len(cases) // 3]
    problems = []
    dramas: dict[tuple[str, str, str], Any] = {}
    for command, kind, backend, words in some:
        drama = dramas.get((command, kind, backend))
        if drama is None or drama.spoilt:
            drama = dramas[command, kind, backend] = DRAMAS[command](new_stage(backend), kind)
        outcome = drama.attempt(*words)
        found = drama.judge(outcome)
        died = world in ("memory", "data", "stack") and outcome.status not in (0, 1)  # before it could speak
        if outcome.status and not died:
            found += filter(None, [told(outcome, speechless=world == "closed")])
        if found:
            name = f"{command} of {kind} ({backend}) by {' '.join(words)}: {outcome.status}"
            problems.append("\n    ".join((name, *found)))
    promises.record("faults", faults=len(some))
    assert not problems, f"{len(problems)} of {len(some)}:\n" + "\n".join(problems)
