"""What of an interface is set: its address, two modes, its MTU and its queue.

One rule: None is not asked for, and what is not asked for is neither saved, changed nor checked.
"""

from __future__ import annotations

from collections.abc import Iterator

from cni.address import format_mac, parse_mac
from cni.errors import CniError, Code
from kernel import link
from kernel.link import Link
from kernel.rtnl import Request
from process.values import dataclass


@dataclass(frozen=True)
class Attributes:
    """Settings of an interface; `tx_queue` is in packets."""

    mac: bytes | None = None
    promisc: bool | None = None
    mtu: int | None = None
    allmulti: bool | None = None
    tx_queue: int | None = None

    def __bool__(self) -> bool:
        return self != Attributes()

    def only(self, asked: Attributes) -> Attributes:
        """Returns those of the settings that `asked` has, too."""
        return Attributes(
            mac=None if asked.mac is None else self.mac,
            promisc=None if asked.promisc is None else self.promisc,
            mtu=None if asked.mtu is None else self.mtu,
            allmulti=None if asked.allmulti is None else self.allmulti,
            tx_queue=None if asked.tx_queue is None else self.tx_queue,
        )

    def filled(self, other: Attributes) -> Attributes:
        """Returns the settings with what they lack taken from `other`."""
        return Attributes(
            mac=other.mac if self.mac is None else self.mac,
            promisc=other.promisc if self.promisc is None else self.promisc,
            mtu=other.mtu if self.mtu is None else self.mtu,
            allmulti=other.allmulti if self.allmulti is None else self.allmulti,
            tx_queue=other.tx_queue if self.tx_queue is None else self.tx_queue,
        )

    def request(self, own: Link) -> Request:
        """Sets all of them on a link, in one message."""
        return link.set_request(
            own,
            mac=self.mac or b"",
            promisc=self.promisc,
            mtu=self.mtu or 0,
            allmulti=self.allmulti,
            tx_queue=self.tx_queue,
        )

    def requests(self, own: Link) -> Iterator[Request]:
        """Sets each of them on a link, each in a message of its own, in the reference's order."""
        each = (
            Attributes(mtu=self.mtu),
            Attributes(mac=self.mac),
            Attributes(promisc=self.promisc),
            Attributes(allmulti=self.allmulti),
            Attributes(tx_queue=self.tx_queue),
        )
        return (item.request(own) for item in each if item)


def of(own: Link) -> Attributes:
    """Returns the settings of a link.

    Its modes are what somebody has set, as `ip link` shows them: one that is promiscuous only because a capture runs,
    or is a port, is not to be made so by restoring it.
    """
    return Attributes(
        mac=parse_mac(own.mac) if own.mac else None,
        promisc=bool(own.flags & link.IFF_PROMISC),
        mtu=own.mtu,
        allmulti=bool(own.flags & link.IFF_ALLMULTI),
        tx_queue=own.tx_queue,
    )


def validate(own: Link, asked: Attributes) -> None:
    """Refuses an MTU or a MAC that the link does not take; raises CniError(7) with the kernel's reason.

    Of a longer MAC than its own the kernel takes the beginning.
    """
    if asked.mac is not None and len(asked.mac) != len(own.mac.split(":")):
        msg = f"invalid args {format_mac(asked.mac)} for MAC addr: invalid argument"
        raise CniError(Code.INVALID_NETWORK_CONFIG, msg, f'"{own.name}" has an address like {own.mac or "none"}')
    if asked.mtu and not own.min_mtu <= asked.mtu <= (own.max_mtu or asked.mtu):
        limits = f"between {own.min_mtu} and {own.max_mtu}" if own.max_mtu else f"at least {own.min_mtu}"
        msg = f'failed to set "{own.name}" to MTU {asked.mtu}: invalid argument'
        raise CniError(Code.INVALID_NETWORK_CONFIG, msg, f'"mtu" must be {limits} for this interface')


def check(own: Link, asked: Attributes) -> None:
    """Checks that the link has what is asked for; raises CniError(999) in the reference's words."""
    now = of(own)
    if asked.mac is not None and now.mac != asked.mac:
        raise _wrong(f"Ethernet of {own.name}", format_mac(asked.mac), own.mac)
    if asked.promisc and not now.promisc:
        msg = f"Error: Tuning link {own.name} configured promisc is true, current value is 0"
        raise CniError(Code.INTERNAL, msg, f'set it again: ip link set "{own.name}" promisc on')
    if asked.mtu is not None and now.mtu != asked.mtu:
        raise _wrong(f"MTU of {own.name}", asked.mtu, now.mtu)
    if asked.allmulti is not None and now.allmulti != asked.allmulti:
        raise _wrong(f"all-multicast mode of {own.name}", _word(asked.allmulti), _word(now.allmulti))
    if asked.tx_queue is not None and now.tx_queue != asked.tx_queue:
        raise _wrong(f"Transmit Queue Length of {own.name}", asked.tx_queue, now.tx_queue)


def _wrong(what: str, asked: object, now: object) -> CniError:
    msg = f"Error: Tuning configured {what} is {asked}, current value is {now}"
    return CniError(Code.INTERNAL, msg, "set it back, or remove the container and create it again")


def _word(value: bool | None) -> str:
    return "true" if value else "false"
