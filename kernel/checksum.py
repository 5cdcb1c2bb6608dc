"""The Internet checksum (RFC 1071), of IPv4, ICMP, TCP and UDP."""

from __future__ import annotations


def compute_checksum(data: bytes) -> int:
    """Returns the checksum; over data that contains its correct checksum it is 0.

    The one's complement sum of the 16-bit words is the remainder of the data, as one number,
    divided by 0xffff, as 0x10000 has the remainder 1.
    """
    if len(data) % 2:
        data += b"\0"
    return -int.from_bytes(data, "big") % 0xFFFF
