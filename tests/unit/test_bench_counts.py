"""Counting system calls and netlink messages in strace's output; no program runs."""

from __future__ import annotations

import pytest

from bench.counts import Comparison, Counts, count, markdown

ONE_OF_EACH = """\
7  execve("/x/bridge", ["/x/bridge"], 0x7ffc /* 6 vars */) = 0
7  openat(AT_FDCWD, "/run/netns/a", O_RDONLY|O_CLOEXEC) = 3
7  openat(AT_FDCWD, "/none", O_RDONLY) = -1 ENOENT (No such file or directory)
7  sendto(4, [[{nlmsg_len=60, nlmsg_type=RTM_GETLINK}, "x"], [{nlmsg_len=40}, "y = 3"]], 100, 0, NULL, 0) = 100
7  recvfrom(4, [{nlmsg_len=36, nlmsg_type=NLMSG_ERROR}, {error=0, msg={nlmsg_len=152}}], 131072, 0, NULL, NULL) = 36
7  recvfrom(4, 0x7ffc, 131072, MSG_DONTWAIT, NULL, NULL) = -1 EAGAIN (Resource temporarily unavailable)
7  sendto(5, "GET", 3, 0, NULL, 0) = 3
7  --- SIGCHLD {si_signo=SIGCHLD} ---
7  exit_group(0)                     = ?
7  +++ exited with 0 +++
"""

TWO_PROCESSES = """\
7  vfork( <unfinished ...>
8  execve("/usr/sbin/iptables-restore", ["iptables-restore"], 0x1 /* 1 var */) = 0
7  <... vfork resumed>)              = 8
7  clone3({flags=CLONE_VM|CLONE_THREAD, exit_signal=0}, 88) = 9
8  openat(AT_FDCWD, "/etc/x", O_RDONLY <unfinished ...>
9  sendmsg(3, {msg_iov=[{iov_base=[{nlmsg_len=20}, "z"], iov_len=20}]}, 0 <unfinished ...>
8  <... openat resumed>)             = 4
9  <... sendmsg resumed>)            = 20
9  recvmsg(3,  <unfinished ...>
9  <... recvmsg resumed>{msg_iov=[{iov_base=[{nlmsg_len=64}, "q"], iov_len=4096}], msg_flags=0}, 0) = 64
"""


def test_calls_of_a_process_are_counted():
    """Only successful opens and netlink messages count; the copy of a request in an answer is not a request."""
    expected = Counts(processes=1, calls=8, files=1, requests=2, sends=1, receives=1, received_bytes=36)
    assert count(ONE_OF_EACH.splitlines()) == expected


def test_interrupted_calls_count_once_and_threads_are_no_processes():
    """A call on two lines counts once; a child process counts as a process, a thread does not."""
    expected = Counts(processes=2, calls=6, files=1, requests=1, sends=1, receives=1, received_bytes=64)
    assert count(TWO_PROCESSES.splitlines()) == expected


def test_empty_trace():
    """A trace without lines is one process without calls."""
    assert count([]) == Counts(processes=1)


@pytest.mark.parametrize("side", ["podwire", "reference"])
def test_table_has_both_implementations(side):
    """Each cell has podwire's count and the reference's."""
    row = Comparison("bridge ADD", Counts(1, 125, 14), Counts(2, 1264, 30)).as_json()
    assert row[side] == Counts(*{"podwire": (1, 125, 14), "reference": (2, 1264, 30)}[side])._asdict()
    assert "| bridge ADD | 1 / 2 | 125 / 1,264 | 14 / 30 | 0 / 0 |" in markdown([row])
