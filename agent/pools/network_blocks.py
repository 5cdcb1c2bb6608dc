"""The blocks of one network of this node: its grants file, and the reservations that its pods have.

One rule: a grant ends only while the agent holds the lock of the network's reservations. Every ADD holds it from
reading the grants to writing the reservation, so no ADD uses a grant that has ended.
"""

from __future__ import annotations

import fcntl
import os
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from agent.pools import block_protocol as protocol
from agent.pools import grants_file
from agent.pools.grants_file import NO_TOKEN, BlockState, FileEntry, Grants
from agent.pools.identity import NodeIdentity
from attachment.cache import RESULTS_DIR, read_entries
from attachment.cache import CacheEntry as CachedEntry
from cni.address import Address, Network, parse_ip
from cni.errors import CniError
from ipam.host_local import grants as plugin_format
from ipam.host_local.store import ReservationStore as Reservations
from process import directories

_SUFFIX = ".grants"
_TICK_NS = 50_000_000  # file times have ticks of some milliseconds: two changes within one have the same time


class NetworkOptions(NamedTuple):
    """A network: its pool ("" if it no longer uses one), host-local's `dataDir`, and libcni's directory of results."""

    name: str
    pool: str
    data_dir: str
    results_dir: str = RESULTS_DIR


class NetworkBlocks:
    """The grants file and the reservations of a network. `grants` is the content of the file on the disk.

    `problem`: why the file could not be used at the start, "" if it could. `is_of_this_boot`: this boot has written it.
    """

    def __init__(self, options: NetworkOptions, identity: NodeIdentity) -> None:
        self.name, self.pool, self._data_dir, self._results_dir = options
        self.path = plugin_format.path_of(self._data_dir, self.name)
        self._identity = identity
        self._directory = f"{self._data_dir}/{self.name}"
        self._seen: tuple[int, int] | None = None
        self._reserved: tuple[Address, ...] = ()
        self._counted: tuple[tuple[Address, ...], Grants, Counter[Network]] | None = None  # of the first two
        self.is_of_this_boot = False
        self.problem = ""
        self._file = self._status()  # before it is read: a change meanwhile is then noticed
        self.grants = self._load()

    # The file.

    def save(self, grants: Grants) -> None:
        """Writes the file if it changes. After an OSError its content is unknown: create a new object."""
        if grants != self.grants or not self.is_of_this_boot:
            directories.create(os.path.dirname(self.path))
            grants_file.write(self.path, grants)
            self.grants, self.is_of_this_boot, self._file = grants, True, self._status()

    def is_changed_elsewhere(self) -> bool:
        """Returns whether another program has changed or deleted the file."""
        return self._status() != self._file

    def _status(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def save_locked(self, change: Callable[[Grants], Grants]) -> bool:
        """Writes a change of the file while no ADD runs; returns False if one runs now: try again soon."""
        with self._locked() as is_locked:
            if is_locked:
                self._seen = None
                self.save(change(self.grants))
            return is_locked

    def _load(self) -> Grants:
        """Returns the file's content as this boot may use it."""
        identity = self._identity
        empty = Grants(identity.boot, identity.node)
        try:
            grants = grants_file.read(self.path)
        except FileNotFoundError:
            self.problem = f"{self.path} does not exist"
            return empty
        except (OSError, ValueError, CniError) as error:
            self.problem = f"{self.path} is damaged: {error}"
            return empty
        if grants.node != identity.node:
            self.problem = f"{self.path} is of node {grants.node}, and this node's ID is {identity.node}"
            return empty
        tokens = {str(entry.block): entry.token for entry in grants.entries if entry.grant}
        valid = protocol.grants_of_boot(identity.boot, grants.boot, tokens)
        self.is_of_this_boot = is_same = grants.boot == identity.boot
        entries = (_after_start(e, is_valid=str(e.block) in valid, is_same_boot=is_same) for e in grants.entries)
        return grants._replace(boot=identity.boot, entries=tuple(entries))

    # Reservations.

    def list_reserved(self) -> tuple[Address, ...]:
        """Returns the addresses with a reservation; reads the directory when its change time is another one.

        The modification time does not show each change: host-local sets it (ipam/host_local/index.py).
        """
        try:
            status = os.stat(self._directory)
        except FileNotFoundError:
            self._seen, self._reserved = None, ()
            return ()
        seen = (status.st_ino, status.st_ctime_ns)
        if seen != self._seen:
            is_final = time.time_ns() - seen[1] > _TICK_NS
            self._reserved = tuple(self._read_reserved())
            self._seen = seen if is_final else None
        return self._reserved

    def count_used(self) -> Counter[Network]:
        """Returns the number of reservations in each block; the caller does not change it."""
        reserved, grants = self.list_reserved(), self.grants
        if self._counted and self._counted[0] is reserved and self._counted[1] is grants:
            return self._counted[2]
        numbers: dict[int, list[int]] = {4: [], 6: []}
        for address in reserved:
            numbers[address.version].append(int(address))
        for values in numbers.values():
            values.sort()
        used: Counter[Network] = Counter()
        for block in (entry.block for entry in grants.entries):
            values = numbers[block.version]
            used[block] = bisect_right(values, int(block[-1])) - bisect_left(values, int(block[0]))
        self._counted = reserved, grants, used
        return used

    def count_reservations(self, block: Network) -> int:
        """Returns the number of reservations in a block now; the caller holds the lock."""
        return sum(address in block for address in self._read_reserved())

    def describe_holders(self, block: Network) -> str:
        """Returns a text with each address of a block and its pod, or its container if the pod's name is unknown."""
        store = Reservations(self._data_dir, self.name)
        pods = {entry.attachment.container_id: _pod(entry) for entry in read_entries(self._results_dir, self.name)}
        holders = []
        for address in self.list_reserved():
            if address in block:
                container = os.fsdecode(store.get_owner(str(address))).partition("\r\n")[0]
                holders.append(f"{address} of {pods.get(container) or f'container {container}'}")
        return ", ".join(holders)

    def _read_reserved(self) -> Iterator[Address]:
        store = Reservations(self._data_dir, self.name)
        with suppress(FileNotFoundError):
            for name in store.names():
                if not store.is_free(name):  # an empty file remains after a crash
                    yield parse_ip(name)

    # Demand.

    def demand(self, pool: str) -> int:
        """Returns how many ADDs had no address of a pool since `forget_demand`."""
        try:
            return os.stat(plugin_format.demand_path_of(self._data_dir, self.name, pool)).st_size  # a byte for each
        except FileNotFoundError:
            return 0

    def forget_demand(self, pool: str) -> None:
        """Deletes the file in which the ADDs are counted."""
        with suppress(FileNotFoundError):
            os.unlink(plugin_format.demand_path_of(self._data_dir, self.name, pool))

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Tries to lock the network's reservations, as plugins do; never waits: no signal could end that."""
        directories.create(self._directory)
        flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(f"{self._directory}/lock", flags, 0o750)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(fd)


def list_networks(configured: tuple[NetworkOptions, ...]) -> list[NetworkOptions]:
    """Returns the networks, and those that are no longer configured but have a grants file: they give blocks back."""
    known = {(options.data_dir, options.name) for options in configured}
    networks = list(configured)
    for data_dir in sorted({options.data_dir for options in configured}):
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(f"{data_dir}.podwire")):
                network = name.removesuffix(_SUFFIX)
                if network != name and not name.startswith(("~", ".")) and (data_dir, network) not in known:
                    networks.append(NetworkOptions(network, "", data_dir))
    return networks


def _after_start(entry: FileEntry, *, is_valid: bool, is_same_boot: bool) -> FileEntry:
    """Returns an entry after a start of the agent; after a boot all grants have ended and no pod has an address."""
    if entry.grant and not is_valid:
        return entry._replace(state=BlockState.CLAIMING, token=NO_TOKEN)
    if entry.state is BlockState.LOST and not is_same_boot:
        return entry._replace(state=BlockState.REVOKED)
    return entry


def _pod(entry: CachedEntry) -> str:
    """Returns "namespace/name" of an attachment's pod, "" if the runtime did not set it."""
    pairs = entry.content.get("cniArgs")
    items = pairs if isinstance(pairs, list) else []
    known = {str(pair[0]): str(pair[1]) for pair in items if isinstance(pair, list) and len(pair) == 2}
    return "/".join(filter(None, (known.get("K8S_POD_NAMESPACE"), known.get("K8S_POD_NAME"))))
