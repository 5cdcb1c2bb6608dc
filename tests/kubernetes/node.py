"""A node: a machine of namespaces with containerd, kubelet and kube-proxy, connected to the cluster's link.

One rule: nothing of a node outlives its first process, but its disk, the directory `disk`, and its control groups.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from tests.kubernetes import images, plan
from tests.kubernetes.plan import Family
from tests.support import machine
from tests.support.machine import BIN_DIR, CONF_DIR, Host, eventually
from tests.support.namespaces import Namespace
from tests.support.processes import output

METRICS = "127.0.0.1:1338"  # of containerd
_SOCKET = "/run/containerd/containerd.sock"
# An error of kubelet, or of containerd, about the network.
_CNI_ERROR = re.compile(r"(E\d{4} |.* level=(error|fatal) ).*(cni|plugin type|network for sandbox)", re.IGNORECASE)
_UNSHARED = ("--pid", "--ipc", "--uts", "--mount-proc")
# Kubelet sets these for the whole kernel: each node has copies.
_SYSCTLS = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
)
_SETUP = f"""
set -e
{machine.DISK}
for directory in lib/containerd lib/kubelet log; do
    mkdir -p "/var/$directory" "$SCRATCH/$directory"
    mount --bind "$SCRATCH/$directory" "/var/$directory"
done
mount -t tmpfs podwire /dev/shm
mkdir -p "$SCRATCH/cgroup" "$SCRATCH/sysctl"
# A new /sys shows this network namespace; the control groups below it are the kernel's.
mount --rbind /sys/fs/cgroup "$SCRATCH/cgroup"
mount -t sysfs podwire /sys
mount --rbind "$SCRATCH/cgroup" /sys/fs/cgroup
umount -l "$SCRATCH/cgroup"
if mountpoint -q /sys/fs/cgroup/unified; then umount -l /sys/fs/cgroup/unified; fi
for group in /sys/fs/cgroup/*/; do if mountpoint -q "$group"; then mkdir -p "$group/$CGROUP"; fi; done
for name in {" ".join(_SYSCTLS)}; do
    copy="$SCRATCH/sysctl/$(basename "$name")"
    cat "/proc/sys/$name" >"$copy"
    mount --bind "$copy" "/proc/sys/$name"
done
rm -rf /etc/cni /opt/cni /etc/resolv.conf
mkdir -p {CONF_DIR} {BIN_DIR} /etc/containers
printf '[network]\ncni_plugin_dirs = ["{BIN_DIR}"]\n' >/etc/containers/containers.conf  # of podman, which the node has
hostname "$NAME"
ip link set lo up
for address in $ADDRESSES; do echo "$address $NAME" >>/etc/hosts; done
for gateway in $GATEWAYS; do echo "nameserver $gateway" >>/etc/resolv.conf; done
mount --make-rshared /  # for volumes, and the namespaces of pods
"""
_CONTAINERD = f"""version = 2
[grpc]
  address = "{_SOCKET}"
[metrics]
  address = "{METRICS}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{BIN_DIR}"
    conf_dir = "{CONF_DIR}"
"""


class Node(Host):
    """A node, which runs inside `running()`; `group` is the control group of the cluster.

    `addresses` has the node's InternalIP of each IP version.
    """

    def __init__(self, number: int, link: int, families: Sequence[Family], disk: Path, group: str) -> None:
        self.name, self.link, self.families = f"node-{number}", link, families
        self.addresses = {family: family.node(link, number) for family in families}
        self.disk, self.group, self.pid = disk, f"{group}/{self.name}", 0
        self._wire, self.uplink = f"wire{number}", ""
        self._booted = contextlib.ExitStack()
        self._accepted_errors: list[str] = []

    def nsenter(self, *argv: str) -> list[str]:
        """Returns the command line that runs a program on the node."""
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--pid", "--ipc", "--uts", "--", *argv]

    @property
    def address(self) -> str:
        """The node's first InternalIP."""
        return self.addresses[self.families[0]]

    @property
    def network(self) -> Namespace:
        """The node's network namespace, for use in the tests' process."""
        return machine.unnamed_namespace(f"/proc/{self.pid}/ns/net")

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Boots the node for the duration of the block; it has no daemons yet."""
        self.boot()
        try:
            yield self
        finally:
            self.shut_down()

    def boot(self) -> None:
        """Starts the node's namespaces, with its disk."""
        self.disk.mkdir(exist_ok=True)
        self.pid = self._booted.enter_context(machine.first_process(*_UNSHARED))
        self._connect("eth0")
        variables = {
            "SCRATCH": self.disk,
            "CGROUP": self.group,
            "NAME": self.name,
            "ADDRESSES": " ".join(self.addresses.values()),
            "GATEWAYS": " ".join(family.gateway(self.link) for family in self.families),
        }
        env = [f"{key}={value}" for key, value in variables.items()]
        self.run("env", *env, "sh", "-c", _SETUP)
        self._set_addresses()
        (self.disk / "pid").write_text(str(self.pid))

    def shut_down(self) -> None:
        """Ends all processes of the node at once, as without power, and waits until its links no longer exist."""
        self._booted.close()
        wire = Path("/sys/class/net", self._wire)
        assert eventually(lambda: not wire.exists(), within_s=300), f"{self.name} still runs"  # it may have many pods

    def replace_uplink(self, name: str) -> None:
        """Deletes the node's uplink, and creates one with another name and index, and the same address."""
        output("ip", "link", "delete", self._wire)
        self._connect(name)
        self._set_addresses()

    def change_address(self, address: str) -> None:
        """Replaces the first address of the uplink, and the routes that the kernel deletes with it."""
        self.run("ip", "address", "flush", "dev", self.uplink, "scope", "global")
        self.addresses[self.families[0]] = address
        self._set_addresses()

    def log(self, program: str) -> Path:
        """Returns the file with the output of a daemon."""
        return self.disk / f"{program}.log"

    def start_containerd(self) -> None:
        """Starts containerd and waits until it answers."""
        self.write(Path("/etc/containerd/config.toml"), _CONTAINERD)
        self.start("containerd", log=self.log("containerd"))
        assert eventually(lambda: self.succeeds("ctr", "version"), within_s=60), self.log("containerd").read_text()

    def import_images(self, archives: Sequence[Path], aliases: dict[str, str]) -> None:
        """Loads images for kubelet; `aliases` are further names, with the image of each."""
        ctr = ("ctr", "--namespace", "k8s.io", "images")
        for archive in archives:
            self.run(*ctr, "import", str(archive))
        for alias, name in aliases.items():
            self.run(*ctr, "tag", "--force", name, alias)

    def start_kubelet(self, kubeconfig: str) -> None:
        """Starts kubelet, which registers the node."""
        self.write(Path("/etc/kubernetes/kubelet.conf"), kubeconfig)
        self.write(Path("/etc/kubernetes/kubelet.json"), json.dumps(self._kubelet_settings()))
        self.start(
            *(str(plan.PROGRAMS / "kubelet"), "--config=/etc/kubernetes/kubelet.json"),
            *("--kubeconfig=/etc/kubernetes/kubelet.conf", f"--hostname-override={self.name}"),
            *("--container-runtime=remote", f"--container-runtime-endpoint=unix://{_SOCKET}"),
            *(f"--node-ip={','.join(self.addresses.values())}", "--cert-dir=/var/lib/kubelet/pki"),
            *plan.gates(self.families),
            log=self.log("kubelet"),
        )

    def start_kube_proxy(self, kubeconfig: str) -> None:
        """Starts kube-proxy; the limits of conntrack are the kernel's, not the node's."""
        self.write(Path("/etc/kubernetes/kube-proxy.conf"), kubeconfig)
        self.start(
            *(str(plan.PROGRAMS / "kube-proxy"), "--kubeconfig=/etc/kubernetes/kube-proxy.conf"),
            *(f"--hostname-override={self.name}", f"--cluster-cidr={plan.pod_cidrs(self.families)}"),
            *("--oom-score-adj=0", "--conntrack-max-per-core=0", "--conntrack-min=0", *plan.gates(self.families)),
            log=self.log("kube-proxy"),
        )

    def kill(self, program: str) -> None:
        """Kills a daemon of the node, by the name of its program."""
        self.run("pkill", "--signal", "KILL", "--exact", program)
        assert eventually(lambda: not self.succeeds("pgrep", "--exact", program)), f"{program} still runs"

    def network_of(self, address: str) -> Namespace:
        """Returns the network namespace of the pod with an address, for use in the tests' process."""
        names = self.namespaces_of_pods()
        (name,) = (one for one in names if f" {address}/" in self.run("ip", "-netns", one, "address", "show"))
        return machine.unnamed_namespace(f"/proc/{self.pid}/root/run/netns/{name}")

    def reserved_addresses(self) -> list[str]:
        """Returns the addresses that host-local has reserved for the node's pods."""
        names = self.run("ls", "/var/lib/cni/networks/podwire").split()
        return [name for name in names if not name.startswith(("last_reserved_ip", "lock"))]

    def namespaces_of_pods(self) -> list[str]:
        """Returns the names of the network namespaces that exist for pods."""
        return self.run("ls", "/run/netns").split()

    def assert_healthy(self) -> None:
        """Asserts that doctor reports nothing."""
        assert self.run(f"{BIN_DIR}/podwire", "doctor").splitlines()[-1] == "0 problems, 0 warnings, 0 notes"

    def cni_errors(self) -> list[str]:
        """Returns the errors of containerd and kubelet that name CNI, without those before `accept_errors`."""
        lines = [line for program in ("containerd", "kubelet") for line in self.log(program).read_text().splitlines()]
        return [line for line in lines if _CNI_ERROR.match(line) and line not in self._accepted_errors]

    def accept_errors(self) -> None:
        """Leaves the errors until now out of `cni_errors`: there are some while no network is installed."""
        self._accepted_errors += self.cni_errors()

    def _connect(self, name: str) -> None:
        """Connects the node with its link by an interface of this name."""
        output("ip", "link", "add", self._wire, "type", "veth", "peer", "name", name, "netns", str(self.pid))
        output("ip", "link", "set", self._wire, "master", plan.BRIDGES[self.link], "up")
        self.uplink = name

    def _set_addresses(self) -> None:
        self.run("ip", "link", "set", self.uplink, "up")
        for family, address in self.addresses.items():
            self.run("ip", "address", "add", family.on_link(self.link, address), "dev", self.uplink)
            self.run("ip", "route", "add", "default", "via", family.gateway(self.link))

    def _kubelet_settings(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "::",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.group}",
            "clusterDNS": [self.families[0].dns],
            "clusterDomain": "cluster.local",
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "imageMinimumGCAge": "24h",
            "kubeAPIBurst": 200,
            "kubeAPIQPS": 100,
            "maxPods": 254,  # pods of a podCIDR, and the agent's
            "nodeStatusUpdateFrequency": "5s",
            "oomScoreAdj": 0,
            "resolvConf": "/etc/resolv.conf",
            "runtimeRequestTimeout": "10m",  # the nodes share the processors of one machine
            "volumePluginDir": "/var/lib/kubelet/volumeplugins",
        }
