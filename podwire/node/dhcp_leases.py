"""The leases of dhcp's daemon, from its lease files: address, server, time until the end.

Nothing is changed, and the daemon is not called. A lease of an earlier boot has no known end: the daemon asks a server.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from cni.address import format_ip
from cni.conf import Attachment, NetConf
from cni.errors import CniError
from ipam.dhcp import conf as dhcp_conf
from ipam.dhcp.lease import Lease
from ipam.dhcp.lease6 import Lease6
from ipam.dhcp.options import INFINITE_S
from ipam.dhcp.record import LeaseRecord
from ipam.dhcp.store import LeaseStore, UnreadableLease
from kernel.boot import get_boot_id
from podwire.networks import Network
from podwire.output import format_time

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))  # seconds
_MIN_OF_UNIT = 2  # "119 min", then "2 h"


class LeaseState(StrEnum):
    """The state of a lease file."""

    LEASED = "leased"
    EXPIRED = "expired"  # no server renewed it, or the daemon is not running
    UNCONFIRMED = "another boot"  # the daemon has not asked a server since the boot
    RELEASING = "to be released"  # DEL ran without a daemon


@dataclass(frozen=True)
class DhcpLease:
    """A lease file; `expires_in_s` is None for a lease without an end, and for one whose end is not known."""

    path: str
    address: str
    server: str
    network: str
    data_dir: str
    attachment: Attachment
    state: LeaseState
    expires_in_s: float | None = None
    granted: float = 0.0  # seconds since the epoch, 0 if unknown

    @property
    def expiry(self) -> str:
        """The time until the lease ends, for an operator."""
        if self.state is LeaseState.UNCONFIRMED:
            return "unknown"
        if self.expires_in_s is None:
            return "never"
        text = _format_duration(abs(self.expires_in_s))
        return f"in {text}" if self.expires_in_s > 0 else f"{text} ago"

    @property
    def since(self) -> str:
        """The time at which the server granted or renewed it, as RFC 3339 in UTC, "" if unknown."""
        return format_time(self.granted)

    def to_json(self, pod: str) -> dict[str, object]:
        """Returns this object's part of the JSON document; the common keys are those of a reservation."""
        return {
            "address": self.address,
            "network": self.network,
            "dataDir": self.data_dir,
            "state": str(self.state),
            "containerID": self.attachment.container_id,
            "ifname": self.attachment.ifname,
            "pod": pod,
            "since": self.since,
            "beforeBoot": self.state is LeaseState.UNCONFIRMED,
            "server": self.server,
            "expiresInS": None if self.expires_in_s is None else int(self.expires_in_s),
        }


def list_data_dirs(networks: Iterable[Network]) -> tuple[str, ...]:
    """Returns the directories of lease files: the default one, and those of the networks."""
    directories = [dhcp_conf.DATA_DIR]
    directories += [dhcp_conf.data_dir(net_conf) for _, net_conf in list_dhcp_confs(networks)]
    return tuple(dict.fromkeys(directories))


def list_dhcp_confs(networks: Iterable[Network]) -> Iterator[tuple[Network, NetConf]]:
    """Yields the configurations whose IPAM plugin is dhcp, with their networks; invalid ones are left out."""
    for network in networks:
        for plugin in network.plugins:
            net_conf = network.net_conf(plugin)
            try:
                if net_conf.ipam_type == "dhcp":
                    dhcp_conf.data_dir(net_conf)
                    dhcp_conf.socket_path(net_conf)
                    yield network, net_conf
            except CniError:
                continue


def read_leases(
    data_dirs: Iterable[str], network: str = ""
) -> tuple[tuple[DhcpLease, ...], tuple[UnreadableLease, ...]]:
    """Returns the leases of a network, or of all, sorted by network and address, and the files that are none."""
    leases: list[DhcpLease] = []
    unreadable: list[UnreadableLease] = []
    boot_id, now = get_boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME)
    for directory in data_dirs:
        store = LeaseStore(directory)
        try:
            for item in store.read_all(network):
                if isinstance(item, LeaseRecord):
                    leases += (_lease(store, item, each, boot_id, now) for each in (item.ipv4, item.ipv6) if each)
                else:
                    unreadable.append(item)
        except OSError as error:
            unreadable.append(UnreadableLease(directory, error.strerror or str(error)))
    return tuple(sorted(leases, key=lambda one: (one.network, one.address))), tuple(unreadable)


def _lease(store: LeaseStore, record: LeaseRecord, lease: Lease | Lease6, boot_id: str, now: float) -> DhcpLease:
    owner, is_same_boot = record.owner, record.boot_id == boot_id != ""
    expires_in_s = lease.expires_at - now if is_same_boot and lease.lifetime_s != INFINITE_S else None
    if store.must_release(record):
        state = LeaseState.RELEASING
    elif not is_same_boot:
        state = LeaseState.UNCONFIRMED
    else:
        state = LeaseState.EXPIRED if expires_in_s is not None and expires_in_s <= 0 else LeaseState.LEASED
    return DhcpLease(
        path=store.path_of(record),
        address=format_ip(lease.address.ip),
        server=_server_of(lease),
        network=owner.network,
        data_dir=store.directory,
        attachment=Attachment(owner.container_id, owner.ifname),
        state=state,
        expires_in_s=expires_in_s,
        granted=time.time() - (now - lease.granted_s) if is_same_boot else 0.0,
    )


def _server_of(lease: Lease | Lease6) -> str:
    """Returns the server's address, or its DUID with DHCPv6; the router's address with SLAAC."""
    if isinstance(lease, Lease):
        return str(lease.server)
    if lease.grant is not None:
        return lease.grant.server.hex()
    return format_ip(lease.advertisement.router) if lease.advertisement else ""


def _format_duration(seconds: float) -> str:
    """Returns a duration in its largest unit of which it has at least two."""
    for unit_s, name in _UNITS:
        if seconds >= _MIN_OF_UNIT * unit_s:
            return f"{seconds // unit_s:.0f} {name}"
    return f"{seconds:.0f} s"
