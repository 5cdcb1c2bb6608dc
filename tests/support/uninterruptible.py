"""A process in uninterruptible sleep (state D): it waits for a file server that does not reply, like a failed disk.

One rule: killing the server ends the process; the server writes its PID to the file in the first argument.
"""

import ctypes
import os
import struct
import sys
import tempfile
import time

_NEW_MOUNTS, _PRIVATE, _RECURSIVE = 0x00020000, 1 << 18, 1 << 14  # linux/sched.h, linux/mount.h
_REQUEST_BYTES = 1 << 18
# The start of struct fuse_in_header; fuse_out_header; the start of fuse_init_out (linux/fuse.h).
_REQUEST, _ANSWER, _INIT = struct.Struct("=IIQ"), struct.Struct("=IiQ"), struct.Struct("=IIII12xI28x")


def main(pid_file: str) -> None:
    """Mounts a file system in a new mount namespace, starts its server, and looks up a file."""
    libc = ctypes.CDLL(None, use_errno=True)
    directory = tempfile.mkdtemp()
    libc.unshare(_NEW_MOUNTS)
    libc.mount(b"none", b"/", None, ctypes.c_ulong(_PRIVATE | _RECURSIVE), None)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"fuse", directory.encode(), b"fuse", ctypes.c_ulong(0), options):
        sys.exit(f"no FUSE here: {os.strerror(ctypes.get_errno())}")
    if os.fork() == 0:
        os.setsid()  # signals to the test's process group must not reach the server
        _serve(device, pid_file)
    os.close(device)
    os.stat(f"{directory}/file")


def _serve(device: int, pid_file: str) -> None:
    with open(pid_file, "a") as file:
        print(os.getpid(), file=file)
    _, _, unique = _REQUEST.unpack_from(os.read(device, _REQUEST_BYTES))
    body = _INIT.pack(7, 31, 0, 0, 4096)
    os.write(device, _ANSWER.pack(_ANSWER.size + len(body), 0, unique) + body)
    os.read(device, _REQUEST_BYTES)  # after the server has read a request, it cannot be interrupted
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
