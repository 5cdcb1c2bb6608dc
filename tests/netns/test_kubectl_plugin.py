"""`kubectl podwire`: the tool as a plugin of kubectl, with a stand-in for kubectl that runs the pods it creates."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.support import binaries, programs
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.tool import Tool

VERSIONS = ("1.25", "1.37")


# Stands for kubectl: it records its calls and the manifests, and runs the pods as processes of this machine, which end
# with the second look at them. It fails at the verb STAND_IN_FAILS; for the reason STAND_IN_WAITS no pod starts.
STAND_IN = """\
import json, os, subprocess, sys
from pathlib import Path

state, words, env = Path({state!r}), sys.argv[1:], os.environ
with (state / "calls").open("a") as calls:
    calls.write(json.dumps(words) + "\\n")
verb, *names = [word for word in words if not word.startswith("--")]
if env.get("STAND_IN_FAILS") == verb:
    sys.exit("Error from server (Forbidden): pods is forbidden")
if verb == "create":
    (state / "pod.json").write_text(sys.stdin.read())
elif verb == "get" and names[0] == "nodes":
    print("node/worker-1\\nnode/worker-2")
elif verb == "get":
    looks = state / "looks"
    looks.touch()
    looks.write_text(looks.read_text() + ".")
    container = {{"state": {{"waiting": {{"reason": env.get("STAND_IN_WAITS", "ContainerCreating")}}}}}}
    status = {{"phase": "Pending", "containerStatuses": [container]}}
    if len(looks.read_text()) > 1 and not env.get("STAND_IN_WAITS"):
        (spec,) = json.loads((state / "pod.json").read_text())["spec"]["containers"]
        done = subprocess.run(spec["command"], stdout=(state / "log").open("wb"), stderr=subprocess.STDOUT, check=False)
        container["state"] = {{"terminated": {{"exitCode": done.returncode}}}}
        status["phase"] = "Failed" if done.returncode else "Succeeded"
    print(json.dumps({{"status": status}}))
elif verb == "logs":
    sys.stdout.write((state / "log").read_text())
"""


class Plugin:
    """The executable under the names by which kubectl calls it; `state` has the stand-in for kubectl and its files."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.state = directory, directory / "bin"
        self.state.mkdir()
        (self.state / "kubectl.py").write_text(STAND_IN.format(state=str(self.state)))
        start = f'PATH=/usr/bin:/bin exec {sys.executable} {self.state}/kubectl.py "$@"'
        programs.install(self.state, kubectl=start)
        for name in ("kubectl-podwire", "kubectl_complete-podwire"):
            (directory / name).symlink_to(binaries.directory() / "podwire")

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of each call of kubectl."""
        return [json.loads(line) for line in (self.state / "calls").read_text().splitlines()]

    @property
    def pod(self) -> Any:
        """The manifest of the last pod."""
        return json.loads((self.state / "pod.json").read_text())

    def start(self, *words: str, name: str = "kubectl-podwire", **env: str) -> subprocess.Popen[str]:
        """Starts the plugin as kubectl does."""
        line = [str(self.directory / name), *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(line, env={"PATH": str(self.state), **env}, stdout=pipe, stderr=pipe, text=True)

    def run(self, *words: str, name: str = "kubectl-podwire", **env: str) -> tuple[int, str]:
        """Runs it to its end, and returns exit status and output."""
        process = self.start(*words, name=name, **env)
        stdout, stderr = process.communicate(timeout=100)
        return process.returncode, stdout + stderr

    def complete(self, *words: str) -> list[str]:
        """Returns the completions, which must end with the directive not to complete files."""
        status, output = self.run(*words, name="kubectl_complete-podwire")
        *lines, directive = output.split()
        assert (status, directive) == (0, ":4")
        return lines


@pytest.fixture
def kubectl_plugin(bin_dir: Path, tmp_path: Path) -> Plugin:
    """The plugin with its stand-in for kubectl."""
    return Plugin(tmp_path)


def verbs(calls: Sequence[Sequence[str]]) -> list[str]:
    """Returns the verb of each call."""
    return [next(word for word in call if not word.startswith("--")) for call in calls]


def test_command_runs_in_a_pod_on_the_node(kubectl_plugin: Plugin):
    """The pod's output and exit status are those of the command, and the pod is deleted under the name it had."""
    words = ("--context", "prod", "--podwire", str(kubectl_plugin.directory / "podwire"), "--node=worker-1")
    (kubectl_plugin.directory / "podwire").symlink_to(binaries.directory() / "podwire")
    net_d = kubectl_plugin.directory / "net.d"
    net_d.mkdir()
    status, output = kubectl_plugin.run(*words, "lint", str(net_d))
    assert (status, "no runtime finds a network here" in output) == (1, True), output
    pod, calls = kubectl_plugin.pod, kubectl_plugin.calls
    assert verbs(calls) == ["create", "get", "get", "logs", "delete"]
    assert all(call[:2] == ["--context=prod", "--namespace=kube-system"] for call in calls)
    assert calls[-1][2:] == ["delete", "pod", pod["metadata"]["name"], "--ignore-not-found", "--wait=false"]
    spec = pod["spec"]
    assert (spec["nodeName"], spec["hostNetwork"], spec["hostPID"]) == ("worker-1", True, True)
    assert spec["restartPolicy"] == "Never"
    (container,) = spec["containers"]
    assert container["command"][1:] == ["lint", str(net_d)]


@pytest.mark.parametrize("version", VERSIONS)
def test_pod_is_valid(kubectl_plugin: Plugin, version: str):
    """The manifest is valid in the oldest and the newest Kubernetes, and mounts the directories only for reading."""
    words = ("--node", "worker-1", "--podwire", "/bin/true", "--image", "i:1", "doctor")
    kubectl_plugin.run(*words, PODWIRE_COLUMNS="100")
    pod = kubectl_plugin.pod
    kubernetes_validate.validate(pod, version, strict=True)
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "i:1"
    assert container["env"] == [{"name": "PODWIRE_COLUMNS", "value": "100"}]
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    paths = [volume["hostPath"]["path"] for volume in pod["spec"]["volumes"]]
    assert paths == ["/etc/cni/net.d", "/opt/cni/bin", "/var/lib/cni", "/run/netns"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == paths


def test_pod_is_deleted_after_a_failure(kubectl_plugin: Plugin):
    """If a call of kubectl fails, its message is printed, the exit status is 3, and the pod is deleted."""
    for verb in ("create", "get", "logs"):
        (kubectl_plugin.state / "calls").unlink(missing_ok=True)
        words = ("--node", "worker-1", "--podwire", "/bin/true", "show")
        status, output = kubectl_plugin.run(*words, STAND_IN_FAILS=verb)
        assert status == 3
        assert f"podwire: kubectl {verb}: Error from server (Forbidden)" in output
        assert verbs(kubectl_plugin.calls)[-1] == "delete"


def test_pod_that_cannot_be_deleted_is_named(kubectl_plugin: Plugin):
    """If the pod cannot be deleted, the status stays, and the command that deletes the pod is printed."""
    words = ("--node", "worker-1", "--podwire", "/bin/true", "show")
    status, output = kubectl_plugin.run(*words, STAND_IN_FAILS="delete")
    assert status == 0
    name = kubectl_plugin.pod["metadata"]["name"]
    assert f"kubectl --namespace=kube-system delete pod {name}\n" in output


def test_signal_deletes_the_pod(kubectl_plugin: Plugin):
    """SIGINT while the pod does not start deletes the pod."""
    process = kubectl_plugin.start("--node", "worker-1", "show", STAND_IN_WAITS="ErrImagePull")
    assert eventually((kubectl_plugin.state / "looks").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 3
    process.communicate()
    assert verbs(kubectl_plugin.calls)[-1] == "delete"


def test_wrong_usage(kubectl_plugin: Plugin, tmp_path: Path):
    """An unknown option or command is exit status 2 with a suggestion, without a command there is help."""
    assert kubectl_plugin.run() == kubectl_plugin.run("--help")
    assert kubectl_plugin.run()[0] == 2
    assert "did you mean --node?" in kubectl_plugin.run("--nod", "x", "show")[1]
    assert 'did you mean "doctor"?' in kubectl_plugin.run("--node", "x", "docter")[1]
    assert kubectl_plugin.run("--node")[0] == 2
    assert not (kubectl_plugin.state / "calls").exists()
    (kubectl_plugin.state / "kubectl").unlink()
    assert "there is no kubectl on the PATH" in kubectl_plugin.run("--node", "x", "show")[1]


def test_command_without_a_node_runs_here(kubectl_plugin: Plugin, tmp_path: Path):
    """Without --node the command runs on this machine, and kubectl is not called."""
    status, output = kubectl_plugin.run("lint", str(tmp_path / "none.conf"))
    assert status == 3 or "none.conf" in output
    assert not (kubectl_plugin.state / "calls").exists()


def test_completion(kubectl_plugin: Plugin):
    """Commands, nodes, options and values are completed in the form that kubectl expects."""
    assert kubectl_plugin.complete("d") == ["doctor"]
    assert kubectl_plugin.complete("--no") == ["--node"]
    assert kubectl_plugin.complete("--node", "") == ["worker-1", "worker-2"]
    assert kubectl_plugin.complete("--node", "worker-1", "show", "--wr") == ["--wrong"]
    assert kubectl_plugin.complete("show", "--sort", "ad") == ["address"]
    assert kubectl_plugin.complete("--image", "") == []


_CONTAINER = """
import json, os, subprocess, sys
spec, sources = json.loads(sys.argv[1]), json.loads(sys.argv[2])
(container,) = spec["containers"]
root = sys.argv[3]
def run(*line):
    subprocess.run(line, check=True)
run("mount", "--make-rslave", "/")
run("mount", "-t", "tmpfs", "tmpfs", root)
for path in ("proc", "sys", "dev", "tmp"):
    os.mkdir(f"{root}/{path}")
run("mount", "--rbind", "/proc", f"{root}/proc")  # hostPID
run("mount", "--rbind", "/sys", f"{root}/sys")
for mount in container["volumeMounts"]:
    target = root + mount["mountPath"]
    os.makedirs(target)
    run("mount", "--rbind", sources[mount["name"]], target)
os.chroot(root)
os.chdir("/")
os.execve(container["command"][0], container["command"], {"PATH": "/usr/bin:/bin"})
"""


def in_container(tool: Tool, pod: Any, root: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command of a pod as a runtime does: own mounts, the host's network and processes, only the volumes."""
    sources = {"net-d": f"{tool.directory}/net.d", "bin": str(tool.bin_dir), "state": f"{tool.directory}/cache"}
    sources["netns"] = "/run/netns"
    root.mkdir()
    script = [sys.executable, "-c", _CONTAINER, json.dumps(pod["spec"]), json.dumps(sources), str(root)]
    with tool.host.entered():
        line = ["unshare", "--mount", *script]
        return subprocess.run(line, capture_output=True, text=True, timeout=100, check=False)


def test_container_sees_the_pods_and_calls_none_gone(
    kubectl_plugin: Plugin, tool: Tool, new_sandbox: Callable[[], Namespace], tmp_path: Path
):
    """In the container `show` has the pods with interface and address, and what it cannot see is not called gone."""
    pod = new_sandbox()
    tool.succeed("add", "net", pod.name, "--container-id", "pod1")
    kubectl_plugin.run("--node", "worker-1", "show", "--json", STAND_IN_FAILS="get")
    manifest = kubectl_plugin.pod
    done = in_container(tool, manifest, tmp_path / "root")
    document = json.loads(done.stdout)
    (one,) = document["attachments"]
    assert (one["containerID"], one["addresses"], one["leaked"]) == ("pod1", ["10.22.0.2/24"], False), done.stderr
    assert one["hostInterface"].startswith("veth")
    assert document["leaks"] == []
