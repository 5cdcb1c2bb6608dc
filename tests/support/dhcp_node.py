"""A node with podwire's DHCP daemon, and a DHCP server (dnsmasq) at the other end of its uplink.

The server's log has the options of each message; both programs can be killed and started again.
"""

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import binaries, uplink
from tests.support.attaching import Network
from tests.support.dhcp import SERVER, ipam_keys
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.netlist import NetworkList
from tests.support.samples import create_interfaces
from tests.support.uplink import UPLINK, WIRE

RANGE = "10.25.0.100,10.25.0.149,255.255.255.0"


@dataclass
class Program:
    """A program that runs in a namespace, with its output in a file."""

    namespace: Namespace
    argv: tuple[str, ...]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the program, in place of the running one."""
        self.stop()
        with self.namespace.entered(), self.log.open("ab") as log:
            self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self, number: int = signal.SIGKILL) -> int:
        """Ends the program by a signal and returns its exit status."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        return process.wait(20)

    def has_ended(self) -> bool:
        """Returns whether the program does not run."""
        return self.process is None or self.process.poll() is not None

    def logged(self, text: str) -> bool:
        """Returns whether the log contains `text`."""
        return text in self.log.read_text()


@dataclass
class Node:
    """The host, the machine whose `interface` the server listens on, and the programs; `directory` has all files."""

    host: Namespace
    machine: Namespace
    directory: Path
    lease: str = "1h"
    options: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    interface: str = WIRE
    server: Program = field(init=False)
    daemon: Program = field(init=False)

    def __post_init__(self) -> None:
        self.server = Program(self.machine, (), self.directory / "server.log")
        socket_flags = ("-socketpath", str(self.socket), "-datadir", str(self.data))
        dhcp = str(binaries.directory() / "dhcp")
        self.daemon = Program(self.host, (dhcp, "daemon", *socket_flags, *self.flags), self.directory / "daemon.log")

    @property
    def socket(self) -> Path:
        """The daemon's socket."""
        return self.directory / "run" / "dhcp.sock"

    @property
    def data(self) -> Path:
        """The directory of the lease files."""
        return self.directory / "data"

    def start_server(self, *options: str, range_: str = RANGE) -> None:
        """Starts the server with further options; its leases continue."""
        self.server.argv = (
            *("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--pid-file"),
            *(f"--interface={self.interface}", "--bind-interfaces", "--dhcp-authoritative", "--no-ping", "--log-dhcp"),
            *("--log-facility=-", f"--dhcp-leasefile={self.directory}/leases", "--quiet-ra"),
            f"--dhcp-range={range_},{self.lease}",
            *self.options,
            *options,
        )
        self.server.start()

    def start_daemon(self) -> None:
        """Starts the daemon and waits until it listens."""
        self.daemon.start()
        assert eventually(self.answers), self.daemon.log.read_text()

    def answers(self) -> bool:
        """Returns whether the daemon accepts connections."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
        return True

    def get_metrics(self) -> str:
        """Returns the daemon's metrics."""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.socket))
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            return b"".join(iter(lambda: client.recv(65536), b"")).decode()

    def count_granted(self) -> int:
        """Returns how many leases servers have granted to the daemon."""
        return sum(map(int, re.findall(r'event="granted"} (\d+)', self.get_metrics())))

    def use_reference_daemon(self, reference: Path) -> None:
        """Makes the reference's daemon the node's."""
        argv = (str(reference / "dhcp"), "daemon", "-socketpath", str(self.socket))
        self.daemon = Program(self.host, argv, self.directory / "reference.log")

    def has_released(self) -> bool:
        """Returns whether DEL has released the lease; the reference's daemon 1.9.1 does so from 0.0.0.0, in vain."""
        if self.daemon.argv[0] == str(binaries.REFERENCE / "dhcp") and binaries.reference_is_new():
            return len(self.list_leases()) == 1
        return eventually(lambda: self.list_leases() == [])

    def list_leases(self) -> list[str]:
        """Returns the addresses that the server has leased, of both IP versions."""
        leases = self.directory / "leases"
        words = [line.split() for line in leases.read_text().splitlines()] if leases.exists() else []
        return [word[2] for word in words if len(word) > 2]  # the server's DUID has a line of two

    def read_server_lease(self, address: str) -> list[str]:
        """Returns the server's record of a lease: expiry, MAC address, address, host name, client identifier."""
        lines = (self.directory / "leases").read_text().splitlines()
        return next(line.split() for line in lines if line.split()[2] == address)

    def list_files(self) -> dict[str, Any]:
        """Returns the contents of the lease files by name, None for a note."""
        files = (file for file in self.data.rglob("*") if file.is_file())
        return {file.name: json.loads(file.read_text()) if file.suffix == ".json" else None for file in files}

    def list_files_of_leases(self) -> dict[str, Any]:
        """Returns the contents of the lease files by name."""
        return {file.name: json.loads(file.read_text()) for file in self.data.rglob("*.json")}

    def network(self, kind: str = "macvlan", ipam: Mapping[str, Any] | None = None, **keys: Any) -> Network:
        """Returns a network of a kind of interface on the uplink, with further keys of `ipam` and of the plugin."""
        keys_of_kind: dict[str, dict[str, Any]] = {
            "bridge": {"bridge": "br0"},
            "host-device": {"device": UPLINK, "dataDir": str(self.directory / "devices")},
            "macvlan": {"master": UPLINK},
            "ipvlan": {"master": UPLINK, "mode": "l2"},
            "vlan": {"master": UPLINK, "vlanId": 5},
            "dhcp": {},
        }
        if kind == "bridge":
            for arguments in ("add br0 type bridge", f"set {UPLINK} master br0", "set br0 up"):
                self.host.ip("link", *arguments.split())
        section = {"type": "dhcp", **ipam_keys(self.directory), **(ipam or {})}
        conf = {"cniVersion": "1.0.0", "name": "net", "type": kind, **keys_of_kind[kind], **keys, "ipam": section}
        return Network(self.host, conf)


# Options of the server for IPv6: DHCPv6 and a router, or a router's advertisements only.
MANAGED = ("--enable-ra", "--dhcp-range=fd00:25::100,fd00:25::1ff,64,1h")
AUTONOMOUS = ("--enable-ra", "--dhcp-range=fd00:25::,ra-only,64,1h")
SERVER6 = "fd00:25::1"


@contextmanager
def _ended(node: Node) -> Iterator[Node]:
    node.socket.parent.mkdir(parents=True)
    try:
        yield node
    finally:
        node.daemon.stop()
        node.server.stop()


def created(host: Namespace, machine: Namespace, directory: Path, **settings: Any) -> AbstractContextManager[Node]:
    """Returns a context in which a node exists, whose server and daemon do not run yet; ends both."""
    uplink.connect(host, machine, [f"{SERVER}/24", f"{SERVER6}/64"])
    return _ended(Node(host, machine, directory, **settings))


@contextmanager
def serving(host: Namespace, interface: str, directory: Path) -> Iterator[Node]:
    """Runs the server on an interface of the host, which gets its address, and the daemon, during the block."""
    host.ip("address", "add", "10.125.0.1/24", "dev", interface)
    with _ended(Node(host, host, directory, interface=interface)) as node:
        node.start_server(range_="10.125.0.100,10.125.0.149,255.255.255.0")
        node.start_daemon()
        yield node


@contextmanager
def prepared(host: Namespace, networks: Iterable[NetworkList], directory: Path) -> Iterator[set[str]]:
    """Creates the interfaces of the lists; runs server and daemon if dhcp is their IPAM plugin; yields the names."""
    names: set[str] = set()
    with ExitStack() as stack:
        for network in networks:
            names |= create_interfaces(host, network)
            masters = [plugin["master"] for plugin in network.plugins if uses_dhcp(plugin)]
            for master in masters:
                stack.enter_context(serving(host, f"{master}-peer", directory))
        yield names


def addresses(pod: Namespace, version: int = 4) -> list[str]:
    """Returns the global addresses of the pod's eth0, without prefix lengths."""
    lines = pod.ip(f"-{version}", "-o", "addr", "show", "eth0", "scope", "global").splitlines()
    return [line.split()[3].partition("/")[0] for line in lines]


def uses_dhcp(plugin: Mapping[str, Any]) -> bool:
    """Returns whether the IPAM plugin of a plugin is dhcp."""
    return bool(plugin.get("ipam", {}).get("type") == "dhcp")
