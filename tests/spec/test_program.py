"""The file itself: copies, links, replacement while it runs, and signals."""

import json
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


def until(condition):
    """Waits until `condition` holds; fails the test when it never does."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


_MASKS = ("SigCgt", "SigIgn")


def catches_signals(process):
    """Tells whether Python has taken SIGTERM in hand, in the process itself or, in the portable variant, its child."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return any(_python_catches(pid) for pid in (process.pid, *children))


def _python_catches(pid):
    """Tells whether SIGTERM is caught where SIGPIPE is ignored, as Python does and PyInstaller's loader does not."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = {name: int(mask, 16) for name, _, mask in (line.partition(":\t") for line in lines) if name in _MASKS}
    caught, ignored = (masks[name] for name in _MASKS)
    return bool(caught >> (signal.SIGTERM - 1) & ignored >> (signal.SIGPIPE - 1) & 1)


@pytest.mark.parametrize("make", [shutil.copy2, os.link, os.symlink])
def test_any_file_of_its_name_is_the_plugin(refused, make, tmp_path):
    """A copy, a hard link and a symbolic link work alone in any directory, whatever the file they lead to is called."""
    original = shutil.copy2(binaries.directory() / refused.plugin, tmp_path / "original")
    make(original, tmp_path / refused.plugin)
    assert refused("VERSION", bin_dir=tmp_path).stdout == refused("VERSION").stdout
    assert refused("ADD", b"{", bin_dir=tmp_path).error()["code"] == 6


def test_under_another_name_it_is_the_operators_tool(plugin, bin_dir, tmp_path):
    """Under the name `podwire` the file lists its plugins; a runtime that calls it by a wrong name is told so."""
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
def test_a_foreign_argv0_leaves_the_choice_to_the_files_name(refused, make, tmp_path):
    """Started with an argv[0] that names no plugin, as some programs do, the file is the plugin that its name says."""
    original = shutil.copy2(binaries.directory() / refused.plugin, tmp_path / "original")
    make(original, tmp_path / refused.plugin)
    for argv0 in ("", "nonsense", "/proc/self/fd/3", "cni plugin"):
        done = subprocess.run(
            [argv0], executable=tmp_path / refused.plugin, env=environment("VERSION"), capture_output=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, refused("VERSION").stdout), done


def test_a_link_under_another_name_is_the_plugin_that_it_leads_to(refused, tmp_path):
    """A symbolic link whose name is no plugin's works when it leads to a file with a plugin's name."""
    shutil.copy2(binaries.directory() / refused.plugin, tmp_path / refused.plugin)
    (tmp_path / "renamed").symlink_to(refused.plugin)
    done = subprocess.run([tmp_path / "renamed"], env=environment("VERSION"), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, refused("VERSION").stdout)


def test_it_may_be_replaced_while_it_runs(invoke, tmp_path):
    """An upgrade that renames a new file over the running one does not disturb the invocation."""
    shutil.copytree(binaries.directory(), tmp_path / "bin")
    file = tmp_path / "bin" / invoke.plugin
    process = start_plugin(
        invoke.plugin, "ADD", host=invoke.host, netns=invoke.sandbox, bin_dir=tmp_path / "bin"
    )  # waits for its stdin
    until(partial(catches_signals, process))
    shutil.copy2(file, tmp_path / "new")
    os.replace(tmp_path / "new", file)
    finish(process, invoke.config()).result()
    invoke("DEL").assert_silent()


def test_a_signal_while_reading_is_told(refused):
    """SIGTERM before the configuration has come ends the plugin with an error object, code 11."""
    process = start_plugin(refused.plugin, "ADD", host=refused.host, netns=refused.sandbox)
    until(partial(catches_signals, process))
    process.send_signal(signal.SIGTERM)
    process.wait(DEADLINE_S)  # with its stdin still open
    assert finish(process).error()["code"] == 11


@pytest.mark.parametrize("call", ["rt_sigaction", "rt_sigprocmask"])
def test_a_seccomp_filter_that_denies_signals_is_an_error_object(invoke, call):
    """Where a plugin may not hold back signals it says so in an error object, and touches nothing."""
    before = netstate.state(invoke.host), netstate.state(invoke.sandbox)
    variables = {"CNI_CONTAINERID": "cid", "CNI_NETNS": invoke.sandbox.path, "CNI_IFNAME": "eth0", "CNI_PATH": "/none"}
    for command in ("VERSION", "ADD"):
        done = subprocess.run(
            [
                "nsenter",
                f"--net={invoke.host.path}",
                *seccomp.command_prefix(call),
                str(binaries.directory() / invoke.plugin),
            ],
            input=json.dumps(invoke.config()).encode(),
            env=environment(command, **variables),
            capture_output=True,
            timeout=60,
            check=False,
        )
        error = Outcome(done.returncode, done.stdout, done.stderr.decode()).error()
        assert (error["code"], error["msg"]) == (5, "cannot hold back SIGTERM and SIGINT: Operation not permitted")
        assert call in error["details"]
    assert (netstate.state(invoke.host), netstate.state(invoke.sandbox)) == before


def test_without_proc_there_is_still_an_error_object(invoke):
    """A failure that no plugin can foresee, here a machine without /proc, is told as an error object too."""
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$0"']
    variables = {"CNI_CONTAINERID": "cid", "CNI_NETNS": invoke.sandbox.path, "CNI_IFNAME": "eth0", "CNI_PATH": "/none"}
    done = subprocess.run(
        ["nsenter", f"--net={invoke.host.path}", *hidden, str(binaries.directory() / invoke.plugin)],
        input=json.dumps(invoke.config()).encode(),
        env=environment("ADD", **variables),
        capture_output=True,
        timeout=60,
        check=False,
    )
    error = Outcome(done.returncode, done.stdout, done.stderr.decode()).error()
    assert (error["code"], "get plugin's netns failed" in error["msg"]) == (8, True)


@pytest.fixture
def slow(host, sandbox, tmp_path):
    """Runs a verb of bridge; with `stuck`, returns its process once it waits for an IPAM plugin that never ends."""
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
        until(lambda: not stuck_file.exists())
        return process

    return run


@pytest.fixture
def untouched(slow, host, sandbox):
    """Tells whether the network is as it was before an attachment; the bridge, which stays, is made beforehand."""
    slow("ADD").result()
    slow("DEL").assert_silent()
    before = netstate.state(host), netstate.state(sandbox)
    return lambda: (netstate.state(host), netstate.state(sandbox)) == before


def test_a_signal_during_add_takes_everything_back(slow, untouched):
    """SIGTERM while the IPAM plugin works ends both and undoes what was done; ADD and DEL work afterwards."""
    process = slow("ADD", stuck=True)
    process.send_signal(signal.SIGTERM)
    assert finish(process).error()["code"] == 11
    assert untouched()
    slow("ADD").result()
    assert not untouched()
    slow("DEL").assert_silent()
    assert untouched()


def test_after_a_signal_during_del_another_del_cleans(slow, untouched):
    """SIGTERM in the middle of DEL leaves nothing that the next DEL cannot take away."""
    slow("ADD").result()
    process = slow("DEL", stuck=True)
    process.send_signal(signal.SIGTERM)
    assert finish(process).error()["code"] == 11
    slow("DEL").assert_silent()
    assert untouched()
