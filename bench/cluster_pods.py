"""The time of a pod's ADD and DEL with a pool beside that with ranges, and the sockets that they open.

One rule: both networks are podwire's, and differ only in where their addresses come from.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from ipaddress import IPv4Network, ip_network
from pathlib import Path

from agent.pools import grants_file
from agent.pools.block_protocol import Token
from agent.pools.grants_file import BlockState, FileEntry, Grants, PoolHead
from bench.attachment import Attachment, run_calls
from bench.cases import Places, Samples, Subjects, attachments, compare, places
from bench.counts import trace
from bench.figures import Row
from bench.subject import SINGLE, Config, Subject
from ipam.host_local import grants as plugin_format
from kernel import boot
from tests.support.namespaces import Namespace

_POOL, _RANGES = "pool", "ranges"
_BLOCKS = 5  # of a node with 250 pods
_RESERVED = 60
_SOCKET = re.compile(r"socket\((AF_\w+)")
_KERNEL = {"AF_NETLINK"}


def subjects(bin_dir: Path, directory: Path) -> Subjects:
    """Returns the two networks, the one with a pool first."""
    return Subject(_POOL, 1, bin_dir, directory / _POOL), Subject(_RANGES, 2, bin_dir, directory / _RANGES)


def measure(both: Subjects, rounds: int) -> list[Row]:
    """Returns the times of ADD and DEL: of bridge with host-local, and of host-local alone."""

    def run(subject: Subject) -> Samples:
        runs = subject.cycle("host-local", where[subject.label].network)
        return {f"host-local {verb}": runs[verb].ms for verb in ("ADD", "DEL")}

    with _places(both) as where:
        chain = attachments(both, rounds, "bridge + host-local", where)
        return [row for row in (*chain, *compare(both, rounds, run)) if not row.case.endswith("CHECK")]


def count_sockets(both: Subjects) -> int:
    """Returns how many sockets, other than those to the kernel, ADD and DEL of a pod open; strace sees all of them."""
    subject = both[0]
    with _places(both) as where:
        network, _, pod = where[subject.label]
        attachment = Attachment(subject, network, (), pod)
        calls = [lines for verb in ("ADD", "DEL") for lines in run_calls(attachment.calls(verb), trace)]
    families = [family for lines in calls for line in lines for family in _SOCKET.findall(line)]
    if "AF_NETLINK" not in families:
        raise RuntimeError("strace has seen no socket, not even those to the kernel")
    return sum(family not in _KERNEL for family in families)


@contextlib.contextmanager
def _places(both: Subjects) -> Iterator[Places]:
    """Yields the networks, each with a pod that stays and reserved addresses."""
    with contextlib.ExitStack() as stack:
        where = stack.enter_context(places(both, _network))
        for subject in both:
            stack.enter_context(_reservations(subject, where[subject.label].network))
        yield where


def _network(subject: Subject) -> Config:
    """Returns a network with a bridge; that with a pool has its blocks in the grants file."""
    config = subject.network(SINGLE)
    if subject.label == _POOL:
        write_grants(str(subject.store), str(config["name"]), _BLOCKS)
        return {**config, "ipam": {"type": "host-local", "dataDir": str(subject.store), "pool": "default"}}
    subnet = str(next(IPv4Network("10.102.0.0/16").subnets(new_prefix=24)))
    return {**config, "ipam": {**config["ipam"], "ranges": [[{"subnet": subnet}]]}}


def write_grants(data_dir: str, network: str, blocks: int) -> None:
    """Writes the grants file of a network as the agent does, with blocks of 10.101.0.0/16."""
    cidrs = list(IPv4Network("10.101.0.0/18").subnets(new_prefix=26))[:blocks]
    gateway = cidrs[0][1]
    entries = tuple(
        FileEntry(
            block=ip_network(cidr),
            pool="default",
            state=BlockState.GRANTED,
            token=Token("epoch-1", 1),
            subnet=ip_network(cidr),
            ranges=((cidr[1], cidr[-2]),),
            gateway=gateway,
        )
        for cidr in cidrs
    )
    boot_id = boot.get_boot_id()
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
