"""Running other programs (process.child), and spawn_bound, which kills them with this process (kernel/_podwire.c)."""

import errno
import os
import select
import signal
import time
from functools import partial

import pytest
from _podwire import spawn_bound

from process import child, signals
from process.child import ChildCommand, Notice, Outcome
from tests.support.errors import error_of, failure_of
from tests.support.processes import in_a_child

ENV = {"PATH": os.environ["PATH"]}
LIMIT_S = 30  # much more than anything here takes, and less than what is not waited for


@pytest.fixture(params=[child.posix_spawn, spawn_bound], ids=["free", "bound"])
def run(request):
    """child.run with each way to start a program."""
    return partial(child.run, spawn=request.param)


def shell(script, stdin=b"", **how):
    return ChildCommand(("/bin/sh", "-c", script), how.pop("env", ENV), stdin, **how)


def children():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read().split()


def test_programs_get_their_input_and_environment(run):
    """Each program reads its stdin and has only its environment."""
    env = {"A": "b", "NAME": "ümlaut\udcff"}
    one, two = run(ChildCommand(("/bin/cat",), {}, b"x\0\xff"), ChildCommand(("/usr/bin/env",), env))
    assert one == Outcome(0, b"x\0\xff", b"")
    assert two.stdout.splitlines() == [b"A=b", os.fsencode("NAME=ümlaut\udcff")]


def test_stderr_is_inherited_unless_captured(run, capfd):
    """A program's stderr is inherited, or is in its outcome with capture_stderr."""
    script = "echo out; echo err >&2"
    outcomes = run(shell(script), shell(script, capture_stderr=True))
    assert outcomes == [Outcome(0, b"out\n", b""), Outcome(0, b"out\n", b"err\n")]
    assert capfd.readouterr().err == "err\n"


def test_programs_run_in_parallel(tmp_path):
    """Two programs that wait for each other both end, and their outcomes are in the order of the commands."""
    os.mkfifo(tmp_path / "fifo")
    reader, writer = shell(f"cat {tmp_path}/fifo"), shell(f"echo hello > {tmp_path}/fifo; exit 1")
    assert child.run(reader, writer) == [Outcome(0, b"hello\n", b""), Outcome(1, b"", b"")]


def test_large_output_on_every_stream():
    """Two programs that write more to stdout and stderr than a pipe holds are both read to the end."""
    script = "head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero; cat >/dev/null"
    outcomes = child.run(*(shell(script, b"x" * 300_000, capture_stderr=True) for _ in range(2)))
    assert [(o.status, len(o.stdout), len(o.stderr)) for o in outcomes] == [(0, 300_000, 300_000)] * 2


def test_a_failed_start_ends_the_other_programs(tmp_path):
    """If the second program cannot be started, the first gets SIGTERM and is waited for, and the error is raised."""
    first = shell(
        f"trap 'echo cleaned > {tmp_path}/end; exit' TERM; echo > {tmp_path}/up; while :; do sleep 0.02; done"
    )
    os.mkfifo(tmp_path / "up")

    def second_when_first_is_up(*args, **kwargs):
        if args[0] == b"/nonexistent":
            (tmp_path / "up").read_text()
        return posix_spawn(*args, **kwargs)

    posix_spawn = os.posix_spawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_spawn", second_when_first_is_up)
        with pytest.raises(FileNotFoundError):
            child.run(first, ChildCommand(("/nonexistent",), {}))
    assert (tmp_path / "end").read_text() == "cleaned\n"
    assert children() == []


def test_no_descriptor_or_process_remains(run, tmp_path):
    """After success and failure no descriptor and no process remains, and the handling of signals is unchanged."""

    def process_state():
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        return os.listdir("/proc/self/fd"), children(), mask, signal.getsignal(signal.SIGCHLD)

    before = process_state()
    run(shell("exit 1"), shell("", capture_stderr=True))
    error = error_of(lambda: run(shell(""), ChildCommand((str(tmp_path),), {})), PermissionError)
    assert (process_state(), error.strerror) == (before, os.strerror(errno.EACCES))
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    assert wakeup == -1


def test_a_signal_ends_all_programs_first(tmp_path):
    """SIGTERM is passed on to every running program, each is waited for, and then it is raised."""
    script = f"""trap 'sleep 0.1; echo cleaned >> {tmp_path}/end; exit 1' TERM
        [ $1 = first ] || {{ sleep 0.1; kill -TERM $PPID; }}
        while :; do sleep 0.02; done"""

    def plugin():
        signals.block()
        commands = [ChildCommand(("/bin/sh", "-c", script, "sh", name), ENV) for name in ("first", "second")]
        start = time.monotonic()
        ended = failure_of(lambda: child.run(shell("exit 0"), *commands), signals.Terminated)
        return ended is not None and time.monotonic() - start < LIMIT_S and children() == []

    assert in_a_child(plugin)
    assert (tmp_path / "end").read_text() == "cleaned\n" * 2


def test_a_blocked_signal_is_delivered_while_waiting(tmp_path):
    """A signal that was blocked before the start is delivered when the program runs, and ends it."""

    def plugin():
        signals.block()
        os.kill(os.getpid(), signal.SIGINT)
        return failure_of(lambda: child.run(shell("sleep 60")), signals.Terminated) is not None and children() == []

    assert in_a_child(plugin)


def test_programs_start_with_default_signals(run):
    """SIGPIPE, which Python ignores, and blocked signals have their default actions in a program."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        (outcome,) = run(ChildCommand(("/bin/cat", "/proc/self/status"), {}))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    masks = dict(line.split(":\t", 1) for line in outcome.stdout.decode().splitlines() if line.startswith("Sig"))
    assert not int(masks["SigBlk"], 16) >> (signal.SIGTERM - 1) & 1
    assert not int(masks["SigIgn"], 16) >> (signal.SIGPIPE - 1) & 1


def test_a_program_has_three_descriptors(run):
    """A program inherits no other pipes and files of this process."""
    before = {os.readlink(f"/proc/self/fd/{fd}") for fd in range(256) if os.path.exists(f"/proc/self/fd/{fd}")}
    (_, outcome) = run(shell(""), ChildCommand(("/bin/ls", "-l", "/proc/self/fd"), {}, capture_stderr=True))
    seen = set(outcome.stdout.decode().split()) - before
    assert len([word for word in seen if word.startswith("pipe:")]) == 2
    assert outcome.stdout.count(b"/memfd:stdin") == 1


def test_a_free_program_outlives_its_parent(tmp_path):
    """A program that was started in the default way continues if its parent is killed, as a delegate has to."""
    os.mkfifo(tmp_path / "end")
    script = f"kill -9 $PPID; sleep 0.1; echo done > {tmp_path}/end"
    assert not in_a_child(lambda: child.run(shell(script)))
    assert (tmp_path / "end").read_text() == "done\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([], [], (-1, -1, -1), ()), ValueError),
        (([b"/bin/true\0"], [], (-1, -1, -1), ()), ValueError),
        ((["/bin/true"], [], (-1, -1, -1), ()), TypeError),
        (([b"/bin/true"], [b"A=\0"], (-1, -1, -1), ()), ValueError),
        (([b"/bin/true"], [], (-1, -1, -1), (1000,)), ValueError),
        (([b"/bin/true"], [], (-1, -1, -1), ("x",)), TypeError),
        (([b"/bin/true"], [], (1 << 20, -1, -1), ()), OSError),
    ],
)
def test_invalid_arguments_of_spawn_bound(arguments, error):
    """Invalid arguments are errors and start no process."""
    with pytest.raises(error):
        spawn_bound(*arguments)
    assert children() == []


def test_a_hanging_program_is_killed(run):
    """After the limit every program gets SIGTERM, one that ignores it SIGKILL, and TimeoutError is raised."""
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        run(shell("exec sleep 60"), shell("trap '' TERM; while :; do sleep 0.1; done"), limit_s=0.2)
    assert 1 < time.monotonic() - start < LIMIT_S
    assert children() == []


def test_children_of_a_hanging_program_are_killed(run, tmp_path):
    """After the limit the process that a script waits for is killed, even if it ignores SIGTERM."""
    os.mkfifo(tmp_path / "held")
    with open(os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK), "rb") as held:
        with pytest.raises(TimeoutError):
            run(shell(f"(trap '' TERM; exec sleep 60 >{tmp_path}/held) & wait"), limit_s=0.5)
        end = select.poll()
        end.register(held, 0)
        assert end.poll(LIMIT_S * 1000) == [(held.fileno(), select.POLLHUP)]  # no process has it open for writing


def test_waiting_uses_no_processor_time():
    """Waiting for one program after the end of another uses no processor time."""
    before = time.process_time()
    child.run(shell("exit 0"), shell("sleep 0.5"))
    assert time.process_time() - before < 0.25


@pytest.mark.parametrize(("size", "fails"), [(200_000, False), (200_001, True)])
def test_too_long_stdout_is_an_error(monkeypatch, size, fails):
    """A program that writes more to stdout than the limit is killed, and the error is EFBIG."""
    monkeypatch.setattr(child, "STDOUT_BYTES", 200_000)
    error = failure_of(lambda: child.run(shell(f"head -c {size} /dev/zero")), OSError)
    assert (error and error.errno) == (errno.EFBIG if fails else None)
    assert children() == []


def test_background_processes_are_not_waited_for(run):
    """A background process with open pipes causes no delay, and all output of its parent is read."""
    start = time.monotonic()
    script = "exec 2>&1; head -c 40000 /dev/zero; sleep 60 & echo $!; exit 3"
    (outcome,) = run(shell(script))
    os.kill(int(outcome.stdout[40000:]), signal.SIGKILL)
    assert (outcome.status, outcome.stdout[:40000]) == (3, bytes(40000))
    assert time.monotonic() - start < LIMIT_S


@pytest.mark.parametrize("mask", [(), (signal.SIGCHLD,)])
@pytest.mark.parametrize("action", [signal.SIG_DFL, signal.SIG_IGN])
def test_inherited_handling_of_sigchld(action, mask):
    """With SIGCHLD ignored or blocked by the parent process, the end of a program and its status are recognised."""

    def plugin():
        signal.signal(signal.SIGCHLD, action)
        signal.pthread_sigmask(signal.SIG_BLOCK, mask)
        start = time.monotonic()
        (outcome,) = child.run(shell("exec >&-; sleep 0.1; exit 3"), limit_s=60)
        return outcome.status == 3 and time.monotonic() - start < LIMIT_S

    assert in_a_child(plugin)


@pytest.mark.parametrize(("script", "reports"), [("exit 0", 0), ("read line < $FIFO; sleep 0.1; echo done", 1)])
def test_a_long_run_is_reported_once(run, tmp_path, script, reports):
    """The notice of a long run is called once, while the program continues; that of a short run is not called."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    calls = []
    end = os.open(fifo, os.O_RDWR)

    def report():
        calls.append("report")
        os.write(end, b"go\n")

    after_s = 0.1 if reports else 60
    (outcome,) = run(shell(script, env={**ENV, "FIFO": str(fifo)}), notice=Notice(after_s, report))
    os.close(end)
    assert (outcome.status, outcome.stdout, len(calls)) == (0, b"done\n" if reports else b"", reports)
