"""A DHCP server (dnsmasq) on the wire, and the reference's DHCP daemon on the host."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import binaries, uplink
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.uplink import WIRE

SERVER = "10.25.0.1"
RANGE = "10.25.0.100,10.25.0.110,255.255.255.0,1h"


def ipam_keys(directory: Path) -> dict[str, str]:
    """Returns the keys of `ipam` for the socket and the lease files of a daemon with these files."""
    return {"dataDir": str(directory / "data"), "daemonSocketPath": str(directory / "run" / "dhcp.sock")}


@contextmanager
def running(machine: Namespace, *argv: str) -> Iterator[None]:
    """Runs a daemon on a machine during the block; it sees the namespaces that are created meanwhile."""
    null = subprocess.DEVNULL
    with machine.entered():
        daemon = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null)
    try:
        yield
    finally:
        daemon.kill()
        daemon.wait()


class Dhcp:
    """A DHCP server on the wire, and the reference's daemon on the host."""

    def __init__(self, directory: Path) -> None:
        self.leases = directory / "leases"
        self.socket = directory / "dhcp.sock"

    def list_leases(self) -> list[str]:
        """Returns the leased addresses."""
        return [line.split()[2] for line in self.leases.read_text().splitlines()] if self.leases.exists() else []

    def releases_as_expected(self) -> bool:
        """Returns whether DEL has released the lease; that of newer reference plugins is lost, and one lease remains.

        The releases of 1.9.1 have the source address 0.0.0.0: the kernel of the server drops them.
        """
        if binaries.reference_is_new():
            return len(self.list_leases()) == 1
        return eventually(lambda: self.list_leases() == [])


@contextmanager
def reference_daemon(
    host: Namespace, machine: Namespace, reference: Path, directory: Path, *options: str
) -> Iterator[Dhcp]:
    """Runs the server, with further options, on a machine at the host's uplink, and the daemon on the host."""
    uplink.connect(host, machine, [f"{SERVER}/24"])
    dhcp = Dhcp(directory)
    server = [
        "dnsmasq",
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        f"--interface={WIRE}",
        "--bind-interfaces",
        "--port=0",
        "--dhcp-authoritative",
    ]
    server += ["--no-ping", f"--dhcp-range={RANGE}", f"--dhcp-leasefile={dhcp.leases}", "--user=root", "--pid-file"]
    daemon = [str(reference / "dhcp"), "daemon", "-socketpath", str(dhcp.socket)]
    with running(machine, *server, *options), running(host, *daemon):
        assert eventually(dhcp.socket.exists)
        yield dhcp
