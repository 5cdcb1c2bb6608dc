"""A bridge network with rate limits: bridge and bandwidth as a runtime chains them, and the state of traffic control.

One rule: bandwidth's configuration and directory are parameters of the network, so that a test runs with any limits,
and with the reference plugins.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from tests.support import netstate
from tests.support.attaching import ChainedNetwork
from tests.support.invocation import Outcome
from tests.support.namespaces import Namespace
from tests.support.processes import output

INGRESS = {"ingressRate": 8_000_000, "ingressBurst": 800_000}
EGRESS = {"egressRate": 16_000_000, "egressBurst": 1_600_000}
BOTH = INGRESS | EGRESS

# Reference counts of qdiscs and actions, and indices, which depend on the order of creation.
_NOISE = re.compile(r" refcnt \d+|\bindex \d+ ref \d+ bind \d+")
_PARENT = re.compile(r"qdisc (?:ingress|clsact) \S+ dev (\S+)")  # qdiscs that can have filters


@dataclass(frozen=True)
class BandwidthNetwork(ChainedNetwork):
    """A bridge network with the bandwidth plugin."""

    TYPE = "bandwidth"

    def with_runtime_limits(self, **limits: int) -> Self:
        """Returns the same network with the limits in runtimeConfig."""
        return self.having(capabilities={"bandwidth": True}, runtimeConfig={"bandwidth": limits})

    def with_bin_dir(self, bin_dir: Path | None) -> Self:
        """Returns the same network with the bandwidth plugin of another directory, None for podwire's."""
        return replace(self, bin_dir=bin_dir)

    def add(self, pod: Namespace, **options: Any) -> dict[str, Any]:
        """Attaches `pod` and returns the result; a failure fails the test. `options` are those of start_plugin."""
        return self.limit(pod, self.bridge.add(pod, **options), **options)

    def limit(self, pod: Namespace, prev_result: object, **options: Any) -> dict[str, Any]:
        """Runs bandwidth's ADD alone and returns the result; a failure fails the test."""
        return self.bandwidth("ADD", pod, prev_result, **options).result()

    def check(self, pod: Namespace, result: object, **options: Any) -> None:
        """Runs bandwidth's CHECK; a failure fails the test."""
        self.bandwidth("CHECK", pod, result, **options).assert_silent()

    def release(self, pod: Namespace, result: object = None, **options: Any) -> None:
        """Runs bandwidth's DEL alone; a failure fails the test."""
        self.bandwidth("DEL", pod, result, **options).assert_silent()

    def delete(self, pod: Namespace, result: object = None, **options: Any) -> None:
        """Detaches `pod`, the last plugin first; a failure fails the test."""
        self.release(pod, result, **options)
        self.bridge.delete(pod, result, **options)

    def tc(self, *lines: str) -> None:
        """Runs lines of tc on the host; a failure fails the test."""
        for line in lines:
            self.host.run("tc", *line.split())

    def gc(self, *valid: tuple[str, str], **keys: Any) -> str:
        """Runs GC with the `valid` attachments (container ID, interface name); returns its stderr."""
        return self.chained.gc(*valid, **keys)

    def bandwidth(
        self, command: str, pod: Namespace | str | None = None, prev_result: object = None, **options: Any
    ) -> Outcome:
        """Runs one verb of bandwidth alone; `options` are those of start_plugin."""
        return self.chained.run(command, pod, prev_result, **options)


def connect_veth(host: Namespace, pod: Namespace, name: str = "veth0", ifname: str = "eth0") -> dict[str, Any]:
    """Connects `pod` by a veth, both ends up; returns the result of an interface plugin, with another interface."""
    host.ip("link", "add", name, "type", "veth", "peer", "name", ifname, "netns", pod.name)
    host.ip("link", "set", name, "up")
    pod.ip("link", "set", ifname, "up")
    container_veth = {"name": ifname, "mac": "02:00:00:00:00:01", "sandbox": pod.path}
    return {"cniVersion": "1.0.0", "interfaces": [{"name": "lo"}, {"name": name}, container_veth]}


def ifb_name(container_id: str, network: str = "net") -> str:
    """Returns the reference plugin's name for an ifb."""
    return "bwp" + hashlib.sha512(f"{network}{container_id}".encode()).hexdigest()[:12]


def qdiscs(namespace: Namespace, device: str = "") -> list[str]:
    """Returns the qdiscs of a device, by default of all devices, as `tc` prints them; without noqueue."""
    return [line for line in _run_tc(namespace, f"qdisc show {device and f'dev {device}'}") if "noqueue" not in line]


def filters(namespace: Namespace, device: str) -> list[str]:
    """Returns the ingress filters of a device, as `tc` prints them."""
    return _run_tc(namespace, f"filter show dev {device} ingress")


def ifbs(namespace: Namespace) -> dict[str, str]:
    """Returns all ifbs: name and alias."""
    return {name: link.get("ifalias", "") for name, link in netstate.links(namespace).items() if _kind(link) == "ifb"}


def state(namespace: Namespace) -> dict[str, Any]:
    """Returns the whole state of a namespace, with qdiscs and filters, for comparison.

    It excludes the queue length, which the kernel sets on a veth with the first qdisc and never resets.
    """
    namespace_state = netstate.state(namespace)
    for link in namespace_state["links"].values():
        link.pop("txqlen", None)
    existing_qdiscs = sorted(qdiscs(namespace))
    parents = [match[1] for line in existing_qdiscs if (match := _PARENT.match(line))]
    return {
        **namespace_state,
        "qdiscs": existing_qdiscs,
        "filters": {name: filters(namespace, name) for name in parents},
    }


def _kind(link: Mapping[str, Any]) -> str:
    return str(link.get("linkinfo", {}).get("info_kind", ""))


def _run_tc(namespace: Namespace, command: str) -> list[str]:
    text = output("tc", "-n", namespace.name, *command.split())
    return [line for raw in text.splitlines() if (line := _NOISE.sub("", raw).strip())]
