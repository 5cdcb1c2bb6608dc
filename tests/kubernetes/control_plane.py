"""The control plane: etcd, API server, controller manager, scheduler, and stand-ins for DNS and the Internet.

One rule: it runs in the network namespace of the tests, which is the gateway of the nodes.
"""

import base64
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from tests.kubernetes import dns, plan
from tests.kubernetes.dns_records import INTERNET_HOST
from tests.kubernetes.plan import Family
from tests.support import certificates
from tests.support.etcd import start_daemon
from tests.support.kube_apiserver import KubeApiServer
from tests.support.processes import output

ADMIN = "admin"
CONTROLLER_MANAGER, SCHEDULER, PROXY = "kube-controller-manager", "kube-scheduler", "kube-proxy"
_OPTIONS = (
    *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
    *("--enable-aggregator-routing", "--kubelet-preferred-address-types=InternalIP"),
)
_TIMEOUT_S = 600
_PORTS = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]


class ControlPlane:
    """The control plane, which runs inside `running()`; it writes to `directory`."""

    def __init__(self, directory: Path, nodes: Sequence[str], families: Sequence[Family]) -> None:
        self.directory, self.families = directory, families
        self._first = families[0]
        users = {ADMIN: "system:masters", **dict.fromkeys(map(node_user, nodes), "system:nodes")}
        users |= {f"system:{part}": "" for part in (CONTROLLER_MANAGER, SCHEDULER, PROXY)}
        tokens = "".join(f"{_token(user)},{user},{user},{group}\n" for user, group in users.items())
        tls = certificates.create(directory, self._first.gateway(), self._first.api)
        services = f"--service-cluster-ip-range={plan.service_cidrs(families)}"
        options = (*_OPTIONS, services, *plan.gates(families))
        self.server = KubeApiServer(directory, tls, self._first.gateway(), 6443, tokens=tokens, options=options)
        self.admin = directory / "admin.conf"

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Runs all programs inside the block; the API server is ready when it begins."""
        _create_links(self.families)
        with self.server.running():
            self.admin.write_text(self.kubeconfig(ADMIN))
            self._start_controllers()
            self._start_stand_ins()
            yield self

    def kubeconfig(self, user: str) -> str:
        """Returns the text of a kubeconfig with a user's token."""
        authority = base64.b64encode((self.directory / "ca.crt").read_bytes()).decode()
        cluster = {"server": self.server.url, "certificate-authority-data": authority}
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": _token(user)}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": user}}],
            "current-context": "tests",
        }
        return json.dumps(body)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Runs kubectl as the administrator and returns its stdout; AssertionError if it fails."""
        line = (str(plan.PROGRAMS / "kubectl"), f"--kubeconfig={self.admin}", *words)
        done = subprocess.run(line, input=stdin, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def apply(self, *objects: dict[str, Any]) -> None:
        """Creates or changes objects."""
        body = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("apply", "--filename=-", stdin=json.dumps(body))

    def objects(self, *words: str) -> list[dict[str, Any]]:
        """Returns the items that `kubectl get` prints."""
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", "--output=json", *words))["items"]
        return items

    def route_to_pods(self) -> None:
        """Adds routes to the pods of all nodes, which the API server reaches, as it reaches Services' endpoints."""
        for node in self.objects("nodes"):
            addresses = [one["address"] for one in node["status"]["addresses"] if one["type"] == "InternalIP"]
            for cidr, address in zip(node["spec"]["podCIDRs"], addresses, strict=True):
                output("ip", "route", "replace", cidr, "via", address)

    def _start_controllers(self) -> None:
        self._start(
            *(CONTROLLER_MANAGER, "--allocate-node-cidrs", f"--cluster-cidr={plan.pod_cidrs(self.families)}"),
            *(f"--service-cluster-ip-range={plan.service_cidrs(self.families)}", "--use-service-account-credentials"),
            *(f"--root-ca-file={self.directory}/ca.crt", f"--cert-dir={self.directory}"),
            *(f"--service-account-private-key-file={self.directory}/server.key", "--leader-elect=false"),
            *plan.gates(self.families),
        )
        self._start(SCHEDULER, "--leader-elect=false", f"--cert-dir={self.directory}")

    def _start(self, program: str, *options: str) -> None:
        config = self.directory / f"{program}.conf"
        config.write_text(self.kubeconfig(f"system:{program}"))
        log = self.directory / f"{program}.log"
        start_daemon(str(plan.PROGRAMS / program), f"--kubeconfig={config}", *options, log=log)

    def _start_stand_ins(self) -> None:
        """Starts the cluster's DNS, and a web server that has the name of one on the Internet."""
        token, ca = self.directory / "token-admin", self.directory / "ca.crt"
        gateways = [family.gateway() for family in self.families]
        line = (sys.executable, "-m", dns.__name__, self.server.url, str(ca), str(token), *gateways)
        start_daemon(*line, log=self.directory / "dns.log")
        web = (str(plan.PROGRAMS / "agnhost"), "netexec", "--http-port=80")
        start_daemon(*web, log=self.directory / "web.log")
        hosts = self.directory / "hosts"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{one} {INTERNET_HOST}\n" for one in gateways))
        output("mount", "--bind", str(hosts), "/etc/hosts")
        meta = {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}}
        service = {"clusterIP": self._first.dns, "ports": _PORTS}
        subsets = [{"addresses": [{"ip": gateways[0]}], "ports": _PORTS}]
        self.apply(
            {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": service},
            {"apiVersion": "v1", "kind": "Endpoints", "metadata": meta, "subsets": subsets},
        )


def node_user(name: str) -> str:
    """Returns the user of a node's kubelet."""
    return f"system:node:{name}"


def _token(user: str) -> str:
    return user.replace(":", "-")


def _create_links(families: Sequence[Family]) -> None:
    """Creates the links of the nodes, with this machine as a router that drops packets from pods, as clouds do."""
    for number, bridge in enumerate(plan.BRIDGES):
        output("ip", "link", "add", bridge, "type", "bridge")
        Path(f"/proc/sys/net/ipv6/conf/{bridge}/accept_dad").write_text("0")  # its addresses are used at once
        for family in families:
            output("ip", "address", "add", family.on_link(number, family.gateway(number)), "dev", bridge)
        output("ip", "link", "set", bridge, "up")
    for family in families:
        Path("/proc/sys/net", family.forwarding).write_text("1")
        if (filtered := Path("/proc/sys/net/bridge", f"bridge-nf-call-{family.filter}")).exists():  # within a link
            filtered.write_text("0")
        output(family.filter, "-A", "FORWARD", "-s", family.pods, "-j", "DROP")
