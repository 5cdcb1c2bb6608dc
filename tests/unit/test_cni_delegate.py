"""Delegation to other executables and to this executable (cni.delegate)."""

import errno
import json
import os
import select
import signal
import sys
from dataclasses import replace
from ipaddress import ip_interface
from typing import Any

import pytest

from cni import conf as cni_conf
from cni import delegate
from cni.args import CmdArgs
from cni.conf import Attachment, NetConf
from cni.errors import CniError
from cni.result import IPConfig, Result
from cni.skel import Plugin
from process import child
from process.signals import Terminated
from process.undo import Undo
from tests.support.errors import error_of, failure_of
from tests.support.netconf import arguments
from tests.support.processes import in_a_child

ANSWER = '{"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.5/24"}]}'
RESULT = Result(ips=(IPConfig(ip_interface("10.1.2.5/24")),))
DUPLICATE = '{"code": 999, "msg": "10.1.2.2 has been allocated to cid, duplicate allocation is not allowed"}'


@pytest.fixture
def script(tmp_path):
    """A function that installs a shell script as the IPAM plugin "ipam", which writes its verbs to the file "calls"."""

    def install(body, directory="bin", head=f'echo "$CNI_COMMAND" >> {tmp_path}/calls'):
        file = tmp_path / directory / "ipam"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{head}\n{body}\n")
        file.chmod(0o755)
        return file

    return install


@pytest.fixture
def calls(tmp_path):
    return lambda: (tmp_path / "calls").read_text().split() if (tmp_path / "calls").exists() else []


@pytest.fixture
def request_for(tmp_path):
    """A function that returns the arguments and the configuration of the calling plugin."""

    def make(command="ADD", version="1.0.0", stdin=None, delegates=None, **env):
        stdin = stdin or json.dumps({"cniVersion": version, "name": "net", "ipam": {"type": "ipam"}}).encode()
        path = f"{tmp_path}/absent:{tmp_path}/bin"
        variables = {"PATH": os.environ["PATH"], "CNI_COMMAND": command, "CNI_PATH": path, **env}
        return replace(arguments(stdin, **variables), delegates=delegates or {}), cni_conf.parse(stdin)

    return make


def failure(run):
    return error_of(run, CniError)


def add(request):
    args, conf = request
    with Undo() as undo:
        return delegate.add("ipam", args, conf, undo)


def test_first_file_on_the_path_is_run(script, request_for, tmp_path):
    """Directories are searched in order; missing ones, and a directory with the plugin's name, are skipped."""
    (tmp_path / "odd" / "ipam").mkdir(parents=True)
    script(f"echo '{ANSWER}'", "bin")
    script("exit 1", "later")
    path = f"{tmp_path}/odd:{tmp_path}/absent:{tmp_path}/bin:{tmp_path}/later"
    assert add(request_for(CNI_PATH=path)) == RESULT


@pytest.mark.parametrize(
    ("kind", "code", "msg"),
    [
        ("nope", 7, 'failed to find plugin "nope" in path [/a /b]'),
        ("x\0y", 7, 'failed to find plugin "x\0y" in path [/a /b]'),
        ("", 7, "no plugin name provided"),
        ("../ipam", 7, "invalid plugin name: ../ipam"),
        ("/bin/sh", 7, "invalid plugin name: /bin/sh"),
        ("..", 7, "invalid plugin name: .."),
    ],
)
def test_missing_delegate_is_reported(kind, code, msg):
    """The message names the plugin and the searched directories; an empty CNI_PATH has its own."""
    error = failure(lambda: delegate.find(kind, ("/a", "/b")))
    assert (error.code, error.msg) == (code, msg)
    error = failure(lambda: delegate.find("ipam", ()))
    assert (error.code, error.msg) == (4, "no paths provided")


@pytest.mark.parametrize("size", [0, 2_000_000])
def test_delegate_gets_the_same_environment_and_input(script, request_for, tmp_path, size, capfd):
    """Stdin is passed on unchanged, whatever its size is; only CNI_COMMAND differs, and stderr is the plugin's."""
    script(f"cat > {tmp_path}/stdin; env > {tmp_path}/env; echo '{ANSWER}'; echo careful >&2")
    stdin = b'{ "name": "net","cniVersion":"1.0.0",\n"pad":"' + b"\xff" * size + b'"}  \n'
    args, conf = request_for("ADD", stdin=stdin, OWN="ümlaut\udcff", CNI_ARGS="A=b")
    assert add((args, conf)) == RESULT
    assert ((tmp_path / "stdin").read_bytes(), capfd.readouterr().err) == (stdin, "careful\n")
    actual = dict(line.split(b"=", 1) for line in (tmp_path / "env").read_bytes().splitlines())
    expected = {os.fsencode(name): os.fsencode(value) for name, value in args.env.items()}
    assert {name: actual.get(name) for name in expected} == expected
    assert actual.keys() - expected.keys() <= {b"PWD", b"SHLVL", b"_", b"OLDPWD"}


@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
def test_errors_of_the_delegate_are_returned_unchanged(script, request_for, command):
    """Code, msg and details of the delegate's error object are kept."""
    script("""echo '{"cniVersion": "1.1.0", "code": 1234, "msg": "no", "details": "why"}'; exit 3""")
    request = request_for(command, "1.1.0")
    error = failure(lambda: add(request) if command == "ADD" else delegate.run("ipam", *request))
    assert (error.code, error.msg, error.details) == (1234, "no", "why")


UNPARSED = "netplugin failed but error parsing its diagnostic message "
NO_ADDRESS = 'failed to decode result: "ips[0].address" is not an address with prefix: x'


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("body", "code", "msg"),
    [
        ("exit 7", 999, "netplugin failed with no error message: exit status 7"),
        ("kill -KILL $$", 999, "netplugin failed with no error message: signal 9"),
        ("echo oops; exit 1", 999, rf"{UNPARSED}'oops\n': exit status 1"),
        ("echo []; exit 1", 999, rf"{UNPARSED}'[]\n': exit status 1"),
        ("""echo '{"code": "x"}'; exit 2""", 999, UNPARSED),
        ("""echo '{"code": 7'; kill -KILL $$""", 999, UNPARSED),
        ("""echo '{"code": 11, "msg": "full"}'; exit 1""", 11, "full"),
        ("", 6, "plugin ipam printed no result: unexpected end of JSON input"),
        ("echo oops", 6, "plugin ipam printed no result: "),
        ("echo []", 7, "failed to decode result: it is not a JSON object"),
        ("""echo '{"cniVersion": "7.0.0"}'""", 7, 'unsupported CNI result version "7.0.0"'),
        ("""echo '{"ips": [{"address": "x"}]}'""", 7, NO_ADDRESS),
    ],
)
def test_add_without_a_result_fails(script, request_for, calls, body, code, msg):
    """An ADD without a valid result has failed, and is followed by a DEL; without an error object it is described."""
    program = script(body)
    error = failure(lambda: add(request_for()))
    assert error.code == code
    assert error.msg.startswith(msg)
    assert code != 999 or error.details == f"the plugin is {program}"
    assert calls() == ["ADD", "DEL"]


@pytest.mark.parametrize(
    ("output", "result"),
    [
        ("null", Result()),
        ("{}", Result()),
        ('{"ips": [{"address": "10.1.2.5/24"}]}', RESULT),
        ('{"cniVersion": "", "ips": [{"address": "10.1.2.5/24"}]}', RESULT),
        ('{"cniVersion": "1.1.0", "ips": [{"address": "10.1.2.5/24"}]}', RESULT),
        ('{"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.1.2.5/24"}], "dns": {}}', RESULT),
        ('{"cniVersion": "0.2.0", "ip4": {"ip": "10.1.2.5/24"}}', RESULT),
    ],
)
def test_results_of_any_version_are_converted(script, request_for, output, result):
    """`null` is an empty result; without cniVersion a result has the configuration's, another version is converted."""
    script(f"printf '%s' '{output}'")
    assert add(request_for(version="1.0.0")) == result


def test_duplicate_allocation_is_not_followed_by_del(script, request_for, calls):
    """After an ADD that failed since the attachment has an address no DEL follows, which would release it."""
    script(f"printf '%s' '{DUPLICATE}'; exit 1")
    failure(lambda: add(request_for()))
    assert calls() == ["ADD"]


def test_later_failure_runs_del(script, request_for, calls, capfd):
    """If a step after IPAM fails, DEL releases the address; an error of that DEL does not hide the failure."""
    script(f"""[ $CNI_COMMAND = DEL ] && echo '{{"code": 5, "msg": "gone"}}' && exit 1; echo '{ANSWER}'""")

    args, conf = request_for()

    def attach():
        with Undo() as undo:
            delegate.add("ipam", args, conf, undo)
            raise ValueError("later")

    assert str(failure_of(attach, ValueError)) == "later"
    assert calls() == ["ADD", "DEL"]
    assert capfd.readouterr().err == "podwire: could not run DEL of ipam: gone\n"


def test_file_without_permission_has_a_fix(script, request_for):
    """For a plugin of mode 0644 the details are a chmod command; for a damaged one they say so."""
    program = script("")
    program.chmod(0o644)
    error = failure(lambda: add(request_for()))
    assert (error.msg, error.details) == (f"cannot run {program}: Permission denied", f"run: chmod 0755 {program}")
    program.chmod(0o755)
    denied = PermissionError(errno.EACCES, "Permission denied")
    assert "chmod" not in delegate.not_runnable(str(program), denied).details
    assert "damaged" in delegate.not_runnable(str(program), OSError(errno.ENOEXEC, "Exec format error")).details


@pytest.mark.parametrize("is_closed", [True, False])
def test_file_that_is_being_written_is_tried_again(script, request_for, monkeypatch, is_closed):
    """A plugin that is open for writing is tried six times, also for the DEL that follows a failed ADD."""
    program = script(f"echo '{ANSWER}'")
    waits: list[object] = []

    def wait(*times):
        waits.append(times)
        if is_closed and len(waits) == 2:
            writer.close()

    monkeypatch.setattr(select, "select", wait)
    with program.open("a") as writer:
        if is_closed:
            assert add(request_for()) == RESULT
        else:
            assert failure(lambda: add(request_for())).msg == f"cannot run {program}: Text file busy"
    assert len(waits) == (2 if is_closed else 5 + 5)


def test_signal_ends_the_delegate_first(script, request_for, calls, tmp_path):
    """SIGTERM is passed on, the delegate cleans up and ends, then DEL follows, and the plugin's other undos."""

    def on_signal(signum, frame):
        raise Terminated

    script(
        f"""[ $CNI_COMMAND = DEL ] && exit 0
        trap 'echo cleaned >> {tmp_path}/calls; exit 1' TERM
        kill -TERM $PPID
        while :; do sleep 0.02; done"""
    )

    def plugin():
        signal.signal(signal.SIGTERM, on_signal)
        return failure_of(lambda: add(request_for()), Terminated) is not None

    assert in_a_child(plugin)
    assert calls() == ["ADD", "cleaned", "DEL"]


@pytest.fixture
def same_file(tmp_path):
    """Makes "ipam" on CNI_PATH the file that this process runs."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ipam").symlink_to(sys.executable)


def make_delegate(calls, answer=RESULT, **kwargs):
    """Returns a delegate that runs in this process, records its calls, and returns or raises `answer`."""

    def verb(args: CmdArgs, conf: NetConf, *valid: frozenset[Attachment]) -> Any:
        calls.append((args.command, args.stdin))
        if isinstance(answer, Exception):
            raise answer
        return answer if args.command == "ADD" else None

    return {"ipam": Plugin("ipam", verb, verb, verb, cmd_gc=verb, cmd_status=verb, **kwargs)}


@pytest.mark.every_case
@pytest.mark.usefixtures("same_file")
@pytest.mark.parametrize(
    ("answer", "version", "code", "msg"),
    [
        (CniError(11, "busy"), "0.2.0", 11, "busy"),
        (PermissionError(13, "Permission denied", "/x"), "0.2.0", 5, "/x: Permission denied"),
        (KeyError("x"), "0.2.0", 999, "KeyError: 'x'"),
        (Result(), "0.2.0", 7, "cannot convert: no valid IP addresses"),
        (RESULT, "1.0.0", 1, "incompatible CNI versions"),
    ],
)
def test_errors_of_a_delegate_in_this_process_are_converted(request_for, answer, version, code, msg):
    """An exception, or a version that it lacks, is the error object that it would print, and no DEL follows."""
    seen: list[tuple[str, bytes]] = []
    delegates = make_delegate(seen, answer, versions=("0.2.0",))
    error = failure(lambda: add(request_for(version=version, delegates=delegates)))
    assert (error.code, error.msg) == (code, msg)
    assert [command for command, _ in seen] == ["ADD"] * (code != 1)


@pytest.mark.parametrize("command", ["ADD", "CHECK"])
def test_delegate_that_hangs_is_killed(script, request_for, calls, monkeypatch, command):
    """After the time limit the delegate is killed, and the error is "try again later"; DEL follows a failed ADD."""
    monkeypatch.setattr(child, "LIMIT_S", 1.0)
    file = script('[ "$CNI_COMMAND" = DEL ] && [ -e "$0.added" ] && exit 0; : > "$0.added"; exec sleep 60')
    request = request_for(command)
    error = failure(lambda: add(request) if command == "ADD" else delegate.run("ipam", *request))
    assert error.code == 11
    assert error.msg == f"{file} did not end {command} within 1 s and was killed, try again later"
    assert calls() == (["ADD", "DEL"] if command == "ADD" else [command])
