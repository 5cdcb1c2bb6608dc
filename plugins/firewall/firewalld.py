"""The firewall by firewalld: the pod's addresses are sources of a zone, which D-Bus tells it (reference).

One rule: firewalld is asked, never configured for good: sources are of its runtime configuration. Which of them are
whose is remembered in nftables, so that DEL and GC need no prevResult.

What it costs: a connection to the bus and one send for all addresses; where nobody listens, one system call.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from cni.address import Address
from cni.conf import Attachment
from cni.errors import CniError, Code, UnchangedError, combined
from kernel.dbus import NO_OWNER_ERRORS, NO_REPLY, Bus, BusError, Call, Reply
from kernel.netfilter import nft
from kernel.netfilter.nft import NftSocket
from kernel.netfilter.nft_owner import owner_id
from kernel.netfilter.owned import REPAIR_HINT
from plugins.firewall import nftables_records
from plugins.firewall.nftables_records import Record
from plugins.firewall.spec import OPEN, FirewallSpec
from process.undo import Undo
from process.values import replace

_NAME, _PATH = "org.fedoraproject.FirewallD1", "/org/fedoraproject/FirewallD1"
_ZONE = f"{_NAME}.zone"
# firewalld's error codes: each of its errors has the same D-Bus name, and a text that begins with one of these.
_ALREADY_SET, _CONFLICT, _NO_ZONE, _NO_SOURCE = "ZONE_ALREADY_SET", "ZONE_CONFLICT", "INVALID_ZONE", "UNKNOWN_SOURCE"
_GONE = (_CONFLICT, _NO_ZONE, _NO_SOURCE)  # in another zone it is by somebody else's will
_CHANGES = {
    "addSource": "have firewalld add {} to zone {}",
    "removeSource": "have firewalld remove {} from zone {}",
}
_NOT_RUNNING = f"firewalld does not run: nobody on the system bus is called {_NAME}"
_CURE = 'start dbus and firewalld, or set "backend" to "iptables" or "nftables"'


def is_running() -> bool:
    """Tells whether firewalld's name on the system bus has an owner; without a bus it does not run.

    Raises CniError(11) when the bus does not answer.
    """
    try:
        with Bus() as bus:
            return bool(bus.get_owner(_NAME))
    except BusError:
        return False


def add(spec: FirewallSpec) -> None:
    """Puts the addresses into the zone; those that are there stay. Raises CniError(999), CniError(11).

    The zone is as before then. It is an UnchangedError where all else is too: what this ADD may have made for a policy
    is for the caller to take away, unless an earlier one made it.
    """
    before: list[Record] = []
    try:
        with nft.open_socket() as socket:
            before = nftables_records.list_records_of(socket, spec)
            with Bus() as bus, Undo() as undo:
                _add(spec, before, socket, bus, undo)
    except CniError as error:
        kind = UnchangedError if before or spec.policy == OPEN else CniError
        raise kind(error.code, error.msg, error.details or _CURE) from error


def _add(spec: FirewallSpec, before: list[Record], socket: NftSocket, bus: Bus, undo: Undo) -> None:
    nftables_records.save_records(socket, spec)
    undo.push("restore what is remembered of the sources", partial(_restore, socket, spec, before))
    known = {record.address for record in before}
    fresh = {address: spec.zone for address in spec.addresses if address not in known}
    undo.push("take the sources out again", partial(_take_back, bus, fresh))
    errors = []
    for address, reply in _asked(bus, "addSource", dict.fromkeys(spec.addresses, spec.zone)).items():
        if _is(reply, _ALREADY_SET):
            fresh.pop(address, None)
        elif reply.error:
            errors.append(_failure(reply, f"failed to add the address {_source(address)} to {spec.zone} zone", bus))
    if error := combined(errors):
        raise error


def _take_back(bus: Bus, zones: Mapping[Address, str]) -> None:
    bus.shorten_deadline()
    _asked(bus, "removeSource", zones)


def _restore(socket: NftSocket, spec: FirewallSpec, before: list[Record]) -> None:
    """Remembers of an attachment what was remembered before, and no more."""
    nftables_records.delete_records(socket, nftables_records.list_records_of(socket, spec))
    for zone in sorted({record.zone for record in before}):
        addresses = tuple(record.address for record in before if record.zone == zone)
        nftables_records.save_records(socket, replace(spec, zone=zone, addresses=addresses))


def check(spec: FirewallSpec) -> None:
    """Raises CniError(999) for an address that is not in the zone (the reference passes that), CniError(11)."""
    errors = []
    with Bus() as bus:
        for address, reply in _asked(bus, "querySource", dict.fromkeys(spec.addresses, spec.zone)).items():
            doing = f"failed to find the address {_source(address)} in {spec.zone} zone"
            if reply.error:
                errors.append(_failure(reply, doing, bus))
            elif reply.value is not True:
                errors.append(CniError(Code.INTERNAL, doing, REPAIR_HINT))
    if error := combined(errors):
        raise error


def delete(socket: NftSocket, spec: FirewallSpec) -> None:
    """Takes the addresses out of the zone; absent is success, and so is no firewalld, whose sources end with it.

    An address that is remembered as another attachment's by now stays. Those of prevResult that are remembered as
    nobody's are taken out too: the reference may have put them there.
    """
    every = nftables_records.list_records(socket)
    owner = owner_id(spec.network, spec.container_id, spec.ifname)
    known = {record.address for record in every}
    others = {address: spec.zone for address in spec.addresses if address not in known}
    _withdraw(socket, [record for record in every if record.owner == owner], others)


def gc(socket: NftSocket, network: str, valid: Collection[Attachment]) -> None:
    """Takes out the addresses that are remembered of a network's attachments that are not `valid`."""
    _withdraw(socket, nftables_records.list_stale_records(socket, network, valid), {})


def get_problem(zone: str) -> str:
    """Tells what keeps this backend from working, "" when it works."""
    try:
        with Bus() as bus:
            if not bus.get_owner(_NAME):
                return _NOT_RUNNING
            (reply,) = bus.call(Call(_NAME, _PATH, _ZONE, "getZones"))
    except CniError as error:
        return str(error)
    if reply.error:
        return str(_failure(reply, "firewalld does not name its zones", bus))
    return "" if zone in (reply.value or ()) else f'firewalld has no zone "{zone}"'


def _withdraw(socket: NftSocket, remembered: list[Record], others: dict[Address, str]) -> None:
    """Takes addresses out of their zones, if firewalld runs, and forgets them; raises CniError."""
    zones = others | {record.address: record.zone for record in remembered}
    if not zones:
        return
    errors = []
    try:
        with Bus() as bus:
            for address, reply in _asked(bus, "removeSource", zones).items() if bus.get_owner(_NAME) else ():
                if reply.error and reply.error not in NO_OWNER_ERRORS and not any(_is(reply, code) for code in _GONE):
                    doing = f"failed to remove the address {_source(address)} from {zones[address]} zone"
                    errors.append(_failure(reply, doing, bus))
    except BusError:
        pass
    if error := combined(errors):
        raise error
    nftables_records.delete_records(socket, remembered)


def _asked(bus: Bus, method: str, zones: Mapping[Address, str]) -> dict[Address, Reply]:
    """Calls a method of zones with each address and its zone; returns the replies."""
    calls = [
        Call(_NAME, _PATH, _ZONE, method, (zone, _source(address)), _CHANGES.get(method, "").format(address, zone))
        for address, zone in zones.items()
    ]
    return dict(zip(zones, bus.call(*calls), strict=True))


def _source(address: Address) -> str:
    """Returns an address as the reference names it."""
    return f"{address}/{address.max_prefixlen}"


def _is(reply: Reply, code: str) -> bool:
    """Tells whether a reply is an error of this code: all of firewalld's have one name, the code is in the text."""
    return bool(reply.error) and code in str(reply.value)


def _failure(reply: Reply, doing: str, bus: Bus) -> CniError:
    """Returns the error of what was being done, with what helps."""
    msg = f"{doing}: {reply.value or reply.error}"
    if reply.error == NO_REPLY:
        return CniError(Code.TRY_AGAIN_LATER, msg, "firewalld hangs, starts or reloads")
    if reply.error in NO_OWNER_ERRORS:
        return CniError(Code.INTERNAL, f"{doing}: {_NOT_RUNNING}", _CURE)
    if _is(reply, _NO_ZONE):
        return CniError(Code.INTERNAL, msg, 'set "firewalldZone" to one that `firewall-cmd --get-zones` lists')
    if _is(reply, _CONFLICT):
        return CniError(Code.INTERNAL, msg, "`firewall-cmd --get-active-zones` tells which zone has it")
    return CniError(Code.INTERNAL, msg)
