"""A program that no signal ends: it waits for a file server that does not answer (state D, as with a dead disk or NFS).

One rule: ending the server, whose process is written to the file in the first argument, ends it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import tempfile
import time

_NEW_MOUNTS, _PRIVATE, _RECURSIVE = 0x00020000, 1 << 18, 1 << 14  # linux/sched.h, linux/mount.h
_REQUEST_BYTES = 1 << 18
# struct fuse_in_header begins with these; fuse_out_header; the start of fuse_init_out (linux/fuse.h).
_REQUEST, _ANSWER, _INIT = struct.Struct("=IIQ"), struct.Struct("=IiQ"), struct.Struct("=IIII12xI28x")


def main(pid_file: str) -> None:
    """Mounts a file system where nobody else sees it, starts its server, and looks a file up."""
    libc = ctypes.CDLL(None, use_errno=True)
    directory = tempfile.mkdtemp()
    libc.unshare(_NEW_MOUNTS)
    libc.mount(b"none", b"/", None, ctypes.c_ulong(_PRIVATE | _RECURSIVE), None)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"fuse", directory.encode(), b"fuse", ctypes.c_ulong(0), options):
        sys.exit(f"no FUSE here: {os.strerror(ctypes.get_errno())}")
    if os.fork() == 0:
        os.setsid()  # out of reach of what is sent to our process group
        _serve(device, pid_file)
    os.close(device)
    os.stat(f"{directory}/file")


def _serve(device: int, pid_file: str) -> None:
    with open(pid_file, "a") as file:
        print(os.getpid(), file=file)
    _, _, unique = _REQUEST.unpack_from(os.read(device, _REQUEST_BYTES))
    body = _INIT.pack(7, 31, 0, 0, 4096)
    os.write(device, _ANSWER.pack(_ANSWER.size + len(body), 0, unique) + body)
    os.read(device, _REQUEST_BYTES)  # what is read cannot be taken back any more
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
