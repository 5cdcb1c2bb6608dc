"""dhcp's daemon with many pods: memory, processor time, renewals over time, ADDs at once, a server that moved.

The last two are also measured with the reference's daemon. As root, with the reference plugins and dnsmasq:
`python -m bench.dhcp_scale [PODS]`. The pods' interfaces are veths on one bridge, which has at most 1,023 ports; the
server listens on the bridge.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support import binaries, namespaces
from tests.support.dhcp_node import Program
from tests.support.machine import eventually
from tests.support.namespaces import Namespace

BRIDGE, SERVER, MOVED = "br0", "10.24.0.1", "10.24.0.2"
RANGE = "10.24.1.1,10.24.9.254,255.255.0.0,2m"
AT_ONCE, IN_PARALLEL, FEW = 200, 10, 20
RENEWAL_S = 50


class _Verb(NamedTuple):
    """A verb that is running."""

    process: subprocess.Popen[bytes]
    pod: Namespace
    output: Path

    def read_address(self) -> str:
        """Returns the address in the result, with its prefix length."""
        return str(json.loads(self.output.read_text())["ips"][0]["address"])


class Side:
    """One implementation's plugin and daemon, with the files in `directory`."""

    def __init__(self, name: str, plugin: Path, host: Namespace, directory: Path) -> None:
        self.name, self.plugin, self.host, self.directory = name, plugin, host, directory
        self.socket, self.data = directory / "sock", directory / "data"
        self.directory.mkdir()
        files = ("-datadir", str(self.data)) if name == "podwire" else ()
        argv = (str(plugin), "daemon", "-socketpath", str(self.socket), *files)
        self.daemon = Program(host, argv, directory / "log")

    def start(self) -> None:
        """Starts the daemon and waits for its socket; the reference's does not replace a stale file."""
        self.socket.unlink(missing_ok=True)
        self.daemon.start()
        assert eventually(self.socket.exists)

    @property
    def pid(self) -> int:
        """The daemon's process ID."""
        assert self.daemon.process is not None
        return self.daemon.process.pid

    def run_all(
        self, verb: str, pods: Sequence[Namespace], parallel: int, *, configures: bool = False
    ) -> tuple[float, int, dict[str, str]]:
        """Runs a verb for each pod; returns the seconds, the number of failures, and the addresses by pod.

        With `configures` the pods get their addresses, as by an interface plugin.
        """
        ipam = {"type": "dhcp", "daemonSocketPath": str(self.socket), "dataDir": str(self.data)}
        conf = json.dumps({"cniVersion": "1.0.0", "name": "net", "type": "dhcp", "ipam": ipam}).encode()
        waiting, running, failed = list(pods), list[_Verb](), 0
        addresses: dict[str, str] = {}
        begin = time.monotonic()
        while waiting or running:
            while waiting and len(running) < parallel:
                running.append(self._start(verb, waiting.pop(), conf))
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)
                failed += each.process.returncode != 0
                if verb == "ADD" and not each.process.returncode:
                    addresses[each.pod.name] = each.read_address()
                    if configures:
                        each.pod.ip("address", "add", addresses[each.pod.name], "dev", "eth0")
            time.sleep(0.002)
        return time.monotonic() - begin, failed, addresses

    def _start(self, verb: str, pod: Namespace, conf: bytes) -> _Verb:
        env = {"CNI_COMMAND": verb, "CNI_CONTAINERID": pod.name, "CNI_NETNS": pod.path, "CNI_IFNAME": "eth0"}
        output = self.directory / f"{pod.name}.json"
        with tempfile.TemporaryFile() as stdin, output.open("wb") as stdout, self.host.entered():
            stdin.write(conf)
            stdin.seek(0)
            argv, env = [str(self.plugin)], {**env, "CNI_PATH": "/x", "PATH": "/bin"}
            return _Verb(subprocess.Popen(argv, stdin=stdin, stdout=stdout, env=env), pod, output)

    def cpu_s(self) -> float:
        """Returns the daemon's processor time."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_kb(self) -> int:
        """Returns the daemon's resident memory."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))

    def read_times(self) -> dict[str, float]:
        """Returns the times at which the stored leases were granted, in seconds, by pod."""
        files = (self.data / "net").glob("*.json")
        return {file.name: json.loads(file.read_text())["ipv4"]["grantedMs"] / 1000 for file in files}


class Server:
    """dnsmasq on the host's bridge."""

    def __init__(self, host: Namespace, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "server.log"
        self.program = Program(host, (), self.log)

    def start(self, renewal_s: int, rebinding_s: int) -> None:
        """Starts the server, whose leases continue."""
        self.program.argv = (
            *("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--pid-file"),
            *(f"--interface={BRIDGE}", "--bind-interfaces", "--dhcp-authoritative", "--no-ping"),
            *("--log-facility=-", f"--dhcp-leasefile={self.directory}/leases", f"--dhcp-range={RANGE}"),
            *("--dhcp-lease-max=4000", f"--dhcp-option=58,{renewal_s}", f"--dhcp-option=59,{rebinding_s}"),
        )
        self.program.start()
        assert eventually(lambda: "sockets bound" in self.log.read_text())

    def acknowledged(self, start: int) -> Counter[str]:
        """Returns the number of DHCPACK by address, in the log from byte `start` on."""
        text = self.log.read_bytes()[start:].decode()
        return Counter(line.split("DHCPACK(")[1].split()[1] for line in text.splitlines() if "DHCPACK(" in line)


@contextmanager
def pods_on_bridge(host: Namespace, count: int) -> Iterator[list[Namespace]]:
    """Creates pods with veths on the bridge."""
    host.ip("link", "add", BRIDGE, "type", "bridge")
    host.ip("address", "add", f"{SERVER}/16", "dev", BRIDGE)
    host.ip("link", "set", BRIDGE, "up")
    pods = [namespaces.create() for _ in range(count)]
    lines = [
        f"link add p{number} master {BRIDGE} up type veth peer name eth0 netns {pod.name}"
        for number, pod in enumerate(pods)
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".batch") as batch:
        batch.write("\n".join(lines) + "\n")
        batch.flush()
        host.run("ip", "-batch", batch.name)
    for pod in pods:
        pod.ip("link", "set", "eth0", "up")
    try:
        yield pods
    finally:
        for pod in pods:
            pod.delete()


def measure_scale(side: Side, server: Server, pods: Sequence[Namespace]) -> None:
    """Prints memory and processor time for leases, and when they are renewed."""
    server.start(RENEWAL_S, 2 * RENEWAL_S)
    side.start()
    empty_kb = side.memory_kb()
    seconds, failed, addresses = side.run_all("ADD", pods, IN_PARALLEL, configures=True)
    print(f"{len(pods)} ADDs, {IN_PARALLEL} at once: {seconds:.1f} s, {failed} failed", flush=True)
    print(f"  distinct addresses: {len(set(addresses.values()))}, CPU {side.cpu_s() / len(pods) * 1e3:.2f} ms an ADD")
    print(f"  memory: {empty_kb} kB without leases, {side.memory_kb()} kB with {len(pods)}")
    measure_renewals(side, server)
    seconds, failed, _ = side.run_all("DEL", pods, IN_PARALLEL)
    for pod in pods:
        pod.ip("address", "flush", "dev", "eth0", "scope", "global")
    print(f"{len(pods)} DELs: {seconds:.1f} s, {failed} failed; memory then {side.memory_kb()} kB")
    side.daemon.stop()
    server.program.stop()


def measure_renewals(side: Side, server: Server) -> None:
    """Prints the processor time of renewals, and how they are spread over time."""
    before, cpu_s, start = side.read_times(), side.cpu_s(), server.log.stat().st_size
    time.sleep(RENEWAL_S)
    spent_s, renewals, after = side.cpu_s() - cpu_s, sum(server.acknowledged(start).values()), side.read_times()
    pauses = sorted(after[name] - before[name] for name in before if after[name] != before[name])
    busiest = max(Counter(int(each) for each in after.values()).values())
    print(f"  renewals in {RENEWAL_S} s: {renewals}, CPU {spent_s / renewals * 1e3:.2f} ms each")
    print(f"  pauses between two renewals (T1 {RENEWAL_S} s): {pauses[0]:.1f} to {pauses[-1]:.1f} s", end="")
    print(f", median {statistics.median(pauses):.1f} s; at most {busiest} renewals in a second")
    print(f"  memory after renewals: {side.memory_kb()} kB")


def measure_storm(side: Side, server: Server, pods: Sequence[Namespace]) -> None:
    """Prints the time of many ADDs at once."""
    server.start(600, 700)
    side.start()
    for _ in range(2):
        seconds, failed, addresses = side.run_all("ADD", pods, len(pods))
        print(f"{side.name}: {len(pods)} ADDs at once: {seconds:.2f} s, {failed} failed", end="")
        print(f", {len(set(addresses.values()))} addresses", flush=True)
        side.run_all("DEL", pods, IN_PARALLEL)
    print(f"{side.name}: memory {side.memory_kb()} kB")
    side.daemon.stop()
    server.program.stop()


def measure_moves(side: Side, server: Server, host: Namespace, pods: Sequence[Namespace]) -> None:
    """Prints how many leases are renewed after the server has another address, and after the daemon was killed."""
    server.start(4, 8)
    side.start()
    _, _, addresses = side.run_all("ADD", pods, IN_PARALLEL, configures=True)
    leased = {each.partition("/")[0] for each in addresses.values()}
    server.program.stop()
    host.ip("address", "flush", "dev", BRIDGE)
    host.ip("address", "add", f"{MOVED}/16", "dev", BRIDGE)
    host.ip("link", "set", BRIDGE, "address", "02:00:00:00:00:02")
    server.start(4, 8)
    start = server.log.stat().st_size
    time.sleep(30)
    renewed = leased & server.acknowledged(start).keys()
    print(f"{side.name}: server moved: {len(renewed)} of {len(leased)} leases renewed in 30 s", flush=True)
    side.daemon.stop()
    side.start()
    time.sleep(1)
    start = server.log.stat().st_size
    time.sleep(30)
    renewed = leased & server.acknowledged(start).keys()
    print(f"{side.name}: daemon killed and started: {len(renewed)} of {len(leased)} leases renewed in 30 s", flush=True)
    side.daemon.stop()
    server.program.stop()
    host.ip("address", "flush", "dev", BRIDGE)
    host.ip("address", "add", f"{SERVER}/16", "dev", BRIDGE)
    for pod in pods:
        pod.ip("address", "flush", "dev", "eth0", "scope", "global")


def main(count: int) -> None:
    """Measures and prints."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        host = stack.enter_context(namespaces.temporary("host"))
        pods = stack.enter_context(pods_on_bridge(host, count))
        server = Server(host, directory)
        ours = Side("podwire", (binaries.directory() / "dhcp").resolve(), host, directory / "podwire")
        reference = Side("reference", binaries.REFERENCE / "dhcp", host, directory / "reference")
        measure_scale(ours, server, pods)
        for side in (ours, reference):
            measure_storm(side, server, pods[:AT_ONCE])
            measure_moves(side, server, host, pods[:FEW])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
