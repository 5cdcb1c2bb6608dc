"""The firewall by iptables: names, rules, comments and their order are the reference's.

One rule: either takes away what the other has made.
"""

from __future__ import annotations

from collections.abc import Collection

from cni.conf import Attachment
from kernel.nft import NftSocket
from plugins.firewall.wanted import Protected


def add(wanted: Protected) -> None:
    """Makes the rules; those that are there stay. Raises iptables.UnusableError, CniError(11), CniError(999)."""


def check(wanted: Protected) -> None:
    """Raises CniError(999) for what is missing, and as `add`."""


def problem() -> str:
    """Tells what keeps this backend from working, "" when it works."""
    return ""


def delete(socket: NftSocket, wanted: Protected) -> None:
    """Deletes the attachment's rules of iptables-nft; absent is success. Raises KernelError."""


def delete_legacy(wanted: Protected) -> None:
    """Deletes the same of iptables-legacy, which takes its lock; raises CniError(11), CniError(999)."""


def gc(socket: NftSocket, network: str, valid: Collection[Attachment]) -> None:
    """Deletes the rules of a network's attachments that are not `valid`, of iptables-nft; raises KernelError."""


def gc_legacy(network: str, valid: Collection[Attachment]) -> None:
    """Deletes the same of iptables-legacy; raises CniError(11), CniError(999)."""
