"""The firewall by firewalld: the pod's addresses are sources of a zone, which D-Bus tells it (reference).

One rule: firewalld is asked, never configured for good: sources are of its runtime configuration.
"""

from __future__ import annotations

from collections.abc import Collection

from cni.conf import Attachment
from plugins.firewall.wanted import Protected


def is_running() -> bool:
    """Tells whether firewalld's name on the system bus has an owner; without a bus it does not run."""
    return False


def add(wanted: Protected) -> None:
    """Puts the addresses into the zone; raises CniError(999)."""


def check(wanted: Protected) -> None:
    """Raises CniError(999) for an address that is not in the zone."""


def delete(wanted: Protected) -> None:
    """Takes the addresses out of the zone; absent is success, and so is no firewalld."""


def gc(network: str, valid: Collection[Attachment]) -> None:
    """Takes out the addresses of a network's attachments that are not `valid`."""


def problem() -> str:
    """Tells what keeps this backend from working, "" when it works."""
    return "this build has none"
