"""`kubectl podwire`: the tool as a plugin of kubectl, with a stand-in for kubectl that runs the pods it creates."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.support import binaries, kubectl
from tests.support.kubectl import Kubectl
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.tool import Tool

VERSIONS = ("1.25", "1.37")


class Plugin:
    """The executable under the names by which kubectl calls it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubectl: Kubectl = kubectl.install(directory / "bin")
        for name in ("kubectl-podwire", "kubectl_complete-podwire"):
            (directory / name).symlink_to(binaries.directory() / "podwire")

    def start(self, *words: str, name: str = "kubectl-podwire", **env: str) -> subprocess.Popen[str]:
        """Starts the plugin as kubectl does."""
        line = [str(self.directory / name), *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(line, env={"PATH": str(self.kubectl.path), **env}, stdout=pipe, stderr=pipe, text=True)

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
    pod, calls = kubectl_plugin.kubectl.pod, kubectl_plugin.kubectl.calls
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
    pod = kubectl_plugin.kubectl.pod
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
        (kubectl_plugin.kubectl.path / "calls").unlink(missing_ok=True)
        words = ("--node", "worker-1", "--podwire", "/bin/true", "show")
        status, output = kubectl_plugin.run(*words, STAND_IN_FAILS=verb)
        assert status == 3
        assert f"podwire: kubectl {verb}: Error from server (Forbidden)" in output
        assert verbs(kubectl_plugin.kubectl.calls)[-1] == "delete"


def test_pod_that_cannot_be_deleted_is_named(kubectl_plugin: Plugin):
    """If the pod cannot be deleted, the status stays, and the command that deletes the pod is printed."""
    words = ("--node", "worker-1", "--podwire", "/bin/true", "show")
    status, output = kubectl_plugin.run(*words, STAND_IN_FAILS="delete")
    assert status == 0
    name = kubectl_plugin.kubectl.pod["metadata"]["name"]
    assert f"kubectl --namespace=kube-system delete pod {name}\n" in output


def test_signal_deletes_the_pod(kubectl_plugin: Plugin):
    """SIGINT while the pod does not start deletes the pod."""
    process = kubectl_plugin.start("--node", "worker-1", "show", STAND_IN_WAITS="ErrImagePull")
    assert eventually((kubectl_plugin.kubectl.path / "looks").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 3
    process.communicate()
    assert verbs(kubectl_plugin.kubectl.calls)[-1] == "delete"


def test_wrong_usage(kubectl_plugin: Plugin, tmp_path: Path):
    """An unknown option or command is exit status 2 with a suggestion, without a command there is help."""
    assert kubectl_plugin.run() == kubectl_plugin.run("--help")
    assert kubectl_plugin.run()[0] == 2
    assert "did you mean --node?" in kubectl_plugin.run("--nod", "x", "show")[1]
    assert "did you mean doctor?" in kubectl_plugin.run("--node", "x", "docter")[1]
    assert kubectl_plugin.run("--node")[0] == 2
    assert not (kubectl_plugin.kubectl.path / "calls").exists()
    (kubectl_plugin.kubectl.path / "kubectl").unlink()
    assert "there is no kubectl on the PATH" in kubectl_plugin.run("--node", "x", "show")[1]


def test_command_without_a_node_runs_here(kubectl_plugin: Plugin, tmp_path: Path):
    """Without --node the command runs on this machine, and kubectl is not called."""
    status, output = kubectl_plugin.run("lint", str(tmp_path / "none.conf"))
    assert status == 3 or "none.conf" in output
    assert not (kubectl_plugin.kubectl.path / "calls").exists()


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
    sources = {
        "net-d": str(tool.directory / "net.d"),
        "bin": str(tool.bin_dir),
        "state": str(tool.directory / "cache"),
        "netns": "/run/netns",
    }
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
    manifest = kubectl_plugin.kubectl.pod
    done = in_container(tool, manifest, tmp_path / "root")
    document = json.loads(done.stdout)
    (one,) = document["attachments"]
    assert (one["containerID"], one["addresses"], one["leaked"]) == ("pod1", ["10.22.0.2/24"], False), done.stderr
    assert one["hostInterface"].startswith("veth")
    assert document["leaks"] == []
