"""Host ports with iptables."""

from __future__ import annotations

from collections.abc import Iterable

from cni.conf import Attachment
from kernel.nft import NftSocket
from plugins.portmap.wanted import HostPorts


def add(wanted: HostPorts) -> None:
    """Makes the rules."""
    raise NotImplementedError


def check(wanted: HostPorts) -> None:
    """Checks them."""
    raise NotImplementedError


def problem() -> str:
    """Tells what is missing."""
    raise NotImplementedError


def delete(socket: NftSocket, network: str, container_id: str) -> None:
    """Deletes what iptables-nft made, by netlink."""


def delete_legacy(network: str, container_id: str) -> None:
    """Deletes what iptables-legacy made."""


def gc(socket: NftSocket, network: str, valid: Iterable[Attachment]) -> None:
    """Deletes what iptables-nft made of attachments that are not valid."""


def gc_legacy(network: str, valid: Iterable[Attachment]) -> None:
    """Deletes what iptables-legacy made of attachments that are not valid."""
