"""Standard streams that are non-blocking, full or closed."""

import contextlib
import json
import os
import socket
import time
from pathlib import Path

import pytest

from tests.support.invocation import finish, start_plugin, strict_json

DEADLINE_S = 20.0
ENDS = {"pipe": os.pipe, "socket": lambda: tuple(end.detach() for end in socket.socketpair())}


def wait_until_asleep(process):
    """Waits until a process sleeps or ends."""
    end = time.monotonic() + DEADLINE_S
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] not in "SZ":
        assert time.monotonic() < end, "the process neither sleeps nor ends"
        time.sleep(0.005)


@pytest.mark.parametrize("kind", ENDS)
def test_late_input_on_a_nonblocking_stream(refused, kind):
    """A plugin waits for all parts of its configuration when stdin is non-blocking, and leaves it non-blocking."""
    reader, writer = ENDS[kind]()
    os.set_blocking(reader, False)
    process = start_plugin(refused.plugin, "NOPE", netns=refused.sandbox, host=refused.host, stdin=reader)
    text = json.dumps(refused.config()).encode()
    for part in (text[:20], text[20:]):
        wait_until_asleep(process)
        with contextlib.suppress(BrokenPipeError):
            os.write(writer, part)
    os.close(writer)
    assert finish(process).error()["msg"] == "unknown CNI_COMMAND: NOPE"
    assert not os.get_blocking(reader)
    os.close(reader)


@pytest.mark.parametrize("kind", ENDS)
def test_late_reader_of_a_nonblocking_stream(refused, kind):
    """A plugin waits until a full, non-blocking stdout has room, and then writes its whole answer."""
    reader, writer = ENDS[kind]()
    os.set_blocking(writer, False)
    filled = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            filled += os.write(writer, b" " * 4096)
    process = start_plugin(refused.plugin, "VERSION", host=refused.host, stdout=writer)
    os.close(writer)
    wait_until_asleep(process)
    with open(reader, "rb") as rest:
        answer = rest.read()[filled:]
    assert (finish(process).status, strict_json(answer)["cniVersion"]) == (0, "1.1.0")


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
def test_unreadable_stdout(refused, redirection):
    """When stdout is closed or full, exit status and stderr report that the result could not be written."""
    outcome = refused("VERSION", before=("sh", "-c", f'exec "$0" {redirection}'))
    assert (outcome.status, outcome.stdout) == (1, b"")
    assert outcome.stderr.startswith("podwire: error writing to stdout: ")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_unreadable_stderr_fails_no_verb(refused, redirection):
    """When stderr is closed or full, a verb that cannot write a warning succeeds."""
    config = refused.config(**{"cni.dev/valid-attachments": None})  # GC then removes nothing
    refused("GC", config, before=("sh", "-c", f'exec "$0" {redirection}'), path="/none").assert_silent()
