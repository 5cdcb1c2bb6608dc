"""Every request to the kernel is refused once, or its answer lost: told, and nothing left, or it did not matter."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import pytest

from tests import promises
from tests.support.fault_scenarios import DRAMAS, Stage, told
from tests.support.netlink_faults import Disturbance, Sources

SAMPLE = 3  # faults of each scenario in `make test`
# What any request may be answered with; and what says that something is there or not, which is a lie here.
REFUSALS = (errno.EPERM, errno.ENOSPC, errno.ENOBUFS, errno.EBUSY, errno.ENOMEM)
LIES = (errno.ENODEV, errno.ENOENT, errno.EEXIST, errno.EOPNOTSUPP)
# The firewall's iptables keeps whose a rule is in one chain and the rule in another: one of them alone is never absent.
UNTOLD = {"firewall iptables": (errno.ENOENT, errno.EOPNOTSUPP)}

SCENARIOS = [
    *(
        (verb, plugin, backend)
        for verb in DRAMAS
        for plugin in ("bridge", "portmap", "firewall")
        for backend in ("iptables", "nftables")
    ),
    *((verb, plugin, "nftables") for verb in DRAMAS for plugin in ("bandwidth", "tuning", "ptp")),
    *((verb, "loopback", "nftables") for verb in ("ADD", "DEL", "CHECK")),
]


def disturbances(seen: list[tuple[int, bool]]) -> Iterator[Disturbance]:
    """Yields all that can happen to the requests of a verb."""
    for number, (_, dumps) in enumerate(seen, 1):
        for code in (*REFUSALS, *LIES):
            yield Disturbance(number, "refused", code)
        yield Disturbance(number, "lost")
        if dumps:
            yield Disturbance(number, "interrupted")


@pytest.mark.parametrize("scenario", SCENARIOS, ids="-".join)
def test_one_request_fails(new_stage: Callable[..., Stage], nightly: bool, scenario: tuple[str, str, str]) -> None:
    """ADD is complete or leaves nothing, DEL and GC can be repeated, CHECK and STATUS change nothing; all tell."""
    command, plugin, backend = scenario
    drama = DRAMAS[command](new_stage(backend, Sources), plugin)
    dry = Disturbance()
    drama.play(dry)
    untold = UNTOLD.get(f"{plugin} {backend}", ())
    every = [item for item in disturbances(dry.seen) if item.errno not in untold]
    step = 1 if nightly else max(1, len(every) // SAMPLE)
    some = every[SCENARIOS.index(scenario) % step :: step]
    problems = []
    for disturbance in some:
        drama.believed = disturbance.errno in LIES
        outcome = drama.attempt(disturbance)
        found = drama.judge(outcome)
        if outcome.status:
            found += filter(None, [told(outcome)])
            if disturbance.how == "interrupted":
                found.append(f"told of an interrupted dump: {outcome.stdout.decode()}")
        if found:
            problems.append("\n    ".join((f"{disturbance}: {outcome.status}", *found)))
        if drama.spoilt:
            drama = DRAMAS[command](new_stage(backend, Sources), plugin)
    promises.record("faults", faults=len(some))
    assert not problems, f"{len(problems)} of {len(some)}:\n" + "\n".join(problems)
