"""The node's networks, attachments and leaks as values, and as the document that `podwire show --json` prints.

Values and pure functions. What could not be read is None or described in `unseen`; nothing unknown is reported as fact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from cni.conf import Attachment
from ipam.host_local.allocator import format_usage

NO_ATTACHMENT = Attachment("", "")
_PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132}  # IPPROTO_*
_HASH = re.compile(r"[0-9a-f]{32,}")
DOCUMENT = """\
{"podwire": its version, "node": its name, "time",
 "networks": [{"name", "path", "plugins", "bridges", "ranges": [{"dataDir", "set", "addresses", "size", "inUse"}],
               "attachments", "problem"}],
 "attachments": [{"network", "containerID", "ifname", "pod", "netns", "state", "leaked",
                  "kind", "hostInterface", "bridge", "master", "mode", "addresses",
                  "hostPorts": [{"hostIP", "hostPort", "containerPort", "protocol", "confirmed"}],
                  "limits": {"receives", "sends"}, "problems": ["..."]}],
 "bridges": [{"name", "addresses", "ports"}], "hostInterfaces": [{"name", "addresses"}],
 "leaks": [{"kind", "what", "network", "containerID", "ifname", "cure"}], "complete", "unseen": ["..."]}
"kind" is the kernel's kind of the pod's interface ("veth", "macvlan"), "" if it could not be read; "master" is
the host's interface that it is built on, "mode" its configured mode or VLAN. Limits are in bits/s, null for none.
"confirmed": whether the packet filter has the host port's rule; null if it could not be read or CHECK of portmap
fails. "complete" is false if anything is "unseen"."""


class AttachmentState(StrEnum):
    """The state of an attachment."""

    OK = "ok"  # its interface exists, and CHECK of podwire's plugins passes
    FAILED = "check failed"  # its interface exists, and CHECK of a plugin fails
    NOT_CHECKED = "not checked"  # its interface exists, but CHECK could not be run
    GONE = "gone"  # its network namespace provably no longer exists, but the runtime's cache still lists it
    NO_CACHE = "no cache"  # it has an address reserved, but the runtime's cache does not list it
    NO_INTERFACE = "no interface"  # its namespace exists, its interface does not
    NOT_SEEN = "not seen"  # its namespace exists, but podwire cannot enter it
    UNKNOWN = "unknown"  # its namespace is missing here, which does not prove that the container has stopped


@dataclass(frozen=True)
class HostPort:
    """A host port in the runtime's request; `confirmed`: its rule exists, None if the rules could not be read."""

    host_port: int
    container_port: int
    protocol: str
    host_ip: str = ""
    confirmed: bool | None = None

    @property
    def key(self) -> str:
        """The port as rules name it: "8080/tcp"."""
        return f"{self.host_port}/{self.protocol}"

    @property
    def protocol_number(self) -> int:
        """The protocol as IPPROTO_*."""
        return _PROTOCOLS[self.protocol]

    def __str__(self) -> str:
        return self.range_text(1)

    def range_text(self, count: int) -> str:
        """Returns this port and those that follow it, `count` in all: "8080-8089->80-89/tcp"."""
        ip = f"[{self.host_ip}]:" if ":" in self.host_ip else f"{self.host_ip}:" if self.host_ip else ""
        host, container = (f"-{port + count - 1}" * (count > 1) for port in (self.host_port, self.container_port))
        return f"{ip}{self.host_port}{host}->{self.container_port}{container}/{self.protocol}"


def fold_ports(ports: Iterable[HostPort]) -> list[tuple[str, bool | None]]:
    """Returns host ports as texts, one for those that follow each other, with what `confirmed` is."""
    counts: dict[HostPort, int] = {}
    first = following = None
    for port in ports:
        if first is None or port != following:
            first = port
        counts[first] = counts.get(first, 0) + 1
        following = replace(port, host_port=port.host_port + 1, container_port=port.container_port + 1)
    return [(first.range_text(count), first.confirmed) for first, count in counts.items()]


@dataclass(frozen=True)
class Pod:
    """An attachment: `pod` is "namespace/name" if known, `addresses` are in CIDR notation.

    `kind` is the kind of the pod's interface in the kernel, `master` the host's interface that it is built on, `mode`
    its configured mode, or its VLAN: "" for none, or if unknown. A veth has `host_interface`, and perhaps `bridge`.
    `receives` and `sends` are rate limits in bits/s, from the pod's point of view. `leaked`: its container is no longer
    running. `problems` are the errors of its plugins' CHECK.
    """

    network: str
    attachment: Attachment
    state: AttachmentState
    pod: str = ""
    netns: str = ""
    kind: str = ""
    host_interface: str = ""
    bridge: str = ""
    master: str = ""
    mode: str = ""
    addresses: tuple[str, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    receives: int | None = None
    sends: int | None = None
    leaked: bool = False
    problems: tuple[str, ...] = ()

    @property
    def host_side(self) -> str:
        """The host veth; without one the master, with the kind and mode of the pod's interface."""
        if self.host_interface or not self.kind or self.kind == "veth":
            return self.host_interface
        kind = f"({' '.join(filter(None, (self.kind, self.mode)))})"
        return f"{self.master} {kind}" if self.master else kind

    @property
    def limits(self) -> list[str]:
        """The rate limits as text, for receiving, then for sending."""
        directions = (("receives", self.receives), ("sends", self.sends))
        return [f"{word} {format_rate(bits)}" for word, bits in directions if bits]

    def to_json(self) -> dict[str, object]:
        """Returns this object's part of the JSON document."""
        return {
            "network": self.network,
            "containerID": self.attachment.container_id,
            "ifname": self.attachment.ifname,
            "pod": self.pod,
            "netns": self.netns,
            "state": str(self.state),
            "leaked": self.leaked,
            "kind": self.kind,
            "hostInterface": self.host_interface,
            "bridge": self.bridge,
            "master": self.master,
            "mode": self.mode,
            "addresses": list(self.addresses),
            "hostPorts": [
                {
                    "hostIP": port.host_ip,
                    "hostPort": port.host_port,
                    "containerPort": port.container_port,
                    "protocol": port.protocol,
                    "confirmed": port.confirmed,
                }
                for port in self.host_ports
            ],
            "limits": {"receives": self.receives, "sends": self.sends},
            "problems": list(self.problems),
        }


@dataclass(frozen=True)
class RangeUsage:
    """A range set of host-local: its size, and how many of its addresses are reserved."""

    data_dir: str
    number: int
    addresses: str
    size: int
    in_use: int

    def __str__(self) -> str:
        return f"{self.addresses}: {format_usage(self.in_use, self.size)} in use"

    def to_json(self) -> dict[str, object]:
        """Returns this object's part of the JSON document."""
        return {
            "dataDir": self.data_dir,
            "set": self.number,
            "addresses": self.addresses,
            "size": self.size,
            "inUse": self.in_use,
        }


@dataclass(frozen=True)
class NodeNetwork:
    """A network; `file` is "" if only the cache or a store names it, `problem` is the error in its file."""

    name: str
    file: str = ""
    plugins: tuple[str, ...] = ()
    bridges: tuple[str, ...] = ()
    ranges: tuple[RangeUsage, ...] = ()
    attachments: int = 0
    problem: str = ""

    def to_json(self) -> dict[str, object]:
        """Returns this object's part of the JSON document."""
        return {
            "name": self.name,
            "path": self.file,
            "plugins": list(self.plugins),
            "bridges": list(self.bridges),
            "ranges": [item.to_json() for item in self.ranges],
            "attachments": self.attachments,
            "problem": self.problem,
        }


@dataclass(frozen=True)
class HostInterface:
    """An interface of the host with its addresses; `ports` are the ports of a bridge."""

    name: str
    addresses: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()


@dataclass(frozen=True)
class Leak:
    """A leaked object, its former owner, and `fix`: a command that removes the object, or advice."""

    kind: str
    description: str
    fix: str
    network: str = ""
    attachment: Attachment = NO_ATTACHMENT

    def to_json(self) -> dict[str, object]:
        """Returns this object's part of the JSON document."""
        return {
            "kind": self.kind,
            "what": self.description,
            "network": self.network,
            "containerID": self.attachment.container_id,
            "ifname": self.attachment.ifname,
            "cure": self.fix,
        }


@dataclass(frozen=True)
class NodeInventory:
    """The networks of a node, with all that is known about them; `unseen` describes what could not be read."""

    networks: tuple[NodeNetwork, ...] = ()
    pods: tuple[Pod, ...] = ()
    bridges: tuple[HostInterface, ...] = ()
    host_interfaces: tuple[HostInterface, ...] = ()
    leaks: tuple[Leak, ...] = ()
    unseen: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Returns the JSON document."""
        return {
            "networks": [item.to_json() for item in self.networks],
            "attachments": [item.to_json() for item in self.pods],
            "bridges": [
                {"name": item.name, "addresses": list(item.addresses), "ports": list(item.ports)}
                for item in self.bridges
            ],
            "hostInterfaces": [{"name": item.name, "addresses": list(item.addresses)} for item in self.host_interfaces],
            "leaks": [item.to_json() for item in self.leaks],
            "complete": not self.unseen,
            "unseen": list(self.unseen),
        }


def format_rate(bits: int) -> str:
    """Returns a human-readable rate: "10 Mbit/s"."""
    for unit, size in (("Tbit/s", 10**12), ("Gbit/s", 10**9), ("Mbit/s", 10**6), ("kbit/s", 10**3)):
        if bits >= size:
            return f"{bits / size:.3f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{bits} bit/s"


def short_id(container_id: str) -> str:
    """Returns a container ID cut to 12 digits, as crictl and podman print it; an ID that is not a hash stays whole."""
    return container_id[:12] if _HASH.fullmatch(container_id) else container_id
