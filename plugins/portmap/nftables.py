"""Host ports with nftables."""

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


def delete(socket: NftSocket, wanted: HostPorts) -> None:
    """Deletes the attachment's rules."""


def gc(socket: NftSocket, network: str, valid: Iterable[Attachment]) -> None:
    """Deletes the rules of attachments that are not valid."""
