"""A packet as the rules of a packet filter see it, for predicting their verdict without sending anything.

A part of the packet that is not known is None: a rule that depends on it is undecided.
"""

from __future__ import annotations

import sys

from cni.address import Address
from process.values import dataclass

TCP, UDP, ICMP, ICMPV6 = 6, 17, 1, 58  # IPPROTO_*
LINK, NETWORK, TRANSPORT = 0, 1, 2  # NFT_PAYLOAD_*_HEADER
NEW, ESTABLISHED, RELATED, UNTRACKED = 8, 2, 4, 64  # NF_CT_STATE_BIT
DNAT_STATUS, SNAT_STATUS = 0x20, 0x10  # IPS_DST_NAT, IPS_SRC_NAT
UNICAST, LOCAL = 1, 2  # RTN_*
_SEEN = 0x2 | 0x4 | 0x8  # IPS_SEEN_REPLY, IPS_ASSURED, IPS_CONFIRMED
_ETHERTYPES = {4: 0x0800, 6: 0x86DD, 0: 0x0806}
_IPV4_UNKNOWN, _IPV6_UNKNOWN = (1, 2, 3, 4, 5, 6, 7, 10, 11), (1, 2, 3, 4, 5)
_TTL = 63
_SYN, _ACK = 0x02, 0x10
_ECHO = {ICMP: 8, ICMPV6: 128}


@dataclass(frozen=True)
class Packet:
    """A packet at a hook: version 4, 6, or 0 for an ARP request; ports None for a protocol without ports.

    `iif` and `oif` are "" where the hook has none. `source_mac` is None if unknown. `mark` is None once a rule has set
    it to an unknown value.
    """

    version: int
    source: Address
    destination: Address
    protocol: int = TCP
    source_port: int | None = None
    port: int | None = None
    iif: str = ""
    oif: str = ""
    state: int = NEW
    status: int = 0
    mark: int | None = 0
    source_type: int = UNICAST
    destination_type: int = UNICAST
    source_mac: bytes | None = None
    destination_mac: bytes | None = None
    icmp_type: int | None = None  # None: an echo request, or its answer
    icmp_code: int = 0
    unknown_address: str = ""  # "source" or "destination": that address is not known, whatever the field has

    @property
    def connection_status(self) -> int:
        """The status of its connection (IPS_*)."""
        return self.status | (_SEEN if self.state == ESTABLISHED else 0)

    def payload(self, base: int, offset: int, length: int) -> bytes | None:
        """Returns bytes of a header, None if one of them is unknown."""
        parts = {LINK: self._link, NETWORK: self._network, TRANSPORT: self._transport}.get(base)
        whole = parts()[offset : offset + length] if parts else []
        if len(whole) < length or any(one is None for one in whole):
            return None
        return bytes(one for one in whole if one is not None)

    def _link(self) -> list[int | None]:
        unknown: list[int | None] = [None] * 6
        first = list(self.destination_mac) if self.destination_mac else unknown
        second = list(self.source_mac) if self.source_mac else unknown
        return [*first, *second, *_ETHERTYPES[self.version].to_bytes(2, "big")]

    def _network(self) -> list[int | None]:
        if not self.version:
            mac = list(self.source_mac) if self.source_mac else [None] * 6
            return [0, 1, 8, 0, 6, 4, 0, 1, *mac, *self.source.packed, *bytes(6), *self.destination.packed]
        if self.version == 4:
            whole: list[int | None] = [0x45, *bytes(7), _TTL, self.protocol, 0, 0]
            unknown: tuple[int, ...] = _IPV4_UNKNOWN
        else:
            whole = [0x60, *bytes(5), self.protocol, _TTL]
            unknown = _IPV6_UNKNOWN
        for index in unknown:
            whole[index] = None
        return [*whole, *self._address("source", self.source), *self._address("destination", self.destination)]

    def _address(self, which: str, address: Address) -> list[int | None]:
        return [None] * len(address.packed) if which == self.unknown_address else list(address.packed)

    def _transport(self) -> list[int | None]:
        if self.icmp_type is not None:
            return [self.icmp_type, self.icmp_code]
        if self.protocol in _ECHO:
            return [_ECHO[self.protocol] if self.state == NEW else 0 if self.version == 4 else 129, 0]
        ports: list[int | None] = []
        for port in (self.source_port, self.port):
            ports += [None, None] if port is None else list(port.to_bytes(2, "big"))
        if self.protocol != TCP:
            return ports
        return [*ports, *[None] * 9, _SYN if self.state == NEW else _ACK]


def host_number(number: int, size: int = 4) -> bytes:
    """Returns a number in the processor's byte order."""
    return number.to_bytes(size, sys.byteorder)
