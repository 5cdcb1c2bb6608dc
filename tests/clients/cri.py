"""containerd's CRI on a machine, called over its socket as kubelet calls it.

One rule: what is sent is what kubelet sends. cri.proto is compiled when this is imported: no generated code is kept.
"""

from __future__ import annotations

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
from tests.support.machine import BIN_DIR, CONF_DIR, Machine, eventually
from tests.support.namespaces import Namespace

pb, _services = grpc.protos_and_services("tests/clients/cri.proto")

PROGRAMS = ("containerd", "ctr", "runc", "busybox", "iptables", "nft")
CONF_TEMPLATE = CONF_DIR.parent / "template.conflist"  # what containerd makes a network of, once it has a podCIDR

_METHODS = pb.DESCRIPTOR.services_by_name["RuntimeService"].methods_by_name
_IMAGE = "localhost/pod:1"
_SOCKET = "/run/containerd/containerd.sock"
_TIMEOUT_S = 60
# Without CAP_SYS_RESOURCE runc cannot lower a container's oom_score_adj below our own: restrict_oom_score_adj.
_CONFIG = """version = 2
root = "{scratch}/containerd"
state = "/run/containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{bin_dir}"
    conf_dir = "{conf_dir}"
    conf_template = "{template}"
"""

Ports = Sequence[tuple[int, int, int, str]]  # host port, container port, protocol, address of the host


@dataclass(frozen=True)
class Pod:
    """A pod sandbox that runs, and the addresses that containerd tells kubelet."""

    id: str
    name: str
    ips: tuple[str, ...]
    namespace: Namespace


@dataclass(frozen=True)
class Cri:
    """The CRI of the containerd on `machine`; a call that fails raises grpc.RpcError."""

    machine: Machine
    service: Any

    def call(self, method: str, **fields: Any) -> Any:
        """Calls a method with the fields of its request and returns the answer."""
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
        """Returns what kubelet asks of a pod."""
        mode = pb.NamespaceMode.Value("NODE" if host_network else "POD")
        options = pb.NamespaceOption(network=mode)
        return pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="tests", attempt=attempt),
            hostname="" if host_network else name,
            log_directory=str(self.machine.scratch / "pods" / name),
            dns_config=pb.DNSConfig(servers=["10.96.0.10"], searches=["cluster.local"], options=["ndots:5"]),
            port_mappings=[
                pb.PortMapping(host_port=host, container_port=own, protocol=protocol, host_ip=ip)
                for host, own, protocol, ip in ports
            ],
            annotations=annotations or {},
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=f"/{self.machine.cgroup}",
                security_context=pb.LinuxSandboxSecurityContext(namespace_options=options),
            ),
        )

    def run(self, name: str, *what: Any, **how: Any) -> Pod:
        """Starts a pod, as `config` takes it, whose own process is a web server, and waits until that answers."""
        made = self.call("RunPodSandbox", config=self.config(name, *what, **how)).pod_sandbox_id
        pod = self.pod(made, name)
        assert how.get("host_network") or eventually(lambda: page(pod.namespace, "127.0.0.1") != ""), name
        return pod

    def pod(self, sandbox_id: str, name: str) -> Pod:
        """Returns a pod as containerd tells of it."""
        status = self.call("PodSandboxStatus", pod_sandbox_id=sandbox_id, verbose=True)
        network = status.status.network
        ips = tuple(ip for ip in (network.ip, *(more.ip for more in network.additional_ips)) if ip)
        listed = json.loads(status.info["info"])["runtimeSpec"]["linux"]["namespaces"]
        path = next((one.get("path", "") for one in listed if one["type"] == "network"), "")
        return Pod(sandbox_id, name, ips, self.machine.namespace(f"/run/netns/{Path(path).name}"))

    def pods(self) -> dict[str, str]:
        """Returns the ids of the pods that containerd knows, by name."""
        return {item.metadata.name: item.id for item in self.call("ListPodSandbox").items}

    def stop(self, pod: Pod) -> None:
        """Stops a pod; as kubelet does, tries again when containerd 1.6 lost a race with its own shim."""
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

    def remove_all(self) -> None:
        """Removes the pods that are left."""
        for name, sandbox_id in self.pods().items():
            self.remove(Pod(sandbox_id, name, (), Namespace("")))

    def said_in(self, pod: Pod, *command: str) -> str:
        """Runs a container in a pod, and a program in it whose output it returns."""
        container = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name="one"),
            image=pb.ImageSpec(image=_IMAGE),
            command=["sleep", "600"],
            log_path="one.log",
        )
        made = self.call(
            "CreateContainer", pod_sandbox_id=pod.id, config=container, sandbox_config=self.config(pod.name)
        ).container_id
        self.call("StartContainer", container_id=made)
        done = self.call("ExecSync", container_id=made, cmd=command, timeout=10)
        assert done.exit_code == 0, done.stderr
        return str(done.stdout.decode())

    def not_ready(self) -> str:
        """Returns why the network is not ready, "" when it is."""
        conditions = {one.type: one for one in self.call("Status").status.conditions}
        network = conditions["NetworkReady"]
        return "" if network.status else network.message or network.reason

    def network(self) -> str:
        """Returns the name of the network that containerd has loaded, "" while it has none."""
        info = json.loads(self.call("Status", verbose=True).info["cniconfig"])
        names = [one["Config"]["Name"] for one in info["Networks"] or () if one["IFName"] != "lo"]
        return "".join(names)

    @contextlib.contextmanager
    def nothing_left(self, bridge: str, *what: Any) -> Iterator[None]:
        """Demands that when the pods of a block are gone, all is as it was after a first one (`what` as `config`)."""
        clean = self.machine.leftovers()
        self.remove(self.run("first", *what))
        assert eventually(lambda: self.machine.leftovers(links=[bridge]) == clean), self.machine.leftovers()
        with self.unchanged():
            yield

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Demands that when the pods of a block are gone, the machine is in whole as it was before."""
        with self.machine.unchanged():
            try:
                yield
            finally:
                self.remove_all()

    def configure(self, network: Mapping[str, Any]) -> None:
        """Makes a network the only one in net.d and waits until containerd, which watches the directory, has loaded it.

        containerd 1.6 takes no notice of a file that comes from another directory: it is renamed inside.
        """
        path = CONF_DIR / "10-pods.conflist"
        self.machine.write(path.with_suffix(".new"), json.dumps(network))
        self.forget_networks()
        self.machine.run("mv", str(path.with_suffix(".new")), str(path))
        assert self.loads(str(network["name"])), f"loaded is {self.network()!r}"

    def forget_networks(self) -> None:
        """Leaves containerd without any network."""
        self.machine.run("find", str(CONF_DIR), "-name", "*.conflist", "-delete")
        assert self.loads(""), f"loaded is {self.network()!r}"

    def loads(self, name: str) -> bool:
        """Tells whether containerd loads this network in time."""
        return eventually(lambda: self.network() == name)


@contextlib.contextmanager
def ready(machine: Machine, bin_dir: Path) -> Iterator[Cri]:
    """Runs containerd with an image and these plugins; where it can start no pod without a network, the test ends."""
    machine.install(bin_dir)
    with containerd(machine) as cri:
        load_image(machine)
        try:
            cri.remove(cri.run("no-network", host_network=True))
        except grpc.RpcError as error:
            pytest.skip(f"containerd cannot start a pod even without a network: {error.details()}")
        yield cri


@contextlib.contextmanager
def containerd(machine: Machine) -> Iterator[Cri]:
    """Runs containerd on a machine, and kills it: pods that live go on without it."""
    text = _CONFIG.format(
        scratch=machine.scratch,
        socket=_SOCKET,
        image=_IMAGE,
        bin_dir=BIN_DIR,
        conf_dir=CONF_DIR,
        template=CONF_TEMPLATE,
    )
    config = machine.scratch / "containerd.toml"
    config.write_text(text)
    path = Path(f"/proc/{machine.pid}/root{_SOCKET}")
    with machine.running("containerd", "-c", str(config)), grpc.insecure_channel(f"unix://{path}") as channel:
        cri = Cri(machine, _services.RuntimeServiceStub(channel))
        assert eventually(lambda: _answers(cri), within_s=30), (machine.scratch / "containerd.log").read_text()[-2000:]
        yield cri


def load_image(machine: Machine) -> None:
    """Gives containerd the image of pods and their containers."""
    archive = machine.scratch / "pod.tar"
    images.write_archive(archive, _IMAGE, images.WEB_SERVER)
    machine.run("ctr", "--namespace", "k8s.io", "images", "import", str(archive))


def network(name: str, bridge: str, *subnets: str, backend: str = "iptables", **portmap_keys: Any) -> dict[str, Any]:
    """Returns a network of the whole chain with an address of each of `subnets`."""
    routes = [{"dst": "::/0" if ":" in subnet else "0.0.0.0/0"} for subnet in subnets]
    ipam = {"type": "host-local", "ranges": [[{"subnet": subnet}] for subnet in subnets], "routes": routes}
    masquerading = {"ipMasq": True, "ipMasqBackend": backend}
    plugins: list[dict[str, Any]] = [
        {"type": "bridge", "bridge": bridge, "isGateway": True, "hairpinMode": True, **masquerading, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}, "backend": backend, **portmap_keys},
        {"type": "bandwidth", "capabilities": {"bandwidth": True}},
    ]
    return {"cniVersion": "1.0.0", "name": name, "plugins": plugins}


def page(namespace: Namespace, ip: str, port: int = 80, *, timeout_s: float = 10) -> str:
    """Returns the web page that `ip` `port` gives to a caller in `namespace`, "" when there is none."""
    with namespace.entered():
        own = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET)
    connection = http.client.HTTPConnection(ip, port)
    connection.sock = own
    own.settimeout(timeout_s)
    try:
        own.connect((ip, port))
        connection.request("GET", "/")
        return connection.getresponse().read().decode().strip()
    except OSError:
        return ""
    finally:
        own.close()


def _answers(cri: Cri) -> bool:
    try:
        cri.call("Status")
    except grpc.RpcError:
        return False
    return True
