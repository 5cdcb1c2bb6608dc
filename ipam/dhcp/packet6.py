"""DHCPv6 messages as values (RFC 8415): bytes <-> Message.

One rule: bytes from the network become a Message or raise Malformed, in time proportional to their number. A mistake in
an option that a lease does not need (name servers, domains, preference) is treated like a missing option.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from ipaddress import IPv6Address

from ipam.dhcp import domain
from ipam.dhcp.options import INFINITE_FIELD, INFINITE_S, to_seconds
from ipam.dhcp.packet import Malformed
from process.values import dataclass

# Message.kind (RFC 8415, section 7.3).
SOLICIT, ADVERTISE, REQUEST, CONFIRM, RENEW, REBIND, REPLY, RELEASE, DECLINE = 1, 2, 3, 4, 5, 6, 7, 8, 9
# Options (RFC 8415, section 21; RFC 3646: DNS_SERVERS, DOMAIN_LIST).
CLIENT_ID, SERVER_ID, IA_NA, IA_ADDRESS, OPTION_REQUEST, PREFERENCE, ELAPSED_TIME = 1, 2, 3, 5, 6, 7, 8
STATUS_CODE, RAPID_COMMIT, DNS_SERVERS, DOMAIN_LIST, SOL_MAX_RT = 13, 14, 23, 24, 82
# Status.code (RFC 8415, section 21.13).
SUCCESS, UNSPECIFIED_FAILURE, NO_ADDRESSES, NO_BINDING, NOT_ON_LINK, USE_MULTICAST = 0, 1, 2, 3, 4, 5

_STATUS_NAMES = ("Success", "UnspecFail", "NoAddrsAvail", "NoBinding", "NotOnLink", "UseMulticast")
_KINDS = range(SOLICIT, 12)  # the messages of relay agents, 12 and 13, have another header
_HEADER_BYTES = 4
_OPTION = struct.Struct("!HH")  # code, length
_IA_HEADER = struct.Struct("!4sII")  # IAID, T1, T2
_IA_ADDRESS_HEADER = struct.Struct("!16sII")  # address, preferred lifetime, valid lifetime
_DUID_MAX_BYTES = 130  # section 11.1: a type of 2 bytes and at most 128 bytes
_TEXT_MAX_CHARACTERS = 255
_ELAPSED_MAX = 0xFFFF


@dataclass(frozen=True)
class StatusCode:
    """A status code, and the server's text for the operator."""

    code: int
    text: str = ""

    def describe(self) -> str:
        """Returns the name of the code, and the text."""
        name = _STATUS_NAMES[self.code] if self.code < len(_STATUS_NAMES) else f"status {self.code}"
        return f"{name}: {self.text}" if self.text else name


@dataclass(frozen=True)
class LeasedAddress:
    """An address of an identity association (IAADDR), with its lifetimes in seconds, INFINITE_S for ever."""

    address: IPv6Address
    preferred_s: float = 0.0
    valid_s: float = 0.0
    status: StatusCode = StatusCode(SUCCESS)


@dataclass(frozen=True)
class Association:
    """An identity association for addresses (IA_NA): a client's interface, its addresses, T1 and T2 in seconds."""

    iaid: bytes
    addresses: tuple[LeasedAddress, ...] = ()
    renewal_s: float = 0.0
    rebinding_s: float = 0.0
    status: StatusCode = StatusCode(SUCCESS)


@dataclass(frozen=True)
class Message:
    """A DHCPv6 message; an absent option is the default of its field.

    Identifiers are DUIDs. `elapsed_s` is the time since the client began the exchange. Options that podwire does not
    use are not kept.
    """

    kind: int
    xid: int
    client_id: bytes = b""
    server_id: bytes = b""
    associations: tuple[Association, ...] = ()
    elapsed_s: float | None = None
    requested: tuple[int, ...] = ()
    status: StatusCode = StatusCode(SUCCESS)
    preference: int = 0
    rapid_commit: bool = False
    sol_max_rt_s: int = 0
    dns_servers: tuple[IPv6Address, ...] = ()
    search: tuple[str, ...] = ()

    def association(self, iaid: bytes) -> Association | None:
        """Returns the association of an interface, None without one."""
        return next((each for each in self.associations if each.iaid == iaid), None)

    def failure(self, iaid: bytes) -> StatusCode | None:
        """Returns the failure that a server reports for the message or for an association, None without one."""
        association = self.association(iaid)
        statuses = (self.status, association.status if association else self.status)
        return next((status for status in statuses if status.code != SUCCESS), None)


def encode(message: Message) -> bytes:
    """Returns the bytes of a message; `elapsed_s` stays at its maximum when the field is too small."""
    parts = [struct.pack("!I", message.kind << 24 | message.xid)]
    for number, content in ((CLIENT_ID, message.client_id), (SERVER_ID, message.server_id)):
        if content:
            parts.append(_option(number, content))
    parts += (_encode_association(association) for association in message.associations)
    if message.elapsed_s is not None:
        hundredths = min(int(message.elapsed_s * 100), _ELAPSED_MAX)
        parts.append(_option(ELAPSED_TIME, struct.pack("!H", hundredths)))
    if message.requested:
        parts.append(_option(OPTION_REQUEST, struct.pack(f"!{len(message.requested)}H", *message.requested)))
    parts.append(_encode_status(message.status))
    if message.preference:
        parts.append(_option(PREFERENCE, bytes((message.preference,))))
    if message.rapid_commit:
        parts.append(_option(RAPID_COMMIT, b""))
    if message.sol_max_rt_s:
        parts.append(_option(SOL_MAX_RT, struct.pack("!I", message.sol_max_rt_s)))
    if message.dns_servers:
        parts.append(_option(DNS_SERVERS, b"".join(address.packed for address in message.dns_servers)))
    if message.search:
        parts.append(_option(DOMAIN_LIST, domain.encode_list(message.search)))
    return b"".join(parts)


def decode(data: bytes) -> Message:
    """Returns the message in the payload of a UDP datagram; raises Malformed. Of a repeated option the first counts."""
    if len(data) < _HEADER_BYTES:
        raise Malformed(f"a DHCPv6 message of {len(data)} bytes is too short")
    if data[0] not in _KINDS:
        raise Malformed(f"the message type is {data[0]}")
    first: dict[int, bytes] = {}
    associations = []
    for number, content in _options(data[_HEADER_BYTES:]):
        first.setdefault(number, content)
        if number == IA_NA:
            associations.append(_decode_association(content))
    elapsed = first.get(ELAPSED_TIME, b"")
    preference, sol_max_rt = first.get(PREFERENCE, b""), first.get(SOL_MAX_RT, b"")
    return Message(
        kind=data[0],
        xid=int.from_bytes(data[1:_HEADER_BYTES], "big"),
        client_id=_decode_duid(first, CLIENT_ID),
        server_id=_decode_duid(first, SERVER_ID),
        associations=tuple(associations),
        elapsed_s=int.from_bytes(elapsed, "big") / 100 if len(elapsed) == 2 else None,
        requested=_decode_numbers(first.get(OPTION_REQUEST, b"")),
        status=_decode_status(first),
        preference=preference[0] if len(preference) == 1 else 0,
        rapid_commit=first.get(RAPID_COMMIT) == b"",
        sol_max_rt_s=int.from_bytes(sol_max_rt, "big") if len(sol_max_rt) == 4 else 0,
        dns_servers=_decode_addresses(first.get(DNS_SERVERS, b"")),
        search=domain.decode_list(first.get(DOMAIN_LIST, b"")),
    )


def _options(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the options in a field; raises Malformed for a truncated one."""
    position, end = 0, len(data)
    while position < end:
        start = position + _OPTION.size
        if start > end:
            raise Malformed("an option lacks its length")
        number, length = _OPTION.unpack_from(data, position)
        position = start + length
        if position > end:
            raise Malformed(f"option {number} is truncated")
        yield number, data[start:position]


def _option(number: int, content: bytes) -> bytes:
    return _OPTION.pack(number, len(content)) + content


def _encode_association(association: Association) -> bytes:
    times = _from_seconds(association.renewal_s), _from_seconds(association.rebinding_s)
    parts = [_IA_HEADER.pack(association.iaid, *times)]
    for leased in association.addresses:
        lifetimes = _from_seconds(leased.preferred_s), _from_seconds(leased.valid_s)
        content = _IA_ADDRESS_HEADER.pack(leased.address.packed, *lifetimes) + _encode_status(leased.status)
        parts.append(_option(IA_ADDRESS, content))
    parts.append(_encode_status(association.status))
    return _option(IA_NA, b"".join(parts))


def _decode_association(content: bytes) -> Association:
    if len(content) < _IA_HEADER.size:
        raise Malformed("an identity association is truncated")
    iaid, renewal, rebinding = _IA_HEADER.unpack_from(content)
    options = list(_options(content[_IA_HEADER.size :]))
    return Association(
        iaid=iaid,
        addresses=tuple(_decode_leased(content) for number, content in options if number == IA_ADDRESS),
        renewal_s=to_seconds(renewal),
        rebinding_s=to_seconds(rebinding),
        status=_decode_status(dict(reversed(options))),
    )


def _decode_leased(content: bytes) -> LeasedAddress:
    if len(content) < _IA_ADDRESS_HEADER.size:
        raise Malformed("an address of an identity association is truncated")
    address, preferred, valid = _IA_ADDRESS_HEADER.unpack_from(content)
    options = list(_options(content[_IA_ADDRESS_HEADER.size :]))
    status = _decode_status(dict(reversed(options)))
    return LeasedAddress(IPv6Address(address), to_seconds(preferred), to_seconds(valid), status)


def _encode_status(status: StatusCode) -> bytes:
    if status == StatusCode(SUCCESS):
        return b""
    return _option(STATUS_CODE, struct.pack("!H", status.code) + status.text.encode())


def _decode_status(options: dict[int, bytes]) -> StatusCode:
    """Returns the status, SUCCESS without one; its text is shortened, with "?" for what is not printable."""
    content = options.get(STATUS_CODE, b"\0\0")
    if len(content) < 2:
        raise Malformed("a status code is truncated")
    text = content[2 : 2 + 4 * _TEXT_MAX_CHARACTERS].rstrip(b"\0").decode("utf-8", "replace")[:_TEXT_MAX_CHARACTERS]
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return StatusCode(int.from_bytes(content[:2], "big"), printable)


def _decode_duid(options: dict[int, bytes], number: int) -> bytes:
    duid = options.get(number)
    if duid is not None and not 0 < len(duid) <= _DUID_MAX_BYTES:
        raise Malformed(f"the DUID in option {number} has {len(duid)} bytes")
    return duid or b""


def _decode_numbers(content: bytes) -> tuple[int, ...]:
    return struct.unpack(f"!{len(content) // 2}H", content) if len(content) % 2 == 0 else ()


def _decode_addresses(content: bytes) -> tuple[IPv6Address, ...]:
    """Returns the addresses in an option; none if its length is wrong."""
    if len(content) % 16:
        return ()
    return tuple(IPv6Address(content[start : start + 16]) for start in range(0, len(content), 16))


def _from_seconds(seconds: float) -> int:
    return INFINITE_FIELD if seconds == INFINITE_S else int(seconds)
