"""Every system call of every verb fails once: the failure is told, and nothing is left, or it did not matter."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import promises
from tests.support.fault_scenarios import DRAMAS, Stage, told
from tests.support.syscall_faults import Fault, faults_of

SAMPLE = 3  # faults of each scenario in `make test`

Scenario = tuple[str, str, str]
SCENARIOS: list[Scenario] = [
    *(
        (verb, plugin, backend)
        for verb in DRAMAS
        for plugin in ("bridge", "portmap", "firewall")
        for backend in ("iptables", "nftables")
    ),
    *((verb, plugin, "nftables") for verb in DRAMAS for plugin in ("bandwidth", "tuning", "ptp", "host-local")),
    *((verb, plugin, "nftables") for verb in ("ADD", "DEL", "CHECK") for plugin in ("loopback", "static")),
]


FORKING = [scenario for scenario in SCENARIOS if scenario[0] == "DEL"]  # ADD starts a program for what it replaces only
FORKING = [scenario for scenario in FORKING if scenario[1] in ("bridge", "bandwidth") or scenario[2] == "iptables"]


def sampled(faults: list[Fault], nightly: bool, number: int) -> list[Fault]:
    """Returns all faults in the night, else some, spread over the verb, other ones in each scenario."""
    step = max(1, len(faults) // SAMPLE)
    return faults if nightly else faults[number % step :: step]


@pytest.mark.parametrize("scenario", SCENARIOS, ids="-".join)
def test_one_call_fails(new_stage: Callable[[str], Stage], nightly: bool, scenario: Scenario) -> None:
    """ADD is complete or leaves nothing, DEL and GC can be repeated, CHECK and STATUS change nothing; all tell."""
    survived(new_stage, nightly, scenario, children=False)


@pytest.mark.parametrize("scenario", FORKING, ids="-".join)
def test_one_call_of_a_child_fails(new_stage: Callable[[str], Stage], nightly: bool, scenario: Scenario) -> None:
    """The same where a child is that waits for the kernel, or is to become another program; that one fails, too."""
    survived(new_stage, nightly, scenario, children=True)


def survived(new_stage: Callable[[str], Stage], nightly: bool, scenario: Scenario, *, children: bool) -> None:
    """Makes the calls of a verb fail, one at a time; what is not as it must be fails the test."""
    command, plugin, backend = scenario
    drama = DRAMAS[command](new_stage(backend), plugin)
    faults = sampled(faults_of(drama.play, children=children), nightly, SCENARIOS.index(scenario))
    assert faults
    problems = []
    for fault in faults:
        follow = ("-f",) if children else ()
        outcome = drama.attempt("strace", *follow, "-o", "/dev/null", "-e", fault.injection)
        found = drama.judge(outcome)
        if outcome.status:
            found += filter(None, [told(outcome, speechless=fault.call == "write")])
            if fault.errno == "EINTR":
                found.append(f"an interruption is reported: {outcome.stdout.decode()} {outcome.stderr}")
        if found:
            problems.append("\n    ".join((f"{fault}: {outcome.status}", *found)))
        if drama.spoilt:
            drama = DRAMAS[command](new_stage(backend), plugin)
    promises.record("faults", faults=len(faults))
    assert not problems, f"{len(problems)} of {len(faults)}:\n" + "\n".join(problems)
