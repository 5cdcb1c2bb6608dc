"""The eBPF programs that no netlink attribute shows: of tcx, of cgroups, of a network namespace, of netfilter.

This module only reads. A kernel without such programs, and a process that must not list them, give none.
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
_BYTES = 256  # of union bpf_attr; newer kernels write more than this module reads
_COUNT_AT, _NEXT_AT, _UNION_AT = 24, 4, 16  # of query.prog_cnt, next_id, and the union in struct bpf_link_info
_NETFILTER = 10  # BPF_LINK_TYPE_NETFILTER
_NUMBER, _HOOK = struct.Struct("=I"), struct.Struct("=IIi")
_MOST_LINKS = 20_000


class NetfilterProgram(NamedTuple):
    """A program at a hook of netfilter, in any network namespace: NFPROTO_*, NF_INET_*, and its priority."""

    family: int
    hook: int
    priority: int


def list_tcx_directions(ifindex: int) -> list[str]:
    """Returns the directions of an interface of this namespace, "receives" and "sends", in which programs run."""
    return [direction for direction, number in _TCX.items() if _count(ifindex, number)]


def has_socket_lookup() -> bool:
    """Returns whether a program chooses the sockets that get this namespace's packets (sk_lookup)."""
    return bool(_count_at("/proc/thread-self/ns/net", _SK_LOOKUP))


def list_cgroup_programs(directory: str) -> list[str]:
    """Returns the kinds of programs that are attached to a cgroup itself, as `bpftool cgroup` names them."""
    return [name for name, number in _CGROUP.items() if _count_at(directory, number)]


def list_netfilter_programs() -> Iterator[NetfilterProgram]:
    """Yields the programs at hooks of netfilter (Linux 6.4)."""
    number = 0
    with suppress(OSError):  # the last link, or no privilege
        for _ in range(_MOST_LINKS):
            attributes = _attributes(number, 0)
            bpf(_LINK_GET_NEXT, attributes)
            (number,) = _NUMBER.unpack_from(attributes, _NEXT_AT)
            info = _link_info(number)
            if info.startswith(_NUMBER.pack(_NETFILTER)):
                yield NetfilterProgram(*_HOOK.unpack_from(info, _UNION_AT))


def _link_info(number: int) -> bytes:
    """Returns the struct bpf_link_info of a link, b"" for one that is gone."""
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


def _count_at(path: str, attach_type: int) -> int:
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
    count: int = _NUMBER.unpack_from(attributes, _COUNT_AT)[0]
    return count


def _attributes(*numbers: int, form: str = "=II") -> bytearray:
    """Returns the attributes of a command, two 32-bit numbers if `form` does not say otherwise."""
    return bytearray(struct.pack(form, *numbers).ljust(_BYTES, b"\0"))
