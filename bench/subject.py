"""An implementation under measurement: its files, its networks and leases, and calls of its plugins.

One rule: both implementations get the same input, except for the names that separate them (bridge, subnets, lease
directory).
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.process import Invocation, Run, run, wait_all
from tests.support import kubelet
from tests.support.invocation import environment
from tests.support.namespaces import Namespace
from tests.support.tcp import PORT

Config = Mapping[str, Any]

_VERSION = "1.0.0"  # the newest version that Debian's plugins support
CONTAINER_ID = "b" * 64
_NO_POD = Namespace("none")  # host-local does not use the namespace
_FIRST_PORT = 20_000
# CHECK of portmap before 1.2.0 ends by looking for IPv6 rules, also of a pod without an IPv6 address. At the end of DEL
# for nftables, Debian's 1.9.1 also deletes rules of iptables; it does not recognize iptables 1.8.9's answer that there
# are none.
_KNOWN_ERRORS = {
    "CHECK": re.compile("could not check ipv6 dnat"),
    "DEL": re.compile(r"Chain 'CNI-[0-9a-f]+' does not exist"),
}
# Chained plugins, as podman's default list and a limited pod of Kubernetes configure them.
BANDWIDTH: Config = {
    "type": "bandwidth",
    "runtimeConfig": {
        "bandwidth": {
            "ingressRate": 8_000_000,
            "ingressBurst": 800_000,
            "egressRate": 16_000_000,
            "egressBurst": 1_600_000,
        }
    },
}
FIREWALL: Config = {"type": "firewall"}
TUNING: Config = {"type": "tuning"}
LARGE_SUBNET = ipaddress.IPv4Network("10.112.0.0/12")  # for thousands of reserved addresses


class Kind(NamedTuple):
    """A kind of network: `octet` plus the implementation's number is the subnet's second octet, `keys` the plugin's."""

    name: str
    octet: int
    dual: bool = False
    keys: Mapping[str, Any] = {}
    plugin: str = "bridge"


SINGLE, DUAL = Kind("single", 100), Kind("dual", 120, dual=True)
IPTABLES = Kind("iptables", 140, keys={"ipMasq": True, "ipMasqBackend": "iptables"})
# The reference plugins before 1.7 ignore the backend and use iptables.
NFTABLES = Kind("nftables", 160, keys={"ipMasq": True, "ipMasqBackend": "nftables"})
ROUTED = Kind("routed", 200, keys={"ipMasq": True, "ipMasqBackend": "iptables"}, plugin="ptp")


@dataclass(frozen=True)
class Subject:
    """An implementation; `number`, 1 or 2, is part of its names and subnets; `version` is "" if it is unknown."""

    label: str
    number: int
    bin_dir: Path
    store: Path
    version: str = ""

    def network(self, kind: Kind) -> Config:
        """Returns a network of an interface plugin with gateway and host-local."""
        ranges = [[{"subnet": f"10.{kind.octet + self.number}.0.0/16"}]]
        if kind.dual:
            ranges.append([{"subnet": f"fd00:{self.number}::/64"}])
        return {
            "cniVersion": _VERSION,
            "name": f"{kind.name}-{self.number}",  # part of the netfilter chains' names
            "type": kind.plugin,
            **(
                {"bridge": f"bench{self.number}{kind.name[0]}", "isDefaultGateway": True}
                if kind.plugin == "bridge"
                else {}
            ),
            "ipam": {"type": "host-local", "dataDir": str(self.store), "ranges": ranges},
            **kind.keys,
        }

    def portmap(self, backend: str, count: int = 1, *, skip: int = 0) -> Config:
        """Returns portmap's configuration with `count` host ports, from `host_port` + `skip` on.

        The reference plugins before 1.7 have only the iptables backend and ignore the key.
        """
        mappings = [
            {"hostPort": self.host_port + skip + number, "containerPort": PORT, "protocol": "tcp"}
            for number in range(count)
        ]
        return {"type": "portmap", "backend": backend, "runtimeConfig": {"portMappings": mappings}}

    def node(self) -> Config:
        """Returns the full chain as a network list of a node's net.d."""
        name, subnet = f"node-{self.number}", f"10.{220 + self.number}.0.0/24"
        return kubelet.conflist(name, f"bench{self.number}pods", subnet, data_dir=self.store)

    @property
    def host_port(self) -> int:
        """The first of the implementation's 10,000 host ports."""
        return _FIRST_PORT + 10_000 * self.number

    def reserved_network(self, reserved: int) -> Config:
        """Returns a host-local network with `reserved` addresses in use; the first call creates the reservations."""
        directory = self.store / f"reserved-{reserved}"
        if not directory.exists():
            directory.mkdir(parents=True)
            for number in range(2, 2 + reserved):  # the first is the gateway
                (directory / str(LARGE_SUBNET[number])).write_text(f"{number:064x}\r\neth0")
            (directory / "last_reserved_ip.0").write_text(str(LARGE_SUBNET[1 + reserved]))
        ipam = {"type": "host-local", "dataDir": str(self.store), "ranges": [[{"subnet": str(LARGE_SUBNET)}]]}
        return {"cniVersion": _VERSION, "name": directory.name, "type": "bridge", "ipam": ipam}

    def call(
        self,
        plugin: str,
        command: str,
        config: Config,
        pod: Namespace = _NO_POD,
        container_id: str = CONTAINER_ID,
        *,
        ifname: str = "eth0",
    ) -> Invocation:
        """Returns a call of a plugin, as a runtime makes it."""
        env = environment(
            command,
            CNI_CONTAINERID=container_id,
            CNI_NETNS=pod.path,
            CNI_IFNAME="lo" if plugin == "loopback" else ifname,
            CNI_PATH=str(self.bin_dir),
        )
        return Invocation(str(self.bin_dir / plugin), env, json.dumps(config).encode())

    def run(self, *arguments: Any, **options: Any) -> Run:
        """Runs a call with the arguments of call(); raises RuntimeError when it fails."""
        return self.measure(self.call(*arguments, **options))

    def measure(self, call: Invocation) -> Run:
        """Runs a call; raises RuntimeError for an error that is not one of the reference's known ones."""
        measured = run(call)
        stdout = measured.outcome.stdout.decode(errors="replace")
        known = _KNOWN_ERRORS.get(call.env["CNI_COMMAND"]) if self.label == "reference" else None
        if measured.outcome.status != 0 and not (known and known.search(stdout)):
            output_text = stdout + measured.outcome.stderr
            raise RuntimeError(f"{self.label}: {call.program} {call.env['CNI_COMMAND']} failed: {output_text}")
        return measured

    def cycle(self, plugin: str, config: Config, pod: Namespace = _NO_POD) -> dict[str, Run]:
        """Runs ADD, CHECK and DEL of one attachment; returns the run of each."""
        add = self.run(plugin, "ADD", config, pod)
        config = {**config, "prevResult": add.outcome.result()}
        return {"ADD": add, **{verb: self.run(plugin, verb, config, pod) for verb in ("CHECK", "DEL")}}

    @contextlib.contextmanager
    def resident(self, config: Config, pod: Namespace) -> Iterator[None]:
        """Keeps one pod on the network until the block ends, so that the bridge is never empty, as on a node in use."""
        result = self.run(config["type"], "ADD", config, pod, "resident").outcome.result()
        yield
        self.run(config["type"], "DEL", {**config, "prevResult": result}, pod, "resident")
        wait_all()

    def bytes_of(self, *names: str) -> int:
        """Returns the total size of the named files in bytes; hard links to one file count once."""
        files = {(stat.st_dev, stat.st_ino): stat.st_size for stat in ((self.bin_dir / name).stat() for name in names)}
        return sum(files.values())
