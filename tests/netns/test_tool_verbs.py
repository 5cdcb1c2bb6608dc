"""The operator's tool runs a network's verbs as libcni does: in its order, with its cache, and nothing is left."""

from __future__ import annotations

import base64
import hashlib
import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import binaries
from tests.support.chained import differences
from tests.support.namespaces import Namespace
from tests.support.tool import PORTMAP, Tool

PORTS = ("--capability-args", '{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}')
FAILING = 'echo \'{"cniVersion": "1.1.0", "code": 100, "msg": "no luck", "details": "try again"}\'; exit 1'


@pytest.fixture(params=["podwire", "reference", "mixed"])
def anyones(request: pytest.FixtureRequest, tool: Tool, tmp_path: Path) -> Tool:
    """A network of bridge and firewall by podwire's files, the reference's, and some of each."""
    reference: Path = request.getfixturevalue("reference")
    ours = {"podwire": binaries.names(), "reference": [], "mixed": ["bridge"]}[request.param]
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("bridge", "firewall", "host-local"):
        (directory / name).symlink_to((binaries.directory() if name in ours else reference) / name)
    made = Tool(tool.host, tmp_path, directory)
    # Not portmap, since the reference's fails CHECK of a pod without an IPv6 address.
    made.configure(made.bridge(ipMasq=True), {"type": "firewall"}, version="1.0.0")
    return made


def script(tool: Tool, name: str, body: str) -> dict[str, Any]:
    """Makes a plugin that is a shell script, beside ours in a directory of their own; returns its part of a list."""
    directory = tool.directory / "bin"
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{body}\n")
    (directory / name).chmod(0o755)
    return {"type": name}


def with_scripts(tool: Tool) -> Tool:
    """Returns the tool with both directories of plugins on its path."""
    return Tool(tool.host, tool.directory, Path(f"{tool.directory}/bin:{binaries.directory()}"))


def used(tool: Tool, pod: Namespace, *options: str) -> dict[str, Any]:
    """Returns all there is after one attachment came and went: what the first one makes for all is there then."""
    tool.succeed("add", "net", pod.name, *options)
    tool.succeed("del", "net", pod.name)
    return tool.everything(pod)


def test_a_round_trip_leaves_nothing(anyones: Tool, sandbox: Namespace):
    """Attached, checked and detached, a pod leaves host, pod and files as they were, whoever's plugins it has."""
    before = used(anyones, sandbox)
    told = anyones.succeed("add", "net", sandbox.name)
    assert "10.22.0." in told
    assert told.count(" ok\n") == 2
    assert "eth0" in sandbox.ip("link")
    assert anyones.succeed("check", "net", sandbox.name).count(" ok\n") == 2
    anyones.succeed("del", "net", sandbox.name)
    assert differences(before, anyones.everything(sandbox)) == []
    assert list(anyones.cache.iterdir()) == []


def test_the_cache_is_what_libcni_writes(tool: Tool, sandbox: Namespace):
    """An entry has libcni's keys in its order, its mode, its name, the list in base64, and the arguments as given.

    Keys and forms are those of an entry that multus-cni's tests have (pkg/multus/multus_cni020_test.go, "executes
    delegates with CNI GC"), and of cachedInfo in containernetworking/cni, libcni/api.go.
    """
    pairs = ("--args", "IgnoreUnknown=1", "--args", "K8S_POD_NAME=web")
    tool.succeed("add", "net", sandbox.name, *PORTS, *pairs)
    container = f"cnitool-{hashlib.sha512(sandbox.path.encode()).hexdigest()[:20]}"
    (file,) = tool.cache.iterdir()
    assert file.name == f"net-{container}-eth0"
    assert (file.stat().st_mode & 0o7777, tool.cache.stat().st_mode & 0o7777) == (0o600, 0o700)
    entry = json.loads(file.read_text())
    assert " ".join(entry) == "kind containerId config ifName networkName netns cniArgs capabilityArgs result"
    assert (entry["kind"], entry["containerId"], entry["ifName"]) == ("cniCacheV1", container, "eth0")
    assert (entry["networkName"], entry["netns"]) == ("net", sandbox.path)
    assert entry["cniArgs"] == [["IgnoreUnknown", "1"], ["K8S_POD_NAME", "web"]]
    assert entry["capabilityArgs"]["portMappings"][0]["hostPort"] == 8080
    config = json.loads(base64.b64decode(entry["config"], validate=True))
    assert [plugin["type"] for plugin in config["plugins"]] == ["bridge", "portmap"]
    assert list(entry["result"]) == sorted(entry["result"])
    assert entry["result"]["cniVersion"] == "1.1.0"
    tool.succeed("del", "net", sandbox.name)


def test_an_attachment_of_a_runtime_is_found_by_its_namespace(tool: Tool, sandbox: Namespace):
    """What another container ID attached is checked and detached by the path, name or PID of its namespace."""
    tool.succeed("add", "net", sandbox.name, "--container-id", "by-a-runtime")
    with sandbox.entered(), subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert "container by-a-runtime" in tool.succeed("check", "net", str(process.pid))
        finally:
            process.kill()
    told = tool.succeed("check", "net", sandbox.path.replace("/run", "/var/run"))
    assert "container by-a-runtime" in told
    tool.succeed("del", "net", sandbox.name)
    assert list(tool.cache.iterdir()) == []


def test_an_attachment_goes_with_the_configuration_it_came_with(tool: Tool, sandbox: Namespace):
    """A network that is no more in net.d is still deleted, by the container's ID alone."""
    before = used(tool, sandbox, *PORTS)
    tool.succeed("add", "net", sandbox.name, "--container-id", "c1", *PORTS)
    (tool.directory / "net.d" / "net.conflist").unlink()
    tool.succeed("del", "net", "--container-id", "c1")
    tool.configure(tool.bridge(ipMasq=True), PORTMAP)
    assert differences(before, tool.everything(sandbox)) == []


def test_a_failure_in_the_middle_leaves_nothing(tool: Tool, sandbox: Namespace):
    """When a plugin fails its error and hint are told, and DEL of all leaves what was before."""
    before = used(tool, sandbox, *PORTS)
    failing = script(tool, "failing", f'[ "$CNI_COMMAND" != ADD ] || {{ {FAILING}; }}')
    tool.configure(tool.bridge(ipMasq=True), failing, PORTMAP)
    told = with_scripts(tool).fail(1, "add", "net", sandbox.name, *PORTS)
    assert "error: no luck\n  try again\n" in told
    assert "nothing remains" in told
    assert [line.split()[:2] for line in told.splitlines() if " ms " in line] == [
        ["bridge", "ADD"],
        ["failing", "ADD"],
        ["portmap", "DEL"],
        ["failing", "DEL"],
        ["bridge", "DEL"],
    ]
    tool.configure(tool.bridge(ipMasq=True), PORTMAP)
    (tool.directory / "bin" / "failing").unlink()
    assert differences(before, tool.everything(sandbox)) == []


def test_a_plugin_that_talks_nonsense_is_a_failure(tool: Tool, sandbox: Namespace):
    """A plugin that succeeds without a result, or fails without an error, is told so."""
    tool.configure(script(tool, "silent", "exit 0"))
    assert "silent printed no result" in with_scripts(tool).fail(1, "add", "net", sandbox.name)
    tool.configure(script(tool, "silent", "echo oops; exit 3"))
    told = with_scripts(tool).fail(1, "add", "net", sandbox.name)
    assert "silent failed without an error object: exit status 3\n  it printed: oops" in told


def test_an_interrupted_add_leaves_nothing(tool: Tool, sandbox: Namespace):
    """SIGTERM while a plugin works ends the plugin, and DEL of all leaves what was before."""
    before = used(tool, sandbox, *PORTS)
    started = tool.directory / "started"
    slow = script(tool, "slow", f'[ "$CNI_COMMAND" != ADD ] || {{ touch {started}; exec sleep 60; }}')
    tool.configure(tool.bridge(ipMasq=True), slow)
    process = with_scripts(tool).start("add", "net", sandbox.name)
    deadline = time.monotonic() + 20
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 3
    assert b"interrupted by a signal" in stderr
    assert stdout.count(b" DEL ") == 2
    started.unlink()
    (tool.directory / "bin" / "slow").unlink()
    tool.configure(tool.bridge(ipMasq=True), PORTMAP)
    assert differences(before, tool.everything(sandbox)) == []


def test_what_cannot_be_remembered_is_taken_away(tool: Tool, sandbox: Namespace):
    """Without a place for the cache a pod is not attached, since nobody could detach it."""
    before = used(tool, sandbox, *PORTS)
    tool.cache.rmdir()
    tool.cache.write_text("no directory")
    told = tool.fail(3, "add", "net", sandbox.name)
    assert "cannot write" in told
    tool.cache.unlink()
    tool.cache.mkdir()
    assert differences(before, tool.everything(sandbox)) == []


def test_what_is_there_is_not_attached_again(tool: Tool, sandbox: Namespace):
    """A second attachment of a pod, or one over an interface of others, is refused and harms nothing."""
    tool.succeed("add", "net", sandbox.name)
    before = tool.everything(sandbox)
    assert "is attached to" in tool.fail(3, "add", "net", sandbox.name)
    assert 'has an interface "eth0" already' in tool.fail(3, "add", "net", sandbox.name, "--container-id", "other")
    assert differences(before, tool.everything(sandbox)) == []
    tool.succeed("check", "net", sandbox.name)
    tool.succeed("add", "net", sandbox.name, "-i", "eth1")
    tool.succeed("del", "net", sandbox.name, "-i", "eth1")
    tool.succeed("del", "net", sandbox.name)


def test_check_names_what_is_missing(tool: Tool, sandbox: Namespace):
    """A flushed table fails CHECK of the plugin whose rules were in it, with what to do."""
    tool.succeed("add", "net", sandbox.name, *PORTS)
    tool.host.run("iptables", "-t", "nat", "-F")
    document = tool.json("check", "net", sandbox.name, status=1)
    failed = [step for step in document["steps"] if "error" in step]
    assert "portmap" in [step["plugin"] for step in failed]
    assert all(step["error"]["msg"] and step["error"]["code"] for step in failed)
    tool.succeed("del", "net", sandbox.name)


def test_check_respects_the_list(tool: Tool, sandbox: Namespace):
    """A list with disableCheck is not checked, one before 0.4.0 is refused in words."""
    tool.configure(tool.bridge(), disableCheck=True)
    tool.succeed("add", "net", sandbox.name)
    assert "disableCheck" in tool.succeed("check", "net", sandbox.name)
    tool.succeed("del", "net", sandbox.name)
    tool.configure(tool.bridge(), version="0.3.1")
    tool.succeed("add", "net", sandbox.name)
    assert "CHECK came with 0.4.0" in tool.fail(3, "check", "net", sandbox.name)
    tool.succeed("del", "net", sandbox.name)
    assert list(tool.cache.iterdir()) == []


def test_old_results_are_shown(tool: Tool, sandbox: Namespace):
    """A list of 0.2.0, whose results have no interfaces, is attached, remembered and detached."""
    tool.configure(tool.bridge(), version="0.2.0")
    assert "10.22.0.2/24" in tool.succeed("add", "net", sandbox.name)
    tool.succeed("del", "net", sandbox.name)
    assert list(tool.cache.iterdir()) == []


def test_the_documents(tool: Tool, sandbox: Namespace):
    """With --json add, check and del print one document of the promised shape."""
    added = tool.json("add", "net", sandbox.name)
    assert list(added) == ["network", "containerID", "ifname", "netns", "steps", "result"]
    assert [step["plugin"] for step in added["steps"]] == ["bridge", "portmap"]
    assert all(step["ms"] > 0 and step["command"] == "ADD" and "error" not in step for step in added["steps"])
    assert added["result"]["ips"][0]["address"] == "10.22.0.2/24"
    assert "result" not in tool.json("check", "net", sandbox.name)
    assert [step["plugin"] for step in tool.json("del", "net", sandbox.name)["steps"]] == ["portmap", "bridge"]
    refused = tool.json("add", "net", "absent", status=3)
    assert (refused["code"], "not a network namespace" in refused["msg"]) == (8, True)


def test_help_is_given_for_what_cannot_be_done(tool: Tool, sandbox: Namespace):
    """Unknown networks and namespaces, bad arguments and lack of root are refused with what there is instead."""
    assert "networks there: net" in tool.fail(3, "add", "other", sandbox.name)
    assert "give a path" in tool.fail(3, "add", "net", "absent")
    assert "is not a network namespace" in tool.fail(3, "add", "net", str(tool.directory))
    assert "the cache has no attachment" in tool.fail(3, "check", "net", sandbox.name)
    assert "--container-id ID" in tool.fail(2, "del", "net")
    assert "KEY=VALUE" in tool.fail(2, "add", "net", sandbox.name, "--args", "K")
    assert "JSON object" in tool.fail(2, "add", "net", sandbox.name, "--capability-args", "[]")
    assert "needs root" in tool.fail(3, "add", "net", sandbox.name, user=65534, group=65534)
    assert "15 characters" in tool.fail(2, "add", "net", sandbox.name, "-i", "a/b")
    assert "\\x1b" in tool.fail(3, "add", "a\x1bb", sandbox.name)


@pytest.mark.parametrize(
    ("name", "declared", "hint"),
    [
        ("portMapping", True, 'did you mean "portMappings"?'),
        ("portmappings", True, 'did you mean "portMappings"?'),
        ("portMappings", False, 'add "capabilities": {"portMappings": true} to the plugin portmap in '),
        ("other", True, "capabilities that its plugins declare: portMappings"),
        ("other", False, "capabilities that its plugins declare: none"),
    ],
)
def test_capability_arguments_that_no_plugin_would_get(tool: Tool, sandbox: Namespace, name, declared, hint):
    """ADD refuses a capability that no plugin declares, with the name that may be meant, and attaches nothing."""
    tool.configure(tool.bridge(), PORTMAP if declared else {"type": "portmap"})
    before = tool.everything(sandbox)
    arguments = json.dumps({name: [{"hostPort": 8080, "containerPort": 80}]})
    told = tool.fail(3, "add", "net", sandbox.name, "--capability-args", arguments)
    assert f'podwire: no plugin of network "net" declares the capability "{name}"\n  {hint}' in told
    assert "no plugin" in tool.fail(3, "add", "net", sandbox.name, "--dry-run", env={"CAP_ARGS": arguments})
    assert differences(before, tool.everything(sandbox)) == []


def test_the_steps_are_explained(tool: Tool, sandbox: Namespace):
    """With --explain each of our plugins tells its steps and changes, and no log is left."""
    before = sorted(Path("/run").glob("podwire-*"))
    told = tool.succeed("add", "net", sandbox.name, "--explain")
    assert 'create bridge "cni0"' in told
    assert "host-local ADD" in told
    document = tool.json("del", "net", sandbox.name, "--explain")
    assert all(step["account"][0]["plugin"] == step["plugin"] for step in document["steps"])
    assert sorted(Path("/run").glob("podwire-*")) == before


@pytest.fixture
def gone(tool: Tool, new_sandbox: Callable[[], Namespace]) -> tuple[Namespace, Namespace]:
    """Two attached pods, of which the namespace of the second is gone."""
    living, dead = new_sandbox(), new_sandbox()
    for pod in (living, dead):
        tool.succeed("add", "net", pod.name, *(PORTS if pod is dead else ()), "--container-id", pod.name)
    tool.delete_netns(dead)
    return living, dead


def test_gc_removes_the_dead_only(tool: Tool, gone: tuple[Namespace, Namespace]):
    """GC runs DEL for attachments whose namespace is gone, and keeps what lives."""
    living, dead = gone
    document = tool.json("gc", "net")
    assert document["kept"] == [{"containerID": living.name, "ifname": "eth0"}]
    assert document["deleted"] == [{"containerID": dead.name, "ifname": "eth0"}]
    commands = [(step["plugin"], step["command"]) for step in document["steps"]]
    assert commands == [("portmap", "DEL"), ("bridge", "DEL"), ("bridge", "GC"), ("portmap", "GC")]
    assert [file.name for file in tool.cache.iterdir()] == [f"net-{living.name}-eth0"]
    assert "8080" not in tool.host.run("iptables-save")
    assert (tool.leases / "10.22.0.2").exists()
    assert not (tool.leases / "10.22.0.3").exists()
    tool.succeed("check", "net", living.name)


def test_gc_respects_the_list(tool: Tool, gone: tuple[Namespace, Namespace]):
    """A list with disableGC is left alone; in one before 1.1.0 podwire's plugins collect all the same."""
    before = tool.everything()
    tool.configure(tool.bridge(ipMasq=True), PORTMAP, disableGC=True)
    assert tool.json("gc", "net")["steps"] == []
    tool.configure(tool.bridge(ipMasq=True), PORTMAP)
    assert differences(before, tool.everything()) == []
    tool.configure(tool.bridge(ipMasq=True), PORTMAP, version="1.0.0")
    commands = [(step["plugin"], step["command"]) for step in tool.json("gc", "net")["steps"]]
    assert commands == [("portmap", "DEL"), ("bridge", "DEL"), ("bridge", "GC"), ("portmap", "GC")]


def test_gc_refuses_to_guess(tool: Tool, gone: tuple[Namespace, Namespace]):
    """Without the cache, or with an entry that cannot be read, GC is refused: all would be garbage."""
    entry = tool.cache / f"net-{gone[0].name}-eth0"
    text = entry.read_text()
    entry.write_text(text[:50])
    assert "if the container is running, do not delete the file" in tool.fail(3, "gc", "net")
    entry.write_text(text)
    tool.cache.rename(tool.cache.with_name("elsewhere"))
    assert "every attachment would count as garbage" in tool.fail(3, "gc", "net")
    assert (tool.leases / "10.22.0.2").exists()


@pytest.mark.parametrize("own", ["by path", "/proc/self/ns/net"])
def test_the_hosts_own_namespace_is_refused(tool: Tool, own: str):
    """The namespace that the tool runs in is no pod's: add and its dry run refuse it before any plugin runs."""
    tool.configure(script(tool, "unused", f"touch {tool.directory}/ran"))
    netns = tool.host.path if own == "by path" else own
    for words in (("add", "net", netns), ("add", "net", netns, "--dry-run")):
        text = with_scripts(tool).fail(3, *words, env={"CNI_NETNS_OVERRIDE": "1"})
        assert "is this host's own network namespace, not a pod's" in text
    assert not (tool.directory / "ran").exists()


def test_check_refuses_the_hosts_own_namespace(tool: Tool, sandbox: Namespace):
    """An entry of the cache that names the host's namespace, as after a wrong ADD, is not checked as a pod."""
    tool.configure(tool.bridge())
    tool.succeed("add", "net", sandbox.name)
    (entry,) = tool.cache.iterdir()
    entry.write_text(entry.read_text().replace(sandbox.path, tool.host.path))
    container = json.loads(entry.read_text())["containerId"]
    text = tool.fail(3, "check", "net", tool.host.path, "--container-id", container)
    assert "is this host's own network namespace, not a pod's" in text


def test_two_at_once(tool: Tool, new_sandbox: Callable[[], Namespace]):
    """Of several that attach one namespace at once one does, the others are told, and take nothing away."""
    for number in range(4):
        pod = new_sandbox()
        running = [tool.start("add", "net", pod.name, *PORTS) for _ in range(3)]
        ends = [(process.communicate(timeout=60), process.returncode) for process in running]
        assert sorted(status for _, status in ends) == [0, 3, 3], (number, ends)
        told = b"".join(stderr for (_, stderr), status in ends if status)
        assert told.count(b"already") + told.count(b"another podwire") == len(ends) - 1, told.decode()
        tool.succeed("check", "net", pod.name)
        tool.succeed("del", "net", pod.name)
    assert not list(tool.cache.iterdir())
