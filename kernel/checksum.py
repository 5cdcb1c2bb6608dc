"""The Internet checksum (RFC 1071), which IP, ICMP, TCP and UDP have."""

from __future__ import annotations


def compute_checksum(data: bytes) -> int:
    """Returns the checksum; over data that contains its correct checksum it is 0.

    The sum of the 16-bit words in one's complement is the whole number's remainder by 0xffff, since 0x10000 leaves 1.
    """
    if len(data) % 2:
        data += b"\0"
    return -int.from_bytes(data, "big") % 0xFFFF
