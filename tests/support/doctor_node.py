"""A throwaway node for `podwire doctor`: networks, pods and libcni's cache, and the tool that looks at them.

One rule: the tool runs with its default directories, in a mount namespace in which they are the test's own.
"""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import binaries
from tests.support.invocation import environment, run_plugin
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList

# What the tool sees instead of the tester's: no runtimes, other networks, sysfs of the throwaway host.
_INSIDE = """
mount --make-rprivate /
for d in /etc/containerd /etc/crio /etc/containers /run/NetworkManager /run/systemd/netif /run/flannel /run/cilium; do
    test ! -d $d || mount -t tmpfs podwire $d
done
for p in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do
    for p in $p/containerd $p/crio $p/podman; do test ! -f $p || mount --bind /dev/null $p; done
done
mount -t sysfs podwire /sys
mkdir -p {conf} {cache}/results {bin}
mount -t tmpfs podwire /etc/cni; mkdir /etc/cni/net.d; mount --bind {conf} /etc/cni/net.d
test -d /var/lib/cni || {{ mount -t tmpfs podwire /var/lib; mkdir /var/lib/cni; }}
mount --bind {cache} /var/lib/cni
{before}
exec {wrapped} {tool} "$@"
"""

Finding = dict[str, str]


@dataclass
class DoctorNode:
    """One node; `bin_dir` has the plugins that its runtime runs, ours unless another is given."""

    host: Namespace
    directory: Path
    bin_dir: Path = field(default_factory=binaries.directory)
    tool: Path = field(default_factory=lambda: binaries.directory() / "podwire")

    @property
    def conf(self) -> Path:
        """Its net.d."""
        return self.directory / "net.d"

    @property
    def cache(self) -> Path:
        """Its /var/lib/cni."""
        return self.directory / "cni"

    def configure(self, name: str, content: Mapping[str, Any] | str) -> Path:
        """Writes a file of net.d; the stores of its networks are the node's."""
        self.conf.mkdir(exist_ok=True)
        path = self.conf / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def sample(self, name: str) -> NetworkList:
        """Puts a sample of conf/ into net.d, its stores the node's, and returns it."""
        body = json.loads((binaries.ROOT / "conf" / name).read_text())
        for plugin in body["plugins"]:
            if plugin.get("ipam", {}).get("type") == "host-local":
                plugin["ipam"]["dataDir"] = str(self.directory / "leases")
            if plugin["type"] == "tuning":
                plugin["dataDir"] = str(self.directory / "tuning")
        return NetworkList.load(self.configure(name, body))

    def attach(self, network: NetworkList, pod: Namespace, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Attaches a pod as libcni does, its cache file included; returns the result."""
        ifname = "lo" if network.plugins[0]["type"] == "loopback" else "eth0"

        def run(plugin: str, command: str, config: dict[str, Any]) -> Any:
            return run_plugin(
                plugin, command, config, host=self.host, netns=pod, container_id=pod.name, ifname=ifname,
                bin_dir=self.bin_dir, env=env,
            )  # fmt: skip

        result = network.add(run)
        config = {"name": network.name, "cniVersion": network.cni_version, "plugins": network.plugins}
        entry = {
            "kind": "cniCacheV1",
            "containerId": pod.name,
            "config": base64.b64encode(json.dumps(config).encode()).decode(),
            "ifName": ifname,
            "networkName": network.name,
            "netns": pod.path,
            "capabilityArgs": network.capability_args,
            "result": result,
        }
        self.entry(network, pod).parent.mkdir(parents=True, exist_ok=True)
        self.entry(network, pod).write_text(json.dumps(entry))
        return result

    def entry(self, network: NetworkList, pod: Namespace) -> Path:
        """Returns the cache's file of an attachment."""
        ifname = "lo" if network.plugins[0]["type"] == "loopback" else "eth0"
        return self.cache / "results" / f"{network.name}-{pod.name}-{ifname}"

    def doctor(self, *arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """Runs `podwire doctor` on the node."""
        return self.podwire("doctor", *arguments, **how)

    def podwire(
        self, *arguments: str, before: str = "", wrapped: str = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs the tool on the node; `before` is done in its mount namespace, `wrapped` a program that runs it."""
        places = {"conf": self.conf, "cache": self.cache, "bin": self.directory / "none"}
        script = _INSIDE.format(**places, before=before, wrapped=wrapped, tool=self.tool)
        line = ["unshare", "--mount", "sh", "-ec", script, "sh", *arguments]
        variables = {**environment(None), "CNI_PATH": str(self.bin_dir), **(env or {})}
        with self.host.entered():
            return subprocess.run(line, env=variables, capture_output=True, text=True, timeout=60, check=False)

    def everything(self, *arguments: str, **how: Any) -> list[Finding]:
        """Returns all that the tool finds, what is in order included; its exit status must say the same."""
        done = self.doctor("--json", *arguments, **how)
        assert done.stdout, done.stderr
        document = json.loads(done.stdout)
        found: list[Finding] = document["checks"]
        complete = all(one["name"] != "not-seen" for one in found)
        has_problems = any(one["severity"] in ("problem", "warning") for one in found)
        expected = 1 if has_problems else 0 if complete else 4
        assert (done.returncode, document["complete"]) == (expected, complete), f"{found} {done.stderr}"
        return found

    def findings(self, *arguments: str, **how: Any) -> list[Finding]:
        """Returns what is not in order."""
        return [one for one in self.everything(*arguments, **how) if one["severity"] != "ok"]

    def found(self, name: str, *arguments: str, **how: Any) -> Finding:
        """Returns the finding of a name, which must be there."""
        every = self.findings(*arguments, **how)
        return next((one for one in every if one["name"] == name), None) or _fail(name, every)

    def cure(self, finding: Finding) -> None:
        """Runs the command of a finding as it stands."""
        command = finding["cure"]
        if command.startswith("podwire "):
            done = self.podwire(*shlex.split(command)[1:])
            assert done.returncode == 0, done
        else:
            self.host.run("sh", "-ec", command)


def list_problems(found: list[Finding]) -> list[Finding]:
    """Returns the problems and warnings."""
    return [one for one in found if one["severity"] in ("problem", "warning")]


def _fail(name: str, every: list[Finding]) -> Finding:
    raise AssertionError(f"no {name} in {every}")
