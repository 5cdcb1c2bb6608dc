"""Each kernel request is refused once, or its answer lost: the verb reports it and leaks nothing, or succeeds."""

import errno
from collections.abc import Callable, Iterator

import pytest

from tests.spec import configs
from tests.support.fault_scenarios import (
    CASES,
    SCENARIOS,
    Case,
    Scenario,
    ScenarioHost,
    assert_survives,
    explain_bad_report,
)
from tests.support.invocation import Outcome
from tests.support.netlink_faults import Disturbance, Sources

SAMPLE = 3  # faults of each case in `make test-all`
# Answers to any request; and answers that an object exists or is missing, which are false here.
REFUSALS = (errno.EPERM, errno.ENOSPC, errno.ENOBUFS, errno.EBUSY, errno.ENOMEM)
FALSE_ANSWERS = (errno.ENODEV, errno.ENOENT, errno.EEXIST, errno.EOPNOTSUPP)
# With iptables the firewall plugin has the owners in one chain and the rules in another: neither is missing alone.
EXCLUDED = {"firewall iptables": (errno.ENOENT, errno.EOPNOTSUPP)}


def disturbances(seen: list[tuple[int, bool]]) -> Iterator[Disturbance]:
    """Yields every disturbance of every request of a verb."""
    for number, (_, dumps) in enumerate(seen, 1):
        for code in (*REFUSALS, *FALSE_ANSWERS):
            yield Disturbance(number, "refused", code)
        yield Disturbance(number, "lost")
        if dumps:
            yield Disturbance(number, "interrupted")


@pytest.mark.parametrize("case", [configs.on_its_kernel(case[1], case) for case in CASES], ids="-".join)
def test_one_kernel_request_fails(new_scenario_host: Callable[..., ScenarioHost], nightly: bool, case: Case) -> None:
    """ADD is complete or leaves nothing, DEL and GC can be repeated, CHECK and STATUS change nothing; all report it."""
    command, plugin, backend = case

    def create() -> Scenario:
        return SCENARIOS[command](new_scenario_host(backend, Sources), plugin)

    def attempt(scenario: Scenario, disturbance: Disturbance) -> Outcome:
        scenario.misinformed = disturbance.errno in FALSE_ANSWERS
        return scenario.attempt(disturbance)

    def explain(disturbance: Disturbance, outcome: Outcome) -> list[str]:
        interrupted = f"an interrupted dump is reported: {outcome.stdout.decode()}"
        return [explain_bad_report(outcome), interrupted if disturbance.how == "interrupted" else ""]

    scenario, undisturbed = create(), Disturbance()
    scenario.run_without_fault(undisturbed)
    excluded = EXCLUDED.get(f"{plugin} {backend}", ())
    every = [item for item in disturbances(undisturbed.seen) if item.errno not in excluded]
    step = 1 if nightly else max(1, len(every) // SAMPLE)
    assert_survives(create, scenario, every[CASES.index(case) % step :: step], attempt, explain)
