"""The event loop of long-running programs."""

import os
import time
from functools import partial

import pytest

from process import loop as loops
from process.loop import Loop, now
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


def test_sleep_of_the_machine_is_noticed(monkeypatch):
    """A timer that has passed while the machine slept runs soon, although waiting for descriptors counts no sleep."""
    loop, slept = Loop(), 0.0
    monkeypatch.setattr(loops, "now", lambda: now() + slept)
    monkeypatch.setattr(loops, "_MAX_WAIT_S", loops._MAX_WAIT_S / 100)
    loop.call_at(now() + 3600, end)
    begin, slept = now(), 3600.0
    loop._wait()
    run(loop)
    assert now() - begin < 60


def test_clock_that_is_set_is_not_used(monkeypatch):
    """The wall clock has no part in the daemon's time: it is not read."""
    for name in ("time", "time_ns", "localtime", "gmtime"):
        monkeypatch.delattr(time, name)
    assert abs(now() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 60
    loop = Loop()
    loop.call_at(now() + 0.01, end)
    run(loop)
