"""containerd's CRI on a machine; the tests call its socket as kubelet does.

One rule: requests equal kubelet's. The import compiles cri.proto, so no generated code is stored.
"""

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.clients import images
from tests.clients.attaching import bridge
from tests.clients.containerd import version as containerd_version
from tests.support.machine import BIN_DIR, CONF_DIR, Machine, eventually
from tests.support.namespaces import Namespace

pb, _services = grpc.protos_and_services("tests/clients/cri.proto")

PROGRAMS = ("containerd", "ctr", "runc", "busybox", "iptables", "nft")
CONF_TEMPLATE = CONF_DIR.parent / "template.conflist"  # containerd fills it in once it has a podCIDR

_METHODS = pb.DESCRIPTOR.services_by_name["RuntimeService"].methods_by_name
_IMAGE = "localhost/pod:1"
_SOCKET = "/run/containerd/containerd.sock"
_TIMEOUT_S = 200
# restrict_oom_score_adj: without CAP_SYS_RESOURCE runc cannot set a container's oom_score_adj below its own.
_CONFIG = f"""version = 2
root = "{{scratch}}/containerd"
state = "/run/containerd"
[grpc]
  address = "{_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{BIN_DIR}"
    conf_dir = "{CONF_DIR}"
    conf_template = "{CONF_TEMPLATE}"
"""

Ports = Sequence[tuple[int, int, int, str]]  # host port, container port, protocol, address of the host


@dataclass(frozen=True)
class Pod:
    """A running pod sandbox, and the addresses that containerd reports to kubelet."""

    id: str
    name: str
    ips: tuple[str, ...]
    namespace: Namespace


@dataclass(frozen=True)
class Cri:
    """The CRI of the containerd on `machine`; a failed call raises grpc.RpcError."""

    machine: Machine
    service: Any

    @property
    def knows_current_cni(self) -> bool:
        """Whether containerd knows CNI 1.1.0, as containerd 2 does: older ones refuse its results."""
        return containerd_version(self.machine) >= (2,)

    def call(self, method: str, **fields: Any) -> Any:
        """Calls a method with the fields of its request and returns its response."""
        request = _METHODS[method].input_type._concrete_class(**fields)
        return getattr(self.service, method)(request, timeout=_TIMEOUT_S)

    def config(
        self,
        name: str,
        ports: Ports = (),
        annotations: Mapping[str, str] | None = None,
        *,
        host_network: bool = False,
        attempt: int = 0,
    ) -> Any:
        """Returns the configuration that kubelet sends for a pod."""
        mode = pb.NamespaceMode.Value("NODE" if host_network else "POD")
        options = pb.NamespaceOption(network=mode)
        return pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="tests", attempt=attempt),
            hostname="" if host_network else name,
            log_directory=str(self.machine.scratch / "pods" / name),
            dns_config=pb.DNSConfig(servers=["10.96.0.10"], searches=["cluster.local"], options=["ndots:5"]),
            port_mappings=[
                pb.PortMapping(host_port=host, container_port=container, protocol=protocol, host_ip=ip)
                for host, container, protocol, ip in ports
            ],
            annotations=annotations or {},
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=f"/{self.machine.cgroup}",
                security_context=pb.LinuxSandboxSecurityContext(namespace_options=options),
            ),
        )

    def run(self, name: str, *args: Any, **options: Any) -> Pod:
        """Starts a pod, which runs a web server, and waits until the server answers; arguments as in `config`."""
        sandbox_id = self.call("RunPodSandbox", config=self.config(name, *args, **options)).pod_sandbox_id
        pod = self.pod(sandbox_id, name)
        assert options.get("host_network") or eventually(lambda: page(pod.namespace, "127.0.0.1") != ""), name
        return pod

    def pod(self, sandbox_id: str, name: str) -> Pod:
        """Returns a pod as containerd reports it."""
        status = self.call("PodSandboxStatus", pod_sandbox_id=sandbox_id, verbose=True)
        network = status.status.network
        ips = tuple(ip for ip in (network.ip, *(more.ip for more in network.additional_ips)) if ip)
        namespaces = json.loads(status.info["info"])["runtimeSpec"]["linux"]["namespaces"]
        path = next((one.get("path", "") for one in namespaces if one["type"] == "network"), "")
        return Pod(sandbox_id, name, ips, self.machine.namespace(f"/run/netns/{Path(path).name}"))

    def pods(self) -> dict[str, str]:
        """Returns the ids of the pods that containerd knows, by name."""
        return {item.metadata.name: item.id for item in self.call("ListPodSandbox").items}

    def stop(self, pod: Pod) -> None:
        """Stops a pod; retries, as kubelet does, if containerd 1.6 lost a race with its shim."""
        for attempt in range(3):
            try:
                self.call("StopPodSandbox", pod_sandbox_id=pod.id)
                return
            except grpc.RpcError as error:
                if "ttrpc: closed" not in error.details() or attempt == 2:
                    raise

    def remove(self, pod: Pod) -> None:
        """Stops and removes a pod."""
        self.stop(pod)
        self.call("RemovePodSandbox", pod_sandbox_id=pod.id)

    def lose_namespace(self, pod: Pod) -> None:
        """Removes the path of a pod's namespace."""
        path = f"/run/netns/{pod.namespace.name.rpartition('/')[2]}"
        self.machine.run("umount", path)
        self.machine.run("rm", path)

    def remove_all(self) -> None:
        """Removes the remaining pods."""
        for name, sandbox_id in self.pods().items():
            self.remove(Pod(sandbox_id, name, (), Namespace("")))

    def run_in(self, pod: Pod, *command: str) -> str:
        """Runs a container in a pod and a program in the container; returns the program's output."""
        container = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name="one"),
            image=pb.ImageSpec(image=_IMAGE),
            command=["sleep", "600"],
            log_path="one.log",
        )
        container_id = self.call(
            "CreateContainer", pod_sandbox_id=pod.id, config=container, sandbox_config=self.config(pod.name)
        ).container_id
        self.call("StartContainer", container_id=container_id)
        done = self.call("ExecSync", container_id=container_id, cmd=command, timeout=_TIMEOUT_S)
        assert done.exit_code == 0, done.stderr
        return str(done.stdout.decode())

    def not_ready(self) -> str:
        """Returns why the network is not ready, "" if it is."""
        conditions = {one.type: one for one in self.call("Status").status.conditions}
        network = conditions["NetworkReady"]
        return "" if network.status else network.message or network.reason

    def network(self) -> str:
        """Returns the name of the network that containerd has loaded, "" if it has none."""
        info = json.loads(self.call("Status", verbose=True).info["cniconfig"])
        names = [one["Config"]["Name"] for one in info["Networks"] or () if one["IFName"] != "lo"]
        return "".join(names)

    @contextlib.contextmanager
    def no_leftovers(self, bridge: str, *args: Any) -> Iterator[None]:
        """Asserts that the pods of a block leave nothing, after a first pod (`args` as in `config`) left what stays."""
        clean = self.machine.leftovers(links=[bridge])
        self.remove(self.run("first", *args))
        assert eventually(lambda: self.machine.leftovers(links=[bridge]) == clean), self.machine.leftovers()
        with self.unchanged():
            yield

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Asserts that the machine, without the pods of a block, is in the same state as before the block."""
        with self.machine.unchanged():
            try:
                yield
            finally:
                self.remove_all()

    def configure(self, network: Mapping[str, Any]) -> None:
        """Makes a network the only one in net.d and waits until containerd, which watches the directory, has loaded it.

        containerd 1.6 does not notice a file that is moved from another directory, so the file is renamed in net.d.
        """
        path = CONF_DIR / "10-pods.conflist"
        self.machine.write(path.with_suffix(".new"), json.dumps(network))
        self.remove_networks()
        self.machine.run("mv", str(path.with_suffix(".new")), str(path))
        assert self.loads(str(network["name"])), f"loaded is {self.network()!r}"

    def remove_networks(self) -> None:
        """Removes all networks and waits until containerd has none."""
        self.machine.run("find", str(CONF_DIR), "-name", "*.conflist", "-delete")
        assert self.loads(""), f"loaded is {self.network()!r}"

    def loads(self, name: str) -> bool:
        """Returns whether containerd loads this network in time."""
        return eventually(lambda: self.network() == name)


@contextlib.contextmanager
def ready(machine: Machine, bin_dir: Path) -> Iterator[Cri]:
    """Runs containerd with an image and these plugins; skips the test if no pod can start without a network."""
    machine.install(bin_dir)
    with containerd(machine) as cri:
        archive = machine.scratch / "pod.tar"
        images.write_archive(archive, _IMAGE, images.WEB_SERVER)
        machine.run("ctr", "--namespace", "k8s.io", "images", "import", str(archive))
        try:
            cri.remove(cri.run("no-network", host_network=True))
        except grpc.RpcError as error:
            pytest.skip(f"containerd cannot start a pod even without a network: {error.details()}")
        yield cri


@contextlib.contextmanager
def containerd(machine: Machine) -> Iterator[Cri]:
    """Runs containerd on a machine, and kills it at the end; running pods continue without it."""
    config = machine.scratch / "containerd.toml"
    config.write_text(_CONFIG.format(scratch=machine.scratch))
    path = Path(f"/proc/{machine.pid}/root{_SOCKET}")
    with machine.running("containerd", "-c", str(config)), grpc.insecure_channel(f"unix://{path}") as channel:
        cri = Cri(machine, _services.RuntimeServiceStub(channel))
        assert eventually(lambda: _answers(cri), within_s=100), (machine.scratch / "containerd.log").read_text()[-2000:]
        yield cri


def network(name: str, link: str, *subnets: str, backend: str = "iptables", **portmap_keys: Any) -> dict[str, Any]:
    """Returns a network of bridge, portmap and bandwidth with an address of each of `subnets`."""
    plugins: list[dict[str, Any]] = [
        bridge(*subnets, name=link, ipMasqBackend=backend),
        {"type": "portmap", "capabilities": {"portMappings": True}, "backend": backend, **portmap_keys},
        {"type": "bandwidth", "capabilities": {"bandwidth": True}},
    ]
    return {"cniVersion": "1.0.0", "name": name, "plugins": plugins}


def page(namespace: Namespace, ip: str, port: int = 80, *, timeout_s: float = 10) -> str:
    """Returns the web page that a caller in `namespace` gets from `ip` and `port`, "" without an answer."""
    with namespace.entered():
        client = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET)
    connection = http.client.HTTPConnection(ip, port)
    connection.sock = client
    client.settimeout(timeout_s)
    try:
        client.connect((ip, port))
        connection.request("GET", "/")
        return connection.getresponse().read().decode().strip()
    except OSError:
        return ""
    finally:
        client.close()


def _answers(cri: Cri) -> bool:
    try:
        cri.call("Status")
    except grpc.RpcError:
        return False
    return True
