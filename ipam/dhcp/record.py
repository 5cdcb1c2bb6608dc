"""The record of an interface's leases: the content of its lease file.

It has what the daemon needs to maintain the leases after a restart: the arguments of the ADD, and the interface.
"""

from __future__ import annotations

from cni.address import parse_mac
from cni.args import check_container_id, check_ifname
from cni.errors import CniError
from cni.fields import Fields
from cni.gojson import without_surrogates
from ipam.dhcp import conf, lease, lease6
from ipam.dhcp.lease import Lease
from ipam.dhcp.lease6 import Lease6
from process.values import dataclass, field


@dataclass(frozen=True)
class LeaseOwner:
    """The interface that a lease is for, by the arguments of its ADD; `stdin` is the network's configuration."""

    network: str
    container_id: str
    ifname: str
    netns: str
    args: str
    stdin: bytes = field(repr=False)

    @property
    def key(self) -> tuple[str, str, str]:
        """The identity of the interface: network, container ID and interface name."""
        return self.network, self.container_id, self.ifname

    @property
    def name(self) -> str:
        """The name in logs."""
        return conf.name_of(*self.key)


@dataclass(frozen=True)
class Target:
    """The interface that has a lease: its ifindex, its MAC address, the ID of its namespace, and a host interface.

    `namespace_cookie` is the kernel's ID of the namespace, unique during a boot; 0 before Linux 5.14.
    `host_interface` reaches the same network from the host when the interface is deleted: the bridge of a veth, the
    master of a macvlan; "" without one. `shares_mac`: with its master (ipvlan).
    `mtu` is that before ADD, 0 if it is unknown.
    """

    index: int
    mac: str
    namespace_cookie: int = 0
    host_interface: str = ""
    shares_mac: bool = False
    mtu: int = 0


@dataclass(frozen=True)
class LeaseRecord:
    """The stored leases of an interface."""

    owner: LeaseOwner
    target: Target
    boot_id: str
    ipv4: Lease | None
    ipv6: Lease6 | None


def to_json(record: LeaseRecord) -> dict[str, object]:
    """Returns the content of a lease file."""
    owner, target = record.owner, record.target
    return {
        "network": owner.network,
        "containerID": owner.container_id,
        "ifname": owner.ifname,
        "netns": without_surrogates(owner.netns),
        "args": without_surrogates(owner.args),
        "stdin": owner.stdin.decode("utf-8", "replace"),
        "interface": {
            "index": target.index,
            "mac": target.mac,
            "namespaceCookie": target.namespace_cookie,
            "hostInterface": target.host_interface,
            "sharesMAC": target.shares_mac,
            "mtu": target.mtu,
        },
        "bootID": record.boot_id,
        **({"ipv4": lease.to_json(record.ipv4)} if record.ipv4 else {}),
        **({"ipv6": lease6.to_json(record.ipv6)} if record.ipv6 else {}),
    }


def from_json(value: object) -> LeaseRecord:
    """Reads a lease file; raises ValueError for any other content."""
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    try:
        fields = Fields(value, context="cannot read the lease")
        for key in ("network", "containerID", "ifname"):
            if not fields.string(key):
                raise fields.error(key, "is missing")
        target, ipv4, ipv6 = fields.section("interface"), fields.raw("ipv4"), fields.raw("ipv6")
        record = LeaseRecord(
            owner=LeaseOwner(
                network=fields.string("network"),
                container_id=fields.string("containerID"),
                ifname=fields.string("ifname"),
                netns=fields.string("netns"),
                args=fields.string("args"),
                stdin=fields.string("stdin").encode("utf-8", "replace"),
            ),
            target=Target(
                target.integer("index") or 0,
                target.string("mac"),
                target.integer("namespaceCookie") or 0,
                target.string("hostInterface"),
                target.boolean("sharesMAC"),
                target.integer("mtu", minimum=0) or 0,
            ),
            boot_id=fields.string("bootID"),
            ipv4=None if ipv4 is None else lease.from_json(ipv4),
            ipv6=None if ipv6 is None else lease6.from_json(ipv6),
        )
        check_container_id(record.owner.container_id)
        check_ifname(record.owner.ifname)
    except CniError as error:
        raise ValueError(error.msg) from error
    parse_mac(record.target.mac)
    return record
