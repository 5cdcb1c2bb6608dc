"""The firewall by nftables: a table of our own, whose rules never change; a pod is elements of its sets.

One rule: a verb changes everything in one transaction, and no process is started.

What firewalld was told of is kept in the same table: plugins.firewall.nftables_records (remember, remembered, stale,
forget).
"""

from __future__ import annotations

from collections.abc import Collection

from cni.conf import Attachment
from kernel.nft import NftSocket
from plugins.firewall.wanted import Protected


def add(wanted: Protected) -> None:
    """Makes table and elements; those that are there stay. Raises CniError(999), KernelError."""


def check(wanted: Protected) -> None:
    """Raises CniError(999) for what is missing, KernelError."""


def problem() -> str:
    """Tells what keeps this backend from working, "" when it works."""
    return ""


def delete(socket: NftSocket, wanted: Protected) -> None:
    """Deletes the attachment's elements, whatever addresses are known; absent is success. Raises KernelError."""


def gc(socket: NftSocket, network: str, valid: Collection[Attachment]) -> None:
    """Deletes the elements of a network's attachments that are not `valid`; raises KernelError."""
