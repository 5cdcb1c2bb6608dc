"""The attributes of an interface that tuning sets: MAC, promiscuous and all-multicast mode, MTU, queue length.

An attribute that is None is not configured, and is neither saved, changed nor checked.
"""

from __future__ import annotations

from collections.abc import Iterator

from cni.address import format_mac, parse_mac
from cni.errors import CniError, internal, invalid_conf
from kernel import link
from kernel.link import Link
from kernel.rtnl import Request
from process.values import dataclass


@dataclass(frozen=True)
class Attributes:
    """The attributes of an interface, None if not configured; `mtu` is in bytes, `tx_queue` in packets."""

    mac: bytes | None = None
    promisc: bool | None = None
    mtu: int | None = None
    allmulti: bool | None = None
    tx_queue: int | None = None

    def __bool__(self) -> bool:
        return self != Attributes()

    def only(self, configured: Attributes) -> Attributes:
        """Returns only the attributes that `configured` has, too."""
        return Attributes(
            mac=None if configured.mac is None else self.mac,
            promisc=None if configured.promisc is None else self.promisc,
            mtu=None if configured.mtu is None else self.mtu,
            allmulti=None if configured.allmulti is None else self.allmulti,
            tx_queue=None if configured.tx_queue is None else self.tx_queue,
        )

    def with_defaults(self, other: Attributes) -> Attributes:
        """Returns the attributes, the missing ones replaced by those of `other`."""
        return Attributes(
            mac=other.mac if self.mac is None else self.mac,
            promisc=other.promisc if self.promisc is None else self.promisc,
            mtu=other.mtu if self.mtu is None else self.mtu,
            allmulti=other.allmulti if self.allmulti is None else self.allmulti,
            tx_queue=other.tx_queue if self.tx_queue is None else self.tx_queue,
        )

    def request(self, target: Link) -> Request:
        """Returns one request that sets all attributes on a link."""
        return link.set_request(
            target,
            mac=self.mac or b"",
            promisc=self.promisc,
            mtu=self.mtu or 0,
            allmulti=self.allmulti,
            tx_queue=self.tx_queue,
        )

    def requests(self, target: Link) -> Iterator[Request]:
        """Returns a request per attribute, in the reference plugin's order."""
        each = (
            Attributes(mtu=self.mtu),
            Attributes(mac=self.mac),
            Attributes(promisc=self.promisc),
            Attributes(allmulti=self.allmulti),
            Attributes(tx_queue=self.tx_queue),
        )
        return (item.request(target) for item in each if item)


def of_link(target: Link) -> Attributes:
    """Returns the attributes of a link.

    The modes are those that were set explicitly, as `ip link` shows them. A link that is promiscuous only because of a
    running capture, or as a port of a bridge, must not become promiscuous by a restore.
    """
    return Attributes(
        mac=parse_mac(target.mac) if target.mac else None,
        promisc=bool(target.flags & link.IFF_PROMISC),
        mtu=target.mtu,
        allmulti=bool(target.flags & link.IFF_ALLMULTI),
        tx_queue=target.tx_queue,
    )


def validate(target: Link, configured: Attributes) -> None:
    """Raises CniError(7), with the kernel's reason, for an MTU or a MAC that does not fit the link.

    The length of the MAC must be checked because the kernel would truncate a longer one.
    """
    if configured.mac is not None and len(configured.mac) != len(target.mac.split(":")):
        msg = f"invalid args {format_mac(configured.mac)} for MAC addr: invalid argument"
        raise invalid_conf(msg, f'"{target.name}" has an address like {target.mac or "none"}')
    if configured.mtu and not target.min_mtu <= configured.mtu <= (target.max_mtu or configured.mtu):
        limits = f"between {target.min_mtu} and {target.max_mtu}" if target.max_mtu else f"at least {target.min_mtu}"
        msg = f'failed to set "{target.name}" to MTU {configured.mtu}: invalid argument'
        raise invalid_conf(msg, f'"mtu" must be {limits} for this interface')


def check(target: Link, configured: Attributes) -> None:
    """Checks that the link has the configured attributes; raises CniError(999) with the reference plugin's text."""
    current = of_link(target)
    if configured.mac is not None and current.mac != configured.mac:
        raise _mismatch(f"Ethernet of {target.name}", format_mac(configured.mac), target.mac)
    if configured.promisc and not current.promisc:
        msg = f"Error: Tuning link {target.name} configured promisc is true, current value is 0"
        raise internal(msg, f'set it again: ip link set "{target.name}" promisc on')
    if configured.mtu is not None and current.mtu != configured.mtu:
        raise _mismatch(f"MTU of {target.name}", configured.mtu, current.mtu)
    if configured.allmulti is not None and current.allmulti != configured.allmulti:
        raise _mismatch(f"all-multicast mode of {target.name}", _word(configured.allmulti), _word(current.allmulti))
    if configured.tx_queue is not None and current.tx_queue != configured.tx_queue:
        raise _mismatch(f"Transmit Queue Length of {target.name}", configured.tx_queue, current.tx_queue)


def _mismatch(name: str, configured: object, current: object) -> CniError:
    msg = f"Error: Tuning configured {name} is {configured}, current value is {current}"
    return internal(msg, "set it back, or remove the container and create it again")


def _word(value: bool | None) -> str:
    return "true" if value else "false"
