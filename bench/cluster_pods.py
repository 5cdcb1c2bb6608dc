"""The time of a pod's ADD and DEL with a pool beside that with ranges, and the sockets that they open.

One rule: both networks are podwire's, and differ only in where their addresses come from.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network, ip_network
from pathlib import Path

from agent.pools import grants_file
from agent.pools.block_protocol import Token
from agent.pools.grants_file import Entry, Grants, PoolHead, State
from bench.cases import Samples, compare, with_prefix
from bench.figures import Row
from bench.process import Invocation
from bench.subject import SINGLE, Config, Subject
from ipam.host_local import grants as plugin_format
from kernel import boot
from tests.support import namespaces
from tests.support.namespaces import Namespace

TARGET = 1.05
_POOL, _RANGES = "pool", "ranges"
_BLOCKS = 5  # of a node with 250 pods
_RESERVED = 60
_NAMES = ("bridge + host-local", "host-local")
_SOCKET = re.compile(r"socket\((AF_\w+)")
_KERNEL = {"AF_NETLINK"}


def subjects(bin_dir: Path, directory: Path) -> tuple[Subject, Subject]:
    """Returns the two networks, the one with a pool first."""
    return Subject(_POOL, 1, bin_dir, directory / _POOL), Subject(_RANGES, 2, bin_dir, directory / _RANGES)


def measure(both: tuple[Subject, Subject], rounds: int) -> list[Row]:
    """Returns the times of ADD and DEL: of bridge with host-local, and of host-local alone."""
    with _networks(both) as network:
        pod = network.pod

        def run(subject: Subject) -> Samples:
            config = network.config(subject)
            chain, alone = subject.cycle("bridge", config, pod), subject.cycle("host-local", config, pod)
            return {**with_prefix(_NAMES[0], chain), **with_prefix(_NAMES[1], alone)}

        rows = compare(both, rounds, run)
    return [row._replace(target=TARGET) for row in rows if not row.case.endswith("CHECK")]


def count_sockets(both: tuple[Subject, Subject]) -> int:
    """Returns how many sockets, other than those to the kernel, ADD and DEL of a pod open; strace sees all of them."""
    with _networks(both) as network:
        config = network.config(both[0])
        traces = [_trace(both[0].call("bridge", verb, config, network.pod)) for verb in ("ADD", "DEL")]
    families = [family for trace in traces for family in _SOCKET.findall(trace)]
    if "AF_NETLINK" not in families:
        raise RuntimeError("strace has seen no socket, not even those to the kernel")
    return sum(family not in _KERNEL for family in families)


class _Networks:
    """The configurations of both networks, and the namespace of the measured pod."""

    def __init__(self, pod: Namespace) -> None:
        self.pod = pod

    def config(self, subject: Subject) -> Config:
        """Returns a network with a bridge; that with a pool has its blocks in the grants file."""
        config = subject.network(SINGLE)
        if subject.label == _POOL:
            return {**config, "ipam": {"type": "host-local", "dataDir": str(subject.store), "pool": "default"}}
        subnet = str(next(IPv4Network("10.102.0.0/16").subnets(new_prefix=24)))
        return {**config, "ipam": {**config["ipam"], "ranges": [[{"subnet": subnet}]]}}


@contextlib.contextmanager
def _networks(both: Sequence[Subject]) -> Iterator[_Networks]:
    """Yields the networks, each with a pod that stays and reserved addresses."""
    with contextlib.ExitStack() as stack:
        pods = [stack.enter_context(namespaces.temporary()) for _ in range(3)]
        networks = _Networks(pods[2])
        for subject, resident in zip(both, pods[:2], strict=True):
            config = networks.config(subject)
            if subject.label == _POOL:
                write_grants(str(subject.store), str(config["name"]), _BLOCKS)
            stack.enter_context(subject.resident(config, resident))
            stack.enter_context(_reservations(subject, config))
        yield networks


def write_grants(data_dir: str, network: str, blocks: int) -> None:
    """Writes the grants file of a network as the agent does, with blocks of 10.101.0.0/16."""
    cidrs = list(IPv4Network("10.101.0.0/18").subnets(new_prefix=26))[:blocks]
    gateway = cidrs[0][1]
    entries = tuple(
        Entry(
            block=ip_network(cidr),
            pool="default",
            state=State.GRANTED,
            token=Token("epoch-1", 1),
            subnet=ip_network(cidr),
            ranges=((cidr[1], cidr[-2]),),
            gateway=gateway,
        )
        for cidr in cidrs
    )
    boot_id = boot.get_boot_id().decode().strip()
    grants = Grants(boot_id, "0" * 32, (PoolHead("default", (4,)),), entries, contact=1, epoch="epoch-1")
    path = plugin_format.path_of(data_dir, network)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    grants_file.write(path, grants)


@contextlib.contextmanager
def _reservations(subject: Subject, config: Config) -> Iterator[None]:
    """Reserves addresses for pods that are not measured."""
    names = [f"pod{number}" for number in range(_RESERVED)]
    for name in names:
        subject.run("host-local", "ADD", config, Namespace("none"), name)
    yield
    for name in names:
        subject.run("host-local", "DEL", config, Namespace("none"), name)


def _trace(call: Invocation) -> str:
    """Runs a call with strace; returns the lines of the calls for sockets."""
    with tempfile.NamedTemporaryFile("r", prefix="podwire-trace-") as trace:
        line = ["strace", "-f", "-qq", "-e", "trace=%network", "-o", trace.name, call.program]
        done = subprocess.run(line, env=dict(call.env), input=call.stdin, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{call.program} failed: {done.stdout.decode()}{done.stderr.decode()}")
        return trace.read()
