"""Decides which system calls of a stopped process change the kernel's state or a file, and describes them.

One rule: a call counts as a change unless it certainly changes nothing.
"""

import os
import struct
from contextlib import suppress

# arch/x86/entry/syscalls/syscall_64.tbl: names by number; below, the index of the argument that is a path.
_CHANGES = {
    1: "write", 18: "pwrite64", 20: "writev", 296: "pwritev", 44: "sendto", 46: "sendmsg", 307: "sendmmsg",
    56: "clone", 57: "fork", 58: "vfork", 435: "clone3", 59: "execve", 231: "exit_group", 62: "kill",
    73: "flock", 76: "truncate", 77: "ftruncate", 285: "fallocate", 2: "open", 257: "openat", 85: "creat",
    82: "rename", 264: "renameat", 316: "renameat2", 83: "mkdir", 258: "mkdirat", 84: "rmdir", 86: "link",
    265: "linkat", 87: "unlink", 263: "unlinkat", 88: "symlink", 266: "symlinkat", 90: "chmod", 91: "fchmod",
    268: "fchmodat", 92: "chown", 93: "fchown", 260: "fchownat", 280: "utimensat", 308: "setns", 272: "unshare",
    165: "mount", 166: "umount2", 188: "setxattr",
}  # fmt: skip
_PATH_AT = {
    "open": 0, "creat": 0, "mkdir": 0, "rmdir": 0, "unlink": 0, "execve": 0, "rename": 0, "link": 1, "truncate": 0,
    "openat": 1, "mkdirat": 1, "unlinkat": 1, "linkat": 3, "renameat": 1, "renameat2": 1, "utimensat": 1,
}  # fmt: skip
_ON_A_FILE = {"write", "pwrite64", "writev", "pwritev", "flock", "ftruncate", "fallocate", "fchmod", "utimensat"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_OF_A_PROCESS = ("pipe:", "/memfd:")  # written data end with the process
_NFNL, _CONNTRACK, _NFTABLES, _COMPAT = 0x100, 1, 10, 11


def change(pid: int, number: int, args: tuple[int, ...]) -> str:
    """Describes the call at which process `pid` is stopped; "" when it changes nothing."""
    name = _CHANGES.get(number, "")
    if name in ("open", "openat") and not args[1 if name == "open" else 2] & _WRITING:
        return ""
    if name in ("sendto", "sendmsg"):
        types = _netlink_types(_sent_data(pid, name, args))
        return f"{name}(netlink {' '.join(map(hex, types))})" if not all(map(_only_reads, types)) else ""
    if name in _PATH_AT and (name != "utimensat" or args[1]):
        return f'{name}("{_text(pid, args[_PATH_AT[name]])}")'
    if name in _ON_A_FILE:
        file = "stdout" if args[0] == 1 else _file(pid, args[0])
        return "" if file.startswith(_OF_A_PROCESS) else f"{name}({file})"
    return name and f"{name}()"


def _sent_data(pid: int, name: str, args: tuple[int, ...]) -> bytes:
    if name == "sendto":
        return _memory(pid, args[1], args[2])
    vector, count = struct.unpack("QQ", _memory(pid, args[1] + 16, 16))  # struct msghdr
    parts = struct.iter_unpack("QQ", _memory(pid, vector, 16 * count))
    return b"".join(_memory(pid, start, length) for start, length in parts)


def _netlink_types(data: bytes) -> list[int]:
    types, at = [], 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("IH", data, at)
        types.append(kind)
        at += max(16, (length + 3) & ~3)
    return types


def _only_reads(kind: int) -> bool:
    """Returns whether a request only reads: each fourth type of rtnetlink, each third of nf_tables and conntrack."""
    if kind < _NFNL:
        return kind % 4 == 2
    subsystem, message = kind >> 8, kind & 0xFF
    return subsystem == _COMPAT or (subsystem in (_CONNTRACK, _NFTABLES) and message % 3 == 1)


def _file(pid: int, fd: int) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    return f"descriptor {fd}"


def _text(pid: int, address: int) -> str:
    return _memory(pid, address, 4096).partition(b"\0")[0].decode(errors="replace")


def _memory(pid: int, address: int, length: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        memory.seek(address)
        content = b""
        while len(content) < length:
            try:
                chunk = memory.read(min(length - len(content), 4096 - (address + len(content)) % 4096))
            except OSError:
                break
            if not chunk:
                break
            content += chunk
    return content
