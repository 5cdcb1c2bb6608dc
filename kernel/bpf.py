"""Classic BPF: programs that the kernel runs on each packet of a socket, to queue only the accepted ones.

One rule: constants are the kernel's (linux/filter.h, linux/bpf_common.h), with names in words; a program is a value.
"""

from __future__ import annotations

import socket
import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

# Loads from an offset, the length of the packet, loads from X plus an offset, X = length of the IPv4 header.
LOAD_WORD, LOAD_HALF, LOAD_BYTE, LOAD_LENGTH = 0x20, 0x28, 0x30, 0x80
LOAD_WORD_AFTER_X, LOAD_HALF_AFTER_X, LOAD_BYTE_AFTER_X = 0x40, 0x48, 0x50
LOAD_X_IPV4_HEADER = 0xB1
# Conditions. RETURN accepts as many bytes of the packet as its operand says; 0 rejects the packet.
IF_EQUAL, IF_GREATER, IF_ANY_BIT, RETURN = 0x15, 0x25, 0x45, 0x06
# Offsets that load a property of the packet instead of its bytes (SKF_AD_OFF).
ETHERTYPE_PROPERTY = 0xFFFFF000
PACKET_TYPE_PROPERTY = ETHERTYPE_PROPERTY + 4

_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
_INSTRUCTION = struct.Struct("=HBBI")  # struct sock_filter
_PROGRAM = struct.Struct("@HP")  # struct sock_fprog: number of instructions, pointer


class Instruction(NamedTuple):
    """An instruction (struct sock_filter); a condition skips `if_true` or `if_false` instructions."""

    code: int
    if_true: int
    if_false: int
    operand: int


Program = Sequence[Instruction]


def attach(receiver: socket.socket, program: Program) -> None:
    """Attaches a program to a socket; raises OSError."""
    # An array, since only an array reports its address, which the kernel needs.
    instructions = array("B", b"".join(_INSTRUCTION.pack(*instruction) for instruction in program))
    address, _ = instructions.buffer_info()
    receiver.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _PROGRAM.pack(len(program), address))
