"""The eBPF programs that netlink does not show: those of tcx, cgroups, network namespaces and netfilter.

This module only reads. Where the kernel does not support such programs, or refuses to list them, the result is empty.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from _podwire import bpf

_TCX = {"receives": 46, "sends": 47}  # BPF_TCX_INGRESS, BPF_TCX_EGRESS (linux/bpf.h)
_SK_LOOKUP = 36  # BPF_SK_LOOKUP
_CGROUP = {  # BPF_CGROUP_*: those that refuse packets, sockets or addresses
    "cgroup_skb ingress": 0, "cgroup_skb egress": 1, "sock_create": 2, "bind4": 8, "bind6": 9, "connect4": 10,
    "connect6": 11, "sendmsg4": 14, "sendmsg6": 15, "recvmsg4": 19, "recvmsg6": 20,
}  # fmt: skip
_PROG_QUERY, _OBJ_GET_INFO, _LINK_GET_FD, _LINK_GET_NEXT = 16, 15, 30, 31
_BYTES = 256  # a buffer for union bpf_attr or an answer, with room for the fields of newer kernels
# Offsets of query.prog_cnt and next_id in union bpf_attr, and of the union in struct bpf_link_info.
_COUNT_OFFSET, _NEXT_OFFSET, _UNION_OFFSET = 24, 4, 16
_NETFILTER = 10  # BPF_LINK_TYPE_NETFILTER
_NUMBER, _HOOK = struct.Struct("=I"), struct.Struct("=IIi")
_MOST_LINKS = 20_000


class NetfilterProgram(NamedTuple):
    """A program of netfilter, in any network namespace; `family` is NFPROTO_*, `hook` NF_INET_*."""

    family: int
    hook: int
    priority: int


def list_tcx_directions(ifindex: int) -> list[str]:
    """Returns the directions of an interface of this namespace, "receives" and "sends", in which programs run."""
    return [direction for direction, number in _TCX.items() if _count(ifindex, number)]


def has_socket_lookup() -> bool:
    """Returns whether a program (sk_lookup) chooses which sockets get this namespace's packets."""
    return bool(_count_of_file("/proc/thread-self/ns/net", _SK_LOOKUP))


def list_cgroup_programs(directory: str) -> list[str]:
    """Returns the kinds of programs that are attached to a cgroup itself, named as `bpftool cgroup` prints them."""
    return [name for name, number in _CGROUP.items() if _count_of_file(directory, number)]


def list_netfilter_programs() -> Iterator[NetfilterProgram]:
    """Yields the programs at hooks of netfilter (Linux 6.4)."""
    number = 0
    with suppress(OSError):  # the last link, or no privilege
        for _ in range(_MOST_LINKS):
            attributes = _attributes(number, 0)
            bpf(_LINK_GET_NEXT, attributes)
            (number,) = _NUMBER.unpack_from(attributes, _NEXT_OFFSET)
            info = _link_info(number)
            if info.startswith(_NUMBER.pack(_NETFILTER)):
                yield NetfilterProgram(*_HOOK.unpack_from(info, _UNION_OFFSET))


def _link_info(number: int) -> bytes:
    """Returns the struct bpf_link_info of a link, b"" if it no longer exists."""
    info = array("B", bytes(_BYTES))
    address, size = info.buffer_info()
    with suppress(OSError):
        descriptor = bpf(_LINK_GET_FD, _attributes(number, 0))
        try:
            bpf(_OBJ_GET_INFO, _attributes(descriptor, size, address, form="=IIQ"))
        finally:
            os.close(descriptor)
        return info.tobytes()
    return b""


def _count_of_file(path: str, attach_type: int) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return _count(descriptor, attach_type)
    finally:
        os.close(descriptor)


def _count(target: int, attach_type: int) -> int:
    attributes = _attributes(target, attach_type)
    try:
        bpf(_PROG_QUERY, attributes)
    except OSError:
        return 0
    count: int = _NUMBER.unpack_from(attributes, _COUNT_OFFSET)[0]
    return count


def _attributes(*numbers: int, form: str = "=II") -> bytearray:
    """Returns the attributes of a command; `form` is their struct format, two 32-bit numbers by default."""
    return bytearray(struct.pack(form, *numbers).ljust(_BYTES, b"\0"))
