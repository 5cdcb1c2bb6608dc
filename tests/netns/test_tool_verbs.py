"""The operator's tool runs a network's verbs as libcni does: in the same order and with the same cache."""

import base64
import hashlib
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import binaries
from tests.support.chained import differences
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.tool import PORTMAP, PORTS, Tool

FAILING = 'echo \'{"cniVersion": "1.1.0", "code": 100, "msg": "no luck", "details": "try again"}\'; exit 1'


@pytest.fixture(params=["podwire", "reference", "mixed"])
def tool_of_any_vendor(request: pytest.FixtureRequest, tool: Tool, tmp_path: Path) -> Tool:
    """A network of bridge and firewall with podwire's files, with the reference plugins, and with some of each."""
    reference: Path = request.getfixturevalue("reference")
    ours = {"podwire": binaries.names(), "reference": [], "mixed": ["bridge"]}[request.param]
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("bridge", "firewall", "host-local"):
        (directory / name).symlink_to((binaries.directory() if name in ours else reference) / name)
    node = Tool(tool.host, tmp_path, directory)
    # Without portmap, since CHECK of the reference plugin fails for a pod without an IPv6 address.
    node.configure(node.bridge(ipMasq=True), {"type": "firewall"}, version="1.0.0")
    return node


def state_after_use(tool: Tool, pod: Namespace, *options: str) -> dict[str, Any]:
    """Attaches and detaches a pod once, and returns the state, which then has all shared objects."""
    tool.succeed("add", "net", pod.name, *options)
    tool.succeed("del", "net", pod.name)
    return tool.everything(pod)


def test_add_check_del_leave_nothing(tool_of_any_vendor: Tool, sandbox: Namespace):
    """After ADD, CHECK and DEL host, pod and files are as before, with the plugins of any vendor."""
    before = state_after_use(tool_of_any_vendor, sandbox)
    printed = tool_of_any_vendor.succeed("add", "net", sandbox.name)
    assert "10.22.0." in printed
    assert printed.count(" ok\n") == 2
    assert "eth0" in sandbox.ip("link")
    assert tool_of_any_vendor.succeed("check", "net", sandbox.name).count(" ok\n") == 2
    tool_of_any_vendor.succeed("del", "net", sandbox.name)
    assert differences(before, tool_of_any_vendor.everything(sandbox)) == []
    assert list(tool_of_any_vendor.cache.iterdir()) == []


def test_the_cache_is_what_libcni_writes(tool: Tool, sandbox: Namespace):
    """An entry has libcni's name, mode, keys and their order, the list in base64, and the arguments.

    Keys and formats are those of an entry in the tests of multus-cni (pkg/multus/multus_cni020_test.go, "executes
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


def test_attachment_of_a_runtime_is_identified_by_its_namespace(tool: Tool, sandbox: Namespace):
    """An attachment with another container ID is checked and detached by path, name or PID of its namespace."""
    tool.succeed("add", "net", sandbox.name, "--container-id", "by-a-runtime")
    with sandbox.entered(), subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert "container by-a-runtime" in tool.succeed("check", "net", str(process.pid))
        finally:
            process.kill()
    printed = tool.succeed("check", "net", sandbox.path.replace("/run", "/var/run"))
    assert "container by-a-runtime" in printed
    tool.succeed("del", "net", sandbox.name)
    assert list(tool.cache.iterdir()) == []


def test_del_uses_the_cached_configuration(tool: Tool, sandbox: Namespace):
    """A pod whose network is no longer in net.d is detached by its container ID alone."""
    before = state_after_use(tool, sandbox, *PORTS)
    tool.succeed("add", "net", sandbox.name, "--container-id", "c1", *PORTS)
    (tool.directory / "net.d" / "net.conflist").unlink()
    tool.succeed("del", "net", "--container-id", "c1")
    tool.configure(tool.bridge(ipMasq=True), PORTMAP)
    assert differences(before, tool.everything(sandbox)) == []


def test_failed_add_leaves_nothing(tool: Tool, sandbox: Namespace):
    """If a plugin fails, its error and hint are printed, and DEL of all plugins restores the previous state."""
    before = state_after_use(tool, sandbox, *PORTS)
    tool.configure(tool.bridge(ipMasq=True), {"type": "failing"}, PORTMAP)
    failing = tool.with_scripts(failing=f'[ "$CNI_COMMAND" != ADD ] || {{ {FAILING}; }}')
    printed = failing.fail(1, "add", "net", sandbox.name, *PORTS)
    assert "error: no luck\n  try again\n" in printed
    assert "nothing remains" in printed
    steps = [" ".join(line.split()[:2]) for line in printed.splitlines() if " ms " in line]
    assert steps == ["bridge ADD", "failing ADD", "portmap DEL", "failing DEL", "bridge DEL"]
    tool.configure(tool.bridge(ipMasq=True), PORTMAP)
    (tool.directory / "bin" / "failing").unlink()
    assert differences(before, tool.everything(sandbox)) == []


def test_interrupted_add_leaves_nothing(tool: Tool, sandbox: Namespace):
    """SIGTERM during ADD ends the plugin, and DEL of all plugins restores the previous state."""
    before = state_after_use(tool, sandbox, *PORTS)
    started = tool.directory / "started"
    slow = tool.with_scripts(slow=f'[ "$CNI_COMMAND" != ADD ] || {{ touch {started}; exec sleep 60; }}')
    tool.configure(tool.bridge(ipMasq=True), {"type": "slow"})
    process = slow.start("add", "net", sandbox.name)
    assert eventually(started.exists, within_s=50)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=50)
    assert process.returncode == 3
    assert b"interrupted by a signal" in stderr
    assert stdout.count(b" DEL ") == 2
    started.unlink()
    (tool.directory / "bin" / "slow").unlink()
    tool.configure(tool.bridge(ipMasq=True), PORTMAP)
    assert differences(before, tool.everything(sandbox)) == []


def test_add_without_a_writable_cache_is_rolled_back(tool: Tool, sandbox: Namespace):
    """If the cache cannot be written, the pod is detached, since a later DEL would not know it."""
    before = state_after_use(tool, sandbox, *PORTS)
    tool.cache.rmdir()
    tool.cache.write_text("no directory")
    printed = tool.fail(3, "add", "net", sandbox.name)
    assert "cannot write" in printed
    tool.cache.unlink()
    tool.cache.mkdir()
    assert differences(before, tool.everything(sandbox)) == []


def test_second_add_is_refused(tool: Tool, sandbox: Namespace):
    """A second ADD of a pod, and one whose interface name is in use, are refused and change nothing."""
    tool.succeed("add", "net", sandbox.name)
    before = tool.everything(sandbox)
    assert "is already attached to" in tool.fail(3, "add", "net", sandbox.name)
    assert 'has an interface "eth0" already' in tool.fail(3, "add", "net", sandbox.name, "--container-id", "other")
    assert differences(before, tool.everything(sandbox)) == []
    tool.succeed("check", "net", sandbox.name)
    tool.succeed("add", "net", sandbox.name, "-i", "eth1")
    tool.succeed("del", "net", sandbox.name, "-i", "eth1")
    tool.succeed("del", "net", sandbox.name)


def test_check_names_what_is_missing(tool: Tool, sandbox: Namespace):
    """After a flush CHECK fails with the error of the plugin whose rules are missing."""
    tool.succeed("add", "net", sandbox.name, *PORTS)
    tool.host.run("iptables", "-t", "nat", "-F")
    document = tool.json("check", "net", sandbox.name, status=1)
    failed = [step for step in document["steps"] if "error" in step]
    assert "portmap" in [step["plugin"] for step in failed]
    assert all(step["error"]["msg"] and step["error"]["code"] for step in failed)
    tool.succeed("del", "net", sandbox.name)


def test_check_respects_disable_check(tool: Tool, sandbox: Namespace):
    """A pod of a list with disableCheck is not checked, and the output says so."""
    tool.configure(tool.bridge(), disableCheck=True)
    tool.succeed("add", "net", sandbox.name)
    assert "disableCheck" in tool.succeed("check", "net", sandbox.name)
    tool.succeed("del", "net", sandbox.name)


def test_results_of_an_old_version(tool: Tool, sandbox: Namespace):
    """A list of 0.2.0, whose results have no interfaces, is attached, cached and detached."""
    tool.configure(tool.bridge(), version="0.2.0")
    assert "10.22.0.2/24" in tool.succeed("add", "net", sandbox.name)
    tool.succeed("del", "net", sandbox.name)
    assert list(tool.cache.iterdir()) == []


def test_json_documents(tool: Tool, sandbox: Namespace):
    """With --json add, check and del print one document of the documented shape."""
    added = tool.json("add", "net", sandbox.name)
    assert list(added) == ["network", "containerID", "ifname", "netns", "steps", "result"]
    assert [step["plugin"] for step in added["steps"]] == ["bridge", "portmap"]
    assert all(step["ms"] > 0 and step["command"] == "ADD" and "error" not in step for step in added["steps"])
    assert added["result"]["ips"][0]["address"] == "10.22.0.2/24"
    assert "result" not in tool.json("check", "net", sandbox.name)
    assert [step["plugin"] for step in tool.json("del", "net", sandbox.name)["steps"]] == ["portmap", "bridge"]
    refused = tool.json("add", "net", "absent", status=3)
    assert (refused["code"], "not a network namespace" in refused["msg"]) == (8, True)


def test_errors_have_hints(tool: Tool, sandbox: Namespace):
    """Errors about unknown networks and namespaces and invalid arguments have a hint."""
    assert "networks there: net" in tool.fail(3, "add", "other", sandbox.name)
    assert "give a path" in tool.fail(3, "add", "net", "absent")
    assert "is not a network namespace" in tool.fail(3, "add", "net", str(tool.directory))
    assert "the cache has no attachment" in tool.fail(3, "check", "net", sandbox.name)
    assert "--container-id ID" in tool.fail(2, "del", "net")
    assert "KEY=VALUE" in tool.fail(2, "add", "net", sandbox.name, "--args", "K")
    assert "JSON object" in tool.fail(2, "add", "net", sandbox.name, "--capability-args", "[]")
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
def test_undeclared_capability_arguments_are_refused(tool: Tool, sandbox: Namespace, name, declared, hint):
    """ADD refuses a capability that no plugin declares, suggests a similar name, and attaches nothing."""
    tool.configure(tool.bridge(), PORTMAP if declared else {"type": "portmap"})
    before = tool.everything(sandbox)
    arguments = json.dumps({name: [{"hostPort": 8080, "containerPort": 80}]})
    printed = tool.fail(3, "add", "net", sandbox.name, "--capability-args", arguments)
    assert f'podwire: no plugin of network "net" declares the capability "{name}"\n  {hint}' in printed
    assert "no plugin" in tool.fail(3, "add", "net", sandbox.name, "--dry-run", env={"CAP_ARGS": arguments})
    assert differences(before, tool.everything(sandbox)) == []


def test_explain_prints_steps_and_changes(tool: Tool, sandbox: Namespace):
    """With --explain the steps and changes of podwire's plugins are printed, and the temporary log is deleted."""
    before = sorted(Path("/run").glob("podwire-*"))
    printed = tool.succeed("add", "net", sandbox.name, "--explain")
    assert 'create bridge "cni0"' in printed
    assert "host-local ADD" in printed
    document = tool.json("del", "net", sandbox.name, "--explain")
    assert all(step["account"][0]["plugin"] == step["plugin"] for step in document["steps"])
    assert sorted(Path("/run").glob("podwire-*")) == before


@pytest.fixture
def running_and_stopped(tool: Tool, new_sandbox: Callable[[], Namespace]) -> tuple[Namespace, Namespace]:
    """Two attached pods; the namespace of the second no longer exists."""
    running, stopped = new_sandbox(), new_sandbox()
    for pod in (running, stopped):
        tool.succeed("add", "net", pod.name, *(PORTS if pod is stopped else ()), "--container-id", pod.name)
    tool.delete_netns(stopped)
    return running, stopped


def test_gc_removes_only_stopped_pods(tool: Tool, running_and_stopped: tuple[Namespace, Namespace]):
    """GC runs DEL for attachments whose namespace no longer exists, and keeps the others."""
    running, stopped = running_and_stopped
    document = tool.json("gc", "net")
    assert document["kept"] == [{"containerID": running.name, "ifname": "eth0"}]
    assert document["deleted"] == [{"containerID": stopped.name, "ifname": "eth0"}]
    commands = [(step["plugin"], step["command"]) for step in document["steps"]]
    assert commands == [("portmap", "DEL"), ("bridge", "DEL"), ("bridge", "GC"), ("portmap", "GC")]
    assert [file.name for file in tool.cache.iterdir()] == [f"net-{running.name}-eth0"]
    assert "8080" not in tool.host.run("iptables-save")
    assert (tool.leases / "10.22.0.2").exists()
    assert not (tool.leases / "10.22.0.3").exists()
    tool.succeed("check", "net", running.name)


def test_gc_respects_disable_gc(tool: Tool, running_and_stopped: tuple[Namespace, Namespace]):
    """A list with disableGC is not changed, and in one before 1.1.0 podwire's plugins still run GC."""
    before = tool.everything()
    tool.configure(tool.bridge(ipMasq=True), PORTMAP, disableGC=True)
    assert tool.json("gc", "net")["steps"] == []
    tool.configure(tool.bridge(ipMasq=True), PORTMAP)
    assert differences(before, tool.everything()) == []
    tool.configure(tool.bridge(ipMasq=True), PORTMAP, version="1.0.0")
    commands = [(step["plugin"], step["command"]) for step in tool.json("gc", "net")["steps"]]
    assert commands == [("portmap", "DEL"), ("bridge", "DEL"), ("bridge", "GC"), ("portmap", "GC")]


def test_gc_refuses_an_unreadable_cache(tool: Tool, running_and_stopped: tuple[Namespace, Namespace]):
    """GC refuses a missing cache or an unreadable entry, since it would remove running attachments."""
    entry = tool.cache / f"net-{running_and_stopped[0].name}-eth0"
    text = entry.read_text()
    entry.write_text(text[:50])
    assert "if the container is running, do not delete the file" in tool.fail(3, "gc", "net")
    entry.write_text(text)
    tool.cache.rename(tool.cache.with_name("elsewhere"))
    assert "/cache/results does not exist" in tool.fail(3, "gc", "net")
    assert (tool.leases / "10.22.0.2").exists()


@pytest.mark.parametrize("host_netns", ["by path", "/proc/self/ns/net"])
def test_add_refuses_the_host_namespace(tool: Tool, host_netns: str):
    """ADD and its dry run refuse the tool's own namespace before any plugin runs."""
    tool.configure({"type": "unused"})
    unused = tool.with_scripts(unused=f"touch {tool.directory}/ran")
    netns = tool.host.path if host_netns == "by path" else host_netns
    for words in (("add", "net", netns), ("add", "net", netns, "--dry-run")):
        text = unused.fail(3, *words, env={"CNI_NETNS_OVERRIDE": "1"})
        assert "is this host's own network namespace, not a pod's" in text
    assert not (tool.directory / "ran").exists()


def test_check_refuses_the_host_namespace(tool: Tool, sandbox: Namespace):
    """A cache entry with the host's namespace, as after a wrong ADD, is refused."""
    tool.configure(tool.bridge())
    tool.succeed("add", "net", sandbox.name)
    (entry,) = tool.cache.iterdir()
    entry.write_text(entry.read_text().replace(sandbox.path, tool.host.path))
    container = json.loads(entry.read_text())["containerId"]
    text = tool.fail(3, "check", "net", tool.host.path, "--container-id", container)
    assert "is this host's own network namespace, not a pod's" in text


def test_plugins_that_lock_the_namespace(tool: Tool, sandbox: Namespace):
    """ADD, CHECK and DEL of a list with sbr, which locks the namespace's file, do not wait for the tool's lock."""
    tool.configure(tool.bridge(), {"type": "sbr"})
    for verb in ("add", "check", "del"):
        assert "waiting" not in tool.succeed(verb, "net", sandbox.name)
    assert not list(tool.cache.iterdir())


def test_parallel_adds_of_one_namespace(tool: Tool, new_sandbox: Callable[[], Namespace]):
    """Of parallel ADDs of one namespace one succeeds, and the others fail and remove nothing."""
    for number in range(4):
        pod = new_sandbox()
        running = [tool.start("add", "net", pod.name, *PORTS) for _ in range(3)]
        ends = [(process.communicate(timeout=60), process.returncode) for process in running]
        assert sorted(status for _, status in ends) == [0, 3, 3], (number, ends)
        errors = b"".join(stderr for (_, stderr), status in ends if status)
        assert errors.count(b"already") + errors.count(b"another podwire") == len(ends) - 1, errors.decode()
        tool.succeed("check", "net", pod.name)
        tool.succeed("del", "net", pod.name)
    assert not list(tool.cache.iterdir())
