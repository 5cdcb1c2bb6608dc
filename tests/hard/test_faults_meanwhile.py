"""What a verb works on is taken away while it works: the store, the namespace, the bridge, the pair."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests import promises
from tests.support import netstate
from tests.support.chained import CHAIN
from tests.support.fault_scenarios import Stage, told
from tests.support.invocation import feed, finish
from tests.support.stopped_verb import stopped, words
from tests.support.syscall_faults import faults_of

SAMPLE = 1  # moments of each scenario in `make test`
# In `make test` each calamity strikes those that have most to do with it, and in the night all.
MOST_AFFECTED = {
    "store": ("bridge", "tuning"),
    "namespace": ("bridge", "bandwidth"),
    "bridge": ("bridge", "portmap", "bandwidth"),
    "pair": ("bridge", "bandwidth", "tuning"),
    "rules": ("bridge", "portmap", "firewall"),
}
CALLS = ("sendto", "openat", "flock", "setns", "linkat", "unlink", "pwrite64", "socket", "clone", "vfork")


def remove_store(stage: Stage) -> None:
    """Removes the leases and their index, the backups and their notes."""
    shutil.rmtree(stage.chain.store)
    for directory in (f"{stage.chain.store}.podwire", stage.chain.backups, f"{stage.chain.backups}.podwire"):
        shutil.rmtree(directory, ignore_errors=True)


def remove_namespace(stage: Stage) -> None:
    """Removes the pod's namespace, which dies with the last who has it open."""
    stage.pod.delete()


def remove_bridge(stage: Stage) -> None:
    """Deletes the bridge."""
    with suppress(AssertionError):
        stage.chain.host.ip("link", "delete", "cni0")


def remove_pair(stage: Stage) -> None:
    """Deletes the pod's pair from the pod's side."""
    with suppress(AssertionError):
        stage.pod.ip("link", "delete", "eth0")


def remove_rules(stage: Stage) -> None:
    """Flushes all rules, as a firewall does that is started anew."""
    stage.chain.host.run("nft", "flush", "ruleset")


CALAMITIES = {
    "store": remove_store,
    "namespace": remove_namespace,
    "bridge": remove_bridge,
    "pair": remove_pair,
    "rules": remove_rules,
}


def moments(stage: Stage, command: str, plugin: str, prev_result: object) -> list[tuple[str, int, str]]:
    """Returns the calls of a verb at which it may be stopped, from one that is run."""
    faults = faults_of(
        lambda *before: stage.chain.run(plugin, command, stage.pod, prev_result, *before),
    )
    return list(dict.fromkeys((item.call, item.occurrence, item.shown) for item in faults if item.call in CALLS))


def left(stage: Stage) -> list[str]:
    """Returns what names the pod, or is its, after it is gone."""
    found = [f"lease {name}" for name, owner in stage.chain.leases().items() if stage.pod.name in owner]
    found += [f"backup {name}" for name in stage.chain.saved() if stage.pod.name in name]
    found += [line for line in netstate.nft_rules(stage.chain.host) if stage.pod.name in line]
    links = netstate.links(stage.chain.host)
    found += [
        f"link {name}" for name, link in links.items() if link.get("ifalias", "").endswith(f"{stage.pod.name} eth0")
    ]
    pairs = [name for name in links if name.startswith("veth")]
    return found + (pairs if len(pairs) > 1 else [])  # the other pod's may have survived


@pytest.mark.parametrize("calamity", CALAMITIES)
@pytest.mark.parametrize("kind", CHAIN)
@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_the_ground_is_pulled_away(
    new_stage: Callable[[str], Stage], nightly: bool, tmp_path: Path, command: str, kind: str, calamity: str
) -> None:
    """ADD and DEL end, tell what was in the way, and a DEL leaves nothing, at whatever moment it happens."""
    if not nightly and kind not in MOST_AFFECTED[calamity]:
        pytest.skip("in `make nightly` only")
    log = tmp_path / "log"
    earlier = CHAIN[: CHAIN.index(kind)]
    ends = CHAIN[: CHAIN.index(kind) + 1]

    def staged() -> tuple[Stage, object]:
        stage = new_stage("nftables")
        return stage, stage.chain.add(stage.pod, *(earlier if command == "ADD" else ends))

    stage, result = staged()
    found = moments(stage, command, kind, result)
    step = 1 if nightly else max(1, len(found) // SAMPLE)
    some = found[len(calamity) * 3 % step :: step]
    problems = []
    for call, occurrence, shown in some:
        stage, result = staged()
        process = stage.chain.start(kind, command, stage.pod, *words(log, call, occurrence))
        feed(process, stage.chain.config(kind, result))
        with stopped(process, log) as reached:
            assert reached, f"{call}#{occurrence} was not reached"
            CALAMITIES[calamity](stage)
        outcome = finish(process)
        bad = [told(outcome)] if outcome.status else []
        for name in reversed(ends):
            again = stage.chain.run(name, "DEL", stage.pod, result)
            bad += [f"DEL of {name}: {again.stdout.decode()}"] if again.status else []
        deadline = time.monotonic() + 5  # the kernel takes a namespace's interfaces away in the background
        while (still := left(stage)) and time.monotonic() < deadline:
            time.sleep(0.05)
        bad = [*filter(None, bad), *still]
        if bad:
            problems.append("\n    ".join((f"{call}#{occurrence} [{shown}]: {outcome}", *bad)))
    promises.record("faults", faults=len(some))
    assert not problems, f"{len(problems)} of {len(some)}:\n" + "\n".join(problems)
