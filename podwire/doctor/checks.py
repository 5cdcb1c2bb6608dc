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
from podwire.doctor.finding import UNSEEN, Check, Finding, causes_only, fine_one
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


def examined(node: Node) -> list[tuple[Check, Finding]]:
    """Makes all checks; returns what each finds: one finding at least, as it is said when all is fine."""
    return causes_only((check, finding) for check in CHECKS for finding in _found(check, node))


def _found(check: Check, node: Node) -> list[Finding]:
    return list(_made(check, node)) or [fine_one(check.name, "", check.fine)]


def _made(check: Check, node: Node) -> Iterator[Finding]:
    try:
        yield from check.look(node)
    except Exception as failed:
        error = skel.as_cni_error(failed)
        hint = "call it as root" if os.geteuid() != 0 else "call it in the host's own namespaces"
        yield UNSEEN.found(check.name, f"could not be looked at: {error.msg}", error.details or hint)
