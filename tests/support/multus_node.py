"""A node as Multus leaves it: its configuration with the cluster's network, pods with further networks, both caches.

One rule: calls and files are those of Multus, so that the tool sees what it sees on a node that runs Multus.
"""

import base64
import json
from pathlib import Path
from typing import Any

from tests.support import libcni
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList, runner
from tests.support.packet_node import PacketNode

PORTS = [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]
_VERSION = "1.0.0"
_LOOPBACK = NetworkList("cni-loopback", _VERSION, ({"type": "loopback"},))


class MultusNode(PacketNode):
    """The node: `run_pod` attaches a pod to the cluster's network, and to further ones (net1, net2, ...)."""

    def __init__(self, host: Namespace, directory: Path, client: Namespace | None = None, **multus: Any) -> None:
        super().__init__(host, directory, client)
        cluster = self.bridge("cluster", "10.22.0.0/24", isDefaultGateway=True, ipMasq=True, hairpinMode=True)
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        self.cluster = NetworkList("cluster", _VERSION, (*cluster.plugins, ports))
        self.multus = {"cniVersion": _VERSION, "name": "multus-cni-network", "type": "multus", **multus}
        self.multus |= {"capabilities": {"portMappings": True}, "delegates": [self.cluster.config], **multus}
        self.configure("00-multus.conf", self.multus)
        supported = json.dumps({"cniVersion": _VERSION, "supportedVersions": ["0.4.0", _VERSION]})
        program = directory / "multus-bin" / "multus"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho '{supported}'")
        program.chmod(0o755)

    @property
    def delegates(self) -> Path:
        """Multus' cache directory, /var/lib/cni/multus."""
        return self.cache / "multus"

    def bridge(self, name: str, subnet: str, **keys: Any) -> NetworkList:
        """Returns a network of bridge that no file of net.d defines."""
        ipam = {"type": "host-local", "subnet": subnet, "dataDir": str(self.directory / "leases")}
        plugin = {"type": "bridge", "bridge": f"br-{name}", "ipMasqBackend": "nftables", "ipam": ipam, **keys}
        return NetworkList(name, _VERSION, (plugin,))

    def run_pod(self, pod: Namespace, *further: NetworkList, name: str, ports: bool = False) -> list[dict[str, Any]]:
        """Attaches a pod as kubelet, the runtime and Multus do; returns the results of Multus' networks."""
        cni_args = {"IgnoreUnknown": "1", "K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": name}
        self._attach(self.cache, _LOOPBACK, pod, "lo", cni_args)
        cluster = self.cluster.with_capabilities(portMappings=PORTS) if ports else self.cluster
        networks = [(cluster, "eth0"), *((one, f"net{number}") for number, one in enumerate(further, 1))]
        self.delegates.mkdir(parents=True, exist_ok=True)
        saved = [base64.b64encode(json.dumps(network.config).encode()).decode() for network, _ in networks]
        (self.delegates / pod.name).write_text(json.dumps([{"Conf": {}, "Bytes": text} for text in saved]))
        results = [self._attach(self.delegates, network, pod, ifname, cni_args) for network, ifname in networks]
        how: dict[str, Any] = {"config": self.multus, "capability_args": cluster.capability_args}
        how |= {"cni_args": cni_args, "result": results[0]}
        libcni.write_entry(self.cache, "multus-cni-network", pod.name, netns=pod.path, **how)
        return results

    def _attach(
        self, cache: Path, network: NetworkList, pod: Namespace, ifname: str, cni_args: dict[str, str]
    ) -> dict[str, Any]:
        args = ";".join(map("=".join, cni_args.items()))
        result = network.add(runner(self.host, pod, netns=pod.path, ifname=ifname, args=args))
        how: dict[str, Any] = {"config": network.config, "capability_args": network.capability_args}
        how |= {"cni_args": cni_args, "result": result}
        libcni.write_entry(cache, network.name, pod.name, netns=pod.path, ifname=ifname, **how)
        return result

    def command_line(self, *arguments: str, **options: Any) -> tuple[list[str], dict[str, str]]:
        """Returns the command line of `podwire`, which also has Multus among the plugins."""
        line, variables = super().command_line(*arguments, **options)
        return line, {**variables, "CNI_PATH": f"{self.bin_dir}:{self.directory / 'multus-bin'}"}
