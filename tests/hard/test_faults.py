"""Each system call of each verb fails once: the verb reports the failure and leaks nothing, or succeeds anyway."""

from collections.abc import Callable

import pytest

from tests.spec import configs
from tests.support import fault_scenarios
from tests.support.fault_scenarios import SCENARIOS, Case, Scenario, ScenarioHost, explain_bad_report
from tests.support.invocation import Outcome
from tests.support.syscall_faults import Fault, list_faults

SAMPLE = 3  # faults of each case in `make test-all`

CASES = [
    *fault_scenarios.CASES,
    *((verb, "host-local", "nftables") for verb in SCENARIOS),
    *((verb, "static", "nftables") for verb in ("ADD", "DEL", "CHECK")),
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
    follow = ("-f",) if children else ()

    def create() -> Scenario:
        return SCENARIOS[command](new_scenario_host(backend), plugin)

    def attempt(scenario: Scenario, fault: Fault) -> Outcome:
        return scenario.attempt("strace", *follow, "-o", "/dev/null", "-e", fault.injection)

    def explain(fault: Fault, outcome: Outcome) -> list[str]:
        interrupted = f"an interruption is reported: {outcome.stdout.decode()} {outcome.stderr}"
        bad_report = explain_bad_report(outcome, stdout_closed=fault.call == "write")
        return [bad_report, interrupted if fault.errno == "EINTR" else ""]

    scenario = create()
    faults = sample(list_faults(scenario.run_without_fault, children=children), nightly, CASES.index(case))
    assert faults
    fault_scenarios.assert_survives(create, scenario, faults, attempt, explain)
