"""How bench counts a conversation: lines of strace, no program is run."""

from __future__ import annotations

import pytest

from bench.conversation import Counted, Talk, count, markdown

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


def test_what_a_process_says_is_counted():
    """Only files that are opened count, and only netlink; the copy of a request in an answer is no request."""
    said = Talk(processes=1, calls=8, files=1, requests=2, sends=1, receives=1, received_bytes=36)
    assert count(ONE_OF_EACH.splitlines()) == said


def test_interrupted_calls_count_once_and_threads_are_no_processes():
    """A call in two lines is one call; a child is a process, a thread of one is not."""
    said = Talk(processes=2, calls=6, files=1, requests=1, sends=1, receives=1, received_bytes=64)
    assert count(TWO_PROCESSES.splitlines()) == said


def test_nothing_was_said():
    """A trace without a line is one process that asked for nothing."""
    assert count([]) == Talk(processes=1)


@pytest.mark.parametrize("side", ["podwire", "reference"])
def test_the_table_has_both(side):
    """Each cell has podwire's count and the reference's."""
    row = Counted("bridge ADD", Talk(1, 125, 14), Talk(2, 1264, 30)).as_json()
    assert row[side]["calls"] in (125, 1264)
    assert "| bridge ADD | 1 / 2 | 125 / 1,264 | 14 / 30 | 0 / 0 |" in markdown([row])
