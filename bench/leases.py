"""macvlan with dhcp: each implementation's plugin and daemon, and one server (dnsmasq) for both.

One rule: the server does not look for conflicts, which would hide the plugins' time behind its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.cases import Network, Samples, Subjects, compare, with_prefix
from bench.figures import Row
from bench.subject import Config, Subject
from tests.support import namespaces
from tests.support.dhcp import running
from tests.support.machine import eventually
from tests.support.namespaces import Namespace
from tests.support.processes import output

_MASTER, _WIRE = "benchm", "benchw"
_SERVER = (
    *("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--pid-file"),
    *(f"--interface={_WIRE}", "--bind-interfaces", "--dhcp-authoritative", "--no-ping"),
    "--dhcp-range=10.109.0.100,10.109.0.199,255.255.255.0,1h",
)


def macvlan(subjects: Subjects, rounds: int, network: Network, pods: Sequence[Namespace]) -> list[Row]:
    """Measures ADD, CHECK and DEL of macvlan with an address from a DHCP server."""
    with tempfile.TemporaryDirectory() as directory, _server_and_daemons(subjects, Path(directory)):

        def measure(subject: Subject) -> Samples:
            ipam = {
                "type": "dhcp",
                "daemonSocketPath": _socket(Path(directory), subject),
                "dataDir": f"{directory}/leases",
            }
            config: Config = {**network(subject), "type": "macvlan", "master": _MASTER, "ipam": ipam}
            return with_prefix("macvlan, dhcp:", subject.cycle("macvlan", config, pods[subject.number]))

        return compare(subjects, rounds, measure)


def _socket(directory: Path, subject: Subject) -> str:
    return str(directory / f"{subject.number}.sock")


@contextmanager
def _server_and_daemons(subjects: Subjects, directory: Path) -> Iterator[None]:
    """Runs a server at the other end of the master, and each implementation's daemon, for the duration of the block."""
    with namespaces.temporary() as machine, ExitStack() as stack:
        output("ip", "link", "add", _MASTER, "type", "veth", "peer", "name", _WIRE, "netns", machine.name)
        stack.callback(output, "ip", "link", "delete", _MASTER)
        output("ip", "link", "set", _MASTER, "up")
        machine.ip("address", "add", "10.109.0.1/24", "dev", _WIRE)
        machine.ip("link", "set", _WIRE, "up")
        stack.enter_context(running(machine, *_SERVER, f"--dhcp-leasefile={directory}/server"))
        for subject in subjects:
            path = _socket(directory, subject)
            data = ("-datadir", f"{directory}/leases") if subject.number == 1 else ()
            argv = (str(subject.bin_dir / "dhcp"), "daemon", "-socketpath", path, *data)
            stack.enter_context(running(None, *argv))
            assert eventually(Path(path).exists), f"{subject.label}: the daemon does not start"
        yield
