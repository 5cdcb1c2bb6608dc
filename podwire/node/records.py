"""The files that record this node's pods: net.d, libcni's result cache, host-local's stores.

The files are read as they are and not compared here (snapshot.py does that); every file that could not be
read is reported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import ip_address

from cni.address import Address
from cni.conf import VALID_NAME, Attachment, NetConf
from cni.errors import CniError
from ipam.host_local import conf as host_local
from ipam.host_local import listing
from ipam.host_local.allocator import attachment_of
from ipam.host_local.boots import Origin
from ipam.host_local.listing import ReservationFile
from ipam.host_local.ranges import RangeSet
from ipam.host_local.store import ReservationStore
from plugins.tuning import backup
from plugins.tuning import conf as tuning
from podwire import attachments, flannel, networks
from podwire.attachments import CachedAttachment
from podwire.layers import Layer, describe_caches
from podwire.networks import Network, NetworkFile
from podwire.node.links import Kernel

_NS = 1_000_000_000
RECENT_NS = 60 * _NS  # the ADD may still be running: libcni writes its cache after the last plugin has returned
_BRIDGE = "cni0"  # the bridge plugin's default


@dataclass(frozen=True)
class Directories:
    """The directories to read: net.d, the caches of `layers`, host-local's default `dataDir`."""

    conf_dir: str
    layers: tuple[Layer, ...]
    data_dir: str = host_local.DATA_DIR


@dataclass(frozen=True)
class Reservation:
    """A reserved address of host-local."""

    data_dir: str
    network: str
    file: ReservationFile
    before_boot: bool = False

    @property
    def address(self) -> Address:
        """The reserved address."""
        return ip_address(self.file.name)

    @property
    def attachment(self) -> Attachment:
        """The owner; both fields are "" if the file names none, `ifname` is "" in files of old host-local versions."""
        return attachment_of(self.file.owner)

    @property
    def is_remark(self) -> bool:
        """Whether its text is no container ID: an administrator wrote it, to keep the address unallocated."""
        return bool(self.file.owner) and not VALID_NAME.fullmatch(self.attachment.container_id)

    @property
    def has_container(self) -> bool:
        """Whether it names a container."""
        return bool(self.file.owner) and not self.is_remark

    @property
    def is_recent(self) -> bool:
        """Whether it is less than a minute old, so that its ADD may still be running."""
        return time.time_ns() - self.file.written_ns < RECENT_NS


@dataclass(frozen=True)
class HostLocalStore:
    """host-local's store of one network.

    `last_reserved` is the last address of each range set, after which the next search starts. `foreign` are names of
    files that host-local did not write.
    """

    data_dir: str
    network: str
    reservations: tuple[Reservation, ...] = ()
    last_reserved: Mapping[int, str] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    range_sets: tuple[RangeSet, ...] = ()

    def store(self) -> ReservationStore:
        """Returns the store, for reading and releasing."""
        return ReservationStore(self.data_dir, self.network)

    def in_use(self, range_set: RangeSet) -> int:
        """Returns how many addresses of a range set are reserved."""
        addresses = (item.address for item in self.reservations if not item.file.residue)
        return sum(address.version == range_set.version and range_set.holds(int(address)) for address in addresses)


@dataclass(frozen=True)
class Records:
    """The contents of all these files.

    `networks` are the configured networks by name, `cached` the attachments in libcni's cache, `backups` those that the
    tuning plugin has saved settings for (directory, network, attachment), `begun` the networks of pods that Multus
    began to attach. `unread` describes files that could not be read; `is_cache_complete`: none of them belongs to a
    cache.
    """

    files: tuple[NetworkFile, ...]
    networks: Mapping[str, Network]
    cached: tuple[CachedAttachment, ...]
    pools: tuple[HostLocalStore, ...]
    unread: tuple[str, ...] = ()
    is_cache_complete: bool = True
    backups: tuple[tuple[str, str, Attachment], ...] = ()
    begun: Mapping[str, Network] = field(default_factory=dict)

    def has_network(self, network: str) -> bool:
        """Returns whether a configuration, the cache or a reservation names the network."""
        named = (item.network_name for item in self.cached)
        stored = (pool.network for pool in self.pools if pool.reservations)
        return network in self.networks or network in {*named, *stored}

    @cached_property
    def configurations(self) -> Mapping[str, list[Network]]:
        """The configurations of each network: that of net.d, those of its attachments, that of a begun ADD."""
        by_name: dict[str, list[Network]] = {}
        for one in (*self.networks.values(), *_used_networks(self.cached), *self.begun.values()):
            by_name.setdefault(one.name, []).append(one)
        return by_name


def read_records(directories: Directories) -> Records:
    """Reads all files; a missing or invalid file is described in `unread`, and raises nothing."""
    unread: list[str] = []
    try:
        files = networks.read_directory(directories.conf_dir)
    except CniError as error:
        files = ()
        unread.append(error.msg)
    unread += [f"{file.path}: {file.problem.msg}" for file in files if file.problem and file.is_hidden]
    known = tuple(attachments.list_cached(directories.layers))
    unread_cache = _unread_caches(directories.layers, known)
    configured = networks.by_name(files)
    begun = attachments.list_begun(directories.layers)
    all_networks = [*configured.values(), *_used_networks(known), *begun.values()]
    pools = _pools(all_networks, directories.data_dir, unread)
    unread_cache += _missing_cache(directories.layers, pools)
    unread += unread_cache
    backups = tuple(_backups(all_networks, unread))
    return Records(files, configured, known, pools, tuple(dict.fromkeys(unread)), not unread_cache, backups, begun)


def bridge_names(network: Network | None, kernel: Kernel) -> tuple[str, ...]:
    """Returns the names of the bridges of a network, also of those that its configuration names by an altname."""
    plugins = map(flannel.resolve_delegate, network.plugins if network else ())
    names = (str(plugin.get("bridge") or _BRIDGE) for plugin in plugins if plugin.get("type") == "bridge")
    return tuple(dict.fromkeys(map(kernel.real_name, names)))


def _used_networks(known: Iterable[CachedAttachment]) -> list[Network]:
    """Returns the configurations that the cached attachments were created with, without consecutive duplicates."""
    used: list[Network] = []
    for item in known:
        if item.network and item.network not in used[-1:]:
            used.append(item.network)
    return used


def host_local_pools(network: Network) -> list[tuple[str, tuple[RangeSet, ...]]]:
    """Returns the directory and ranges of each plugin whose IPAM is host-local; invalid or unknown ranges are ()."""
    pools = []
    for plugin in network.plugins:
        net_conf = network.net_conf(flannel.resolve_delegate(plugin))
        try:
            if net_conf.ipam_type == "host-local":
                pools.append((host_local.data_dir(net_conf), _range_sets(net_conf)))
        except CniError:
            continue
    return pools


def _range_sets(net_conf: NetConf) -> tuple[RangeSet, ...]:
    try:
        return host_local.range_sets(net_conf)
    except CniError:
        return ()


def _unread_caches(layers: Sequence[Layer], known: Sequence[CachedAttachment]) -> list[str]:
    """Returns a description of the attachments in the layers' caches that could not be read, [] for none."""
    try:
        attachments.require_caches(layers)
    except CniError as error:
        return [error.msg]
    paths = attachments.list_unreadable(layers, known)
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    unread = [f"{paths[0]}{more}: cannot be read as an attachment (truncated, or from before CNI 0.8)"] if paths else []
    return unread + attachments.describe_missing_delegates(known)


def _missing_cache(layers: Iterable[Layer], pools: Iterable[HostLocalStore]) -> list[str]:
    """Returns a description of caches that are missing although addresses are reserved for pods, [] if one exists."""
    items = (item for pool in pools for item in pool.reservations)
    number = sum(item.has_container and not item.is_recent for item in items)
    if not number or any(os.path.lexists(layer.results_dir) for layer in layers):
        return []
    return [f"the runtime's cache: {describe_caches(layers)} is missing, and {number} addresses are reserved for pods"]


def _backups(used: Iterable[Network], unread: list[str]) -> Iterable[tuple[str, str, Attachment]]:
    """Yields the owners of the tuning plugin's backups, as (directory, network, attachment)."""
    plugins = (plugin for network in used for plugin in network.plugins if plugin.get("type") == "tuning")
    for data_dir in dict.fromkeys(str(plugin.get("dataDir") or tuning.DATA_DIR) for plugin in plugins):
        try:
            for network, attachment in backup.list_attachments(data_dir):
                yield data_dir, network, attachment
        except OSError as error:
            unread.append(f"tuning's backups in {data_dir}: {error.strerror}")
        except ValueError:
            continue  # not a valid path


def _pools(used: Iterable[Network], default: str, unread: list[str]) -> tuple[HostLocalStore, ...]:
    """Reads the stores of the networks, and all others in the same directories: a network's file may be missing."""
    ranges: dict[tuple[str, str], tuple[RangeSet, ...]] = {}
    directories = {default: None}
    for network in used:
        for data_dir, sets in host_local_pools(network):
            directories[data_dir] = None
            if not ranges.get((network.name, data_dir)):
                ranges[network.name, data_dir] = sets
    for data_dir in directories:
        try:
            for name in sorted(os.listdir(data_dir)):
                if VALID_NAME.fullmatch(name) and os.path.isdir(f"{data_dir}/{name}"):
                    ranges.setdefault((name, data_dir), ())
        except FileNotFoundError:
            continue
        except OSError as error:
            unread.append(f"the addresses in {data_dir}: {error.strerror}")
    pools = (_pool(data_dir, name, ranges[name, data_dir], unread) for name, data_dir in sorted(ranges))
    return tuple(pool for pool in pools if pool)


def _pool(data_dir: str, network: str, sets: tuple[RangeSet, ...], unread: list[str]) -> HostLocalStore | None:
    store = ReservationStore(data_dir, network)
    try:
        if not store.exists():
            return HostLocalStore(data_dir, network, range_sets=sets) if sets else None
        files = listing.list_reservations(store)
        last, foreign = listing.read_other_files(store)
        if any(file.unreadable for file in files):
            unread.append(f"the owners of the addresses in {store.directory}: Permission denied")
        with store.origins() as origins:
            reservations = tuple(
                Reservation(data_dir, network, file, _is_before_boot(file, origins(file.owner, file.name)))
                for file in files
            )
    except OSError as error:
        unread.append(f"the addresses in {store.directory}: {error.strerror}")
        return None
    return HostLocalStore(data_dir, network, reservations, last, tuple(foreign), sets)


def _is_before_boot(file: ReservationFile, origin: Origin) -> bool:
    """Returns whether a reservation is from an earlier boot: by the index, else by its file's change time."""
    if origin is Origin.UNKNOWN:
        return file.changed_ns < time.time_ns() - int(time.clock_gettime(time.CLOCK_BOOTTIME) * _NS)
    return origin is Origin.EARLIER_BOOT
