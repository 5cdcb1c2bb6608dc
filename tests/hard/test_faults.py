"""Each system call of each verb fails once: the verb reports the failure and leaks nothing, or succeeds anyway."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import promises
from tests.spec import configs
from tests.support import pod_interfaces
from tests.support.fault_scenarios import SCENARIOS, ScenarioHost, explain_bad_report
from tests.support.syscall_faults import Fault, list_faults

SAMPLE = 3  # faults of each case in `make test`

Case = tuple[str, str, str]  # verb, plugin, backend
CASES: list[Case] = [
    *(
        (verb, plugin, backend)
        for verb in SCENARIOS
        for plugin in ("bridge", "portmap", "firewall")
        for backend in ("iptables", "nftables")
    ),
    *((verb, plugin, "nftables") for verb in SCENARIOS for plugin in ("bandwidth", "tuning", "ptp", "host-local")),
    *((verb, plugin, "nftables") for verb in ("ADD", "DEL", "CHECK") for plugin in ("loopback", "static")),
    *((verb, "sbr", "nftables") for verb in ("ADD", "DEL", "CHECK", "STATUS")),
    *((verb, plugin, "none") for plugin in pod_interfaces.KEYS for verb in SCENARIOS),
    *((verb, "vrf", "none") for verb in ("ADD", "DEL", "CHECK", "STATUS")),
]


FORKING = [case for case in CASES if case[0] == "DEL"]  # ADD runs a program only when it replaces a rule
FORKING = [case for case in FORKING if case[1] in ("bridge", "bandwidth") or case[2] == "iptables"]


def sample(faults: list[Fault], nightly: bool, number: int) -> list[Fault]:
    """Returns all faults in the nightly run, else SAMPLE of them, spread over the verb, others for each case."""
    step = max(1, len(faults) // SAMPLE)
    return faults if nightly else faults[number % step :: step]


@pytest.mark.parametrize("case", [configs.on_its_kernel(case[1], case) for case in CASES], ids="-".join)
def test_one_system_call_fails(new_scenario_host: Callable[[str], ScenarioHost], nightly: bool, case: Case) -> None:
    """ADD is complete or leaves nothing, DEL and GC can be repeated, CHECK and STATUS change nothing; all report it."""
    assert_survives(new_scenario_host, nightly, case, children=False)


@pytest.mark.parametrize("case", FORKING, ids="-".join)
def test_one_system_call_of_a_child_process_fails(
    new_scenario_host: Callable[[str], ScenarioHost], nightly: bool, case: Case
) -> None:
    """A system call that fails in a child of a plugin has the same consequences as one in the plugin itself."""
    assert_survives(new_scenario_host, nightly, case, children=True)


def assert_survives(
    new_scenario_host: Callable[[str], ScenarioHost], nightly: bool, case: Case, *, children: bool
) -> None:
    """Lets the system calls of a verb fail, one in each attempt; AssertionError with the defects."""
    command, plugin, backend = case
    scenario = SCENARIOS[command](new_scenario_host(backend), plugin)
    faults = sample(list_faults(scenario.run_without_fault, children=children), nightly, CASES.index(case))
    assert faults
    problems = []
    for fault in faults:
        follow = ("-f",) if children else ()
        outcome = scenario.attempt("strace", *follow, "-o", "/dev/null", "-e", fault.injection)
        defects = scenario.find_defects(outcome)
        if outcome.status:
            defects += filter(None, [explain_bad_report(outcome, stdout_closed=fault.call == "write")])
            if fault.errno == "EINTR":
                defects.append(f"an interruption is reported: {outcome.stdout.decode()} {outcome.stderr}")
        if defects:
            problems.append("\n    ".join((f"{fault}: {outcome.status}", *defects)))
        if scenario.dirty:
            scenario = SCENARIOS[command](new_scenario_host(backend), plugin)
    promises.record("faults", faults=len(faults))
    assert not problems, f"{len(problems)} of {len(faults)}:\n" + "\n".join(problems)
