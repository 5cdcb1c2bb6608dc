"""The log of verbs (cni.verb_log), and the rendering of its lines as text (podwire.verbs.log_text)."""

import io
import json
import os
import re
import socket
import stat
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import pytest

from cni import conf as cni_conf
from cni import gojson, skel, verb_log
from cni.errors import CniError, Code
from cni.result import IPConfig, Result
from cni.skel import Plugin
from podwire.verbs.log_text import format_line
from process import log, record
from tests.support.streams import MemoryStdin

MARK = "s3cr3t-mark"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ENV = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "cid",
    "CNI_NETNS": "/no/such/netns",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": "/opt/cni/bin",
    "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;TOKEN={MARK}",
}
CONFIG = {"cniVersion": "1.1.0", "name": "net", "type": "fake", "token": MARK, "args": {"token": MARK}}
RESULT = Result(ips=(IPConfig(ip_interface("10.1.2.5/24")),))


def run(env=None, config=None, *, fails=None, stdin=None):
    """Runs a plugin of the test; returns its exit status and stdout."""

    def verb(args, conf):
        with record.timed_step("work"):
            record.note_change('make "veth0"')
        if fails:
            raise fails
        return RESULT

    plugin = Plugin("fake", verb, verb, verb, cmd_status=verb)
    stdout = io.BytesIO()
    data = json.dumps({**CONFIG, **(config or {})}).encode() if stdin is None else stdin
    status = skel.run(plugin, {**ENV, **(env or {})}, MemoryStdin(data), stdout, about="fake", release="1.2.3")
    return status, stdout.getvalue()


@pytest.fixture
def file(tmp_path):
    """The path of the log."""
    return tmp_path / "podwire.log"


def lines(file):
    """Returns the lines of the log, each of which must be one JSON object."""
    return [json.loads(text) for text in file.read_text().splitlines()]


def test_a_line_at_level_debug(file):
    """At level debug a line has the identifying fields, the time, the result, the steps and the changes."""
    run({"PODWIRE_LOG": str(file), "PODWIRE_LOG_LEVEL": "debug", "TRACEPARENT": TRACE})
    (line,) = lines(file)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert (line.pop("ms") > 0, line.pop("steps")[0].keys()) == (True, {"what", "ms"})
    program = {"level": "info", "plugin": "fake", "version": "1.2.3", "pid": os.getpid(), "cniVersion": "1.1.0"}
    attachment = {"command": "ADD", "network": "net", "containerID": "cid", "ifname": "eth0", "pod": "default/web-0"}
    trace = {"traceID": "0af7651916cd43dd8448eb211c80319c", "parentID": "b7ad6b7169203331"}
    effects = {"result": {"ips": ["10.1.2.5/24"]}, "changes": ['make "veth0"']}
    assert line == {**program, **attachment, "netns": "/no/such/netns", **trace, **effects}


@pytest.mark.parametrize("level", [None, "info", "nonsense"])
def test_a_line_at_level_info(file, level, capsys):
    """At level info, also the default for an unknown level, lines have neither steps nor changes."""
    run({"PODWIRE_LOG": str(file), **({"PODWIRE_LOG_LEVEL": level} if level else {})})
    run({"PODWIRE_LOG": str(file), "CNI_COMMAND": "CHECK"})
    assert [line["command"] for line in lines(file)] == ["ADD", "CHECK"]
    assert not any({"steps", "changes", "error"} & line.keys() for line in lines(file))
    assert ("nonsense" in capsys.readouterr().err) == (level == "nonsense")


def test_level_error_logs_failures_only(file):
    """At level error only a failed verb has a line, with its error object."""
    env = {"PODWIRE_LOG": str(file), "PODWIRE_LOG_LEVEL": "error"}
    run(env)
    assert not file.exists()
    assert run(env, fails=CniError(Code.TRY_AGAIN_LATER, "busy", "wait"))[0] == 1
    (line,) = lines(file)
    assert (line["level"], line["error"]) == ("error", {"code": 11, "msg": "busy", "details": "wait"})


def test_version_is_not_logged(file):
    """VERSION writes no line at any level."""
    run({"PODWIRE_LOG": str(file), "PODWIRE_LOG_LEVEL": "debug", "CNI_COMMAND": "VERSION"})
    assert not file.exists()
    env = {**ENV, "PODWIRE_LOG": str(file), "CNI_COMMAND": "VERSION"}
    closed = io.BytesIO()
    closed.close()
    plugin: Any = Plugin
    assert skel.run(plugin("fake", None, None, None), env, io.BytesIO(), closed, about="fake") == 1
    assert not file.exists()


def test_the_environment_overrides_the_keys(file, tmp_path):
    """Keys of a network's configuration enable the log; the environment overrides their file and level."""
    keys = {"logFile": str(file), "logLevel": "debug"}
    run(config=keys)
    assert "changes" in lines(file)[0]
    other = tmp_path / "other"
    run({"PODWIRE_LOG": str(other), "PODWIRE_LOG_LEVEL": "info"}, keys)
    assert (len(lines(file)), "changes" in lines(other)[0]) == (1, False)


@pytest.mark.parametrize("keys", [{"logFile": 7}, {"logFile": "relative"}, {"logFile": ["x"], "logLevel": "debug"}])
def test_wrong_keys_are_reported_and_ignored(keys, tmp_path, monkeypatch, capsys):
    """A wrong value of a key is reported on stderr, and the verb succeeds."""
    monkeypatch.chdir(tmp_path)
    status, stdout = run(config=keys)
    assert (status, json.loads(stdout)["ips"][0]["address"]) == (0, "10.1.2.5/24")
    assert capsys.readouterr().err.startswith("podwire: log: ")
    assert list(tmp_path.iterdir()) == []


def test_a_bad_request_is_logged(file):
    """A verb that fails before its configuration is parsed has a line, too."""
    assert run({"PODWIRE_LOG": str(file)}, stdin=b"{")[0] == 1
    assert run({"PODWIRE_LOG": str(file), "CNI_IFNAME": ""})[0] == 1
    assert [line["error"]["code"] for line in lines(file)] == [6, 4]
    assert all("network" not in line for line in lines(file))


@pytest.mark.parametrize("level", log.LEVELS)
def test_no_secrets(file, level):
    """Values of CNI_ARGS, args, unknown keys and variables are never logged, not even if an error quotes them."""
    env = {"PODWIRE_LOG": str(file), "PODWIRE_LOG_LEVEL": level, "TOKEN": MARK, "TRACESTATE": MARK}
    run(env)
    run(env, fails=CniError(4, f'ARGS: unknown args ["TOKEN={MARK}"]', "add IgnoreUnknown=1"))
    run({**env, "CNI_ARGS": f"{MARK};x"}, fails=CniError(4, f'ARGS: invalid pair "{MARK}"'))
    assert MARK not in file.read_text()
    assert lines(file)[-2]["error"]["msg"] == 'ARGS: unknown args ["TOKEN=..."]'


def test_the_mode_of_the_file(file):
    """A new file has mode 0600; an existing file is appended to and keeps its mode."""
    run({"PODWIRE_LOG": str(file)})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    run({"PODWIRE_LOG": str(file)})
    assert (stat.S_IMODE(file.stat().st_mode), len(lines(file))) == (0o644, 2)


KINDS = ("absent directory", "directory", "link", "fifo", "fifo with a reader", "device", "the kernel's")


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_that_is_not_a_file_is_reported_once(kind, file, tmp_path, capsys):
    """A target that is not a file is reported in one line on stderr without delay, and the verb succeeds."""
    reader = -1
    if kind == "absent directory":
        file = tmp_path / "absent" / "log"
    elif kind == "directory":
        file.mkdir()
    elif kind == "link":
        file.symlink_to(tmp_path / "target")
    elif kind == "device":
        file = "/dev/zero"
    elif kind == "the kernel's":
        file = "/proc/self/comm"
    else:
        os.mkfifo(file)
        reader = os.open(file, os.O_RDONLY | os.O_NONBLOCK) if kind == "fifo with a reader" else -1
    assert run({"PODWIRE_LOG": str(file)})[0] == 0
    err = capsys.readouterr().err
    assert (err.count("\n"), err.startswith(f"podwire: log: cannot write to {file}: ")) == (1, True)
    assert not (tmp_path / "target").exists()
    if reader >= 0:
        assert os.read(reader, 1) == b""
        os.close(reader)


def test_stderr_is_never_stdout(capsys, file):
    """With the log on stderr, stderr has only the line and stdout only the result."""
    _, stdout = run({"PODWIRE_LOG": "stderr"})
    assert json.loads(capsys.readouterr().err)["command"] == "ADD"
    assert json.loads(stdout).keys() == {"cniVersion", "ips"}


def test_a_line_is_truncated():
    """With any amount and kind of text a line has less than 64 KiB, and it has the numbers of omitted items."""
    long_text = "\0" * 100_000
    env = dict.fromkeys(("CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"), long_text)
    env["CNI_ARGS"] = f"K8S_POD_NAMESPACE={long_text};K8S_POD_NAME={long_text}"
    recorded = record.VerbRecord(
        changes=[long_text, *["change"] * 10_000], steps=[record.Step(long_text, 1.0)] * 10_000
    )
    result = Result(ips=(IPConfig(ip_interface("fd00:aaaa:bbbb:cccc:dddd:eeee:ffff:1/64")),) * 10_000)
    conf = cni_conf.parse(json.dumps({**CONFIG, "name": "n" * 100_000}).encode())
    line = verb_log.entry(long_text, long_text, env, conf, 1e9, result, CniError(999, long_text, long_text), recorded)
    assert len(gojson.dumps(line).encode()) + 1 < log.LINE_BYTES
    fields_of_line: Any = line
    truncated = (fields_of_line["changes"], fields_of_line["steps"], fields_of_line["result"]["ips"])
    assert all(re.fullmatch(r"and \d+ more", items[-1]) for items in truncated)
    assert [len(items) - 1 + int(items[-1].split()[1]) for items in truncated] == [10_001, 10_000, 10_000]


def test_the_cost_of_a_line_is_limited(monkeypatch):
    """With texts and lists of any length, at most 64 times as many characters are encoded as a line may have."""
    encoded: list[int] = []
    dumps = gojson.dumps

    def counting(value):
        encoded.append(len(dumps(value)))
        return dumps(value)

    monkeypatch.setattr(gojson, "dumps", counting)
    long_text = "\0" * 100_000
    recorded = record.VerbRecord(changes=[long_text] * 10_000, steps=[record.Step(long_text, 1.0)] * 10_000)
    error = CniError(999, long_text, long_text)
    verb_log.entry("fake", "1", {"CNI_CONTAINERID": long_text}, None, 1.0, None, error, recorded)
    assert sum(encoded) < 64 * log.LINE_BYTES


@pytest.mark.parametrize(
    ("header", "is_valid"),
    [
        (TRACE, True),
        ("cc" + TRACE[2:] + "-more", True),
        (TRACE.upper(), False),
        ("ff" + TRACE[2:], False),
        (TRACE + "-more", False),
        (TRACE.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32), False),
        (TRACE.replace("b7ad6b7169203331", "0" * 16), False),
        (TRACE[:-1], False),
        (TRACE + "\n", False),
        ("", False),
    ],
)
def test_trace_context(header, is_valid, file):
    """A well-formed TRACEPARENT is in the line, any other is ignored."""
    run({"PODWIRE_LOG": str(file), "TRACEPARENT": header})
    assert [{"traceID", "parentID"} <= line.keys() for line in lines(file)] == [is_valid]
    assert ("traceID" in lines(file)[0]) == is_valid


def fields(datagram):
    """Returns the fields of a datagram, parsed like by journald."""
    values = {}
    while datagram:
        name, _, rest = datagram.partition(b"\n")
        size = int.from_bytes(rest[:8], "little")
        values[name.decode()], datagram = rest[8 : 8 + size].decode(), rest[9 + size :]
    return values


def test_journald(tmp_path, monkeypatch, capsys):
    """Journald receives a sentence, a priority and the fields of a line; without journald the verb succeeds."""
    assert log.JOURNAL_SOCKET == "/run/systemd/journal/socket"
    monkeypatch.setattr(log, "JOURNAL_SOCKET", str(tmp_path / "socket"))
    env = {"PODWIRE_LOG": "journald", "PODWIRE_LOG_LEVEL": "debug"}
    assert run(env)[0] == 0
    assert capsys.readouterr().err == "podwire: log: cannot write to journald: No such file or directory\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(log.JOURNAL_SOCKET)
        run(env)
        run(env, fails=CniError(7, "bad key", "correct it\nnow"))
        added, failed = (fields(journal.recv(1 << 16)) for _ in range(2))
    assert re.fullmatch(r"fake ADD of eth0 for default/web-0 \(10\.1\.2\.5/24\) took [\d.]+ ms", added["MESSAGE"])
    known = {key: added[key] for key in ("PRIORITY", "CNI_CONTAINERID", "CNI_NETWORK", "CNI_IPS", "CNI_CHANGES")}
    assert list(known.values()) == ["6", "cid", "net", "10.1.2.5/24", 'make "veth0"']
    assert failed["MESSAGE"] == "fake ADD of eth0 for default/web-0 failed: bad key; correct it\nnow"
    assert [failed[key] for key in ("PRIORITY", "CNI_ERROR_CODE", "CNI_ERROR_MSG")] == ["3", "7", "bad key"]
    assert MARK not in str(added) + str(failed)


def test_a_defect_of_the_log_is_not_the_verbs(monkeypatch, file, capsys):
    """A defect of the log does not change the verb's status and result."""
    monkeypatch.setattr(verb_log, "entry", lambda *arguments: 1 / 0)
    assert run({"PODWIRE_LOG": str(file)})[0] == 0
    assert "division by zero" in capsys.readouterr().err


def test_the_document_has_the_fields():
    """The page docs/logs.md lists exactly the fields of a line, and journald's."""
    page = (Path(__file__).parents[2] / "docs" / "logs.md").read_text().split("## A line")[1]
    documented = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", page, re.MULTILINE))
    recorded = record.VerbRecord(changes=["made"], steps=[record.Step("work", 1.0)])
    conf = cni_conf.parse(json.dumps(CONFIG).encode())
    env, error = {**ENV, "TRACEPARENT": TRACE}, CniError(7, "bad", "hint")
    line = verb_log.entry("p", "v", env, conf, 1.0, RESULT, error, recorded)
    assert documented.keys() == line.keys()
    named = {name for names in documented.values() for name in re.findall(r"`(\w+)`", names)}
    assert fields(log.datagram(verb_log._journal_fields(line))).keys() == named | {"MESSAGE", "SYSLOG_IDENTIFIER"}


def test_format_line():
    """A line is rendered with its error and hint, and with each step and change."""
    line = {"command": "ADD", "plugin": "bridge", "ms": 3.2, "containerID": "cid", "ifname": "eth0"}
    assert format_line({**line, "result": {"ips": ["10.1.2.5/24"]}}) == [
        "ADD of bridge: 10.1.2.5/24, 3.20 ms",
        "  container cid eth0",
    ]
    steps = [{"what": "create the veth pair", "ms": 1.25}, "and 3 more"]
    error = {"code": 11, "msg": "busy", "details": "wait"}
    assert format_line({**line, "error": error, "steps": steps, "changes": ['delete "veth0"']})[2:] == [
        "  error 11: busy",
        "  hint: wait",
        "  steps:",
        "        1.25 ms  create the veth pair",
        "    and 3 more",
        "  changes:",
        '    delete "veth0"',
    ]


@pytest.mark.parametrize("value", [None, 7, "text", [], ["x"], {"ips": 7}, [{"what": 7}], True])
def test_format_line_accepts_any_line(value):
    """An edited line is rendered without an error."""
    for key in ("command", "ms", "error", "result", "steps", "changes", "containerID"):
        assert all(isinstance(text, str) for text in format_line({key: value}))
