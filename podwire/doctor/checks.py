"""All checks, in the order in which they are made, and how they are made.

One rule: what cannot be seen is told as such; it stops none of the other checks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from cni import skel
from podwire.doctor import (
    addresses,
    attachments,
    configuration,
    forward,
    kernel,
    links,
    packetfilter,
    programs,
    runtime,
)
from podwire.doctor.finding import UNSEEN, Check, Finding, ok_finding, without_consequences
from podwire.doctor.node import Node

CHECKS: tuple[Check, ...] = (
    *configuration.CHECKS,
    *programs.CHECKS,
    *kernel.CHECKS,
    *forward.CHECKS,
    *packetfilter.CHECKS,
    *attachments.CHECKS,
    *addresses.CHECKS,
    *links.CHECKS,
    *runtime.CHECKS,
)


def run_checks(node: Node) -> list[tuple[Check, Finding]]:
    """Makes all checks; returns what each finds: one finding at least, as it is said when all is fine."""
    return without_consequences((check, finding) for check in CHECKS for finding in _found(check, node))


def _found(check: Check, node: Node) -> list[Finding]:
    return list(_made(check, node)) or [ok_finding(check.name, "", check.ok_text)]


def _made(check: Check, node: Node) -> Iterator[Finding]:
    try:
        yield from check.run(node)
    except Exception as failed:
        error = skel.as_cni_error(failed)
        hint = "call it as root" if os.geteuid() != 0 else "call it in the host's own namespaces"
        yield UNSEEN.finding(check.name, f"could not be looked at: {error.msg}", error.details or hint)
