"""dhcp's configuration, its ADD with a daemon that does not answer, and the event loop of daemons with its timers."""

import json
import os
import time
from functools import partial

import pytest

from cni import args as cni_args
from cni import conf as cni_conf
from cni.errors import CniError
from ipam.dhcp import conf as dhcp_conf
from ipam.dhcp import main
from ipam.dhcp.rpc import ALLOCATE, RELEASE
from process import loop as loops
from process.loop import Loop, now
from process.signals import Terminated
from tests.support.dhcp import answering_calls


@pytest.mark.parametrize(
    ("error", "code", "methods"), [("", 11, [ALLOCATE, RELEASE]), ("no more tries", 999, [ALLOCATE])]
)
def test_add_without_an_answer_is_released(tmp_path, monkeypatch, error, code, methods):
    """An ADD that the daemon does not answer in time is followed by a release; one that it refuses is not."""
    monkeypatch.setattr(main, "_ALLOCATE_LIMIT_S", 60 if error else 0.3)

    def answer(server, call):
        if call.method == RELEASE:
            return server.reply(call, None)
        return server.refuse(call, error) if error else b""

    env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_IFNAME": "eth0", "CNI_NETNS": "/run/x", "CNI_PATH": "/"}
    ipam = {"type": "dhcp", "daemonSocketPath": str(tmp_path / "dhcp.sock"), "dataDir": str(tmp_path)}
    conf = cni_conf.parse(json.dumps({"cniVersion": "1.0.0", "name": "net", "type": "macvlan", "ipam": ipam}).encode())
    with answering_calls(tmp_path / "dhcp.sock", answer) as calls, pytest.raises(CniError) as failure:
        main.cmd_add(cni_args.from_env(env), conf)
    assert (failure.value.code, [call.method for call in calls]) == (code, methods)


@pytest.mark.parametrize("number", ["50", "52", "53", "54"])
def test_provided_option_of_the_protocol(number):
    """Options that each message of the client depends on cannot be replaced."""
    stdin = {"name": "net", "ipam": {"type": "dhcp", "provide": [{"option": number, "value": "x"}]}}
    with pytest.raises(CniError, match="cannot be provided") as caught:
        dhcp_conf.parse(cni_conf.parse(json.dumps(stdin).encode()), "")
    assert caught.value.code == 7


def test_cancelled_timers_are_removed():
    """Timers of deleted pods, which would end in days, do not stay in memory; the others stay, in their order."""
    loop = Loop()
    ran: list[int] = []
    for number in reversed(range(300)):
        loop.call_at(float(number), partial(ran.append, number))
        for _ in range(30):
            loop.call_at(now() + 86400, lambda: None).cancel()
    assert len(loop._timers) < 1000
    loop._run_timers()
    assert ran == list(range(300))


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
