"""Each kernel request is refused once, or its answer lost: the verb reports it and leaks nothing, or succeeds."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import pytest

from tests import promises
from tests.spec import configs
from tests.support import pod_interfaces
from tests.support.fault_scenarios import SCENARIOS, ScenarioHost, explain_bad_report
from tests.support.netlink_faults import Disturbance, Sources

SAMPLE = 3  # faults of each case in `make test`
# Answers to any request; and answers that an object exists or is missing, which are false here.
REFUSALS = (errno.EPERM, errno.ENOSPC, errno.ENOBUFS, errno.EBUSY, errno.ENOMEM)
FALSE_ANSWERS = (errno.ENODEV, errno.ENOENT, errno.EEXIST, errno.EOPNOTSUPP)
# With iptables the firewall plugin has the owners in one chain and the rules in another: neither is missing alone.
EXCLUDED = {"firewall iptables": (errno.ENOENT, errno.EOPNOTSUPP)}

CASES = [
    *(
        (verb, plugin, backend)
        for verb in SCENARIOS
        for plugin in ("bridge", "portmap", "firewall")
        for backend in ("iptables", "nftables")
    ),
    *((verb, plugin, "nftables") for verb in SCENARIOS for plugin in ("bandwidth", "tuning", "ptp")),
    *((verb, "loopback", "nftables") for verb in ("ADD", "DEL", "CHECK")),
    *((verb, "sbr", "nftables") for verb in ("ADD", "DEL", "CHECK", "STATUS")),
    *((verb, plugin, "none") for plugin in pod_interfaces.KEYS for verb in SCENARIOS),
    *((verb, "vrf", "none") for verb in ("ADD", "DEL", "CHECK", "STATUS")),
]


def disturbances(seen: list[tuple[int, bool]]) -> Iterator[Disturbance]:
    """Yields every disturbance of every request of a verb."""
    for number, (_, dumps) in enumerate(seen, 1):
        for code in (*REFUSALS, *FALSE_ANSWERS):
            yield Disturbance(number, "refused", code)
        yield Disturbance(number, "lost")
        if dumps:
            yield Disturbance(number, "interrupted")


@pytest.mark.parametrize("case", [configs.on_its_kernel(case[1], case) for case in CASES], ids="-".join)
def test_one_kernel_request_fails(
    new_scenario_host: Callable[..., ScenarioHost], nightly: bool, case: tuple[str, str, str]
) -> None:
    """ADD is complete or leaves nothing, DEL and GC can be repeated, CHECK and STATUS change nothing; all report it."""
    command, plugin, backend = case
    scenario = SCENARIOS[command](new_scenario_host(backend, Sources), plugin)
    undisturbed = Disturbance()
    scenario.run_without_fault(undisturbed)
    excluded = EXCLUDED.get(f"{plugin} {backend}", ())
    every = [item for item in disturbances(undisturbed.seen) if item.errno not in excluded]
    step = 1 if nightly else max(1, len(every) // SAMPLE)
    some = every[CASES.index(case) % step :: step]
    problems = []
    for disturbance in some:
        scenario.misinformed = disturbance.errno in FALSE_ANSWERS
        outcome = scenario.attempt(disturbance)
        defects = scenario.find_defects(outcome)
        if outcome.status:
            defects += filter(None, [explain_bad_report(outcome)])
            if disturbance.how == "interrupted":
                defects.append(f"an interrupted dump is reported: {outcome.stdout.decode()}")
        if defects:
            problems.append("\n    ".join((f"{disturbance}: {outcome.status}", *defects)))
        if scenario.dirty:
            scenario = SCENARIOS[command](new_scenario_host(backend, Sources), plugin)
    promises.record("faults", faults=len(some))
    assert not problems, f"{len(problems)} of {len(some)}:\n" + "\n".join(problems)
