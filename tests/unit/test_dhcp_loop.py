"""The event loop of dhcp's daemon."""

from __future__ import annotations

import os
from functools import partial

import pytest

from ipam.dhcp.daemon.loop import Loop, now
from process.signals import Terminated


def run(loop: Loop) -> None:
    """Runs the loop until a callback ends it."""
    with pytest.raises(Terminated):
        loop.run()


def end() -> None:
    """Ends the loop, as a signal does."""
    raise Terminated


def fail() -> None:
    """Fails, as a mistake in the daemon would."""
    raise KeyError("key")


def test_timers_run_in_their_order():
    """Timers run in the order of their times, those of one time in the order of their creation; not if cancelled."""
    loop, start = Loop(), now()
    ran: list[str] = []
    for name, delay in (("third", 0.03), ("first", 0.01), ("second", 0.01), ("never", 0.02)):
        timer = loop.call_at(start + delay, partial(ran.append, name))
        if name == "never":
            timer.cancel()
    loop.call_at(start + 0.05, end)
    run(loop)
    assert ran == ["first", "second", "third"]


def test_failed_callbacks_are_logged_and_the_others_run(capfd):
    """An exception of a callback is one line on stderr; the loop continues, without the descriptor that caused it."""
    loop = Loop()
    reader, writer = os.pipe()
    os.write(writer, b"x")
    loop.watch(reader, partial(divmod, 1, 0))
    loop.call_at(now(), fail)
    loop.call_at(now() + 0.05, end)
    run(loop)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "KeyError: 'key' in fail, line" in lines[0]
    assert "ZeroDivisionError" in lines[1]
    os.close(reader)
    os.close(writer)
