"""What firewalld was told of, remembered in nftables: zone, address and whose it is, in sets that no rule refers to.

One rule: a record is a help for DEL without prevResult and for GC, never needed: where the kernel has no nftables,
nothing is remembered.
"""

from __future__ import annotations

import errno
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
    version: Set(rules.TABLE, f"firewalld{version}", (part,), "what firewalld was told of; no rule")
    for version, part in ADDRESS.items()
}
_ZONE = 0x71  # type of our own item in an element's userdata, beside its owner
_LACKING = (errno.ENOENT, errno.EINVAL, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class Record:
    """An address that is a source of a zone, and what names the attachment (nft_owner.owner_of)."""

    zone: str
    address: Address
    owner: bytes


def save_records(socket: NftSocket, spec: FirewallSpec) -> None:
    """Notes the attachment's addresses and zone; one that another attachment had is this one's now.

    Raises KernelError for what is not the kernel's lack of nftables.
    """
    zone = (_ZONE, spec.zone.encode()[:64])
    data = rules.userdata(spec, zone, label=f"zone: {spec.zone}, ")

    def attempt(generation: int) -> None:
        requests = [nft.table_request(rules.TABLE)]
        for version in spec.versions:
            own = SETS[version]
            new = [Element(address.packed, data) for address in spec.addresses if address.version == version]
            keys = {element.key for element in new}
            old = [element for element in nft_set.list_elements(socket, own) if element.key in keys]
            same = {element.key for element in old if element.userdata == data}
            requests.append(nft_set.set_request(own))
            requests += nft_set.delete_element_requests(
                own, (element.key for element in old if element.key not in same)
            )
            requests += nft_set.add_element_requests(own, (element for element in new if element.key not in same))
        nft.change(socket, *requests, generation=generation)

    _done(socket, attempt)


def list_records_of(socket: NftSocket, spec: FirewallSpec) -> list[Record]:
    """Returns what was noted of an attachment, whatever addresses are known now; raises KernelError."""
    owner = rules.spec_owner(spec)
    return [record for record in list_records(socket) if record.owner == owner]


def list_stale_records(socket: NftSocket, network: str, valid: Collection[Attachment]) -> list[Record]:
    """Returns what was noted of a network's attachments that are not `valid`; raises KernelError."""
    own = nft_owner.hash_name(network)
    kept = {nft_owner.owner_id(network, item.container_id, item.ifname) for item in valid}
    return [record for record in list_records(socket) if record.owner.startswith(own) and record.owner not in kept]


def delete_records(socket: NftSocket, records: Iterable[Record]) -> None:
    """Deletes records; one whose address is another attachment's by now stays, absent is success. KernelError."""
    gone = {(record.address.packed, record.owner) for record in records}

    def attempt(generation: int) -> None:
        requests = []
        for own in SETS.values():
            found = nft_set.list_elements(socket, own)
            requests += nft_set.delete_element_requests(
                own, [item.key for item in found if (item.key, rules.element_owner(item)) in gone]
            )
        nft.change(socket, *requests, generation=generation)

    if gone:
        _done(socket, attempt)


def list_records(socket: NftSocket) -> list[Record]:
    """Returns what was noted of all attachments; raises KernelError."""
    found = [element for own in SETS.values() for element in nft_set.list_elements(socket, own)]
    return [Record(_zone(element), ip_address(element.key), rules.element_owner(element)) for element in found]


def _zone(element: Element) -> str:
    """Returns the zone of a record; `nft` lists and loads the comment only."""
    zone = nft_rule.parse_userdata(element.userdata).get(_ZONE)
    if zone is not None:
        return zone.decode(errors="replace")
    return nft_rule.parse_comment(element.userdata).removeprefix("zone: ").partition(", ")[0]


def _done(socket: NftSocket, attempt: Callable[[int], None]) -> None:
    try:
        nft.retry_with_generation(socket, attempt)
    except KernelError as error:
        if error.errno not in _LACKING:
            raise
