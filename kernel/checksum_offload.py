"""Transmit checksum offload of an interface (`ethtool -K NAME tx off`).

Some kernels and network cards compute wrong checksums for packets in a tunnel. Without offload the kernel computes them
before it puts packets into the tunnel.
"""

from __future__ import annotations

import array
import fcntl
import socket as stdlib_socket
import struct

from kernel.errors import KernelError

_SIOCETHTOOL = 0x8946  # linux/sockios.h
_GET, _SET = 0x16, 0x17  # ETHTOOL_GTXCSUM, ETHTOOL_STXCSUM (linux/ethtool.h)


def get(name: str) -> bool:
    """Returns whether the interface in this namespace leaves transmit checksums to the device; raises KernelError."""
    return bool(_call(name, _GET, 0, f'read the checksum offload of "{name}"'))


def set_offload(name: str, *, on: bool) -> None:
    """Switches transmit checksum offload of an interface in this namespace; raises KernelError."""
    _call(name, _SET, int(on), f'switch checksum offload of "{name}" {"on" if on else "off"}')


def _call(name: str, command: int, value: int, description: str) -> int:
    """Calls the ioctl with a struct ethtool_value; returns the value afterwards. Raises KernelError."""
    content = array.array("I", [command, value])
    request = struct.pack("16sP16x", name.encode(), content.buffer_info()[0])  # struct ifreq (linux/if.h)
    try:
        with stdlib_socket.socket(stdlib_socket.AF_INET, stdlib_socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
    except OSError as error:
        raise KernelError(description, error.errno or 0) from error
    return content[1]
