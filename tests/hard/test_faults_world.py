"""Verbs in a hostile environment: full and read-only disks, foreign files, limits, no permission, closed streams."""

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
from tests.support.fault_scenarios import SCENARIOS, explain_bad_report
from tests.support.private_host import mount_disk
from tests.support.processes import output

BACKENDS = ("iptables", "nftables")
VERBS = [(command, kind) for command in SCENARIOS for kind in (*CHAIN, "host-local")]


@pytest.fixture(autouse=True)
def counted() -> None:
    """Counts each test here as a fault."""
    promises.record("faults", faults=1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str, Path], None]]:
    """A function that mounts a small file system, tmpfs or ext4, on the directory of a host's leases."""
    with ExitStack() as stack:

        def mount(kind: str, directory: Path) -> None:
            if kind == "tmpfs":
                directory.mkdir()
                output("mount", "-t", "tmpfs", "-o", "size=256k,nr_inodes=64", "podwire", str(directory))
            else:
                mount_disk(directory, 2 << 20)
            stack.callback(output, "umount", "--lazy", str(directory))

        yield mount


def fill(directory: Path, resource: str) -> None:
    """Fills the file system of a directory until it has no free block, or no free inode."""
    try:
        if resource == "blocks":
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


@pytest.mark.parametrize("resource", ["blocks", "inodes"])
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_full_disk(new_scenario_host, disk, kind, resource):
    """On a full disk ADD reports that the store is unusable and leaves nothing; DEL, CHECK and GC work."""
    host = new_scenario_host("nftables", prepare=lambda store: disk(kind, store))
    chain, pod = host.chain, host.pod
    result = chain.add(pod, "bridge")
    fill(chain.store, resource)
    chain.run("bridge", "CHECK", pod, result).assert_silent()
    chain.run("bridge", "DEL", pod, result).assert_silent()
    assert not [name for name, owner in chain.leases().items() if pod.name in owner]
    fill(chain.store, resource)
    before = chain.everything(pod)
    outcome = chain.run("bridge", "ADD", pod)
    if outcome.status:
        assert outcome.error()["code"] == 5
        assert "No space left on device" in outcome.error()["msg"]
        assert not differences(before, chain.everything(pod))
    else:  # tmpfs stores short contents in the inode
        chain.run("bridge", "CHECK", pod, outcome.json).assert_silent()
    chain.run(
        "bridge", "GC", pod, None, **{**host.valid_attachments(), "cni.dev/valid-attachments": []}
    ).assert_silent()
    assert chain.leases().keys() <= {"lock"}


def test_read_only_store(new_scenario_host):
    """On a read-only store ADD leaves nothing; DEL removes link and rules and fails; both have code 5."""
    host = new_scenario_host("nftables")
    chain, pod = host.chain, host.pod
    before = chain.everything(pod)
    result = chain.add(pod, "bridge")
    output("mount", "--bind", str(chain.store), str(chain.store))
    try:
        output("mount", "-o", "remount,bind,ro", str(chain.store))
        chain.run("bridge", "CHECK", pod, result).assert_silent()
        error = chain.run("bridge", "DEL", pod, result).error()
        assert (error["code"], "Read-only file system" in error["msg"]) == (5, True)
        now = chain.everything(pod)
        assert not differences(before["host"], now["host"])
        error = chain.run("bridge", "ADD", pod).error()
        assert chain.store.name in error["msg"] + error.get("details", "")
        assert not differences(now, chain.everything(pod))
    finally:
        output("umount", str(chain.store))
    chain.run("bridge", "DEL", pod, result).assert_silent()
    assert not differences(before, chain.everything(pod))


def test_file_with_the_name_of_the_store(new_scenario_host):
    """Each verb that needs the store names the file that has its place; DEL removes everything but the lease."""
    host = new_scenario_host("nftables")
    chain, pod = host.chain, host.pod
    before = chain.everything(pod)["host"]
    result = chain.add(pod, "bridge")
    shutil.rmtree(chain.store)
    chain.store.write_text("mine")
    for command in ("CHECK", "DEL", "ADD"):
        error = chain.run("bridge", command, pod, result if command != "ADD" else None).error()
        assert (error["code"], str(chain.store) in error["msg"]) == (5, True), error
    status = chain.run("bridge", "STATUS", pod, cniVersion="1.1.0").error()
    assert (status["code"], str(chain.store) in status["msg"]) == (50, True), status
    assert chain.run("bridge", "GC", pod, **host.valid_attachments()).error()["code"] == 5
    assert not differences(before, chain.everything(pod)["host"])
    assert chain.store.read_text() == "mine"


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix_socket:
        unix_socket.bind(os.path.relpath(path))


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
def test_foreign_files_named_after_addresses(new_scenario_host, monkeypatch, foreign):
    """ADD skips an address whose name a foreign file has, and no verb removes that file."""
    host = new_scenario_host("nftables")
    chain, pod = host.chain, host.pod
    net = chain.store / "net"
    monkeypatch.chdir(net)  # a socket's path may have 107 characters
    FOREIGN[foreign](net / "10.22.0.3")
    FOREIGN[foreign](net / "10.22.0.77")
    before = sorted(os.listdir(net))
    result = chain.add(pod, "bridge")
    assert result["ips"][0]["address"] == "10.22.0.4/16"
    chain.run("bridge", "CHECK", pod, result).assert_silent()
    chain.run("bridge", "STATUS", pod, cniVersion="1.1.0").assert_silent()
    chain.delete(pod, "bridge", prev_result=result)
    chain.add(pod, "bridge")
    chain.run("bridge", "GC", pod, **host.valid_attachments()).assert_silent()
    assert sorted(os.listdir(net)) == before


def test_undeletable_lease(new_scenario_host, disk):
    """DEL and GC report a lease that they cannot remove, and remove the rest; a later DEL removes the lease."""
    host = new_scenario_host("nftables", prepare=lambda store: disk("ext4", store))
    chain, pod = host.chain, host.pod
    result = chain.add(pod, "bridge")
    lease = chain.store / "net" / result["ips"][0]["address"].partition("/")[0]
    output("chattr", "+i", str(lease))
    try:
        for outcome in (
            chain.run("bridge", "DEL", pod, result),
            chain.run("bridge", "GC", pod, **{**host.valid_attachments(), "cni.dev/valid-attachments": []}),
        ):
            error = outcome.error()
            assert (error["code"], "Operation not permitted" in error["msg"]) == (5, True), error
        assert list(chain.leases()) in ([lease.name, "lock"], ["lock", lease.name])
    finally:
        output("chattr", "-i", str(lease))
    chain.run("bridge", "DEL", pod, result).assert_silent()
    assert list(chain.leases()) == ["lock"]


_REDIRECTIONS = ("<&-", ">&-", "2>&-", ">/dev/full", "2>/dev/full")

# Command lines that start a verb in a restricted environment, by the restriction.
RESTRICTIONS: dict[str, tuple[tuple[str, ...], ...]] = {
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
    "seccomp": tuple(seccomp.command_prefix(call) for call in seccomp.CALLS),
}


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_restricted_environment(new_scenario_host, nightly, restriction):
    """Under resource limits and without permissions, too, a verb does all or nothing and reports its failure."""
    number = list(RESTRICTIONS).index(restriction)
    cases = [(*verb, backend, line) for verb in VERBS for backend in BACKENDS for line in RESTRICTIONS[restriction]]
    some = cases if nightly else cases[number :: len(cases) // 3]
    problems = []
    scenarios: dict[tuple[str, str, str], Any] = {}
    for command, kind, backend, line in some:
        scenario = scenarios.get((command, kind, backend))
        if scenario is None or scenario.dirty:
            scenario = scenarios[command, kind, backend] = SCENARIOS[command](new_scenario_host(backend), kind)
        outcome = scenario.attempt(*line)
        defects = scenario.find_defects(outcome)
        crashed = restriction in ("memory", "data", "stack") and outcome.status not in (0, 1)
        if outcome.status and not crashed:
            defects = [*defects, *filter(None, [explain_bad_report(outcome, stdout_closed=restriction == "closed")])]
        if defects:
            name = f"{command} of {kind} ({backend}) by {' '.join(line)}: {outcome.status}"
            problems.append("\n    ".join((name, *defects)))
    promises.record("faults", faults=len(some))
    assert not problems, f"{len(problems)} of {len(some)}:\n" + "\n".join(problems)
