"""All checks, in the order in which they are made, and how they are made.

One rule: what cannot be seen is told as such; it stops none of the other checks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from cni import skel
from podwire.doctor import (
    addresses,
    attached,
    configuration,
    forward,
    kernel,
    links,
    packetfilter,
    programs,
    runtime,
)
from podwire.doctor.finding import Check, Fault, Finding, Severity, fine_one
from podwire.doctor.node import Node

CHECKS: tuple[Check, ...] = (
    *configuration.CHECKS,
    *programs.CHECKS,
    *kernel.CHECKS,
    *forward.CHECKS,
    *packetfilter.CHECKS,
    *attached.CHECKS,
    *addresses.CHECKS,
    *links.CHECKS,
    *runtime.CHECKS,
)

UNSEEN = Fault(
    "not-seen",
    Severity.NOTE,
    "a check could not look at what it is about: what is wrong there is not told",
    "call it as root, in the host's own namespaces",
)


def examined(node: Node) -> Iterator[tuple[Check, Finding]]:
    """Makes all checks and yields what each finds: one finding at least, as it is said when all is fine."""
    for check in CHECKS:
        found = list(_made(check, node))
        for finding in found or [fine_one(check.name, "", check.fine)]:
            yield check, finding


def _made(check: Check, node: Node) -> Iterator[Finding]:
    try:
        yield from check.look(node)
    except Exception as failed:
        error = skel.as_cni_error(failed)
        cure = "call it as root" if os.geteuid() != 0 else error.details or UNSEEN.cure
        yield UNSEEN.found(check.name, f"could not be looked at: {error.msg}", cure)
