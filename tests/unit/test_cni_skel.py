"""The contract between runtime and plugin process, with a plugin for the test (cni.skel)."""

import io
import json
from ipaddress import ip_interface
from typing import Any

import pytest

from cni import skel, versions
from cni.conf import Attachment
from cni.errors import CniError, Code, combined
from cni.result import Interface, IPConfig, Result
from cni.skel import Plugin
from process.signals import Terminated
from tests.support.invocation import strict_json
from tests.support.streams import MemoryStdin

ENV = {
    "CNI_CONTAINERID": "cid",
    "CNI_NETNS": "/no/such/netns",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": "/opt/cni/bin",
}
ABOUT = "CNI fake plugin"
KEPT = {"cni.dev/valid-attachments": [{"containerID": "cid", "ifname": "eth0"}]}
CONFIG = {"cniVersion": "1.1.0", "name": "net", "type": "fake", **KEPT}
RESULT = Result(interfaces=(Interface("eth0"),), ips=(IPConfig(ip_interface("10.1.2.5/24")),))


class Broken(MemoryStdin):
    """A stream whose other end is closed."""

    def read(self, size=-1):
        raise OSError(5, "Input/output error")

    def write(self, data):
        raise BrokenPipeError(32, "Broken pipe")


def fake(calls, *, raises=None, only=None, supported=versions.SUPPORTED):
    """Returns a plugin that records its calls, or raises."""

    def verb(name):
        def run(args, conf, *valid):
            calls.append((name, args, conf, *valid))
            if raises is not None:
                raise raises
            return RESULT if name == "ADD" else None

        return run if only is None or name in only else None

    return Plugin(
        "fake",
        verb("ADD"),
        verb("DEL"),
        verb("CHECK"),
        cmd_gc=verb("GC"),
        cmd_status=verb("STATUS"),
        versions=supported,
    )


def run(command, config=CONFIG, *, env=ENV, **kwargs):
    """Calls the plugin once; returns exit status, stdout, and the plugin's calls."""
    calls: list[Any] = []
    stdout = io.BytesIO()
    stdin = MemoryStdin(config if isinstance(config, bytes) else json.dumps(config).encode())
    status = skel.run(fake(calls, **kwargs), {**env, "CNI_COMMAND": command}, stdin, stdout, about=ABOUT)
    return status, stdout.getvalue(), calls


def failure(command, config=CONFIG, **kwargs):
    status, stdout, calls = run(command, config, **kwargs)
    assert status == 1
    body = strict_json(stdout)
    return body["code"], body["msg"], body.get("details"), [call[0] for call in calls]


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
def test_each_verb_is_called_once_with_the_runtimes_input(verb):
    """The plugin gets the environment, the configuration and the exact stdin; only ADD prints."""
    status, stdout, calls = run(verb, json.dumps(CONFIG).encode() + b" \n")
    assert status == 0
    ((name, args, conf, *valid),) = calls
    assert valid == ([{Attachment("cid", "eth0")}] if verb == "GC" else [])
    assert (name, args.command, args.container_id, args.netns) == (verb, verb, "cid", "/no/such/netns")
    assert (conf.name, conf.version, conf.fields.string("type")) == ("net", "1.1.0", "fake")
    assert args.stdin == json.dumps(CONFIG).encode() + b" \n"
    assert (strict_json(stdout) == RESULT.to_json("1.1.0")) if verb == "ADD" else (stdout == b"")


def test_gc_without_a_list_is_not_called(capsys):
    """Without the key the plugin is not called, so that no delegate regards the list as empty; GC says so."""
    assert run("GC", {"cniVersion": "1.1.0", "name": "net", "type": "fake"}) == (0, b"", [])
    assert capsys.readouterr().err == "fake: GC without cni.dev/valid-attachments removes nothing\n"


@pytest.mark.parametrize("verb", ["GC", "STATUS"])
def test_missing_verbs_succeed(verb):
    """A missing verb succeeds without output, as in the reference plugins."""
    assert run(verb, only=("ADD", "DEL", "CHECK")) == (0, b"", [])


def test_result_is_indented_json_in_the_configurations_version():
    """The result is indented by four spaces, in the shape of the configured version, 0.1.0 without one."""
    assert run("ADD", CONFIG | {"cniVersion": "1.0.0"})[1].startswith(
        b'{\n    "cniVersion": "1.0.0",\n    "interfaces": [\n'
    )
    assert strict_json(run("ADD", {"name": "net"})[1])["cniVersion"] == "0.1.0"
    assert strict_json(run("ADD", CONFIG | {"cniVersion": "0.2.0"})[1])["ip4"] == {"ip": "10.1.2.5/24"}


@pytest.mark.parametrize(
    ("command", "config", "expected"),
    [
        ("NOPE", CONFIG, (4, "unknown CNI_COMMAND: NOPE", None)),
        ("GET", CONFIG, (4, "unknown CNI_COMMAND: GET", None)),
        ("add", CONFIG, (4, "unknown CNI_COMMAND: add", None)),
        ("NOPE", b"{", (6, None, "stdin must hold one JSON object")),
        ("NOPE", {"cniVersion": "1.1.0"}, (7, "missing network name", None)),
        ("CHECK", CONFIG | {"cniVersion": "0.3.1"}, (1, "config version does not allow CHECK", None)),
        ("CHECK", {"name": "net"}, (1, "config version does not allow CHECK", None)),
        ("GC", CONFIG | {"cniVersion": "1.0.0"}, (1, "config version does not allow GC", None)),
        ("STATUS", CONFIG | {"cniVersion": "1.0.0"}, (1, "config version does not allow STATUS", None)),
        ("CHECK", CONFIG | {"cniVersion": "1.2.0"}, (1, "plugin version does not allow CHECK", None)),
        ("GC", CONFIG | {"cniVersion": "9.0.0"}, (1, "plugin version does not allow GC", None)),
        *((verb, CONFIG | {"cniVersion": "abc"}, (6, None, None)) for verb in ("CHECK", "GC", "STATUS")),
        *((verb, CONFIG | {"cniVersion": "1.1.0.0"}, (6, None, None)) for verb in ("CHECK", "GC", "STATUS")),
        *(
            (
                verb,
                CONFIG | {"cniVersion": bad},
                (1, "incompatible CNI versions", f'config is "{bad}", plugin supports '),
            )
            for verb in ("ADD", "DEL")
            for bad in ("1.0", "abc", "1.2.0", "0.3", "01.0.0")
        ),
        (
            "CHECK",
            CONFIG | {"cniVersion": "1.0"},
            (1, "incompatible CNI versions", 'config is "1.0", plugin supports '),
        ),
    ],
)
def test_unsupported_commands_and_versions_are_refused(command, config, expected):
    """They are refused in the reference's order and with its texts, and the plugin is not called."""
    code, msg, details, called = failure(command, config)
    assert code == expected[0]
    assert expected[1] is None or msg == expected[1]
    assert expected[2] is None or details.startswith(expected[2])
    assert called == []


def test_plugin_may_support_fewer_versions():
    """The details contain the versions of the configuration and of the plugin."""
    _, _, details, _ = failure("ADD", CONFIG | {"cniVersion": "0.2.0"}, supported=("0.3.0", "0.4.0"))
    assert details == 'config is "0.2.0", plugin supports ["0.3.0" "0.4.0"]'


def test_version_needs_no_input():
    """VERSION prints one line, and reads neither stdin nor other variables."""
    stdout = io.BytesIO()
    assert skel.run(fake([]), {"CNI_COMMAND": "VERSION"}, Broken(), stdout, about=ABOUT) == 0
    assert stdout.getvalue() == (
        b'{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}\n'
    )


@pytest.mark.parametrize("env", [{}, {"CNI_COMMAND": ""}, ENV])
def test_without_a_command_the_plugin_prints_its_description(env, capsys):
    """Installers start a plugin without a command: it prints two lines on stderr, and succeeds."""
    stdout = io.BytesIO()
    assert skel.run(fake([]), env, Broken(), stdout, about=ABOUT) == 0
    assert stdout.getvalue() == b""
    assert capsys.readouterr().err.splitlines() == [
        ABOUT,
        "CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0",
    ]


def test_unreadable_stdin_is_an_io_failure():
    """An input that cannot be read has code 5."""
    stdout = io.BytesIO()
    assert skel.run(fake([]), {**ENV, "CNI_COMMAND": "ADD"}, Broken(), stdout, about=ABOUT) == 1
    body = strict_json(stdout.getvalue())
    assert (body["code"], body["msg"]) == (5, "error reading from stdin: Input/output error")


NO_MEMORY = "the process may be limited too narrowly (ulimit -v, cgroup)"


def test_unwritable_stdout_is_a_failure():
    """If the result cannot be written, the exit status is 1, and there is no traceback."""
    stdin = MemoryStdin(json.dumps(CONFIG).encode())
    assert skel.run(fake([]), {**ENV, "CNI_COMMAND": "ADD"}, stdin, Broken(), about=ABOUT) == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CniError(Code.PLUGIN_NOT_AVAILABLE, "full", "253 of 253"), (50, "full", "253 of 253")),
        (CniError(1234, "a delegate's error"), (1234, "a delegate's error", None)),
        (
            FileNotFoundError(2, "No such file or directory", "/x"),
            (5, "/x: No such file or directory", None),
        ),
        (MemoryError(), (999, "out of memory", NO_MEMORY)),
        (SystemError("error return without exception set"), (999, "out of memory", NO_MEMORY)),
        (SystemError("boom"), (999, "SystemError: boom", "this is a defect of podwire; please report it")),
        (ZeroDivisionError("boom"), (999, "ZeroDivisionError: boom", "this is a defect of podwire; please report it")),
        (RecursionError("deep"), (999, "RecursionError: deep", "this is a defect of podwire; please report it")),
        (
            Terminated(),
            (11, "interrupted by a signal", "an interrupted ADD has been undone; an interrupted DEL is to be repeated"),
        ),
    ],
)
@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
def test_every_exception_of_a_verb_is_one_error_object(verb, error, expected):
    """A failure is one JSON object and exit status 1: a CniError unchanged, any other exception with its code."""
    assert failure(verb, raises=error)[:3] == expected


def test_error_object_has_the_configurations_version():
    """The error object has the configuration's version, or the plugin's newest if that is not supported."""
    for configured, expected in (("0.4.0", "0.4.0"), ("9.9.9", "1.1.0")):
        body = strict_json(run("ADD", CONFIG | {"cniVersion": configured}, raises=CniError(7, "x"))[1])
        assert body["cniVersion"] == expected


def test_text_that_is_no_utf8_is_printed():
    """A byte that is no UTF-8, which only the environment can contain, is printed as a question mark."""
    code, msg, details, _ = failure("ADD", env=ENV | {"CNI_CONTAINERID": "a\udcff"})
    assert (code, msg, details) == (4, "invalid characters in containerID", "a?")


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_namespace_of_the_plugin_is_refused(verb):
    """A CNI_NETNS that is the plugin's namespace has code 8, and the verb is not called."""
    code, msg, details, called = failure(verb, env=ENV | {"CNI_NETNS": "/proc/self/ns/net"})
    assert (code, msg, called) == (8, "plugin's netns and netns from CNI_NETNS should not be the same", [])
    assert "do not set CNI_NETNS_OVERRIDE on a host" in details


@pytest.mark.parametrize("override", ["1", "true", "TRUE", "True"])
def test_namespace_of_the_plugin_can_be_permitted(override):
    """CNI_NETNS_OVERRIDE permits the plugin's namespace."""
    env = ENV | {"CNI_NETNS": "/proc/self/ns/net", "CNI_NETNS_OVERRIDE": override}
    assert run("ADD", env=env)[0] == run("DEL", env=env)[0] == 0
    assert failure("ADD", env=env | {"CNI_NETNS_OVERRIDE": "yes"})[0] == 8


def test_result_that_the_version_cannot_contain_is_a_failure():
    """An ADD without addresses in 0.2.0 fails with the reference's text."""
    plugin = Plugin("fake", lambda *_: Result(), lambda *_: None, lambda *_: None)
    stdout = io.BytesIO()
    config = MemoryStdin(b'{"name": "net", "cniVersion": "0.2.0"}')
    assert skel.run(plugin, {**ENV, "CNI_COMMAND": "ADD"}, config, stdout, about=ABOUT) == 1
    assert "cannot convert: no valid IP addresses" in strict_json(stdout.getvalue())["msg"]


def test_errors_are_combined():
    """A teardown reports all failures, with the first failure's code."""
    assert combined([]) is None
    one, two = CniError(11, "busy"), CniError(999, "gone", "hint")
    assert combined([one]) is one
    both = combined([one, two])
    assert both is not None
    assert (both.code, both.msg, both.details) == (11, "busy; gone", "hint")
    assert str(both) == "busy; gone; hint"


def test_many_errors_are_shortened():
    """A message stays readable whatever the number of failures, and a hint that all have occurs once."""
    many = combined([CniError(5, f"no {number}", "free the disk") for number in range(12)])
    assert many is not None
    assert many.msg == "; ".join([*(f"no {number}" for number in range(10)), "and 2 more"])
    assert (many.code, many.details) == (5, "free the disk")
