"""A temporary node for `podwire doctor`: networks, pods, libcni's cache, and the tool itself.

One rule: the tool runs with its default directories, in a mount namespace where they are the test's directories.
"""

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import binaries, dhcp, libcni
from tests.support.invocation import environment
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList, runner

# Replaces the machine's runtimes, networks and sysfs by those of the temporary host.
_SCRIPT = """
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
exec {wrapper} {tool} "$@"
"""

Finding = dict[str, str]


@dataclass
class DoctorNode:
    """One node; `bin_dir` has the plugins that its runtime runs, by default podwire's."""

    host: Namespace
    directory: Path
    bin_dir: Path = field(default_factory=binaries.directory)
    tool: Path = field(default_factory=lambda: binaries.directory() / "podwire")

    @property
    def conf(self) -> Path:
        """The directory of its networks, /etc/cni/net.d."""
        return self.directory / "net.d"

    @property
    def cache(self) -> Path:
        """The directory of its cache, /var/lib/cni."""
        return self.directory / "cni"

    def configure(self, name: str, content: Mapping[str, Any] | str) -> Path:
        """Writes a file into net.d and returns its path."""
        self.conf.mkdir(exist_ok=True)
        path = self.conf / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def add_sample(self, name: str) -> NetworkList:
        """Copies a sample of conf/ into net.d, with the node's stores, and returns the network."""
        body = json.loads((binaries.ROOT / "conf" / name).read_text())
        for plugin in body["plugins"]:
            ipam = plugin.get("ipam", {})
            if ipam.get("type") == "host-local":
                ipam["dataDir"] = str(self.directory / "leases")
            if ipam.get("type") == "dhcp":
                ipam |= dhcp.ipam_keys(self.directory / "dhcp")
            if plugin["type"] in ("host-device", "tuning"):
                plugin["dataDir"] = str(self.directory / plugin["type"])
        return NetworkList.load(self.configure(name, body))

    def add_network(self, body: dict[str, Any]) -> NetworkList:
        """Writes a network into net.d and returns it."""
        return NetworkList.load(self.configure(f"10-{body['name']}.conflist", body))

    def add_bridge(
        self,
        name: str = "pods",
        subnet: str = "10.9.0.0/24",
        *chained: Mapping[str, Any],
        version: str = "1.0.0",
        routes: Sequence[str] = (),
        **keys: Any,
    ) -> NetworkList:
        """Writes a network of bridge, with further keys, host-local and chained plugins into net.d, and returns it."""
        ipam: dict[str, Any] = {"type": "host-local", "subnet": subnet, "dataDir": str(self.directory / "leases")}
        ipam["routes"] = [{"dst": text} for text in routes]
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": ipam, **keys}
        return self.add_network({"cniVersion": version, "name": name, "plugins": [bridge, *chained]})

    def attach(self, network: NetworkList, pod: Namespace, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Attaches a pod and writes its cache file, as libcni does; returns the result."""
        ifname = "lo" if network.plugins[0]["type"] == "loopback" else "eth0"
        result = network.add(runner(self.host, pod, ifname=ifname, bin_dir=self.bin_dir, env=env))
        how: dict[str, Any] = {"config": network.config, "capability_args": network.capability_args}
        libcni.write_entry(self.cache, network.name, pod.name, netns=pod.path, ifname=ifname, result=result, **how)
        return result

    def cache_file(self, network: NetworkList, pod: Namespace) -> Path:
        """Returns the path of an attachment's cache file."""
        ifname = "lo" if network.plugins[0]["type"] == "loopback" else "eth0"
        return self.cache / "results" / f"{network.name}-{pod.name}-{ifname}"

    def doctor(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs `podwire doctor` on the node."""
        return self.podwire("doctor", *arguments, **options)

    def podwire(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs the tool on the node; `options` are those of its command line."""
        line, variables = self.command_line(*arguments, **options)
        with self.host.entered():
            return subprocess.run(line, env=variables, capture_output=True, text=True, timeout=60, check=False)

    def command_line(
        self, *arguments: str, before: str = "", wrapper: str = "", env: Mapping[str, str] | None = None
    ) -> tuple[list[str], dict[str, str]]:
        """Returns the command line and the environment of `podwire`, for the node's network namespace.

        `before`: shell commands in its mount namespace; `wrapper`: its launcher.
        """
        directories = {"conf": self.conf, "cache": self.cache, "bin": self.directory / "none"}
        script = _SCRIPT.format(**directories, before=before, wrapper=wrapper, tool=self.tool)
        line = ["unshare", "--mount", "sh", "-ec", script, "sh", *arguments]
        return line, {**environment(None), "CNI_PATH": str(self.bin_dir), **(env or {})}

    def list_checks(self, *arguments: str, **options: Any) -> list[Finding]:
        """Returns the results of all checks; AssertionError when the exit status does not agree with them."""
        done = self.doctor("--json", *arguments, **options)
        assert done.stdout, done.stderr
        document = json.loads(done.stdout)
        checks: list[Finding] = document["checks"]
        complete = all(one["name"] != "not-seen" for one in checks)
        has_problems = any(one["severity"] in ("problem", "warning") for one in checks)
        expected = 1 if has_problems else 0 if complete else 4
        assert (done.returncode, document["complete"]) == (expected, complete), f"{checks} {done.stderr}"
        return checks

    def list_findings(self, *arguments: str, **options: Any) -> list[Finding]:
        """Returns the results of the checks that did not pass."""
        return [one for one in self.list_checks(*arguments, **options) if one["severity"] != "ok"]

    def find(self, name: str, *arguments: str, **options: Any) -> Finding:
        """Returns the finding called `name`; AssertionError without one."""
        findings = self.list_findings(*arguments, **options)
        finding = next((one for one in findings if one["name"] == name), None)
        assert finding, f"no {name} in {findings}"
        return finding

    def run_fix(self, finding: Finding) -> None:
        """Runs the command that a finding prints as its fix."""
        command = finding["cure"]
        if command.startswith("podwire "):
            done = self.podwire(*shlex.split(command)[1:])
            assert done.returncode == 0, done
        else:
            self.host.run("sh", "-ec", command)


def list_problems(checks: list[Finding]) -> list[Finding]:
    """Returns the checks that found a problem or give a warning."""
    return [one for one in checks if one["severity"] in ("problem", "warning")]
