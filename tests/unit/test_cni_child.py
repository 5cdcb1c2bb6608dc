"""Running other programs (cni.child)."""

import os
import signal
import time

import pytest

from cni import child, signals
from cni.child import Command, Outcome
from tests.support.errors import failure_of

ENV = {"PATH": os.environ["PATH"]}


def shell(script, stdin=b"", **how):
    return Command(("/bin/sh", "-c", script), how.pop("env", ENV), stdin, **how)


def in_a_child(what):
    """Runs `what` in a process of its own, with one thread as a plugin has, and returns whether it was true."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if what() else 1)
        finally:
            os._exit(2)
    return os.waitpid(pid, 0)[1] == 0


def children():
    """Returns the processes that this one has started and not yet waited for."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read().split()


def test_programs_get_their_input_and_environment():
    """Each program reads its own stdin and sees its environment and nothing else."""
    env = {"A": "b", "OWN": "ümlaut\udcff"}
    one, two = child.run(Command(("/bin/cat",), {}, b"x\0\xff"), Command(("/usr/bin/env",), env))
    assert one == Outcome(0, b"x\0\xff", b"")
    assert two.stdout.splitlines() == [b"A=b", os.fsencode("OWN=ümlaut\udcff")]


@pytest.mark.parametrize(("script", "status", "how"), [("exit 3", 3, "exit status 3"), ("kill -9 $$", -9, "signal 9")])
def test_the_end_of_a_program_is_told(script, status, how):
    """An exit status is a number, the signal that ended a program a negative one, and both have words."""
    (outcome,) = child.run(shell(script))
    assert (outcome.status, outcome.how) == (status, how)


def test_stderr_is_ours_unless_captured(capfd):
    """What a program writes on stderr appears on ours, or in its outcome when that is asked for."""
    script = "echo out; echo err >&2"
    assert child.run(shell(script), shell(script, capture_stderr=True)) == [
        Outcome(0, b"out\n", b""),
        Outcome(0, b"out\n", b"err\n"),
    ]
    assert capfd.readouterr().err == "err\n"


def test_programs_run_side_by_side(tmp_path):
    """Two programs that wait for each other both end, and their outcomes come in the order of the commands."""
    os.mkfifo(tmp_path / "fifo")
    reader, writer = shell(f"cat {tmp_path}/fifo"), shell(f"echo hello > {tmp_path}/fifo; exit 1")
    assert child.run(reader, writer) == [Outcome(0, b"hello\n", b""), Outcome(1, b"", b"")]


def test_much_output_on_every_stream_blocks_nobody():
    """Two programs that fill stdout and stderr beyond what a pipe holds are both read to the end."""
    script = "head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero; cat >/dev/null"
    outcomes = child.run(*(shell(script, b"x" * 300_000, capture_stderr=True) for _ in range(2)))
    assert [(o.status, len(o.stdout), len(o.stderr)) for o in outcomes] == [(0, 300_000, 300_000)] * 2


def test_what_cannot_be_started_ends_what_was(tmp_path):
    """When the second program cannot be started, the first gets SIGTERM, is waited for, and the reason is raised."""
    first = shell(
        f"trap 'echo cleaned > {tmp_path}/end; exit' TERM; echo > {tmp_path}/up; while :; do sleep 0.02; done"
    )
    os.mkfifo(tmp_path / "up")

    def second_when_first_is_up(*args, **kwargs):
        if args[0] == "/nonexistent":
            (tmp_path / "up").read_text()
        return posix_spawn(*args, **kwargs)

    posix_spawn = os.posix_spawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_spawn", second_when_first_is_up)
        with pytest.raises(FileNotFoundError):
            child.run(first, Command(("/nonexistent",), {}))
    assert (tmp_path / "end").read_text() == "cleaned\n"
    assert children() == []


def test_descriptors_and_processes_do_not_stay(tmp_path):
    """Neither success nor failure leaves a file open or a process unwaited."""
    before = os.listdir("/proc/self/fd")
    child.run(shell("exit 1"), shell("", capture_stderr=True))
    with pytest.raises(PermissionError):
        child.run(shell(""), Command((str(tmp_path),), {}))
    assert (os.listdir("/proc/self/fd"), children()) == (before, [])


def test_a_signal_ends_all_programs_first(tmp_path):
    """SIGTERM while waiting is passed on to every program that runs, each is waited for, then it is raised.

    One that has ended already is no obstacle.
    """
    script = f"""trap 'sleep 0.1; echo cleaned >> {tmp_path}/end; exit 1' TERM
        [ $1 = first ] || {{ sleep 0.1; kill -TERM $PPID; }}
        while :; do sleep 0.02; done"""

    def plugin():
        signals.hold()
        commands = [Command(("/bin/sh", "-c", script, "sh", name), ENV) for name in ("first", "second")]
        start = time.monotonic()
        ended = failure_of(lambda: child.run(shell("exit 0"), *commands), signals.Terminated)
        return ended is not None and time.monotonic() - start < 10 and children() == []

    assert in_a_child(plugin)
    assert (tmp_path / "end").read_text() == "cleaned\n" * 2


def test_a_signal_that_came_before_arrives_while_waiting(tmp_path):
    """A signal held back before the start is delivered once the program runs, and ends it."""

    def plugin():
        signals.hold()
        os.kill(os.getpid(), signal.SIGINT)
        return failure_of(lambda: child.run(shell("sleep 60")), signals.Terminated) is not None and children() == []

    assert in_a_child(plugin)


def test_programs_start_with_default_signals():
    """SIGPIPE, which Python ignores, and signals held back by us are the defaults again in a program."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        (outcome,) = child.run(Command(("/bin/cat", "/proc/self/status"), {}))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    masks = dict(line.split(":\t", 1) for line in outcome.stdout.decode().splitlines() if line.startswith("Sig"))
    assert not int(masks["SigBlk"], 16) >> (signal.SIGTERM - 1) & 1
    assert not int(masks["SigIgn"], 16) >> (signal.SIGPIPE - 1) & 1
