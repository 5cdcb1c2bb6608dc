"""The log as the built plugins write it, of real attachments."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import binaries, scripted_ipam
from tests.support.attaching import Network
from tests.support.invocation import environment, finish, start_plugin
from tests.support.namespaces import Namespace

MARK = "s3cr3t-mark"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
AT_ONCE = 24


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the log is."""
    return tmp_path / "podwire.log"


def logging(network: Network, target: Path | str, level: str = "debug", **env: str) -> Network:
    """Returns the network with its log switched on by the environment."""
    return replace(network, env={"PODWIRE_LOG": str(target), "PODWIRE_LOG_LEVEL": level, **env})


def lines(file: Path) -> list[dict[str, Any]]:
    """Returns the lines of the log, each of which must be one JSON object."""
    return [json.loads(text) for text in file.read_text().splitlines()]


def calls(network: Network, sandbox: Namespace, directory: Path, **env: str) -> list[str]:
    """Returns the system calls of an ADD that have to do with files and sockets, and its writes."""
    trace = directory / "trace"
    variables = {"CONTAINERID": sandbox.name, "NETNS": sandbox.path, "IFNAME": "eth0", "PATH": binaries.directory()}
    cni = {f"CNI_{name}": str(value) for name, value in variables.items()}
    program = ["strace", "-s500", "-o", str(trace), "-e", "trace=%file,%network,write", binaries.directory() / "bridge"]
    with network.host.entered():
        done = subprocess.run(
            program,
            input=json.dumps(network.config).encode(),
            env=environment("ADD", **cni, **env),
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    return trace.read_text().splitlines()


def test_off_by_default(network: Network, sandbox: Namespace, file: Path, tmp_path: Path):
    """Without being asked a verb opens no log, and asked it opens a log, looks where that is, and makes one write."""
    assert not [call for call in calls(network, sandbox, tmp_path) if "O_APPEND" in call or "journal" in call]
    network.delete(sandbox)
    asked = calls(network, sandbox, tmp_path, PODWIRE_LOG=str(file))
    (opened,) = (number for number, call in enumerate(asked) if "O_APPEND" in call)
    assert str(file) in asked[opened]
    names = [call.split("(")[0] for call in asked[opened:] if not call.startswith("+++")]
    assert [name for name in names if "stat" not in name] == ["openat", "write"]
    assert len(lines(file)) == 1


@pytest.mark.needs("nft_nat", "nft_inet")
def test_levels(network: Network, sandbox: Namespace, file: Path):
    """At debug ADD and DEL tell what they changed and how long it took, at info and error they do not."""
    masquerading = network.having(ipMasq=True, ipMasqBackend="nftables")
    result = logging(masquerading, file).add(sandbox)
    logging(masquerading, file).delete(sandbox, result)
    added, deleted = lines(file)
    veth = result["interfaces"][1]["name"]
    assert f'make veth pair "{veth}" - "eth0"' in added["changes"]
    assert f'delete "{veth}", the other end of "eth0"' in deleted["changes"]
    assert added["result"] == {"ips": [result["ips"][0]["address"]]}
    assert {"create the veth pair", "host-local ADD", "rules by nftables"} <= {step["what"] for step in added["steps"]}
    assert sum(step["ms"] for step in added["steps"] if step["what"] == "host-local ADD") < added["ms"]
    assert [line["version"] for line in (added, deleted)] == [version()] * 2
    logging(network, file, "info").add(sandbox)
    logging(network, file, "error").delete(sandbox)
    assert not {"steps", "changes"} & lines(file)[-1].keys()
    assert [line["command"] for line in lines(file)] == ["ADD", "DEL", "ADD"]


def test_a_failed_add_tells_what_it_took_back(network: Network, new_sandbox: Callable[[], Namespace], file: Path):
    """The line of an ADD without a free address has the error, and among the changes what was made and undone."""
    small = network.having(ipam={**network.config["ipam"], "ranges": [[{"subnet": "10.22.0.0/30"}]]})
    small.add(new_sandbox())
    error = logging(small, file).run("ADD", new_sandbox()).error()
    (line,) = lines(file)
    assert line["error"] == {key: error[key] for key in ("code", "msg", "details") if key in error}
    (made,) = (match[1] for change in line["changes"] if (match := re.match(r'make veth pair "(\w+)"', change)))
    assert line["changes"].index(f'delete "{made}"') > 0
    assert line["level"] == "error"


def test_keys_and_environment(network: Network, sandbox: Namespace, file: Path, tmp_path: Path):
    """A network's keys switch its log on, and the environment's file wins over theirs."""
    keyed = network.having(logFile=str(file), logLevel="debug")
    keyed.add(sandbox)
    assert "changes" in lines(file)[0]
    other = tmp_path / "other"
    replace(keyed, env={"PODWIRE_LOG": str(other)}).delete(sandbox)
    assert (len(lines(file)), [line["command"] for line in lines(other)]) == (1, ["DEL"])


def test_stdout_is_the_results(network: Network, sandbox: Namespace, file: Path):
    """The result on stdout is the same with the log on stderr, which has one line."""
    outcome = logging(network, "stderr").run("ADD", sandbox)
    assert outcome.result()["ips"]
    assert json.loads(outcome.stderr)["containerID"] == sandbox.name


@pytest.mark.parametrize("kind", ["absent directory", "fifo", "device"])
def test_an_unwritable_log_fails_no_verb(kind: str, network: Network, sandbox: Namespace, tmp_path: Path):
    """A log that cannot be written is told in one line on stderr, and ADD and DEL succeed."""
    target = {"absent directory": tmp_path / "absent" / "log", "fifo": tmp_path / "fifo", "device": Path("/dev/full")}
    if kind == "fifo":
        os.mkfifo(target[kind])
    broken = logging(network, target[kind])
    for command in ("ADD", "DEL"):
        outcome = broken.run(command, sandbox)
        assert outcome.status == 0
        assert re.fullmatch(r"podwire: log: cannot write to \S+: .+\n", outcome.stderr)


def test_a_full_disk_fails_no_verb(network: Network, sandbox: Namespace, tmp_path: Path):
    """On a full disk ADD and DEL succeed, and the log keeps whole lines only."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = f"mount -t tmpfs -o size=8k podwire {disk}; head -c 8000 /dev/zero | tr '\\0' '\\n' > {disk}/log"
    bin_dir = wrapped(tmp_path / "bin", mounted, after=f"tail -c 200 {disk}/log | tr -d '\\n' | wc -c >&2")
    full = replace(logging(network, disk / "log"), bin_dir=bin_dir, path=str(binaries.directory()))
    outcome = full.run("ADD", sandbox)
    assert outcome.result()["ips"]
    assert outcome.stderr.splitlines()[0].endswith("there is no room for the line")
    assert outcome.stderr.splitlines()[1].strip() == "0"


def test_no_secrets(network: Network, sandbox: Namespace, file: Path):
    """What is put into CNI_ARGS, args, unknown keys and the environment never appears, whether a verb fails or not."""
    told = network.having(token=MARK, args={"token": MARK}, runtimeConfig={"token": MARK})
    telling = logging(told, file, TOKEN=MARK, TRACESTATE=MARK)
    telling.run("ADD", sandbox, args=f"IgnoreUnknown=1;TOKEN={MARK};K8S_POD_NAMESPACE=a;K8S_POD_NAME=b").result()
    telling.run("ADD", sandbox, args=f"TOKEN={MARK}").error()
    telling.delete(sandbox)
    assert MARK not in file.read_text()
    assert [line.get("pod") for line in lines(file)] == ["a/b", None, None]


def test_verbs_at_once_write_whole_lines(network: Network, sandbox: Namespace, file: Path):
    """Many verbs at once, with long lines, leave one whole line each."""
    config = {"cniVersion": "1.0.0", "name": "n" * 200, "type": "loopback"}
    env = {"PODWIRE_LOG": str(file), "PODWIRE_LOG_LEVEL": "debug"}
    started = [
        start_plugin("loopback", "ADD", netns=sandbox, container_id=f"c{number}" * 40, host=network.host, env=env)
        for number in range(AT_ONCE)
    ]
    for process in started:
        finish(process, config).result()
    assert {line["containerID"] for line in lines(file)} == {f"c{number}" * 40 for number in range(AT_ONCE)}
    assert len(lines(file)) == AT_ONCE


def test_journald(network: Network, sandbox: Namespace, tmp_path: Path):
    """What listens under the name of journald gets a datagram for each verb."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(path))
        journal.settimeout(10)
        outcome = with_run(network, tmp_path, f"touch journal/socket; mount --bind {path} journal/socket").run(
            "ADD", sandbox
        )
        assert outcome.result()["ips"], outcome.stderr
        assert outcome.stderr == ""
        datagram = journal.recv(1 << 16)
    for name, value in (("CNI_CONTAINERID", sandbox.name), ("PRIORITY", "6"), ("CNI_PLUGIN", "bridge")):
        assert name.encode() + b"\n" + len(value).to_bytes(8, "little") + value.encode() + b"\n" in datagram
    assert b"bridge ADD of eth0 (10.22.0.2/16) took " in datagram


def test_without_journald_no_verb_fails(network: Network, sandbox: Namespace, tmp_path: Path):
    """Where nobody listens under journald's name that is told, and the verb succeeds."""
    outcome = with_run(network, tmp_path, "true").run("ADD", sandbox)
    assert outcome.result()["ips"]
    assert outcome.stderr == "podwire: log: cannot write to journald: No such file or directory\n"


def with_run(network: Network, directory: Path, fill: str) -> Network:
    """Returns the network with its log in journald, and with a /run of its own; `fill` runs in its systemd."""
    run = directory / "run"
    made = f"""
        mkdir {run}
        mount -t tmpfs podwire {run}
        mkdir -p {run}/netns {run}/systemd/journal
        mount --rbind /run/netns {run}/netns
        (cd {run}/systemd; {fill})
        mount --rbind {run} /run"""
    bin_dir = wrapped(directory / "bin", made)
    return replace(logging(network, "journald"), bin_dir=bin_dir, path=str(binaries.directory()))


def test_trace_context_reaches_delegates(network: Network, sandbox: Namespace, file: Path, tmp_path: Path):
    """TRACEPARENT and TRACESTATE are passed on to a delegate in a process of its own, and the former is in the line."""
    result = {"cniVersion": "1.0.0", "ips": [{"address": "10.22.0.9/16"}]}
    body = f'echo "$TRACEPARENT $TRACESTATE" > {tmp_path}/seen'
    ipam = scripted_ipam.install(tmp_path / "ipam", result, body)
    traced = logging(network, file, TRACEPARENT=TRACE, TRACESTATE="a=b")
    replace(traced, path=str(ipam.directory)).having(ipam={"type": scripted_ipam.NAME}).add(sandbox)
    assert (tmp_path / "seen").read_text() == f"{TRACE} a=b\n"
    (line,) = lines(file)
    assert (line["traceID"], line["parentID"]) == tuple(TRACE.split("-")[1:3])
    assert f"run ADD of scripted ({ipam.directory / 'scripted'})" in line["changes"]


def test_delegates_lines(network: Network, sandbox: Namespace, file: Path, tmp_path: Path):
    """A delegate inside the process is a step of its caller's line; one in a process of its own writes its own."""
    logging(network, file).add(sandbox)
    assert [line["plugin"] for line in lines(file)] == ["bridge"]
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(binaries.directory() / "host-local", other)
    replace(logging(network, file), path=str(other)).delete(sandbox)
    assert [line["plugin"] for line in lines(file)] == ["bridge", "host-local", "bridge"]
    assert [change.split()[0] for change in lines(file)[1]["changes"]] == ["release"]


def wrapped(directory: Path, before: str, after: str = "") -> Path:
    """Returns a directory with a `bridge` that runs in a mount namespace, `before` and `after` it shell commands."""
    directory.mkdir()
    program = directory / "bridge"
    script = f"{before}\n{binaries.directory()}/bridge\nstatus=$?\n{after}\nexit $status"
    program.write_text(f"#!/bin/sh\nexec unshare --mount --propagation private sh -c {shlex.quote(script)}\n")
    program.chmod(0o755)
    return directory


def version() -> str:
    """Returns the release that the built file names."""
    done = subprocess.run([binaries.directory() / "bridge"], env={}, capture_output=True, text=True, check=True)
    return re.findall(r"podwire\.(\S+)", done.stderr)[0]


@pytest.mark.parametrize(
    ("kind", "name", "is_kept"),
    [
        ("proc", "self/comm", False),
        ("sysfs", "class/net/lo/ifalias", False),
        ("ramfs", "log", True),
        ("tmpfs", "log", True),
        ("-osize=0 -ttmpfs", "log", True),
    ],
)
def test_a_log_on_a_file_system_of_the_kernels(host: Namespace, tmp_path: Path, kind: str, name: str, is_kept: bool):
    """Wherever proc or sysfs is mounted no line is written there; file systems in memory take one."""
    file, program = tmp_path / "m" / name, binaries.directory() / "loopback"
    (tmp_path / "m").mkdir()
    options = kind if kind.startswith("-") else f"-t {kind}"
    script = f"mount {options} none {tmp_path}/m; {program} </dev/null; cat {file}"
    done = subprocess.run(
        ["nsenter", f"--net={host.path}", "unshare", "--mount", "sh", "-c", script],
        env={**environment("CHECK"), "PODWIRE_LOG": str(file)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ('"plugin":"loopback"' in done.stdout) == is_kept, done
    assert (f"cannot write to {file}: it is not a regular file" in done.stderr) != is_kept, done
