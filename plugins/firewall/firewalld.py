"""The backend firewalld: adds the pod's addresses to a zone as sources, over D-Bus, like the reference plugin.

Only firewalld's runtime configuration is changed, never the permanent one. The owner of each source is recorded in
nftables (nftables_records), so that DEL and GC need no prevResult.

Cost: a connection to the bus and one send for all addresses; one system call if there is no bus.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from cni.address import Address
from cni.conf import Attachment
from cni.errors import CniError, Code, UnchangedError, combined, internal
from kernel.dbus import NO_OWNER_ERRORS, NO_REPLY, Bus, BusError, MethodCall, Reply
from kernel.netfilter import nft
from kernel.netfilter.nft import NftSocket
from kernel.netfilter.nft_owner import owner_id
from kernel.netfilter.owned import repairable_error
from plugins.firewall import nftables_records
from plugins.firewall.nftables_records import SourceRecord
from plugins.firewall.spec import OPEN, FirewallSpec
from process.undo import Undo
from process.values import replace

_NAME, _PATH = "org.fedoraproject.FirewallD1", "/org/fedoraproject/FirewallD1"
_ZONE = f"{_NAME}.zone"
# firewalld's error codes: each of its errors has the same D-Bus name, and a text that begins with one of these.
_ALREADY_SET, _CONFLICT, _NO_ZONE, _NO_SOURCE = "ZONE_ALREADY_SET", "ZONE_CONFLICT", "INVALID_ZONE", "UNKNOWN_SOURCE"
_ABSENT = (_CONFLICT, _NO_ZONE, _NO_SOURCE)  # not in our zone; a conflict: another program added it to another zone
_CHANGES = {
    "addSource": "have firewalld add {} to zone {}",
    "removeSource": "have firewalld remove {} from zone {}",
}
_NOT_RUNNING = f"firewalld does not run: no process on the system bus is called {_NAME}"
_FIX = 'start dbus and firewalld, or set "backend" to "iptables" or "nftables"'


def is_running() -> bool:
    """Returns whether firewalld's name on the system bus has an owner; False without a bus.

    Raises CniError(11) when the bus does not answer.
    """
    try:
        with Bus() as bus:
            return bool(bus.get_owner(_NAME))
    except BusError:
        return False


def add(spec: FirewallSpec) -> None:
    """Adds the addresses to the zone, if they are not there yet. Raises CniError(999), CniError(11).

    After an error the zone is as before. The error is an UnchangedError unless this ADD may have created rules for
    a policy, which the caller removes.
    """
    before: list[SourceRecord] = []
    try:
        with nft.open_socket() as socket:
            before = nftables_records.list_records_of(socket, spec)
            with Bus() as bus, Undo() as undo:
                _add(spec, before, socket, bus, undo)
    except CniError as error:
        kind = UnchangedError if before or spec.policy == OPEN else CniError
        raise kind(error.code, error.msg, error.details or _FIX) from error


def _add(spec: FirewallSpec, before: list[SourceRecord], socket: NftSocket, bus: Bus, undo: Undo) -> None:
    nftables_records.save_records(socket, spec)
    undo.push("restore the records of the sources", partial(_restore, socket, spec, before))
    recorded = {record.address for record in before}
    added = {address: spec.zone for address in spec.addresses if address not in recorded}
    undo.push("remove the added sources", partial(_remove_added, bus, added))
    errors = []
    for address, reply in _call(bus, "addSource", dict.fromkeys(spec.addresses, spec.zone)).items():
        if _has_code(reply, _ALREADY_SET):
            added.pop(address, None)
        elif reply.error:
            errors.append(_failure(reply, f"failed to add the address {_source(address)} to {spec.zone} zone"))
    if error := combined(errors):
        raise error


def _remove_added(bus: Bus, zones: Mapping[Address, str]) -> None:
    bus.shorten_deadline()
    _call(bus, "removeSource", zones)


def _restore(socket: NftSocket, spec: FirewallSpec, before: list[SourceRecord]) -> None:
    """Replaces the attachment's records by the earlier ones."""
    nftables_records.delete_records(socket, nftables_records.list_records_of(socket, spec))
    for zone in sorted({record.zone for record in before}):
        addresses = tuple(record.address for record in before if record.zone == zone)
        nftables_records.save_records(socket, replace(spec, zone=zone, addresses=addresses))


def check(spec: FirewallSpec) -> None:
    """Raises CniError(999) for an address that is not in the zone, which the reference plugin accepts; CniError(11)."""
    errors = []
    with Bus() as bus:
        for address, reply in _call(bus, "querySource", dict.fromkeys(spec.addresses, spec.zone)).items():
            msg = f"failed to find the address {_source(address)} in {spec.zone} zone"
            if reply.error:
                errors.append(_failure(reply, msg))
            elif reply.value is not True:
                errors.append(repairable_error(msg))
    if error := combined(errors):
        raise error


def delete(socket: NftSocket, spec: FirewallSpec) -> None:
    """Removes the addresses from the zone. Absent is success; so is a stopped firewalld, which has none.

    Keeps an address that a record assigns to another attachment. Removes addresses of prevResult without a record,
    which the reference plugin may have added.
    """
    records = nftables_records.list_records(socket)
    owner = owner_id(spec.network, spec.container_id, spec.ifname)
    recorded = {record.address for record in records}
    unrecorded = {address: spec.zone for address in spec.addresses if address not in recorded}
    _remove_sources(socket, [record for record in records if record.owner == owner], unrecorded)


def gc(socket: NftSocket, network: str, valid: Collection[Attachment]) -> None:
    """Removes the recorded addresses of a network's attachments that are not `valid`."""
    _remove_sources(socket, nftables_records.list_stale_records(socket, network, valid), {})


def get_problem(zone: str) -> str:
    """Returns why this backend cannot work, "" if it can."""
    try:
        with Bus() as bus:
            if not bus.get_owner(_NAME):
                return _NOT_RUNNING
            (reply,) = bus.call(MethodCall(_NAME, _PATH, _ZONE, "getZones"))
    except CniError as error:
        return str(error)
    if reply.error:
        return str(_failure(reply, "firewalld does not list its zones"))
    return "" if zone in (reply.value or ()) else f'firewalld has no zone "{zone}"'


def _remove_sources(socket: NftSocket, records: list[SourceRecord], unrecorded: dict[Address, str]) -> None:
    """Removes addresses from their zones, if firewalld runs, then their records; raises CniError."""
    zones = unrecorded | {record.address: record.zone for record in records}
    if not zones:
        return
    errors = []
    try:
        with Bus() as bus:
            for address, reply in _call(bus, "removeSource", zones).items() if bus.get_owner(_NAME) else ():
                if (
                    reply.error
                    and reply.error not in NO_OWNER_ERRORS
                    and not any(_has_code(reply, code) for code in _ABSENT)
                ):
                    msg = f"failed to remove the address {_source(address)} from {zones[address]} zone"
                    errors.append(_failure(reply, msg))
    except BusError:
        pass
    if error := combined(errors):
        raise error
    nftables_records.delete_records(socket, records)


def _call(bus: Bus, method: str, zones: Mapping[Address, str]) -> dict[Address, Reply]:
    """Calls a method of firewalld's zone interface with each address and its zone; returns the replies."""
    calls = [
        MethodCall(
            _NAME, _PATH, _ZONE, method, (zone, _source(address)), _CHANGES.get(method, "").format(address, zone)
        )
        for address, zone in zones.items()
    ]
    return dict(zip(zones, bus.call(*calls), strict=True))


def _source(address: Address) -> str:
    """Returns an address in the format of the reference plugin's sources."""
    return f"{address}/{address.max_prefixlen}"


def _has_code(reply: Reply, code: str) -> bool:
    """Returns whether a reply is an error with this code, which is in its text: all have the same D-Bus name."""
    return bool(reply.error) and code in str(reply.value)


def _failure(reply: Reply, action: str) -> CniError:
    """Returns the error of a failed call, with its fix; `action` begins the message."""
    msg = f"{action}: {reply.value or reply.error}"
    if reply.error == NO_REPLY:
        return CniError(Code.TRY_AGAIN_LATER, msg, "firewalld hangs, starts or reloads")
    if reply.error in NO_OWNER_ERRORS:
        return internal(f"{action}: {_NOT_RUNNING}", _FIX)
    if _has_code(reply, _NO_ZONE):
        return internal(msg, 'set "firewalldZone" to one of the zones that this lists: firewall-cmd --get-zones')
    if _has_code(reply, _CONFLICT):
        return internal(msg, "find the zone that has it: firewall-cmd --get-active-zones")
    return internal(msg)
