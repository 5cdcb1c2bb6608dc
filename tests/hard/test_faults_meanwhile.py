"""While a verb runs, an object that it needs is deleted: the store, the namespace, the bridge, the veth, the rules."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests import promises
from tests.support import host_device_network, netstate, pod_interfaces
from tests.support.chained import CHAIN
from tests.support.fault_scenarios import ScenarioHost, explain_bad_report
from tests.support.invocation import feed, finish
from tests.support.namespaces import Namespace
from tests.support.syscall_faults import list_faults

SAMPLE = 1  # stops of each case in `make test-all`
# The plugins for which `make test-all` runs a deletion; `make nightly` runs it for all.
MOST_AFFECTED = {
    "store": ("bridge", "tuning"),
    "namespace": ("bridge", "bandwidth"),
    "bridge": ("bridge", "portmap", "bandwidth"),
    "veth": ("bridge", "bandwidth", "tuning"),
    "rules": ("bridge", "portmap", "firewall"),
}
STOPPED = "--- stopped by SIGSTOP ---"  # in strace's log
CALLS = ("sendto", "openat", "flock", "setns", "linkat", "unlink", "pwrite64", "socket", "clone", "vfork")


def remove_store(host: ScenarioHost) -> None:
    """Removes the leases and their index, tuning's backups and their notes."""
    shutil.rmtree(host.chain.store)
    for directory in (f"{host.chain.store}.podwire", host.chain.backups, f"{host.chain.backups}.podwire"):
        shutil.rmtree(directory, ignore_errors=True)


def delete_link(namespace: Namespace, name: str) -> None:
    with suppress(AssertionError):  # it may be missing by then
        namespace.ip("link", "delete", name)


DELETIONS: dict[str, Callable[[ScenarioHost], object]] = {
    "store": remove_store,
    "namespace": lambda host: host.pod.delete(),  # it exists until the last process closes it
    "bridge": lambda host: delete_link(host.chain.host, "cni0"),
    "veth": lambda host: delete_link(host.pod, "eth0"),
    "rules": lambda host: host.chain.host.run("nft", "flush", "ruleset"),  # as a restarted firewall does
}


def list_leaks(host: ScenarioHost) -> list[str]:
    """Returns the objects that name or belong to the pod, which is no longer running."""
    leaks = [f"lease {name}" for name, owner in host.chain.leases().items() if host.pod.name in owner]
    leaks += [f"backup {name}" for name in host.chain.saved() if host.pod.name in name]
    leaks += [line for line in netstate.nft_rules(host.chain.host) if host.pod.name in line]
    links = netstate.links(host.chain.host)
    leaks += [
        f"link {name}" for name, link in links.items() if link.get("ifalias", "").endswith(f"{host.pod.name} eth0")
    ]
    veths = [name for name in links if name.startswith("veth")]
    return leaks + (veths if len(veths) > 1 else [])  # the other pod's veth may exist


def delete_all(host: ScenarioHost, names: Sequence[str], result: object) -> list[str]:
    """Runs DEL of the plugins in reverse order; returns failures, and objects that still exist after 30 s."""
    failures = []
    for name in reversed(names):
        outcome = host.chain.run(name, "DEL", host.pod, result)
        failures += [f"DEL of {name}: {outcome.stdout.decode()}"] if outcome.status else []
    deadline = time.monotonic() + 30  # the kernel removes a namespace's interfaces in the background
    while (leaks := list_leaks(host)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [*failures, *leaks]


def command_prefix(log: Path, call: str, occurrence: int) -> tuple[str, ...]:
    """Returns the command line that stops a program after the `occurrence`th `call`; strace writes to `log`."""
    log.unlink(missing_ok=True)
    return ("strace", "-o", str(log), "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGSTOP:when={occurrence}")


@contextmanager
def stopped(strace: subprocess.Popen[bytes], log: Path) -> Iterator[bool]:
    """Waits until the program of `strace` is stopped, and yields True; False if it ended before that."""
    deadline = time.monotonic() + 20
    while not (is_stopped := log.exists() and STOPPED in log.read_text()) and strace.poll() is None:
        assert time.monotonic() < deadline, "it neither stops nor ends"
        time.sleep(0.002)
    try:
        yield is_stopped
    finally:
        if is_stopped:
            (pid,) = Path(f"/proc/{strace.pid}/task/{strace.pid}/children").read_text().split()
            os.kill(int(pid), signal.SIGCONT)


@pytest.mark.parametrize("deleted", DELETIONS)
@pytest.mark.parametrize("kind", CHAIN)
@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_object_is_deleted_while_a_verb_uses_it(
    new_scenario_host: Callable[[str], ScenarioHost],
    nightly: bool,
    tmp_path: Path,
    command: str,
    kind: str,
    deleted: str,
) -> None:
    """ADD and DEL end and report the missing object, and a later DEL leaves nothing, whenever the object is deleted."""
    if not nightly and kind not in MOST_AFFECTED[deleted]:
        pytest.skip("in `make nightly` only")
    log = tmp_path / "log"
    earlier = CHAIN[: CHAIN.index(kind)]
    ends = CHAIN[: CHAIN.index(kind) + 1]

    def prepare() -> tuple[ScenarioHost, object]:
        host = new_scenario_host("nftables")
        return host, host.chain.add(host.pod, *(earlier if command == "ADD" else ends))

    host, result = prepare()
    faults = list_faults(lambda *before: host.chain.run(kind, command, host.pod, result, *before))
    stops = list(dict.fromkeys((item.call, item.occurrence, item.shown) for item in faults if item.call in CALLS))
    step = 1 if nightly else max(1, len(stops) // SAMPLE)
    some = stops[len(deleted) * 3 % step :: step]
    problems = []
    for call, occurrence, shown in some:
        host, result = prepare()
        process = host.chain.start(kind, command, host.pod, *command_prefix(log, call, occurrence))
        feed(process, host.chain.config(kind, result))
        with stopped(process, log) as reached:
            assert reached, f"{call}#{occurrence} was not reached"
            DELETIONS[deleted](host)
        outcome = finish(process)
        report_defect = explain_bad_report(outcome) if outcome.status else ""
        if defects := [*filter(None, [report_defect]), *delete_all(host, ends, result)]:
            problems.append("\n    ".join((f"{call}#{occurrence} [{shown}]: {outcome}", *defects)))
    promises.record("faults", faults=len(some))
    assert not problems, f"{len(problems)} of {len(some)}:\n" + "\n".join(problems)


@pytest.mark.parametrize("occurrence", range(1, 5))
def test_gc_restores_a_device_while_del_does(host, sandbox, bin_dir, tmp_path, occurrence):
    """A late DEL of a pod whose device GC restores at the same time succeeds, and the device is as before."""
    host_device_network.create_device(host)
    net = host_device_network.dual_stack(host, tmp_path, tmp_path / "leases")
    before = netstate.state(host)
    result, log = net.add(sandbox), tmp_path / "log"
    pod_interfaces.end_pod(sandbox, host.name)
    prefix = command_prefix(log, "recvfrom", occurrence)
    process = net.having(prevResult=result).start("DEL", sandbox, before=prefix)
    with stopped(process, log) as reached:
        assert reached
        net.gc()
    finish(process).assert_silent()
    assert netstate.state(host) == before
    assert (net.leases(), host_device_network.files(net)) == ({}, [])
