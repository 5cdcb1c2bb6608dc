"""ADD and DEL with programs of iptables that wait, hang or print too much end in time and leave nothing."""

import fcntl
import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import uninterruptible, xtables
from tests.support.invocation import finish
from tests.support.machine import eventually
from tests.support.netstate import links

NEEDS_LEGACY = pytest.mark.needs("iptables_legacy_nat")


@pytest.fixture
def tools(tmp_path):
    """A directory of programs that precedes the host's on PATH."""
    directory = tmp_path / "tools"
    directory.mkdir()
    return directory


@pytest.fixture
def net(network, tools):
    """A masqueraded IPv4 network whose plugins use those programs."""
    return replace(network.having(ipMasq=True, ipMasqBackend="iptables"), env=xtables.path(tools))


@pytest.fixture
def legacy(tools):
    """iptables-legacy under the name of iptables, with a file that records each start; returns that file."""
    restore = tools / "iptables-restore"
    restore.write_text(f'#!/bin/sh\necho $$ >> {tools}/notes\nexec {tools}/legacy/iptables-restore "$@"\n')
    restore.chmod(0o755)
    (tools / "legacy").mkdir()
    for name in ("iptables-restore", "iptables-save"):
        (tools / "legacy" / name).symlink_to("/usr/sbin/xtables-legacy-multi")
    return tools / "notes"


@pytest.fixture
def program(tools):
    """A function that installs a shell script as iptables-restore; kills the processes in `$PID_FILE` afterwards."""
    restore, pids = tools / "iptables-restore", tools / "pids"

    def install(script):
        restore.write_text(f"#!/bin/sh\nPID_FILE={pids}\n{script}\n")
        restore.chmod(0o755)

    yield install
    for pid in pids.read_text().split() if pids.exists() else ():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def rules(net, tools):
    lines = net.host.run(f"{tools}/legacy/iptables-save", "-t", "nat").splitlines()
    return [line for line in lines if line.startswith("-A") or " - [" in line]


def has_ended(pid):
    """Returns whether a process has ended, even if its parent has not waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def nothing_is_left(net, sandbox):
    return (net.leases(), set(links(sandbox))) == ({}, {"lo"})


@NEEDS_LEGACY
@pytest.mark.parametrize("writes", [False, True])
def test_a_killed_add_commits_nothing_later(net, tools, legacy, sandbox, tmp_path, writes):
    """SIGKILL of an ADD that waits for the lock also ends the program, so that it commits nothing after DEL."""
    lock = tmp_path / "xtables.lock"
    env = {**net.env, "XTABLES_LOCKFILE": str(lock)}
    if not writes:  # table nat exists, so that ADD reads first
        net.host.run(f"{tools}/legacy/iptables-save", "-t", "nat")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        process = net.start("ADD", sandbox, env=env)
        assert eventually(lambda: legacy.exists() and legacy.read_text().endswith("\n"))
        (pid,) = legacy.read_text().split()
        assert eventually(lambda: os.readlink(f"/proc/{pid}/exe").endswith("xtables-legacy-multi"))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert eventually(lambda: has_ended(pid))
    net.delete(sandbox)
    assert rules(net, tools) == []


UNINTERRUPTIBLE = pytest.param(
    f'exec {sys.executable} {uninterruptible.__file__} "$PID_FILE"',  # as with a broken disk
    marks=pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no FUSE here"),
    id="uninterruptible",
)
SLEEPING = pytest.param('echo $$ >> "$PID_FILE"\nexec sleep 100', id="sleeping")


@pytest.mark.long
@pytest.mark.parametrize("script", [SLEEPING, UNINTERRUPTIBLE])
def test_a_hanging_program_gives_code_11(net, program, sandbox, script):
    """A program that does not end, or cannot even be killed, does not delay ADD, which fails with code 11."""
    program(script)
    error = net.run("ADD", sandbox).error()
    assert (error["code"], "iptables-restore did not end within 20 s" in error["msg"]) == (11, True)
    assert nothing_is_left(net, sandbox)


@pytest.mark.long
@NEEDS_LEGACY
def test_rules_of_a_hanging_program_are_removed_by_the_next_del(net, legacy, tools, sandbox):
    """A program that a script started is killed with it; the next DEL removes the rules that it committed."""
    restore = tools / "iptables-restore"
    working = restore.read_text()
    restore.write_text(working.replace("exec ", "") + f"sleep 100 &\necho $! >> {tools}/started\nwait\n")
    error = net.run("ADD", sandbox).error()
    assert (error["code"], "did not end within 20 s" in error["msg"]) == (11, True)
    assert rules(net, tools) != []
    started = (tools / "started").read_text().split()
    assert started
    assert eventually(lambda: all(map(has_ended, started)))
    restore.write_text(working)
    net.delete(sandbox)
    assert rules(net, tools) == []
    assert nothing_is_left(net, sandbox)


def test_a_signal_ends_a_program_that_ignores_it(net, program, tools, sandbox):
    """SIGTERM ends an ADD before the program's 20 s have passed, even if the program ignores the signal."""
    program("[ -e $0.again ] && exit 3\ntrap '' TERM INT\n: > $0.again\nwhile :; do sleep 0.2; done")
    process = net.start("ADD", sandbox)
    assert eventually((tools / "iptables-restore.again").exists)
    os.kill(process.pid, signal.SIGTERM)
    error = finish(process).error()
    assert (error["code"], "did not end within" in error["msg"]) == (11, False)
    assert nothing_is_left(net, sandbox)


def test_add_does_not_wait_for_background_processes(net, program, sandbox):
    """A process that keeps the program's pipes open after its end delays neither ADD nor its error."""
    program('sleep 1000 &\necho $! >> "$PID_FILE"\necho no luck >&2\nexit 3')
    error = net.run("ADD", sandbox).error()
    assert "no luck" in error["details"]
    assert "did not end" not in error["msg"]
    assert nothing_is_left(net, sandbox)


def test_long_output_is_truncated_in_the_error(net, program, sandbox):
    """The error has the beginning of thirty megabytes on stderr; endless stdout is an error, too."""
    program("echo no luck >&2\nhead -c 30000000 /dev/zero | tr '\\0' x >&2\nexit 3")
    outcome = net.run("ADD", sandbox)
    error = outcome.error()
    assert error["details"].startswith("no luck xxx")
    assert len(error["details"]) < 600
    assert len(outcome.stderr) < 10_000
    program("exec cat /dev/zero")
    assert "64 MiB" in net.run("ADD", sandbox).error()["msg"]
    assert nothing_is_left(net, sandbox)
