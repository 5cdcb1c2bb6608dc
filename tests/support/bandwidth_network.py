"""A bridge network with limits: bridge and bandwidth as a runtime chains them, and what traffic control shows of it.

One rule: bandwidth's configuration and directory are values of the network, so that a test runs with any limits, and
with the reference.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support import netstate
from tests.support.attaching import Network
from tests.support.invocation import Outcome, run_plugin
from tests.support.namespaces import Namespace
from tests.support.processes import output

INGRESS = {"ingressRate": 8_000_000, "ingressBurst": 800_000}
EGRESS = {"egressRate": 16_000_000, "egressBurst": 1_600_000}
BOTH = INGRESS | EGRESS

# Of a qdisc or an action: how many hold it, and numbers that are given in order of making.
_NOISE = re.compile(r" refcnt \d+|\bindex \d+ ref \d+ bind \d+")
_PLACE = re.compile(r"qdisc (?:ingress|clsact) \S+ dev (\S+)")  # where filters can be


@dataclass(frozen=True)
class BandwidthNetwork:
    """A bridge network with bandwidth behind it; `keys` are bandwidth's options, `bin_dir` its directory.

    `keys` may overrule what is the network's, such as "name"; None leaves a key out.
    """

    bridge: Network
    keys: Mapping[str, Any] = field(default_factory=dict)
    bin_dir: Path | None = None

    @property
    def host(self) -> Namespace:
        """The node."""
        return self.bridge.host

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of bandwidth, without prevResult."""
        network = {key: self.bridge.config[key] for key in ("cniVersion", "name")}
        config = {**network, "type": "bandwidth", **self.keys}
        return {key: value for key, value in config.items() if value is not None}

    def having(self, **keys: Any) -> BandwidthNetwork:
        """Returns the same network with other options of bandwidth; None leaves a key out."""
        return replace(self, keys={**self.keys, **keys})

    def asked(self, **limits: int) -> BandwidthNetwork:
        """Returns the same network with limits as a runtime passes them on."""
        return self.having(capabilities={"bandwidth": True}, runtimeConfig={"bandwidth": limits})

    def by(self, bin_dir: Path | None) -> BandwidthNetwork:
        """Returns the same network with the bandwidth of another directory, None for ours."""
        return replace(self, bin_dir=bin_dir)

    def add(self, pod: Namespace, **how: Any) -> dict[str, Any]:
        """Attaches `pod` and returns the result; a failure fails the test. `how` as start_plugin takes it."""
        return self.limit(pod, self.bridge.add(pod, **how), **how)

    def limit(self, pod: Namespace, prev_result: object, **how: Any) -> dict[str, Any]:
        """Runs bandwidth's ADD alone and returns the result; a failure fails the test."""
        return self.bandwidth("ADD", pod, prev_result, **how).result()

    def check(self, pod: Namespace, result: object, **how: Any) -> None:
        """Runs bandwidth's CHECK; a failure fails the test."""
        self.bandwidth("CHECK", pod, result, **how).assert_silent()

    def release(self, pod: Namespace, result: object = None, **how: Any) -> None:
        """Runs bandwidth's DEL alone; a failure fails the test."""
        self.bandwidth("DEL", pod, result, **how).assert_silent()

    def delete(self, pod: Namespace, result: object = None, **how: Any) -> None:
        """Detaches `pod`, the last plugin first; a failure fails the test."""
        self.release(pod, result, **how)
        self.bridge.delete(pod, result, **how)

    def gc(self, *valid: tuple[str, str], **keys: Any) -> str:
        """Collects what is none of the `valid` (container ID, interface name); returns what is said on stderr."""
        attachments = [{"containerID": container_id, "ifname": ifname} for container_id, ifname in valid]
        asked = {"cniVersion": "1.1.0", "cni.dev/valid-attachments": attachments, **keys}
        outcome = self.having(**asked).bandwidth("GC")
        outcome.assert_silent()
        return outcome.stderr

    def bandwidth(
        self, command: str, pod: Namespace | str | None = None, prev_result: object = None, **how: Any
    ) -> Outcome:
        """Runs one verb of bandwidth alone; `how` as start_plugin takes it."""
        config = self.config if prev_result is None else {**self.config, "prevResult": prev_result}
        container_id = {"container_id": pod.name} if isinstance(pod, Namespace) else {}
        own = {"host": self.host, "bin_dir": self.bin_dir, "netns": pod, **container_id}
        return run_plugin("bandwidth", command, config, **{**own, **how})


def connect_veth(host: Namespace, pod: Namespace, name: str = "veth0", ifname: str = "eth0") -> dict[str, Any]:
    """Joins `pod` to the host by a veth pair, both ends up, and returns the result of the plugin that this stands for.

    Tests of what bandwidth alone does need no bridge. The host has other interfaces, too, and so has the result.
    """
    host.ip("link", "add", name, "type", "veth", "peer", "name", ifname, "netns", pod.name)
    host.ip("link", "set", name, "up")
    pod.ip("link", "set", ifname, "up")
    inside = {"name": ifname, "mac": "02:00:00:00:00:01", "sandbox": pod.path}
    return {"cniVersion": "1.0.0", "interfaces": [{"name": "lo"}, {"name": name}, inside]}


def ifb_name(container_id: str, network: str = "net") -> str:
    """Returns the reference's name for an ifb."""
    return "bwp" + hashlib.sha512(f"{network}{container_id}".encode()).hexdigest()[:12]


def qdiscs(namespace: Namespace, device: str = "") -> list[str]:
    """Returns the qdiscs of a device, of all unless one is given, as `tc` prints them; without noqueue."""
    return [line for line in _shown(namespace, f"qdisc show {device and f'dev {device}'}") if "noqueue" not in line]


def filters(namespace: Namespace, device: str) -> list[str]:
    """Returns the filters of what a device receives, as `tc` prints them."""
    return _shown(namespace, f"filter show dev {device} ingress")


def ifbs(namespace: Namespace) -> dict[str, str]:
    """Returns the names of all ifbs, with the text on each."""
    return {name: link.get("ifalias", "") for name, link in netstate.links(namespace).items() if _kind(link) == "ifb"}


def state(namespace: Namespace) -> dict[str, Any]:
    """Returns the whole state of a namespace with its qdiscs and filters, to be compared.

    Left out is the queue length, which the kernel sets on a veth with its first qdisc and leaves there.
    """
    whole = netstate.state(namespace)
    for link in whole["links"].values():
        link.pop("txqlen", None)
    found = sorted(qdiscs(namespace))
    places = [match[1] for line in found if (match := _PLACE.match(line))]
    return {**whole, "qdiscs": found, "filters": {name: filters(namespace, name) for name in places}}


def _kind(link: Mapping[str, Any]) -> str:
    return str(link.get("linkinfo", {}).get("info_kind", ""))


def _shown(namespace: Namespace, command: str) -> list[str]:
    text = output("tc", "-n", namespace.name, *command.split())
    return [line for raw in text.splitlines() if (line := _NOISE.sub("", raw).strip())]
