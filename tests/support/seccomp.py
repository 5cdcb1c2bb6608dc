"""`python tests/support/seccomp.py CALL PROGRAM...` runs a program to which the kernel refuses one system call (EPERM).

One rule: it sets a seccomp filter before the program starts, as container runtimes do; children inherit the filter.
"""

import ctypes
import errno
import os
import struct
import sys
from pathlib import Path

# arch/x86/entry/syscalls/syscall_64.tbl
CALLS = {
    "rt_sigaction": 13, "rt_sigprocmask": 14, "ioctl": 16, "access": 21, "madvise": 28, "dup2": 33, "socket": 41,
    "vfork": 58, "fcntl": 72, "flock": 73, "ftruncate": 77, "statfs": 137, "prctl": 157, "openat": 257,
    "prlimit64": 302, "setns": 308, "getrandom": 318, "memfd_create": 319, "close_range": 436,
}  # fmt: skip

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2  # linux/prctl.h, linux/seccomp.h
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
_NUMBER = 0  # offset in struct seccomp_data
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def command_prefix(call: str) -> tuple[str, ...]:
    """Returns the command line that starts a program with one system call denied."""
    return sys.executable, str(Path(__file__)), call


def install(directory: Path, program: Path, call: str) -> Path:
    """Installs a script in `directory` that runs `program` with one system call denied; returns the directory."""
    script = directory / program.name
    script.write_text(f"#!/bin/sh\nexec {' '.join(command_prefix(call))} {program}\n")
    script.chmod(0o755)
    return directory


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _deny(number: int) -> None:
    """Denies a system call to this process permanently; raises OSError."""
    instructions = (
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_IF_EQUAL, 0, 1, number),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    )
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    enable = (_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(_Program(len(instructions), code)))
    for arguments in ((_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), *[ctypes.c_ulong(0)] * 3), enable):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    _deny(CALLS[sys.argv[1]])
    os.execv(sys.argv[2], sys.argv[2:])
