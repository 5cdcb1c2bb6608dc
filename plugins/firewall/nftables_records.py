"""Records of the sources added to firewalld: zone, address and owner, in nftables sets that no rule refers to.

Records are optional. They serve GC, and DEL without prevResult; a kernel without nftables has none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from ipaddress import ip_address

from cni.address import Address
from cni.conf import Attachment
from kernel.errors import KernelError
from kernel.netfilter import nft, nft_owner, nft_rule, nft_set
from kernel.netfilter.nft import NftSocket
from kernel.netfilter.nft_set import ADDRESS, Element, Set
from plugins.firewall import nftables_rules as rules
from plugins.firewall.spec import FirewallSpec
from process.values import dataclass

SETS = {
    version: Set(rules.TABLE, f"firewalld{version}", (part,), "sources added to firewalld; no rule refers to this set")
    for version, part in ADDRESS.items()
}
_ZONE = 0x71  # type of this item in an element's userdata, beside its owner


@dataclass(frozen=True)
class SourceRecord:
    """An address that is a source of a zone, and its owner ID (kernel.netfilter.nft_owner)."""

    zone: str
    address: Address
    owner: bytes


def save_records(socket: NftSocket, spec: FirewallSpec) -> None:
    """Records the attachment's addresses and zone; takes over addresses of other attachments.

    Does nothing on a kernel without nftables. Raises KernelError.
    """
    zone = (_ZONE, spec.zone.encode()[:64])
    data = rules.userdata(spec, zone, label=f"zone: {spec.zone}, ")

    def write_elements(generation: int) -> None:
        requests = [nft.table_request(rules.TABLE)]
        for version in spec.versions:
            record_set = SETS[version]
            desired = [Element(address.packed, data) for address in spec.addresses if address.version == version]
            keys = {element.key for element in desired}
            existing = [element for element in nft_set.list_elements(socket, record_set) if element.key in keys]
            correct = {element.key for element in existing if element.userdata == data}
            requests.append(nft_set.set_request(record_set))
            requests += nft_set.delete_element_requests(
                record_set, (element.key for element in existing if element.key not in correct)
            )
            requests += nft_set.add_element_requests(
                record_set, (element for element in desired if element.key not in correct)
            )
        nft.change(socket, *requests, generation=generation)

    _retry_if_supported(socket, write_elements)


def list_records_of(socket: NftSocket, spec: FirewallSpec) -> list[SourceRecord]:
    """Returns the records of an attachment, also without its addresses; raises KernelError."""
    owner = rules.spec_owner(spec)
    return [record for record in list_records(socket) if record.owner == owner]


def list_stale_records(socket: NftSocket, network: str, valid: Collection[Attachment]) -> list[SourceRecord]:
    """Returns the records of a network's attachments that are not `valid`; raises KernelError."""
    prefix = nft_owner.hash_name(network)
    valid_owners = {nft_owner.owner_id(network, item.container_id, item.ifname) for item in valid}
    return [
        record
        for record in list_records(socket)
        if record.owner.startswith(prefix) and record.owner not in valid_owners
    ]


def delete_records(socket: NftSocket, records: Iterable[SourceRecord]) -> None:
    """Deletes records that still have the same owner; absent is success. Raises KernelError."""
    stale = {(record.address.packed, record.owner) for record in records}

    def delete_elements(generation: int) -> None:
        requests = []
        for record_set in SETS.values():
            elements = nft_set.list_elements(socket, record_set)
            requests += nft_set.delete_element_requests(
                record_set, [item.key for item in elements if (item.key, rules.element_owner(item)) in stale]
            )
        nft.change(socket, *requests, generation=generation)

    if stale:
        _retry_if_supported(socket, delete_elements)


def list_records(socket: NftSocket) -> list[SourceRecord]:
    """Returns the records of all attachments; raises KernelError."""
    elements = [element for record_set in SETS.values() for element in nft_set.list_elements(socket, record_set)]
    return [SourceRecord(_zone(element), ip_address(element.key), rules.element_owner(element)) for element in elements]


def _zone(element: Element) -> str:
    """Returns the zone of a record, from its comment if `nft` has listed and loaded it: that keeps only the comment."""
    zone = nft_rule.parse_userdata(element.userdata).get(_ZONE)
    if zone is not None:
        return zone.decode(errors="replace")
    return nft_rule.parse_comment(element.userdata).removeprefix("zone: ").partition(", ")[0]


def _retry_if_supported(socket: NftSocket, change_elements: Callable[[int], None]) -> None:
    try:
        nft.retry_with_generation(socket, change_elements)
    except KernelError as error:
        if error.errno not in nft.ABSENT_ERRNOS:
            raise
