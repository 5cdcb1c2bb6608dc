"""The agent's small parts: settings, readiness, log, inbox, programs and lock."""

import json
import os
import threading

import pytest

from agent.inbox import Inbox
from agent.instance_lock import InstanceLock
from agent.log import Log
from agent.metrics import Metrics
from agent.program import Ended, Program
from agent.readiness import Readiness
from agent.settings import parse
from cni.errors import CniError
from process.loop import Loop, now


class End(BaseException):
    """Ends a loop."""


def run_until(loop, condition):
    """Runs a loop until a condition is met."""

    def check():
        if condition():
            raise End
        loop.call_at(now() + 0.01, check)

    loop.call_at(0, check)
    with pytest.raises(End):
        loop.run()


def test_node_name_comes_from_the_environment_or_an_option(capsys):
    """The name of the node is required, except by --remove; the option wins over NODE_NAME."""
    assert parse([], {"NODE_NAME": "a"}).node_name == "a"
    assert parse(["--node-name", "b"], {"NODE_NAME": "a"}).node_name == "b"
    with pytest.raises(SystemExit) as ended:
        parse([], {})
    assert ended.value.code == 2
    assert "NODE_NAME" in capsys.readouterr().err
    assert parse(["--remove"], {}).node_name == ""


@pytest.mark.every_case
@pytest.mark.parametrize(
    "arguments",
    [
        "--routes=all", "--vxlan-id=16777216", "--vxlan-port=0", "--vxlan-port=65536", "--vxlan-id=-1",
        "--gc-interval=-1", "--gc-interval=nan", "--log-level=loud", "--route=auto", "--dry-run --once",
        *(f"--store=kubernetes --space={name}" for name in ("", "A", "a/b", "-", "x" * 64)),
        *(
            f"--store=etcd --etcd=http://[::1] --etcd-{option}=a"
            for option in ("cert-file", "key-file", "user", "password-file")
        ),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(arguments, capsys):
    """A wrong option, or two modes, end with status 2 and name themselves."""
    with pytest.raises(SystemExit) as ended:
        parse(arguments.split(), {"NODE_NAME": "a"})
    assert ended.value.code == 2
    assert arguments.split()[-1].partition("=")[0] in capsys.readouterr().err.splitlines()[-1]


def test_readiness_reports_changes_only():
    """A condition is reported when it changes; the node is ready when all are met."""
    changes = []
    readiness = Readiness(("api", "node"), lambda *change: changes.append(change))
    assert readiness.is_starting
    readiness.set("api")
    readiness.set("api")
    readiness.set("node", "no podCIDR")
    assert changes == [("api", ""), ("node", "no podCIDR")]
    assert list(readiness.describe()) == ["[+]api ok", "[-]node: no podCIDR"]
    readiness.set("node")
    assert list(readiness.describe()) == ["[+]api ok", "[+]node ok"]


def test_a_note_does_not_keep_the_node_from_being_ready():
    """A note is shown below its condition and reported as changed once; the node is ready with it."""
    readiness = Readiness(("api",), lambda *change: None)
    readiness.set("api")
    assert [readiness.set_note("api", text) for text in ("slow", "slow")] == [True, False]
    assert list(readiness.describe()) == ["[+]api ok", "   note: slow"]
    assert readiness.is_ready
    assert readiness.set_note("api", "")
    assert list(readiness.describe()) == ["[+]api ok"]


def test_log_lines_are_json(capsys):
    """A line is one JSON object with time, level, node and message; a level above the limit is not written."""
    log = Log("info", "1.2", "node-1")
    log.write("info", "started", routes="auto")
    log.write("debug", "details")
    log.write_changes("routes", [f"change {number}" for number in range(300)])
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info", "program": "podwire-agent", "version": "1.2", "node": "node-1", "msg": "started",
        "routes": "auto",
    }  # fmt: skip
    assert len(second["changes"]) == 201
    assert second["changes"][-1] == "and 100 more"


@pytest.mark.parametrize(
    ("options", "mode", "is_enforcing"),
    [
        ([], "", False),
        (["--network-policy"], "on", True),
        (["--network-policy", "strict"], "strict", True),
        (["--network-policy", "--once"], "on", False),
        (["--network-policy", "--check-established"], "on", True),
    ],
)
def test_network_policies_are_an_option(options, mode, is_enforcing):
    """Without the option, and in an agent that does not stay, no policy is enforced."""
    settings = parse(options, {"NODE_NAME": "a"})
    assert (settings.network_policy, settings.enforces_policies) == (mode, is_enforcing)


def test_events_of_other_threads_arrive_in_order():
    """The inbox passes the events of another thread to the loop's thread, in their order."""
    loop, seen = Loop(), list[int]()
    inbox = Inbox(loop, seen.append)
    thread = threading.Thread(target=list, args=(map(inbox.put, range(1000)),))
    thread.start()
    run_until(loop, lambda: len(seen) == 1000)
    thread.join()
    assert seen == list(range(1000))


def test_failure_about_one_event_does_not_stop_the_others(capsys):
    """An exception about an event is logged; the events beside it and later ones arrive."""
    loop, seen = Loop(), list[int]()
    inbox: Inbox[int] = Inbox(loop, lambda number: seen.append(10 // number))
    for numbers, count in (((1, 0, 2), 2), ((5,), 3)):
        for number in numbers:
            inbox.put(number)
        run_until(loop, lambda: len(seen) == count)  # noqa: B023
    assert seen == [10, 5, 2]
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "limit_s", "report"),
    [
        ("echo a; echo b >&2", 100, (0, "a\nb")),
        ("exit 7", 100, (7, "")),
        pytest.param("sleep 60 & wait", 0.05, (-9, ""), id="killed at its limit"),
    ],
)
@pytest.mark.every_case
def test_program_reports_status_and_output(command, limit_s, report):
    """A program's exit status and both its outputs are reported once it has ended, its child processes aside."""
    loop, ended = Loop(), list[Ended]()
    Program(loop, ["/bin/sh", "-c", command], ended.append, limit_s)
    run_until(loop, lambda: ended)
    assert ended == [report]


def test_missing_program_is_an_error():
    """A program that does not exist raises OSError, and leaves nothing to watch."""
    descriptors = len(os.listdir("/proc/self/fd"))
    loop = Loop()
    with pytest.raises(FileNotFoundError):
        Program(loop, ["/nonexistent"], print, 1)
    assert len(os.listdir("/proc/self/fd")) == descriptors + 1  # the loop's


def test_second_agent_is_refused(tmp_path):
    """A second agent is refused with the process that holds the lock."""
    path = str(tmp_path / "run" / "agent.lock")
    with InstanceLock(path), pytest.raises(CniError) as refused:
        InstanceLock(path)
    assert refused.value.msg == f"another podwire-agent maintains this node: process {os.getpid()}"
    with InstanceLock(path):
        pass


def test_lock_that_cannot_be_created_is_an_error(tmp_path):
    """A directory that cannot be created is an error with a fix."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CniError) as failed:
        InstanceLock(str(tmp_path / "file" / "agent.lock"))
    assert "--run-dir" in failed.value.details


def test_metrics_are_prometheus_text():
    """The metrics have the prefix podwire_agent_, and the version as a label."""
    metrics = Metrics("1.2")
    metrics.set_nodes(5, 0, 4, 0)
    metrics.installs.labels("ok").inc()
    text = metrics.render().decode()
    assert 'podwire_agent_info{version="1.2"} 1.0' in text
    assert "podwire_agent_nodes 5.0" in text
    assert 'podwire_agent_installs_total{result="ok"} 1.0' in text
