"""Checks host-local's stores: full ranges, stale reservations, stores that are not writable, locks held for long.

The checks only read: they test nothing by writing, and take no lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from shlex import quote

from attachment.cache import ResultCache
from ipam.host_local import allocator
from ipam.host_local.allocator import Usage, owners_in
from ipam.host_local.boots import get_file_system
from ipam.host_local.ranges import RangeSet
from ipam.host_local.store import ReservationStore
from kernel import locks
from kernel.netfilter import iptables_program
from podwire.doctor.finding import UNSEEN, UNSEEN_FIX, Check, Fault, Finding, Severity, ok_finding
from podwire.doctor.node import CheckedNode, InterfaceConf, find_disk_problem, read_text
from podwire.doctor.shell_command import ShellCommand
from podwire.flannel import is_flannel
from podwire.output import plural

_GROUP = "addresses"
_NEARLY_PERCENT = 90
_LONG_S = 10.0  # a verb holds the lock for milliseconds
_SHARED = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.glusterfs")

_FULL = Fault(
    "range-full",
    Severity.PROBLEM,
    "a range has no free address left: the next ADD fails",
)
_NEARLY = Fault(
    "range-nearly-full",
    Severity.WARNING,
    f"{_NEARLY_PERCENT} % or more of a range's addresses are in use",
)
_STALE = Fault(
    "stale-reservations",
    Severity.WARNING,
    "addresses are reserved for containers that are no longer running",
)
_UNRESERVED = Fault(
    "address-not-reserved",
    Severity.PROBLEM,
    "the address of a running pod is not reserved in its network's store: host-local may allocate it to another pod",
)
_UNUSABLE = Fault(
    "store-unusable",
    Severity.PROBLEM,
    "host-local cannot create files in its store: it is read-only, full, not a directory, or not root's",
)
_ELSEWHERE = Fault(
    "store-shared",
    Severity.WARNING,
    "the store is on a network file system: its locks may not work, and two nodes may share it",
)
_FORGETFUL = Fault(
    "store-in-memory",
    Severity.NOTE,
    "the store is on a tmpfs: a reboot empties it, so pods that survive a reboot lose their reservation",
)
_HELD = Fault(
    "lock-held",
    Severity.WARNING,
    "a process has held the lock of a store or of iptables-legacy for long: ADD and DEL wait for it, up to 10 seconds",
)


def _ranges(node: CheckedNode) -> Iterator[Finding]:
    for item, store in _stores(node):
        cache = partial(ResultCache.read, item.network.name, *(layer.results_dir for layer in node.layers))
        try:
            if not store.exists():
                continue
            owners = node.checker.get_owners(store)
        except OSError as error:
            if not _unusable(item, store):  # `_usable` reports the reason
                yield UNSEEN.finding(item.network.name, f"cannot read {store.directory}: {error.strerror}", UNSEEN_FIX)
            continue
        name, known = item.network.name, cache()
        stale = 0
        for number, range_set in enumerate(item.sets):
            usage = _usage(node, item, range_set, Usage.count(range_set, owners_in(range_set, owners), known))
            stale += usage.stale
            fix = node.command("gc", name) if usage.stale else _how_to_enlarge(item, range_set)
            if allocator.exhaustion_error(store, number, range_set, cache):
                yield _FULL.finding(name, f"range {range_set}: {usage}", fix)
            elif usage.in_use * 100 >= usage.size * _NEARLY_PERCENT and usage.in_use > usage.stale:
                yield _NEARLY.finding(name, f"range {range_set}: {usage}", fix)
            else:
                yield ok_finding("ranges", name, f"range {range_set}: {usage}")
        if stale and not node.unseen(name):
            yield _STALE.finding(
                name,
                f"{store.directory} reserves {plural(stale, 'address')} for containers that are no longer running",
                node.command("gc", name),
            )


def _how_to_enlarge(item: InterfaceConf, range_set: RangeSet) -> str:
    if any(map(is_flannel, item.network.plugins)):
        return "flannel takes the range from the node's podCIDR: give the node a larger one, or run fewer pods on it"
    if any(one.last - one.first + 1 < one.subnet.num_addresses - 2 for one in range_set.ranges):
        return f'set another "rangeStart" or "rangeEnd" in {item.network.path}: the subnet has more addresses'
    larger = f'set a larger "subnet" in {item.network.path}'
    if item.bridge and item.routed:  # its address has the subnet's prefix length
        return f"create a network with another bridge; or, without pods, delete the bridge {item.bridge} and {larger}"
    return larger


def _reserved(node: CheckedNode) -> Iterator[Finding]:
    """Reports running pods' addresses without a reservation: one that podwire's own store would have."""
    for item, store in _stores(node):
        if not os.path.isdir(store.directory):
            continue
        ranges = [one for range_set in item.sets for one in range_set.ranges]
        for one in node.running:
            if one.network_name != item.network.name:
                continue
            for ip in one.typed_result.ips:
                address = ip.address.ip
                is_mine = any(address in each.subnet for each in ranges)
                if is_mine and not os.path.lexists(os.path.join(store.directory, str(address))):
                    pod = one.pod or one.attachment.container_id
                    text = f"{address} of {pod} is not reserved in {store.directory}"
                    yield _UNRESERVED.finding(
                        item.network.name,
                        text,
                        "remove the container and create it again, before other pods are created",
                    )


def _usage(node: CheckedNode, item: InterfaceConf, range_set: RangeSet, by_cache: Usage) -> Usage:
    """Returns the usage with the stale addresses by the snapshot, as `podwire gc` and `ipam verify` count them.

    By the cache alone, an ADD that is still running, or a running pod without an entry, would count as stale.
    """
    if not by_cache.stale:
        return by_cache
    pools = [
        pool
        for pool in node.snapshot.records.pools
        if (pool.data_dir, pool.network) == (item.data_dir, item.network.name)
    ]
    gone = (one.address for pool in pools for one in pool.reservations if node.snapshot.is_gone(one))
    return replace(by_cache, stale=sum(one.version == range_set.version and range_set.holds(int(one)) for one in gone))


def _usable(node: CheckedNode) -> Iterator[Finding]:
    for item, store in _stores(node):
        finding = _unusable(item, store)
        if finding:
            yield finding
            continue
        kind = get_file_system(_nearest(store.directory))
        if kind in _SHARED:
            fix = f'set "dataDir" to a local directory in {item.network.path}'
            yield _ELSEWHERE.finding(item.network.name, f"{store.directory} is on {kind}", fix)
        elif kind in ("tmpfs", "ramfs"):
            fix = f'set "dataDir" in {item.network.path}, if reservations must survive a reboot'
            yield _FORGETFUL.finding(item.network.name, f"{store.directory} is on {kind}", fix)


def _unusable(item: InterfaceConf, store: ReservationStore) -> Finding | None:
    directory, name = _nearest(store.directory), item.network.name
    if not os.path.isdir(directory):
        return _UNUSABLE.finding(
            name, f"{directory} is not a directory", ShellCommand(f"mv {quote(directory)} {quote(directory)}.old")
        )
    if problem := find_disk_problem(directory):
        text, fix = problem
        return _UNUSABLE.finding(name, f"{directory}: {text}", fix)
    owner = os.stat(directory)
    if owner.st_uid != 0 and owner.st_mode & 0o200 and os.geteuid() == 0:
        text = f"{directory} belongs to user {owner.st_uid}, who can change the reservations"
        return _UNUSABLE.finding(name, text, ShellCommand(f"chown root: {quote(directory)}"))
    if os.path.isdir(f"{store.directory}/lock"):
        return _UNUSABLE.finding(
            name, f"{store.directory}/lock is a directory", ShellCommand(f"rmdir {quote(store.directory)}/lock")
        )
    return None


def _lock(node: CheckedNode) -> Iterator[Finding]:
    paths = [(item.network.name, f"{store.directory}/lock") for item, store in _stores(node)]
    for subject, path in [*paths, ("iptables", iptables_program.LOCK)]:
        try:
            holders = locks.get_holders(os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        for pid in holders:
            age_s = _age_s(pid)
            if age_s is not None and age_s > _LONG_S:
                command = locks.get_command(pid) or "unknown program"
                text = f"process {pid} ({command}) holds {path}; it has been running for {age_s:.0f} s"
                yield _HELD.finding(subject, text, f"kill {pid}")


def _age_s(pid: int) -> float | None:
    """Returns for how many seconds a process has been running (proc_pid_stat(5)), None if it is not visible."""
    words = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(words) < 20:
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(words[19]) / os.sysconf("SC_CLK_TCK")


def _stores(node: CheckedNode) -> Iterator[tuple[InterfaceConf, ReservationStore]]:
    for item in node.interfaces:
        if item.data_dir:
            yield item, ReservationStore(item.data_dir, item.network.name)


def _nearest(directory: str) -> str:
    """Returns the directory, or its nearest ancestor that exists; raises PermissionError."""
    while directory not in ("", "/", "."):
        try:
            os.lstat(directory)
        except (FileNotFoundError, NotADirectoryError):
            directory = os.path.dirname(directory)
        else:
            break
    return directory or "."


CHECKS = (
    Check(_GROUP, "ranges", "no network has a store of addresses", _ranges, (_FULL, _NEARLY, _STALE)),
    Check(_GROUP, "reservations", "the addresses of running pods are reserved", _reserved, (_UNRESERVED,)),
    Check(_GROUP, "stores", "the stores are writable", _usable, (_UNUSABLE, _ELSEWHERE, _FORGETFUL)),
    Check(_GROUP, "locks", "no process holds a store's lock, or that of iptables-legacy, for long", _lock, (_HELD,)),
)
