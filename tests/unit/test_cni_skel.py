"""The contract between runtime and plugin process, with a plugin for the test (cni.skel)."""

import io
import json
from ipaddress import ip_interface
from typing import Any

import pytest

from cni import skel
from cni.conf import Attachment
from cni.errors import CniError, Code, combined
from cni.result import Interface, IPConfig, Result
from cni.skel import Plugin
from process.signals import Terminated
from tests.support.invocation import strict_json
from tests.support.netconf import ENV
from tests.support.streams import MemoryStdin

NO_MEMORY = "the process may be limited too narrowly (ulimit -v, cgroup)"
KEPT = {"cni.dev/valid-attachments": [{"containerID": "cid", "ifname": "eth0"}]}
CONFIG = {"cniVersion": "1.1.0", "name": "net", "type": "fake", **KEPT}
RESULT = Result(interfaces=(Interface("eth0"),), ips=(IPConfig(ip_interface("10.1.2.5/24")),))


class Broken(MemoryStdin):
    """A stream whose other end is closed."""

    def read(self, size=-1):
        raise OSError(5, "Input/output error")


def fake(calls, *, raises=None, only=None):
    """Returns a plugin that records its calls, or raises."""

    def verb(name):
        def run(args, conf, *valid):
            calls.append((name, args, conf, *valid))
            if raises is not None:
                raise raises
            return RESULT if name == "ADD" else None

        return run if only is None or name in only else None

    return Plugin("fake", verb("ADD"), verb("DEL"), verb("CHECK"), cmd_gc=verb("GC"), cmd_status=verb("STATUS"))


def run(command, config=CONFIG, *, stdin=None, **kwargs):
    """Calls the plugin once; returns exit status, stdout, and the plugin's calls."""
    calls: list[Any] = []
    stdout = io.BytesIO()
    stdin = stdin or MemoryStdin(config if isinstance(config, bytes) else json.dumps(config).encode())
    status = skel.run(fake(calls, **kwargs), {**ENV, "CNI_COMMAND": command}, stdin, stdout, about="")
    return status, stdout.getvalue(), calls


def failure(command, config=CONFIG, **kwargs):
    status, stdout, _ = run(command, config, **kwargs)
    assert status == 1
    body = strict_json(stdout)
    return body["code"], body["msg"], body.get("details")


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
def test_each_verb_is_called_once_with_the_runtimes_input(verb):
    """The plugin gets the environment, the configuration and the exact stdin; only ADD prints."""
    status, stdout, calls = run(verb, json.dumps(CONFIG).encode() + b" \n")
    assert status == 0
    ((name, args, conf, *valid),) = calls
    assert valid == ([{Attachment("cid", "eth0")}] if verb == "GC" else [])
    assert (name, args.command, args.container_id, args.netns) == (verb, verb, "cid", ENV["CNI_NETNS"])
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


def test_unreadable_stdin_is_an_io_failure():
    """An input that cannot be read has code 5."""
    assert failure("ADD", stdin=Broken())[:2] == (5, "error reading from stdin: Input/output error")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CniError(Code.PLUGIN_NOT_AVAILABLE, "full", "253 of 253"), (50, "full", "253 of 253")),
        (CniError(1234, "a delegate's error"), (1234, "a delegate's error", None)),
        (FileNotFoundError(2, "No such file or directory", "/x"), (5, "/x: No such file or directory", None)),
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
    assert failure(verb, raises=error) == expected


def test_error_object_has_the_configurations_version():
    """The error object has the configuration's version, or the plugin's newest if that is not supported."""
    for configured, expected in (("0.4.0", "0.4.0"), ("9.9.9", "1.1.0")):
        body = strict_json(run("ADD", CONFIG | {"cniVersion": configured}, raises=CniError(7, "x"))[1])
        assert body["cniVersion"] == expected


def test_errors_are_combined():
    """A teardown reports all failures, with the first one's code; many are shortened, and equal hints occur once."""
    assert combined([]) is None
    one, two = CniError(11, "busy"), CniError(999, "gone", "hint")
    assert combined([one]) is one
    both = combined([one, two])
    assert both is not None
    assert (both.code, str(both), both.details) == (11, "busy; gone; hint", "hint")
    many = combined([CniError(5, f"no {number}", "free the disk") for number in range(12)])
    assert many is not None
    assert many.msg == "; ".join([*(f"no {number}" for number in range(10)), "and 2 more"])
    assert (many.code, many.details) == (5, "free the disk")
