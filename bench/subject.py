"""One implementation under measurement: its files, its own bridge network and leases, and the calls made of it.

One rule: both implementations get the same input, but for what keeps them apart (bridge, subnets, lease directory).
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.process import Invocation, Run, run, settle
from tests.support import kubelet
from tests.support.invocation import environment
from tests.support.namespaces import Namespace
from tests.support.netstate import links
from tests.support.processes import output
from tests.support.tcp import PORT

Config = Mapping[str, Any]

_VERSION = "1.0.0"  # the newest that Debian's plugins know
_CONTAINER_ID = "b" * 64
_NO_POD = Namespace("none")  # host-local does not look at the namespace
_FIRST_PORT = 20_000
CROWD = ipaddress.IPv4Network("10.112.0.0/12")  # in which addresses are taken by the thousand


class Kind(NamedTuple):
    """A kind of network: `octet` is the first implementation's second octet of its subnet, `keys` the plugin's."""

    name: str
    octet: int
    dual: bool = False
    keys: Mapping[str, Any] = {}
    plugin: str = "bridge"


SINGLE, DUAL = Kind("single", 100), Kind("dual", 120, dual=True)
PORTS = Kind("ports", 180)
IPTABLES = Kind("iptables", 140, keys={"ipMasq": True, "ipMasqBackend": "iptables"})
NFTABLES = Kind(
    "nftables", 160, keys={"ipMasq": True, "ipMasqBackend": "nftables"}
)  # Go's 1.1.1: iptables all the same
ROUTED = Kind("routed", 200, keys={"ipMasq": True, "ipMasqBackend": "iptables"}, plugin="ptp")


@dataclass(frozen=True)
class Subject:
    """An implementation; `number` tells the two apart."""

    label: str
    number: int
    bin_dir: Path
    store: Path

    def network(self, kind: Kind) -> Config:
        """Returns a network of an interface plugin with gateway and host-local."""
        ranges = [[{"subnet": f"10.{kind.octet + self.number}.0.0/16"}]]
        if kind.dual:
            ranges.append([{"subnet": f"fd00:{self.number}::/64"}])
        return {
            "cniVersion": _VERSION,
            "name": f"{kind.name}-{self.number}",  # netfilter chains are named after it and the container
            "type": kind.plugin,
            **(
                {"bridge": f"bench{self.number}{kind.name[0]}", "isDefaultGateway": True}
                if kind.plugin == "bridge"
                else {}
            ),
            "ipam": {"type": "host-local", "dataDir": str(self.store), "ranges": ranges},
            **kind.keys,
        }

    def host_ports(self, backend: str, count: int, result: Config, *, skip: int = 0) -> Config:
        """Returns portmap for an attachment with `count` host ports, numbered from `host_port` on after `skip`.

        Debian's Go plugin has no other backend than iptables and does not look at the key.
        """
        mappings = [
            {"hostPort": self.host_port + skip + number, "containerPort": PORT, "protocol": "tcp"}
            for number in range(count)
        ]
        return {
            "cniVersion": _VERSION,
            "name": f"{backend}-{self.number}",
            "type": "portmap",
            "backend": backend,
            "runtimeConfig": {"portMappings": mappings},
            "prevResult": result,
        }

    def limits(self, result: Config) -> Config:
        """Returns bandwidth for an attachment with a limit in each direction."""
        rates = {"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 16_000_000, "egressBurst": 1_600_000}
        return {
            "cniVersion": _VERSION,
            "name": f"limits-{self.number}",
            "type": "bandwidth",
            "runtimeConfig": {"bandwidth": rates},
            "prevResult": result,
        }

    def protected(self, result: Config) -> Config:
        """Returns firewall as podman lists it, without any key."""
        return {"cniVersion": _VERSION, "name": f"firewall-{self.number}", "type": "firewall", "prevResult": result}

    def tuned(self, result: Config) -> Config:
        """Returns tuning as podman lists it, without any key."""
        return {"cniVersion": _VERSION, "name": f"tuning-{self.number}", "type": "tuning", "prevResult": result}

    def node(self) -> Config:
        """Returns the whole chain as it stands in net.d of a node."""
        name, subnet = f"node-{self.number}", f"10.{220 + self.number}.0.0/24"
        return kubelet.conflist(name, f"bench{self.number}pods", subnet, data_dir=self.store)

    @property
    def host_port(self) -> int:
        """Its first host port; the next 10,000 are its own."""
        return _FIRST_PORT + 10_000 * self.number

    def crowd(self, reserved: int) -> Config:
        """Returns a host-local network of which `reserved` addresses are taken, made the first time it is asked for."""
        directory = self.store / f"crowd-{reserved}"
        if not directory.exists():
            directory.mkdir(parents=True)
            for number in range(2, 2 + reserved):  # the first is the gateway
                (directory / str(CROWD[number])).write_text(f"{number:064x}\r\neth0")
            (directory / "last_reserved_ip.0").write_text(str(CROWD[1 + reserved]))
        ipam = {"type": "host-local", "dataDir": str(self.store), "ranges": [[{"subnet": str(CROWD)}]]}
        return {"cniVersion": _VERSION, "name": directory.name, "type": "bridge", "ipam": ipam}

    def call(
        self, plugin: str, command: str, config: Config, pod: Namespace = _NO_POD, container_id: str = _CONTAINER_ID
    ) -> Invocation:
        """Returns one call of a plugin, as a runtime would make it."""
        env = environment(
            command,
            CNI_CONTAINERID=container_id,
            CNI_NETNS=pod.path,
            CNI_IFNAME="lo" if plugin == "loopback" else "eth0",
            CNI_PATH=str(self.bin_dir),
        )
        return Invocation(str(self.bin_dir / plugin), env, json.dumps(config).encode())

    def run(self, *what: Any, may_say: str = "") -> Run:
        """Runs one call (as `call` takes it) and demands success, or an error that contains `may_say`."""
        call = self.call(*what)
        done = run(call)
        expected = bool(may_say) and may_say in done.outcome.stdout.decode(errors="replace")
        if done.outcome.status != 0 and not expected:
            said = done.outcome.stdout.decode(errors="replace") + done.outcome.stderr
            raise RuntimeError(f"{self.label}: {call.program} {call.env['CNI_COMMAND']} failed: {said}")
        return done

    def cycle(self, plugin: str, config: Config, pod: Namespace = _NO_POD) -> dict[str, Run]:
        """Runs ADD, CHECK and DEL of one attachment, and returns what each took."""
        add = self.run(plugin, "ADD", config, pod)
        full = {**config, "prevResult": add.outcome.result()}
        return {"ADD": add, "CHECK": self.run(plugin, "CHECK", full, pod), "DEL": self.run(plugin, "DEL", full, pod)}

    @contextlib.contextmanager
    def resident(self, config: Config, pod: Namespace) -> Iterator[None]:
        """Keeps one pod on the network, so that its bridge is as on a node at work, never empty."""
        full = {**config, "prevResult": self.run("bridge", "ADD", config, pod, "resident").outcome.result()}
        yield
        self.run("bridge", "DEL", full, pod, "resident")
        settle()

    def prove(self, config: Config, pod: Namespace, resident: Namespace) -> None:
        """Attaches a pod and demands that it works and leaves nothing, so that no failure is measured as speed."""
        result = self.run("bridge", "ADD", config, pod).outcome.result()
        addresses = {address["local"] for address in links(pod)["eth0"]["addresses"]}
        wanted = [ip["address"].partition("/")[0] for ip in result["ips"]]
        assert len(wanted) == len(config["ipam"]["ranges"])
        assert set(wanted) == addresses, f"{self.label}: {wanted} announced, {addresses} found"
        for ip in wanted:
            resident.run("ping", "-c", "1", "-w", "5", "-n", ip)
        for ip in result["ips"]:
            pod.run("ping", "-c", "1", "-w", "5", "-n", ip["gateway"])
        full = {**config, "prevResult": result}
        self.run("bridge", "CHECK", full, pod)
        assert bool(_masquerading(wanted)) == ("ipMasq" in config), (
            f"{self.label}: {config} and {_masquerading(wanted)}"
        )
        assert all((self.store / config["name"] / ip).is_file() for ip in wanted)
        self.run("bridge", "DEL", full, pod)
        settle()
        assert not _masquerading(wanted), f"{self.label}: DEL left {_masquerading(wanted)}"
        assert set(links(pod)) == {"lo"}, f"{self.label}: DEL left an interface"
        assert not any((self.store / config["name"] / ip).exists() for ip in wanted), f"{self.label}: DEL left a lease"
        lo = self.run("loopback", "ADD", {"cniVersion": _VERSION, "name": "lo", "type": "loopback"}, pod)
        assert "UP" in links(pod)["lo"]["flags"], f"{self.label}: {lo.outcome}"

    def bytes_of(self, *names: str) -> int:
        """Returns the size of some of its files together; what is one file under several names counts once."""
        files = {(stat.st_dev, stat.st_ino): stat.st_size for stat in ((self.bin_dir / name).stat() for name in names)}
        return sum(files.values())


Chained = Callable[[Subject, Config], Config]  # a chained plugin's configuration, from the result before it


def _masquerading(addresses: list[str]) -> list[str]:
    """Returns the netfilter rules, of either kind, that name one of `addresses`."""
    lines = f"{output('iptables-save')}\n{output('nft', 'list', 'ruleset')}".splitlines()
    return [line for line in lines if any(re.search(rf"\b{re.escape(address)}\b", line) for address in addresses)]
