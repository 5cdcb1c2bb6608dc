"""All checks in order, and `run_checks`, which runs them.

A check that cannot read something reports that, and does not stop the other checks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from cni import skel
from podwire.doctor import (
    addresses,
    attachments,
    configuration,
    dhcp,
    interior,
    kernel,
    kernel_trial,
    links,
    linting,
    local_delivery,
    masters,
    neighbours,
    network_policy,
    packetfilter,
    ports,
    programs,
    published,
    routes,
    rules,
    runtime,
    settings,
    traffic,
    way_out,
)
from podwire.doctor.finding import UNSEEN, Check, Finding, Severity, fold_consequences, ok_finding
from podwire.doctor.node import CheckedNode

CHECKS: tuple[Check, ...] = (
    *configuration.CHECKS,
    *programs.CHECKS,
    *kernel_trial.CHECKS,
    *linting.CHECKS,
    *kernel.CHECKS,
    *settings.CHECKS,
    *links.CHECKS,
    *masters.CHECKS,
    *ports.CHECKS,
    *interior.CHECKS,
    *local_delivery.CHECKS,
    *routes.CHECKS,
    *way_out.CHECKS,
    *neighbours.CHECKS,
    *traffic.CHECKS,
    *rules.CHECKS,
    *packetfilter.CHECKS,
    *network_policy.CHECKS,
    *published.CHECKS,
    *attachments.CHECKS,
    *addresses.CHECKS,
    *dhcp.CHECKS,
    *runtime.CHECKS,
)

_ORDER = tuple(Severity)


def run_checks(node: CheckedNode, report: Callable[[str], None] = lambda text: None) -> list[tuple[Check, Finding]]:
    """Runs all checks; returns at least one finding of each, with severity OK if all is in order.

    `report` gets the group of each check before it runs, for a progress line.

    The worst come first, and of equal ones the causes: the checks are in the order in which a fault causes others.
    """
    findings = fold_consequences((check, finding) for check in CHECKS for finding in _run(check, node, report))
    return sorted(findings, key=lambda one: _ORDER.index(one[1].severity))


def _run(check: Check, node: CheckedNode, report: Callable[[str], None]) -> list[Finding]:
    report(f"checking {check.group}")
    return list(_run_safely(check, node)) or [ok_finding(check.name, "", check.ok_text)]


def _run_safely(check: Check, node: CheckedNode) -> Iterator[Finding]:
    try:
        yield from check.run(node)
    except Exception as failed:
        error = skel.as_cni_error(failed)
        hint = "run podwire as root" if os.geteuid() != 0 else "run podwire in the host's own namespaces"
        yield UNSEEN.finding(check.name, f"could not be checked: {error.msg}", error.details or hint)
