"""`python -m tests.kubernetes`: a cluster to play with, or the tests of one, in private namespaces.

One rule: when it ends, however that happens, nothing of the cluster remains.

    python -m tests.kubernetes                          # make cluster: until Ctrl-C
    python -m tests.kubernetes --test [PYTEST...]       # make test-kubernetes
    python -m tests.kubernetes --mode router            # another mode of modes.py, also with --test
    python -m tests.kubernetes --every-mode             # tests of all other modes
    python -m tests.kubernetes --run PROGRAM...         # a program that starts the cluster: make bench-kubernetes
"""

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.kubernetes import modes, plan
from tests.kubernetes.cluster import GROUP_VARIABLE, KEEP_VARIABLE, Cluster, missing
from tests.kubernetes.modes import MODES
from tests.support import machine
from tests.support.binaries import ROOT
from tests.support.machine import CGROUPS, eventually
from tests.support.processes import identity

_SCRATCH = ROOT / "build" / "cluster"  # /tmp inside
_LOGS = ROOT / "build" / "cluster-logs"
_CHILD = "--in-namespaces"
_TESTS = "tests/kubernetes"
# Tests that a mode runs before _SHORT: of addresses and uplinks that the tunnel uses; upstream's of policies.
_FURTHER = {
    "router": [f"{_TESTS}/test_life.py::test_{name}" for name in ("internal_ip_changes", "uplink_is_replaced")],
    "policy": [f"{_TESTS}/test_e2e.py"],
}
_SHORT = (f"{_TESTS}/test_cluster.py", f"{_TESTS}/test_sticky.py")
_PYTEST = (sys.executable, "-m", "pytest", "-s", "--timeout=0")
_ISOLATED = ROOT / "tests" / "runner" / "isolated.sh"
_ENTER = f"""#!/bin/sh
# Runs a program in the namespaces of the cluster.
read -r first </proc/{{pid}}/task/{{pid}}/children
exec nsenter --target="${{{{first% }}}}" --net --mount --pid --ipc --uts -- env -C {ROOT} {{command}} "$@"
"""
_NODE = 'sh -c \'target=$(cat /tmp/$0/pid); exec nsenter --target="$target" --net --mount --pid --ipc --uts -- "$@"\''


def main(arguments: Sequence[str]) -> int:
    """Runs a cluster; returns the exit status."""
    if arguments[:1] == [_CHILD]:
        return _play()
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}")
    parser.add_argument("--mode", choices=MODES, default=modes.DIRECT)
    parser.add_argument("--every-mode", action="store_true", help=f"run {', '.join(_SHORT)} in each mode but the first")
    parser.add_argument("--keep", action="store_true", help="after the tests, until Ctrl-C")
    parser.add_argument("--test", nargs=argparse.REMAINDER, metavar="PYTEST", help="run tests, by default all")
    parser.add_argument("--run", nargs=argparse.REMAINDER, metavar="PROGRAM", help="run a program that starts it")
    options = parser.parse_args(arguments)
    if problem := "it needs root" if os.geteuid() else missing():
        print(problem, file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    if options.every_mode:
        others = [mode for mode in MODES if mode != modes.DIRECT]
        return max([_cluster(mode, [*_PYTEST, *_FURTHER.get(mode, []), *_SHORT], keep=False) for mode in others])
    if options.run:
        return _cluster(options.mode, options.run, keep=False)
    if options.test is None:
        return _cluster(options.mode, [sys.executable, "-m", __package__, _CHILD], keep=False)
    return _cluster(options.mode, [*_PYTEST, *(options.test or [_TESTS])], keep=options.keep)


def _cluster(mode: str, command: Sequence[str], *, keep: bool) -> int:
    """Runs a command in the namespaces of a cluster; returns its exit status."""
    with _scratch(), _group() as group:
        print(f"a cluster in the mode {mode}", flush=True)
        status = _run(command, {GROUP_VARIABLE: group, KEEP_VARIABLE: "1" * keep, modes.VARIABLE: mode})
        if status:
            _save_logs()
        return status


def _save_logs() -> None:
    """Copies the output of all programs of a failed cluster."""
    shutil.rmtree(_LOGS, ignore_errors=True)
    for log in [*_SCRATCH.glob("*.log"), *_SCRATCH.glob("node-*/*.log")]:
        target = _LOGS / log.relative_to(_SCRATCH)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(log, target)
    print(f"the output of its programs: {_LOGS}", flush=True)


def _run(command: Sequence[str], variables: dict[str, str]) -> int:
    """Runs a command in new namespaces, which end with it and with this process."""
    line = ["setpriv", "--pdeathsig=KILL", str(_ISOLATED), str(plan.TEST_ROOT), str(_SCRATCH), *command]
    env = {**os.environ, **variables, "PODWIRE_BIN_DIR": os.environ.get("PODWIRE_BIN_DIR", "dist/bin")}
    with subprocess.Popen(line, env=env, cwd=ROOT, start_new_session=True) as process:
        try:
            for name, program in (
                ("kubectl", f"{plan.PROGRAMS}/kubectl --kubeconfig=/tmp/admin.conf"),
                ("node", _NODE),
            ):
                script = _SCRATCH / name
                script.write_text(_ENTER.format(pid=process.pid, command=program))
                script.chmod(0o755)
            return process.wait()
        finally:
            process.kill()


def _play() -> int:
    """Runs a cluster until this process is killed."""
    with Cluster(Path(tempfile.gettempdir())).running() as cluster:
        cluster.explain()
        signal.pause()
    return 0


@contextlib.contextmanager
def _scratch() -> Iterator[None]:
    """Creates the directory of the cluster, empty, and removes it after the block."""
    with _SCRATCH.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"another cluster runs in {_SCRATCH}")
        shutil.rmtree(_SCRATCH, ignore_errors=True)
        _SCRATCH.mkdir(parents=True)
        try:
            yield
        finally:
            shutil.rmtree(_SCRATCH, ignore_errors=True)


@contextlib.contextmanager
def _group() -> Iterator[str]:
    """Yields the name of the cluster's control group, and removes it after the block; first removes stale ones."""
    machine.sweep()
    name = f"{CGROUPS}{identity(os.getpid())}"
    try:
        yield name
    finally:
        if not eventually(lambda: machine.remove_groups(name)):
            print(f"control groups {name} remain", file=sys.stderr)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
