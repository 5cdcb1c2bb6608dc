"""The plan of a storm, its containers and its report.

One rule: nothing here changes the node, except that `containers` creates the pods.
"""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import namespaces, pod_interfaces
from tests.support.namespaces import Namespace
from tests.support.tcp import PORT

_AFTER_VETH = ("portmap", "bandwidth", "firewall", "tuning")
# The plugins after each interface plugin, in the order of the list.
CHAINED = {
    "bridge": _AFTER_VETH,
    "ptp": _AFTER_VETH,
    "macvlan": ("tuning",),
    "host-device": ("tuning",),
    "tap": ("sbr", "tuning"),
    "ipvlan": ("vrf", "tuning"),
    "vlan": ("tuning",),
    "dummy": ("tuning",),
}
IFNAME = "eth0"
RESULTS = Path("/var/lib/cni/results")  # libcni's cache; here in a private mount

NAME = "storm"
_FIRST_PORT = 20_000


@dataclass(frozen=True)
class Plan:
    """The parameters of a storm. `reference` is the directory of the reference plugins, "" to run podwire's only.

    A storm takes at least `seconds` and has at least `verbs` verbs, which a busy machine needs longer for, and a kill.
    `interface` is the interface plugin.
    """

    store: str
    backend: str
    seconds: float
    at_once: int
    verbs: int = 0
    containers: int = 200
    seed: int = 0
    reference: str = ""
    tools: str = ""
    killed: float = 0.05  # the proportion of ADDs and DELs in which one plugin is killed
    interface: str = "bridge"

    @property
    def plugins(self) -> tuple[str, ...]:
        """The plugins of the list, in order."""
        return (self.interface, *CHAINED[self.interface])


@dataclass
class Container:
    """A container as its runtime knows it: absent, present, unknown (DEL follows) or lost (GC follows)."""

    number: int
    pod: Namespace
    state: str = "absent"
    busy: bool = False
    disputed: bool = False
    by_reference: bool = False  # whether the reference plugins created any part of it
    result: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """The container ID."""
        return f"pod-{self.number}"

    @property
    def address(self) -> str:
        """The allocated address; the container must be present."""
        assert self.result is not None
        return str(self.result["ips"][0]["address"].partition("/")[0])

    @property
    def host_veth(self) -> str:
        """The name of the host veth, "" without one."""
        assert self.result is not None
        return next((str(each["name"]) for each in self.result["interfaces"] if each["name"].startswith("veth")), "")

    @property
    def host_port(self) -> int:
        """The host port that is published for it."""
        return _FIRST_PORT + self.number

    @property
    def cached(self) -> Path:
        """The path of its cache file."""
        return RESULTS / f"{NAME}-{self.name}-{IFNAME}"

    def end_pod(self, interface: str) -> None:
        """Deletes the pod; host-device's device returns to the host, the current namespace, as a physical one does."""
        if interface == "host-device":
            pod_interfaces.end_pod(self.pod, str(os.getpid()))
        else:
            self.pod.delete()

    def runtime_config(self) -> dict[str, Any]:
        """Returns its runtimeConfig: a TCP port; also a UDP port for every third container, limits for every second."""
        protocols = ("tcp", "udp") if self.number % 3 == 0 else ("tcp",)
        runtime_config: dict[str, Any] = {
            "portMappings": [
                {"hostPort": self.host_port, "containerPort": PORT, "protocol": protocol} for protocol in protocols
            ]
        }
        if self.number % 2:
            rates = {"ingressRate": 80_000_000, "egressRate": 160_000_000}
            runtime_config["bandwidth"] = {**rates, "ingressBurst": 8_000_000, "egressBurst": 8_000_000}
        return runtime_config


@dataclass
class Report:
    """The outcome of a storm."""

    problems: list[str] = field(default_factory=list)
    verbs: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    processes: int = 0
    running: int = 0
    seconds: float = 0.0


def containers(plan: Plan) -> list[Container]:
    """Creates the pods of a plan and returns their containers."""
    return [Container(number, namespaces.create()) for number in range(plan.containers)]
