"""Recording netlink messages from strace's output; no program runs."""

from __future__ import annotations

import struct

from bench.replay import recording

TRACE = """\
7  openat(AT_FDCWD, "/run/netns/pod", O_RDONLY|O_CLOEXEC) = 3
7  socket(AF_NETLINK, SOCK_RAW|SOCK_CLOEXEC, NETLINK_ROUTE) = 4
7  setns(3, CLONE_NEWNET)            = 0
7  socket(AF_NETLINK, SOCK_RAW|SOCK_CLOEXEC, NETLINK_NETFILTER) = 5
7  setns(6, CLONE_NEWNET)            = 0
7  sendto(4, [{nlmsg_len=20}, "x"], 20, 0, NULL, 0) = 20
 | 00000  14 00 00 00 12 00 01 00  01 00 00 00 00 00 00 00  ................ |
 | 00010  00 00 00 00                                       ....             |
7  recvfrom(4, [{nlmsg_len=36, nlmsg_type=NLMSG_ERROR}, {error=-ENODEV, msg={nlmsg_len=20}}], 9, 0, NULL, NULL) = 36
7  sendmsg(5, {msg_iov=[{iov_base=[{nlmsg_len=28}, [{nlmsg_len=20}]]}]}, 0) = 48
 * 48 bytes in buffer 0
 | 00000  1c 00 00 00 10 00 01 00  00 00 00 00 00 00 00 00  ................ |
 | 00010  00 00 00 0a 08 00 01 00  00 00 00 2a 14 00 00 00  ................ |
 | 00020  11 00 01 00 00 00 00 00  00 00 00 00 00 00 00 0a  ................ |
7  write(1, "ab", 2) = 2
 | 00000  61 62                                             ab               |
7  +++ exited with 0 +++
"""


def test_sends_are_recorded_with_their_sockets_and_answers():
    """A recorded send has its socket's number, protocol and namespace, and the number of answers and errors."""
    recorded = recording(TRACE.splitlines(), "/run/netns/pod")
    assert struct.unpack_from("2I", recorded) == (3, 2)
    assert struct.unpack_from("6I", recorded, 8) == (0, 0, 0, 1, 1, 20)
    assert recorded[32:52] == bytes.fromhex("1400000012000100010000000000000000000000")
    assert struct.unpack_from("6I", recorded, 52) == (1, 12, 1, 0, 0, 40)


def test_batch_is_recorded_without_the_generation_id():
    """The generation ID of a batch is dropped, since it changes with every transaction; the rest stays."""
    batch = recording(TRACE.splitlines(), "/run/netns/pod")[76:]
    begin, end = batch[:20], batch[20:]
    assert begin == bytes.fromhex("14000000100001000000000000000000 0000000a")
    assert end == bytes.fromhex("1400000011000100000000000000000000 00000a")
