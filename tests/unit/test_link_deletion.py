"""The background process that waits for the kernel's answer (kernel/_background.c, kernel.link_deletion).

One rule: the other end of a socket pair is the kernel here, and says what the test wants.
"""

import errno
import os
import signal
import socket
import struct
import time
from pathlib import Path

import pytest
from _podwire import close_in_background, send_in_background

from kernel import link, link_deletion
from kernel.link import Link
from kernel.rtnl import wait_readable

DOOMED = Link(7, "veth0", "02:00:00:00:00:01", 1500, 1, "veth", 3, 2, 0, 6)
REQUEST = b"a request"
NLMSG_ERROR = 2


@pytest.fixture
def pair():
    """Both ends of a socket that preserves message boundaries: the child's, and the kernel's."""
    ours, kernels = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, kernels:
        yield ours, kernels


@pytest.fixture
def pipe():
    """A pipe's two ends, closed at the end where the test has not done it."""
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


def answer(code, kind=NLMSG_ERROR, rest=b""):
    return struct.pack("=IHHIIi", 20 + len(rest), kind, 0, 1, 0, code) + rest


def status(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def children():
    """Returns our children's process ids: other tests may have left some."""
    return Path("/proc/thread-self/children").read_text()


ANSWERS = {
    "done": (answer(0), 0),
    "refused": (answer(-errno.ENODEV), errno.ENODEV),
    "with everything that a kernel may add": (answer(-errno.EBUSY, rest=bytes(3000)), errno.EBUSY),
    "no errno": (answer(5), 255),
    "larger than any": (answer(-256), 255),
    "smaller than any": (answer(-(1 << 31)), 255),
    "another kind": (answer(0, kind=16), errno.EBADMSG),
    "cut off": (answer(0)[:-1], errno.EBADMSG),
    "a header": (answer(0)[:16], errno.EBADMSG),
    "nothing": (b"", errno.EBADMSG),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_status_is_what_was_answered(pair, pipe, name):
    """The child sends what it was given, and its exit status is the errno in the answer, whatever that is."""
    ours, kernels = pair
    data, expected = ANSWERS[name]
    child = send_in_background(ours.fileno(), REQUEST, pipe[1])
    assert kernels.recv(100) == REQUEST
    kernels.send(data)
    assert status(child) == expected


def test_nobody_answers(pair, pipe):
    """Without a socket, or without a peer, the status is the errno of the failure."""
    ours, kernels = pair
    assert status(send_in_background(pipe[0], REQUEST, pipe[1])) == errno.ENOTSOCK
    kernels.close()
    assert status(send_in_background(ours.fileno(), REQUEST, pipe[1])) == errno.EPIPE


@pytest.mark.parametrize("socket_first", [True, False])
def test_the_child_holds_nothing_but_what_it_needs(pair, pipe, socket_first):
    """What we had open is closed in the child at once, whichever numbers it has; the report ends with the child."""
    ours, kernels = pair
    report, ending = pipe
    if socket_first:
        ending = os.dup2(ending, 700)
        os.close(pipe[1])
    foreign, held = os.pipe()
    beyond = os.dup2(held, 900)
    child = send_in_background(ours.fileno(), REQUEST, ending)
    for descriptor in (held, beyond, ending):
        os.close(descriptor)
    assert kernels.recv(100) == REQUEST
    ours.close()
    assert os.read(foreign, 1) == b""  # no other process has it open
    os.close(foreign)
    assert wait_readable([report], 0.05) == []
    kernels.send(answer(0))
    assert os.read(report, 1) == b""
    assert status(child) == 0


def test_it_outlives_its_parent(pair, pipe):
    """The child goes on when the process has ended whose memory it shares, and no signal but SIGKILL stops it."""
    ours, kernels = pair
    report, ending = pipe
    asking = os.fork()
    if asking == 0:
        child = send_in_background(ours.fileno(), REQUEST, ending)
        os.write(ending, struct.pack("=i", child))
        os._exit(0)
    os.close(ending)
    ours.close()
    assert status(asking) == 0
    (child,) = struct.unpack("=i", os.read(report, 4))
    assert kernels.recv(100) == REQUEST
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        os.kill(child, number)
    assert wait_readable([report], 0.05) == []
    kernels.send(answer(0))
    assert os.read(report, 1) == b""


def test_our_signals_and_errors_are_as_before(pair, pipe):
    """The signals that we hold back are ours alone, and what the child meets is no error of ours."""
    ours, kernels = pair
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    child = send_in_background(ours.fileno(), REQUEST, pipe[1])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    kernels.send(answer(0))
    assert status(child) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((-1, REQUEST, 1), "not a descriptor: -1"),
        ((0, REQUEST, -2), "not a descriptor: -2"),
        ((0, bytes(1025), 1), "1025"),
    ],
)
def test_what_is_no_errand(arguments, said):
    """What cannot be a descriptor, or has no room, is refused before anything is started."""
    before = children()
    with pytest.raises(ValueError, match=said):
        send_in_background(*arguments)
    assert children() == before


def test_the_largest_request(pair, pipe):
    """A request may fill its room."""
    ours, kernels = pair
    largest = bytes(range(256)) * 4
    child = send_in_background(ours.fileno(), largest, pipe[1])
    assert kernels.recv(2000) == largest
    kernels.send(answer(0))
    assert status(child) == 0


def test_many_at_once(pair, pipe):
    """Each child has a stack of its own."""
    ours, kernels = pair
    children = [send_in_background(ours.fileno(), bytes([number]), pipe[1]) for number in range(50)]
    assert {kernels.recv(10) for _ in children} == {bytes([number]) for number in range(50)}
    for _ in children:
        kernels.send(answer(0))
    assert [status(child) for child in children] == [0] * 50


def test_a_socket_is_closed_last_of_all(pair, pipe):
    """The child closes the socket, and what else it inherited before, a pause after the pipe has ended."""
    ours, kernels = pair
    ended, writable = pipe
    foreign, held = os.pipe()
    child = close_in_background(ours.fileno(), ended, 50_000)
    os.close(held)
    ours.close()
    assert os.read(foreign, 1) == b""
    os.close(foreign)
    assert wait_readable([kernels.fileno()], 0.1) == []
    before = time.monotonic()
    os.close(writable)
    assert kernels.recv(1) == b""
    assert time.monotonic() - before >= 0.05
    assert status(child) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((-1, 0, 0), "not a descriptor: -1"), ((0, -2, 0), "not a descriptor: -2"), ((0, 1, -3), "not a duration: -3")],
)
def test_what_cannot_be_closed(arguments, said):
    """What cannot be a descriptor or a time is refused before anything is started."""
    before = children()
    with pytest.raises(ValueError, match=said):
        close_in_background(*arguments)
    assert children() == before


@pytest.mark.parametrize(
    ("ending", "expected"), [(0, True), (errno.ENODEV, True), (errno.EPERM, False), (errno.EBADMSG, False)]
)
def test_what_counts_as_deleted(ending, expected):
    """A link is gone when the child's request was granted, or when there was no such link."""
    pid = os.fork()
    if pid == 0:
        os._exit(ending)
    assert link_deletion._succeeded(pid, link.delete_request(DOOMED)) is expected


def test_a_child_that_was_killed_or_forgotten():
    """A killed child counts as failed; so does one whose exit status is not available."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
    os.kill(pid, signal.SIGKILL)
    assert link_deletion._succeeded(pid, link.delete_request(DOOMED)) is False
    assert link_deletion._succeeded(pid, link.delete_request(DOOMED)) is False
