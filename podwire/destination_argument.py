"""DEST[:PORT[/PROTOCOL]], the destination of a packet, as `podwire trace` and `podwire policy why` read it."""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import ip_address
from typing import NamedTuple

from cni.errors import Code
from podwire.command import UsageError

_DESTINATION = re.compile(
    r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]/\s][^:\[\]\s]*?)?)"
    r"(?::(?P<port>[0-9]{1,5}))?(?:/(?P<protocol>tcp|udp|sctp))?"
)


class DestinationArgument(NamedTuple):
    """A destination: an address or a name, a port and its protocol in lower case; without a port they are 0 and ""."""

    host: str
    port: int = 0
    protocol: str = ""


def parse(text: str, protocols: Collection[str], hint: str) -> DestinationArgument:
    """Returns the destination; a port without a protocol is TCP's. Raises UsageError, with `hint`."""
    if is_address(text):  # an IPv6 address without brackets
        return DestinationArgument(text)
    match = _DESTINATION.fullmatch(text)
    if match is not None:
        host, port, protocol = match["six"] or match["host"] or "", match["port"], match["protocol"]
        if port and 1 <= int(port) <= 65535 and (protocol or "tcp") in protocols:
            return DestinationArgument(host, int(port), protocol or "tcp")
        if host and not port and not protocol:
            return DestinationArgument(host)
    raise UsageError(Code.INVALID_ENVIRONMENT, f'"{text}" is not a destination', hint)


def is_address(text: str) -> bool:
    """Returns whether a text is an IP address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
