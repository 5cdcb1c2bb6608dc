"""The figures of bench/: arithmetic on samples, calls counted and recorded from strace's output, flows of calls."""

from __future__ import annotations

import struct

import pytest

from bench.counts import Comparison, Counts, count, markdown
from bench.figures import Figures, Row, as_json, figures, growth_table, size_table, table, timing_table
from bench.flows import Flow, ms_per_flow, single_call
from bench.process import Invocation
from bench.replay import recording
from bench.versions import reference_version


def row(ours: list[float], reference: list[float], target: float | None = None) -> Row:
    return Row("case", figures(ours), figures(reference), target)


def test_figures_of_a_series():
    """The figures of a series are median, minimum, length, and the median of its page faults, None if not counted."""
    assert figures([3.0, 1.0, 2.0, 9.0], [10, 30, 20]) == Figures(median=2.5, least=1.0, runs=4, faults=20)
    assert figures([1.0]).faults is None
    with pytest.raises(ValueError, match="nothing was measured"):
        figures([])


@pytest.mark.parametrize(
    ("ours", "target", "cells"),
    [(0.8, 0.8, ["0.80", "0.80"]), (0.81, 0.8, ["0.81", "0.80", "!"]), (5.0, None, ["5.00"])],
)
def test_missed_target_is_marked(ours, target, cells):
    """A ratio above its target has an exclamation mark; a row without a target has an empty cell."""
    last = timing_table([row([ours], [1.0], target)]).splitlines()[-1].split()
    assert last == ["case", f"{ours:.2f}", f"{ours:.2f}", "1.00", "1.00", f"{ours:.2f}", *cells]


def test_tables():
    """Columns are aligned, growth compares each implementation with itself, sizes are in their unit, ratios not."""
    assert table(("a", "n"), [("long", "1"), ("b", "100")]) == "a       n\n----  ---\nlong    1\nb     100"
    text = growth_table([("verb", row([2.0], [1.0]), row([3.0], [8.0]))])
    assert text.splitlines()[-1].split() == ["verb", "1.50", "8.00"]
    text = size_table("MiB", 1024, [row([2048.0], [4096.0])])
    assert text.splitlines()[-1].split() == ["case", "2.0", "4.0", "0.50"]


def test_json_has_every_figure():
    """A row in JSON has both implementations' figures, and podwire's medians and minima divided by the reference's."""
    assert as_json(row([1.0, 2.0, 3.0], [2.0, 8.0, 9.0], target=0.8)) == {
        "case": "case",
        "podwire": {"median": 2.0, "least": 1.0, "runs": 3, "faults": None},
        "reference": {"median": 8.0, "least": 2.0, "runs": 3, "faults": None},
        "floor": None,
        "ratio": 0.25,
        "ratio_of_least": 0.5,
        "wanted": 0.8,
    }


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


def test_calls_of_processes_are_counted():
    """Successful opens, netlink messages and child processes count once; threads and copies of a request do not."""
    expected = Counts(processes=1, calls=8, files=1, requests=2, sends=1, receives=1, received_bytes=36)
    assert count(ONE_OF_EACH.splitlines()) == expected
    expected = Counts(processes=2, calls=6, files=1, requests=1, sends=1, receives=1, received_bytes=64)
    assert count(TWO_PROCESSES.splitlines()) == expected


def test_table_of_counts_has_both_implementations():
    """Each cell has podwire's count and the reference's."""
    counted = Comparison("bridge ADD", Counts(1, 125, 14), Counts(2, 1264, 30)).as_json()
    assert "| bridge ADD | 1 / 2 | 125 / 1,264 | 14 / 30 | 0 / 0 |" in markdown([counted])


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
    """A recorded send has its socket, number of answers and errors, and its bytes without a batch's generation ID."""
    recorded = recording(TRACE.splitlines(), "/run/netns/pod")
    assert struct.unpack_from("2I", recorded) == (3, 2)
    assert struct.unpack_from("6I", recorded, 8) == (0, 0, 0, 1, 1, 20)
    assert recorded[32:52] == bytes.fromhex("1400000012000100010000000000000000000000")
    assert struct.unpack_from("6I", recorded, 52) == (1, 12, 1, 0, 0, 40)
    begin, end = "14000000100001000000000000000000 0000000a", "1400000011000100000000000000000000 00000a"
    assert recorded[76:] == bytes.fromhex(begin + end)


def call(program, text: str) -> Invocation:
    return Invocation(str(program), {"TEXT": text, "PATH": "/usr/bin:/bin"}, b"stdin")


@pytest.fixture
def program(tmp_path):
    """A program that prints its environment variable TEXT and its stdin, and fails if TEXT is FAIL."""
    path = tmp_path / "program"
    path.write_text('#!/bin/sh\nread -r line\necho "$TEXT $line"\n[ "$TEXT" != FAIL ] || { echo why >&2; exit 1; }\n')
    path.chmod(0o755)
    return path


def test_flows_are_limited_in_parallel(program):
    """The calls of a flow run one after another, no more flows than permitted in parallel; a failure is an error."""

    def flow(name: str) -> Flow:
        running.append(name)
        assert len(running) <= 2
        for number in ("one", "two"):
            outputs.append((yield call(program, f"{name} {number}")).decode())
        running.remove(name)

    running: list[str] = []
    outputs: list[str] = []
    assert ms_per_flow([flow(name) for name in "abcde"], 2) > 0
    for name in "abcde":
        assert [text for text in outputs if text[0] == name] == [f"{name} one stdin\n", f"{name} two stdin\n"]
    with pytest.raises(RuntimeError, match="FAIL stdin\nwhy"):
        ms_per_flow([single_call(call(program, "FAIL"))], 1)


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("1.1.1", "CNI bridge plugin v1.9.1", "1.9.1"),
        ("1.9.1+ds1-1", "CNI bridge plugin version unknown", "1.9.1"),
        ("bin", "CNI bridge plugin version unknown", ""),
    ],
)
def test_version_of_the_reference(tmp_path, name, text, version):
    """What a plugin prints counts more than the name of its directory, also behind a link; without both: unknown."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "bridge").write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    (tmp_path / name / "bridge").chmod(0o755)
    (tmp_path / "newest").symlink_to(name)
    assert reference_version(tmp_path / name) == reference_version(tmp_path / "newest") == version
    assert reference_version(tmp_path / "absent") == ""
