"""The log that the built plugins write for real attachments."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import binaries, mount_wrapper, scripted_ipam
from tests.support.attaching import Network
from tests.support.invocation import environment, finish, start_plugin
from tests.support.namespaces import Namespace

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PARALLEL_VERBS = 24


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The path of the log."""
    return tmp_path / "podwire.log"


def enable_log(network: Network, target: Path | str, level: str = "debug", **env: str) -> Network:
    """Returns the network with its log enabled by the environment."""
    return replace(network, env={"PODWIRE_LOG": str(target), "PODWIRE_LOG_LEVEL": level, **env})


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Returns the lines of the log; fails if one is not a JSON object."""
    return [json.loads(text) for text in file.read_text().splitlines()]


def trace_add(network: Network, sandbox: Namespace, directory: Path, **env: str) -> list[str]:
    """Runs ADD and returns its system calls for files and sockets, and its writes."""
    trace = directory / "trace"
    variables = {"CONTAINERID": sandbox.name, "NETNS": sandbox.path, "IFNAME": "eth0", "PATH": binaries.directory()}
    cni = {f"CNI_{name}": str(value) for name, value in variables.items()}
    line = ["strace", "-s500", "-o", str(trace), "-e", "trace=%file,%network,write", f"{binaries.directory()}/bridge"]
    text, env = json.dumps(network.config), environment("ADD", **cni, **env)
    with network.host.entered():
        subprocess.run(line, input=text, env=env, capture_output=True, timeout=60, text=True, check=True)
    return trace.read_text().splitlines()


def test_log_is_off_by_default(network: Network, sandbox: Namespace, file: Path, tmp_path: Path):
    """A verb opens no log by default, and if enabled it opens the file, reads its status and writes once."""
    assert not [call for call in trace_add(network, sandbox, tmp_path) if "O_APPEND" in call or "journal" in call]
    network.delete(sandbox)
    logged_calls = trace_add(network, sandbox, tmp_path, PODWIRE_LOG=str(file))
    (opened,) = (number for number, call in enumerate(logged_calls) if "O_APPEND" in call)
    assert str(file) in logged_calls[opened]
    names = [call.split("(")[0] for call in logged_calls[opened:] if not call.startswith("+++")]
    assert [name for name in names if "stat" not in name] == ["openat", "write"]
    assert len(read_lines(file)) == 1


@pytest.mark.needs("nft_nat", "nft_inet")
def test_steps_and_changes(network: Network, sandbox: Namespace, file: Path):
    """At level debug ADD and DEL log changes and steps with durations."""
    masquerading = network.having(ipMasq=True, ipMasqBackend="nftables")
    result = enable_log(masquerading, file).add(sandbox)
    enable_log(masquerading, file).delete(sandbox, result)
    added, deleted = read_lines(file)
    veth = result["interfaces"][1]["name"]
    assert f'make veth pair "{veth}" - "eth0"' in added["changes"]
    assert f'delete "{veth}", the other end of "eth0"' in deleted["changes"]
    assert added["result"] == {"ips": [result["ips"][0]["address"]]}
    assert {"create the veth pair", "host-local ADD", "rules by nftables"} <= {step["what"] for step in added["steps"]}
    assert sum(step["ms"] for step in added["steps"] if step["what"] == "host-local ADD") < added["ms"]
    usage = subprocess.run([binaries.directory() / "bridge"], env={}, capture_output=True, text=True, check=True).stderr
    assert [line["version"] for line in (added, deleted)] == re.findall(r"podwire\.(\S+)", usage)[:1] * 2


def test_failed_add_logs_its_rollback(network: Network, new_sandbox: Callable[[], Namespace], file: Path):
    """The line of an ADD without a free address has the error, and the changes with their rollback."""
    small = network.having(ipam={**network.config["ipam"], "ranges": [[{"subnet": "10.22.0.0/30"}]]})
    small.add(new_sandbox())
    error = enable_log(small, file).run("ADD", new_sandbox()).error()
    (line,) = read_lines(file)
    assert line["error"] == {key: error[key] for key in ("code", "msg", "details") if key in error}
    (veth,) = (match[1] for change in line["changes"] if (match := re.match(r'make veth pair "(\w+)"', change)))
    assert line["changes"].index(f'delete "{veth}"') > 0
    assert line["level"] == "error"


def test_full_disk_fails_no_verb(network: Network, sandbox: Namespace, tmp_path: Path):
    """On a full disk ADD succeeds, and the log keeps only whole lines."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = f"mount -t tmpfs -o size=8k podwire {disk}; head -c 8000 /dev/zero | tr '\\0' '\\n' > {disk}/log"
    bin_dir = mount_wrapper.install(
        tmp_path / "bin", "bridge", mounted, after=f"tail -c 200 {disk}/log | tr -d '\\n' | wc -c >&2"
    )
    full = replace(enable_log(network, disk / "log"), bin_dir=bin_dir, path=str(binaries.directory()))
    outcome = full.run("ADD", sandbox)
    assert outcome.result()["ips"]
    assert outcome.stderr.splitlines()[0].endswith("there is no room for the line")
    assert outcome.stderr.splitlines()[1].strip() == "0"


def test_parallel_verbs_write_whole_lines(network: Network, sandbox: Namespace, file: Path):
    """Each of many parallel verbs with long lines writes one whole line."""
    config = {"cniVersion": "1.0.0", "name": "n" * 200, "type": "loopback"}
    env = {"PODWIRE_LOG": str(file), "PODWIRE_LOG_LEVEL": "debug"}
    started = [
        start_plugin("loopback", "ADD", netns=sandbox, container_id=f"c{number}" * 40, host=network.host, env=env)
        for number in range(PARALLEL_VERBS)
    ]
    for process in started:
        finish(process, config).result()
    assert {line["containerID"] for line in read_lines(file)} == {f"c{number}" * 40 for number in range(PARALLEL_VERBS)}
    assert len(read_lines(file)) == PARALLEL_VERBS


def test_trace_context_reaches_delegates(network: Network, sandbox: Namespace, file: Path, tmp_path: Path):
    """TRACEPARENT and TRACESTATE are passed on to a delegate in a separate process, and the former is logged."""
    result = {"cniVersion": "1.0.0", "ips": [{"address": "10.22.0.9/16"}]}
    body = f'echo "$TRACEPARENT $TRACESTATE" > {tmp_path}/seen'
    ipam = scripted_ipam.install(tmp_path / "ipam", result, body)
    traced = enable_log(network, file, TRACEPARENT=TRACE, TRACESTATE="a=b")
    replace(traced, path=str(ipam.directory)).having(ipam={"type": scripted_ipam.NAME}).add(sandbox)
    assert (tmp_path / "seen").read_text() == f"{TRACE} a=b\n"
    (line,) = read_lines(file)
    assert (line["traceID"], line["parentID"]) == tuple(TRACE.split("-")[1:3])
    assert f"run ADD of scripted ({ipam.directory / 'scripted'})" in line["changes"]


def test_delegates_log(network: Network, sandbox: Namespace, file: Path, tmp_path: Path):
    """A delegate inside the process is a step of its caller's line, and one in a separate process writes a line."""
    enable_log(network, file).add(sandbox)
    assert [line["plugin"] for line in read_lines(file)] == ["bridge"]
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(binaries.directory() / "host-local", other)
    replace(enable_log(network, file), path=str(other)).delete(sandbox)
    assert [line["plugin"] for line in read_lines(file)] == ["bridge", "host-local", "bridge"]
    assert [change.split()[0] for change in read_lines(file)[1]["changes"]] == ["release"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("proc", "self/comm"),
        ("sysfs", "class/net/lo/ifalias"),
        ("ramfs", "log"),
        ("tmpfs", "log"),
        ("tmpfs -o size=0", "log"),
    ],
)
def test_log_on_a_pseudo_file_system(host: Namespace, tmp_path: Path, kind: str, name: str):
    """No line is written to a proc or sysfs at any mount point, but file systems in memory are supported."""
    file, program = tmp_path / "m" / name, binaries.directory() / "loopback"
    (tmp_path / "m").mkdir()
    script = f"mount -t {kind} none {tmp_path}/m; {program} </dev/null; cat {file}"
    line = ["nsenter", f"--net={host.path}", "unshare", "--mount", "sh", "-c", script]
    env = {**environment("CHECK"), "PODWIRE_LOG": str(file)}
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    assert ('"plugin":"loopback"' in done.stdout) == (name == "log"), done
    assert (f"cannot write to {file}: it is not a regular file" in done.stderr) == (name != "log"), done
