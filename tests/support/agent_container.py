"""The DaemonSet's container on a node: the agent's image with exactly the manifest's permissions, and an API server.

One rule: the service account has the rights of the manifest's ClusterRole, and no other.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import container, libcni, manifests
from tests.support.invocation import run_plugin
from tests.support.kubernetes_double import NODES, KubernetesDouble
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList

FILE = "10-podwire.conflist"
TOKEN = "service-account"
THIS, ON_LINK, REMOTE = "worker-1", "worker-2", "worker-3"
POD_CIDRS = {number: [f"10.244.{number}.0/24", f"fd00:10:244:{number}::/64"] for number in (1, 2, 3)}
ADDRESSES = {THIS: "192.0.2.10", ON_LINK: "192.0.2.11", REMOTE: "198.51.100.3"}
_IMAGE_DIRS = ("bin", "sbin", "lib", "lib64", "usr", "etc/alternatives", "opt/podwire")
_PORT = 9794


def node_object(name: str) -> dict[str, Any]:
    """Returns a Node object."""
    pod_cidrs = POD_CIDRS[int(name[-1])]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {"podCIDR": pod_cidrs[0], "podCIDRs": pod_cidrs},
        "status": {"addresses": [{"type": "InternalIP", "address": ADDRESSES[name]}]},
    }


@dataclass
class AgentNode:
    """A node's directories, which are the volumes of the DaemonSet's pod, its network, and its API server."""

    path: Path
    image: Path
    host: Namespace
    server: KubernetesDouble

    def __post_init__(self) -> None:
        # The node's /opt/cni/bin, /etc/cni/net.d and /var/lib/cni.
        self.bin_dir, self.net_d, self.state = (self.path / name for name in ("bin", "net-d", "state"))

    @property
    def volumes(self) -> dict[str, Path]:
        """The pod's volumes by name; /run/netns is the machine's."""
        names = [volume["name"] for volume in manifests.pod(manifests.POOLS_INSTALL)["volumes"]]
        return {name: Path("/run/netns") if name == "netns" else self.path / name for name in names}

    def create(self) -> None:
        """Creates the directories, the link to the other nodes, and the Node objects."""
        self.path.chmod(0o755)
        for path in self.volumes.values():
            path.mkdir(exist_ok=True)
        self.apply(manifests.INSTALL)
        (self.path / "credentials" / "token").write_text(TOKEN)
        for name in ADDRESSES:
            self.server.store.put(f"{NODES}/{name}", node_object(name))
        (self.state / "results").mkdir()
        self.host.ip("link", "add", "eth0", "type", "veth", "peer", "name", "network")
        for name in ("eth0", "network"):
            self.host.ip("link", "set", name, "up")
        self.host.ip("address", "add", f"{ADDRESSES[THIS]}/24", "dev", "eth0")
        self.host.ip("route", "add", "default", "via", "192.0.2.1")

    def apply(self, directory: Path) -> None:
        """Writes the network, and grants the rights, of a directory of deploy/."""
        (config_map,) = (one for one in manifests.render(directory) if one["kind"] == "ConfigMap")
        for name, text in config_map["data"].items():
            (self.path / "network" / name).write_text(text)
        self.server.tokens[TOKEN] = manifests.rights(directory)

    def execute(self, directory: Path, *words: str, stdin: str = "") -> str:
        """Runs a program in the container of a directory, as `kubectl exec` does; returns its output."""
        (*line, specification) = self.command_line(directory)
        text = json.dumps({**json.loads(specification), "argv": words})
        with self.host.entered():
            done = subprocess.run([*line, text], input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def command_line(
        self, directory: Path = manifests.INSTALL, *, without: Sequence[str] = (), args: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Returns the command that is the container of a directory, without some capabilities or volumes."""
        pod = manifests.pod(directory)
        (spec,) = pod["containers"]
        rights = spec["securityContext"]["capabilities"]
        rights["add"] = [name for name in rights["add"] if name not in without]
        if "args" in spec:
            spec["args"] = [*spec["args"], *args]
        host, port = self.server.server_address[:2]
        env = {
            "NODE_NAME": THIS,
            "HOST_IP": ADDRESSES[THIS],
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "KUBERNETES_SERVICE_HOST": str(host),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
        }
        image = {f"/{name}": self.image / name for name in _IMAGE_DIRS}
        volumes = {name: path for name, path in self.volumes.items() if name not in without}
        return container.command_line(pod, spec, image, volumes, env=env, entrypoint="/usr/sbin/podwire-agent")

    @contextlib.contextmanager
    def running(
        self, directory: Path = manifests.INSTALL, *, without: Sequence[str] = (), args: Sequence[str] = ()
    ) -> Iterator[AgentContainer]:
        """Runs a container; kills it after the block if it still runs."""
        log = self.path / "log"
        with log.open("w") as file, self.host.entered():
            line = self.command_line(directory, without=without, args=args)
            process = subprocess.Popen(line, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        try:
            yield AgentContainer(self.host, process, log)
        finally:
            process.kill()
            process.wait()

    def run_once(self) -> None:
        """Runs the agent until it is ready."""
        with self.running() as agent:
            agent.wait_ready()

    def network(self) -> NetworkList:
        """Returns the installed network, whose host-local has the node's /var/lib/cni."""
        network = NetworkList.load(self.net_d / FILE)
        network.plugins[0]["ipam"]["dataDir"] = str(self.state / "networks")
        return network

    def runner(self, pod: Namespace) -> Any:
        """Returns the function with which NetworkList runs the installed plugins for a pod."""
        return functools.partial(run_plugin, netns=pod, container_id=pod.name, host=self.host, bin_dir=self.bin_dir)

    def add(self, pod: Namespace) -> dict[str, Any]:
        """Attaches a pod to the installed network, as a runtime does: with an entry in the cache."""
        result = self.network().add(self.runner(pod))
        config = json.loads((self.net_d / FILE).read_text())
        libcni.write_entry(self.state, config["name"], pod.name, netns=pod.path, result=result, config=config)
        return result

    def list_leases(self) -> list[str]:
        """Returns the reserved IPv4 addresses."""
        return sorted(path.name for path in (self.state / "networks" / "podwire").glob("10.*"))

    def list_routes(self) -> dict[str, str]:
        """Returns the agent's routes: the gateway or the type by the destination."""
        text = self.host.ip("-json", "route", "show", "protocol", "112") or "[]"
        return {one["dst"]: one.get("gateway") or one.get("type", "") for one in json.loads(text)}


@dataclass(frozen=True)
class AgentContainer:
    """A container that was started."""

    host: Namespace
    process: subprocess.Popen[bytes]
    log_path: Path

    def get(self, page: str) -> tuple[int, str]:
        """Returns the status and the text of a page, (0, "") while nothing listens."""
        with self.host.entered(), contextlib.closing(http.client.HTTPConnection("127.0.0.1", _PORT, 10)) as connection:
            try:
                connection.request("GET", page)
                answer = connection.getresponse()
                return answer.status, answer.read().decode()
            except OSError:
                return 0, ""

    def wait_ready(self) -> None:
        """Waits until /readyz is 200; fails the test with the reason and the log."""
        if not eventually(lambda: self.get("/readyz")[0] == 200, within_s=200):
            raise AssertionError(f"not ready:\n{self.get('/readyz')[1]}\n{self.log_path.read_text()[-3000:]}")

    def wait_for(self, text: str) -> None:
        """Waits until /readyz or the log contains a text."""
        if not eventually(lambda: text in self.log_path.read_text() or text in self.get("/readyz")[1], within_s=200):
            raise AssertionError(f"{text!r} is in neither:\n{self.get('/readyz')[1]}\n{self.log_path.read_text()}")

    @property
    def log(self) -> list[Mapping[str, Any]]:
        """The lines of the log."""
        return [json.loads(line) for line in self.log_path.read_text().splitlines()]

    def collection(self) -> Mapping[str, Any]:
        """Returns the log's line of the first run of `podwire gc`, when it has ended."""

        def lines() -> list[Mapping[str, Any]]:
            return [line for line in self.log if "podwire gc: " in str(line)]

        assert eventually(lambda: bool(lines()), within_s=200), self.log_path.read_text()
        return lines()[0]

    def stop(self) -> int:
        """Ends the container as kubelet does; returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)
