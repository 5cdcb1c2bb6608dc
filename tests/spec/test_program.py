"""The executable: copies, links, replacement while it runs, signals."""

import os
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from tests.support import binaries, netstate, scripted_ipam, seccomp
from tests.support.invocation import Outcome, environment, feed, finish, start_plugin

DEADLINE_S = 20.0


def wait_until(condition):
    """Waits until `condition` holds; AssertionError after DEADLINE_S."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "the condition does not hold in time"
        time.sleep(0.005)


_MASKS = ("SigCgt", "SigIgn")


def catches_signals(process):
    """Returns whether Python handles SIGTERM, in the process itself or, in the portable variant, in its child."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return any(_python_catches(pid) for pid in (process.pid, *children))


def _python_catches(pid):
    """Returns whether a process catches SIGTERM and ignores SIGPIPE, as Python does and PyInstaller does not."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = {name: int(mask, 16) for name, _, mask in (line.partition(":\t") for line in lines) if name in _MASKS}
    caught, ignored = (masks[name] for name in _MASKS)
    return bool(caught >> (signal.SIGTERM - 1) & ignored >> (signal.SIGPIPE - 1) & 1)


@pytest.mark.parametrize("make", [shutil.copy2, os.link, os.symlink])
def test_file_name_selects_the_plugin(refused, make, tmp_path):
    """A copy, a hard link and a symbolic link work alone in any directory, whatever the original file's name is."""
    original = shutil.copy2(binaries.directory() / refused.plugin, tmp_path / "original")
    make(original, tmp_path / refused.plugin)
    assert refused("VERSION", bin_dir=tmp_path).stdout == refused("VERSION").stdout
    assert refused("ADD", b"{", bin_dir=tmp_path).error()["code"] == 6


def test_another_file_name_is_the_operators_tool(plugin, bin_dir, tmp_path):
    """Under the name `podwire` the file lists its plugins; under a wrong name a runtime gets an error object."""
    lists = {}
    for name in ("podwire", "nonsense"):
        program = shutil.copy2(bin_dir / plugin, tmp_path / name)
        lists[name] = subprocess.run([program, "list"], capture_output=True, text=True, timeout=60, check=False)
    assert lists["podwire"].stdout.split() == binaries.names()
    done = subprocess.run([tmp_path / "nonsense"], env=environment("ADD"), capture_output=True, timeout=60, check=False)
    error = Outcome(done.returncode, done.stdout, done.stderr.decode()).error()
    assert error["msg"] == "there is no plugin named 'nonsense' in this file"
    assert "to one of bandwidth, bridge, " in error["details"]
    done = subprocess.run([tmp_path / "nonsense"], env=environment(None), capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"usage: podwire" in done.stderr


@pytest.mark.parametrize("make", [shutil.copy2, os.link])
def test_unknown_argv0_falls_back_to_the_file_name(refused, make, tmp_path):
    """If argv[0] names no plugin, the file's name selects the plugin."""
    original = shutil.copy2(binaries.directory() / refused.plugin, tmp_path / "original")
    make(original, tmp_path / refused.plugin)
    for argv0 in ("", "nonsense", "/proc/self/fd/3", "cni plugin"):
        done = subprocess.run(
            [argv0], executable=tmp_path / refused.plugin, env=environment("VERSION"), capture_output=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, refused("VERSION").stdout), done


def test_link_with_another_name_runs_the_plugin_of_its_target(refused, tmp_path):
    """A symbolic link with any name works when its target has a plugin's name."""
    shutil.copy2(binaries.directory() / refused.plugin, tmp_path / refused.plugin)
    (tmp_path / "renamed").symlink_to(refused.plugin)
    done = subprocess.run([tmp_path / "renamed"], env=environment("VERSION"), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, refused("VERSION").stdout)


def test_file_may_be_replaced_while_it_runs(invoke, tmp_path):
    """An upgrade that renames a new file over the running one does not affect the invocation."""
    binaries.copy_to(tmp_path / "bin")
    file = tmp_path / "bin" / invoke.plugin
    process = start_plugin(
        invoke.plugin, "ADD", host=invoke.host, netns=invoke.sandbox, bin_dir=tmp_path / "bin"
    )  # the plugin waits for its stdin
    wait_until(partial(catches_signals, process))
    shutil.copy2(file, tmp_path / "new")
    os.replace(tmp_path / "new", file)
    finish(process, invoke.config()).result()
    invoke("DEL").assert_silent()


def test_signal_while_reading_stdin_is_reported(refused):
    """SIGTERM before the end of stdin ends the plugin with an error object of code 11."""
    process = start_plugin(refused.plugin, "ADD", host=refused.host, netns=refused.sandbox)
    wait_until(partial(catches_signals, process))
    process.send_signal(signal.SIGTERM)
    process.wait(DEADLINE_S)  # with its stdin still open
    assert finish(process).error()["code"] == 11


@pytest.mark.parametrize("call", ["rt_sigaction", "rt_sigprocmask"])
def test_seccomp_filter_that_denies_signal_calls_is_an_error_object(invoke, call):
    """A plugin that may not block signals prints an error object and changes nothing."""
    before = netstate.state(invoke.host), netstate.state(invoke.sandbox)
    for command in ("VERSION", "ADD"):
        error = invoke(command, before=seccomp.command_prefix(call), path="/none").error()
        assert (error["code"], error["msg"]) == (5, "cannot hold back SIGTERM and SIGINT: Operation not permitted")
        assert call in error["details"]
    assert (netstate.state(invoke.host), netstate.state(invoke.sandbox)) == before


def test_missing_proc_is_an_error_object(invoke):
    """An unexpected failure, here a missing /proc, is reported as an error object, too."""
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$0"']
    error = invoke("ADD", before=hidden, path="/none").error()
    assert (error["code"], "get plugin's netns failed" in error["msg"]) == (8, True)


@pytest.fixture
def run_bridge(host, sandbox, tmp_path):
    """A function that runs a verb of bridge; with `stuck`, it returns the process when its IPAM plugin hangs."""
    stuck_file = tmp_path / "ipam" / "stuck"
    answer = {"ips": [{"address": "10.1.2.5/24"}]}
    ipam = scripted_ipam.install(
        tmp_path / "ipam", answer, f"[ ! -e {stuck_file} ] || {{ rm {stuck_file}; exec sleep 60; }}"
    )
    config = {
        "cniVersion": "1.0.0",
        "name": "net",
        "type": "bridge",
        "bridge": "cni0",
        "ipam": {"type": scripted_ipam.NAME},
    }
    path = f"{ipam.directory}:{binaries.directory()}"

    def run(command, *, stuck=False):
        if stuck:
            stuck_file.touch()
        process = start_plugin("bridge", command, host=host, netns=sandbox, path=path)
        if not stuck:
            return finish(process, config)
        feed(process, config)
        wait_until(lambda: not stuck_file.exists())
        return process

    return run


@pytest.fixture
def is_unchanged(run_bridge, host, sandbox):
    """A function that returns whether the state is that before an attachment, except for the bridge, which stays."""
    run_bridge("ADD").result()
    run_bridge("DEL").assert_silent()
    before = netstate.state(host), netstate.state(sandbox)
    return lambda: (netstate.state(host), netstate.state(sandbox)) == before


def test_signal_during_add_rolls_back(run_bridge, is_unchanged):
    """SIGTERM while the IPAM plugin runs ends both and rolls back all changes; ADD and DEL work afterwards."""
    process = run_bridge("ADD", stuck=True)
    process.send_signal(signal.SIGTERM)
    assert finish(process).error()["code"] == 11
    assert is_unchanged()
    run_bridge("ADD").result()
    assert not is_unchanged()
    run_bridge("DEL").assert_silent()
    assert is_unchanged()


def test_del_succeeds_after_a_signal_during_del(run_bridge, is_unchanged):
    """After SIGTERM during DEL, the next DEL removes everything."""
    run_bridge("ADD").result()
    process = run_bridge("DEL", stuck=True)
    process.send_signal(signal.SIGTERM)
    assert finish(process).error()["code"] == 11
    run_bridge("DEL").assert_silent()
    assert is_unchanged()
