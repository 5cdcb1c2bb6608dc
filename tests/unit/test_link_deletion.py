"""The background process that waits for the kernel's answer (kernel/_background.c, kernel.link_deletion).

One rule: the other end of a socket pair plays the kernel, and sends the test's answers.
"""

import errno
import os
import signal
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

import pytest
from _podwire import close_in_background, send_in_background

from kernel import link, link_deletion
from kernel.link import Link
from kernel.rtnl import wait_readable

DOOMED = Link(7, "veth0", "02:00:00:00:00:01", 1500, 1, "veth", 3, 2, 0, 6)
REQUEST, LARGEST = b"a request", bytes(range(256)) * 4
NLMSG_ERROR = 2


@pytest.fixture
def pair():
    """Both ends of a socket that preserves message boundaries: the child's, and the kernel's."""
    child_socket, kernel_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with child_socket, kernel_socket:
        yield child_socket, kernel_socket


@pytest.fixture
def pipe():
    """The two ends of a pipe, closed after the test."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def answer(code, kind=NLMSG_ERROR, rest=b""):
    return struct.pack("=IHHIIi", 20 + len(rest), kind, 0, 1, 0, code) + rest


def status(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def children():
    """Returns the process IDs of this process's children, among them those of other tests."""
    return Path("/proc/thread-self/children").read_text()


ANSWERS = {
    "done": (answer(0), 0),
    "refused": (answer(-errno.ENODEV), errno.ENODEV),
    "with the kernel's additions": (answer(-errno.EBUSY, rest=bytes(3000)), errno.EBUSY),
    "no errno": (answer(5), 255),
    "larger than any": (answer(-256), 255),
    "smaller than any": (answer(-(1 << 31)), 255),
    "another kind": (answer(0, kind=16), errno.EBADMSG),
    "truncated": (answer(0)[:-1], errno.EBADMSG),
    "a header": (answer(0)[:16], errno.EBADMSG),
    "nothing": (b"", errno.EBADMSG),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_status_is_the_errno_of_the_answer(pair, pipe, name):
    """The child sends the request, and its exit status is the errno in the answer, EBADMSG for an invalid one."""
    child_socket, kernel_socket = pair
    data, expected = ANSWERS[name]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    child = send_in_background(child_socket.fileno(), LARGEST, pipe[1])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert kernel_socket.recv(2000) == LARGEST
    kernel_socket.send(data)
    assert status(child) == expected


def test_without_a_peer(pair, pipe):
    """Without a socket or a peer, the exit status is the errno of the failure."""
    child_socket, kernel_socket = pair
    assert status(send_in_background(pipe[0], REQUEST, pipe[1])) == errno.ENOTSOCK
    kernel_socket.close()
    assert status(send_in_background(child_socket.fileno(), REQUEST, pipe[1])) == errno.EPIPE


@pytest.mark.parametrize("socket_first", [True, False])
def test_the_child_closes_all_other_descriptors(pair, pipe, socket_first):
    """The child closes all inherited descriptors but socket and report; the report is closed when the child ends."""
    child_socket, kernel_socket = pair
    report, ending = pipe
    if socket_first:
        ending = os.dup2(ending, 700)
        os.close(pipe[1])
    foreign, held = os.pipe()
    beyond = os.dup2(held, 900)
    child = send_in_background(child_socket.fileno(), REQUEST, ending)
    for descriptor in (held, beyond, ending):
        os.close(descriptor)
    assert kernel_socket.recv(100) == REQUEST
    child_socket.close()
    assert os.read(foreign, 1) == b""  # no other process has it open
    os.close(foreign)
    assert wait_readable([report], 0.05) == []
    kernel_socket.send(answer(0))
    assert os.read(report, 1) == b""
    assert status(child) == 0


def test_the_child_outlives_its_parent(pair, pipe):
    """The child continues when its parent, whose memory it shares, ends, and ignores all signals but SIGKILL."""
    child_socket, kernel_socket = pair
    report, ending = pipe
    parent = os.fork()
    if parent == 0:
        child = send_in_background(child_socket.fileno(), REQUEST, ending)
        os.write(ending, struct.pack("=i", child))
        os._exit(0)
    os.close(ending)
    child_socket.close()
    assert status(parent) == 0
    (child,) = struct.unpack("=i", os.read(report, 4))
    assert kernel_socket.recv(100) == REQUEST
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        os.kill(child, number)
    assert wait_readable([report], 0.05) == []
    kernel_socket.send(answer(0))
    assert os.read(report, 1) == b""


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("start", "arguments", "message"),
    [
        (send_in_background, (-1, REQUEST, 1), "not a descriptor: -1"),
        (send_in_background, (0, REQUEST, -2), "not a descriptor: -2"),
        (send_in_background, (0, bytes(1025), 1), "1025"),
        (close_in_background, (-1, 0, 0), "not a descriptor: -1"),
        (close_in_background, (0, -2, 0), "not a descriptor: -2"),
        (close_in_background, (0, 1, -3), "not a duration: -3"),
    ],
)
def test_invalid_arguments(start, arguments, message):
    """Invalid descriptors and durations, and too long requests, are refused before a process is started."""
    before = children()
    with pytest.raises(ValueError, match=message):
        start(*arguments)
    assert children() == before


def test_many_children(pair, pipe):
    """Fifty children at the same time all succeed, since each has a separate stack."""
    child_socket, kernel_socket = pair
    children = [send_in_background(child_socket.fileno(), bytes([number]), pipe[1]) for number in range(50)]
    assert {kernel_socket.recv(10) for _ in children} == {bytes([number]) for number in range(50)}
    for _ in children:
        kernel_socket.send(answer(0))
    assert [status(child) for child in children] == [0] * 50


def test_close_in_background(pair, pipe):
    """The child closes other descriptors first, and the socket a pause after the pipe was closed."""
    child_socket, kernel_socket = pair
    ended, writable = pipe
    foreign, held = os.pipe()
    child = close_in_background(child_socket.fileno(), ended, 50_000)
    os.close(held)
    child_socket.close()
    assert os.read(foreign, 1) == b""
    os.close(foreign)
    assert wait_readable([kernel_socket.fileno()], 0.1) == []
    before = time.monotonic()
    os.close(writable)
    assert kernel_socket.recv(1) == b""
    assert time.monotonic() - before >= 0.05
    assert status(child) == 0


@pytest.mark.parametrize(
    ("ending", "expected"), [(0, True), (errno.ENODEV, True), (errno.EPERM, False), (errno.EBADMSG, False), (-9, False)]
)
def test_statuses_that_mean_deleted(ending, expected):
    """A link is deleted if the child's request succeeded, or without such a link; not if its status is unknown."""
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGKILL) if ending < 0 else os._exit(ending)
    assert link_deletion._succeeded(pid, link.delete_request(DOOMED)) is expected
    assert link_deletion._succeeded(pid, link.delete_request(DOOMED)) is False
