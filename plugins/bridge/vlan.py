"""VLANs: those that a port is in, a bridge that keeps them apart, and the interface that is the gateway in one of them.

One rule: a port is in its VLANs, and the bridge keeps them apart, before a frame can pass; what is found under its
name is complete.
"""

from __future__ import annotations

import errno
import os
import sys
from functools import partial

from cni.address import format_mac, parse_mac
from cni.args import is_interface_name
from cni.errors import CniError, Code
from cni.result import Result
from cni.undo import Undo
from kernel import link, sysctl, vlan
from kernel.errors import KernelError
from kernel.link import Link, VethEnd
from kernel.rtnl import Request, Socket
from kernel.vlan import PVID, UNTAGGED, Filtering
from plugins.bridge import switch
from plugins.bridge.conf import BridgeConf, Vlans

_NATIVE = 1  # untagged frames of a trunk port are in this VLAN when none is asked for (reference)
_GATEWAY_TRIES = 5  # each loss takes another ADD that fails within the same millisecond


def gateway_name(conf: BridgeConf) -> str:
    """Returns the name of the interface that has the gateway's addresses in a VLAN (the reference's)."""
    return f"{conf.bridge}.{conf.vlans.access}"


def refuse_long_name(conf: BridgeConf) -> None:
    """Refuses a bridge's name that leaves no room for the VLAN behind it: CniError(7)."""
    name = gateway_name(conf)
    if conf.is_gateway and conf.vlans.access and not is_interface_name(name):
        raise CniError(
            Code.INVALID_NETWORK_CONFIG,
            f'"bridge" "{conf.bridge}" with "vlan" {conf.vlans.access} makes the gateway\'s interface "{name}", '
            "a name longer than 15 bytes",
            f'set "bridge" to a name of at most {15 - len(name) + len(conf.bridge)} bytes',
        )


def filtering(host: Socket, bridge: Link, asked: Vlans) -> Filtering | None:
    """Returns how the bridge treats VLANs, None when nothing is asked for.

    Raises NoFilteringError, CniError(7) when the bridge must not be made to filter, KernelError.
    """
    if not asked.filtering:
        return None
    found = vlan.filtering(host, bridge)
    if not found.on and not found.default:
        raise CniError(
            Code.INVALID_NETWORK_CONFIG,
            f'bridge "{bridge.name}" does not filter by VLAN, and its default_pvid is 0: its ports would be cut off',
            f'put them in VLANs, then run: ip link set "{bridge.name}" type bridge vlan_filtering 1',
        )
    return found


def settings(port: Link, asked: Vlans, found: Filtering | None) -> list[Request]:
    """Returns what puts a new port of the bridge in the VLANs asked for, and in no other."""
    wanted = _wanted(asked, found) if found else {}
    if not found or not wanted:
        return []
    superfluous = [found.default] if found.default and found.default not in wanted else []
    removal = [vlan.removal(port, superfluous)] if superfluous else []
    return [*removal, vlan.addition(port, wanted)]


def enforce(host: Socket, bridge: Link, found: Filtering | None) -> None:
    """Has the bridge filter by VLAN if that is asked for, and says so; raises KernelError.

    The reference leaves an existing bridge as it is, and then VLANs separate nothing. It is not undone, since others
    may rely on it by then.
    """
    if found is None or found.on:
        return
    host.change(vlan.filtering_on(bridge))
    print(
        f'podwire: bridge "{bridge.name}" did not filter by VLAN and does now: '
        f"ports that were in no VLAN of their own are in VLAN {found.default}, tagged frames are dropped",
        file=sys.stderr,
    )


def add_gateways(host: Socket, bridge: Link, outside: Link, conf: BridgeConf, result: Result, undo: Undo) -> Link:
    """Puts the gateway addresses on the interface that is in the port's VLAN, made if missing, and returns it.

    Without a VLAN, that is the bridge. Another ADD that fails takes away the interface it made, perhaps between our
    look and our use. Raises CniError(7) for an address or a link in the way, KernelError.
    """
    if not (conf.vlans.access and result.ips):
        switch.add_gateways(host, bridge, conf, result)
        return bridge
    for tries_left in reversed(range(_GATEWAY_TRIES)):
        gateway = _find(host, conf) or _make(host, bridge, outside, conf, undo)
        try:
            switch.add_gateways(host, gateway, conf, result)
        except CniError:
            if not tries_left or link.get(host, link.by_index(gateway.index)) != [None]:
                raise
        else:
            return gateway
    raise AssertionError("unreachable")


def check(host: Socket, conf: BridgeConf, prev_result: Result, bridge: Link, outside: Link) -> Link:
    """Checks the VLANs of the attachment; returns the link that has the gateway's addresses: the bridge without VLANs.

    Raises CniError(999), KernelError.
    """
    if not conf.vlans.filtering:
        return bridge
    found = vlan.filtering(host, bridge)
    if not found.on:
        raise _wrong(
            f"Bridge interface {bridge.name} does not filter by VLAN",
            f'set it: ip link set "{bridge.name}" type bridge vlan_filtering 1',
        )
    wanted = _wanted(conf.vlans, found)
    ports = vlan.of_ports(host, bridge)
    if wanted:
        _check_port(outside, wanted, ports)
    if not (conf.is_gateway and conf.vlans.access and prev_result.ips):
        return bridge
    gateway = _check_gateway(host, conf, prev_result)
    if gateway.kind == "veth" and gateway.lower in ports:
        (port,) = link.get(host, link.by_index(gateway.lower))
        if port is not None and not ports[port.index].get(conf.vlans.access, 0) & PVID:
            details = f"set it: {_command('add', port.name, conf.vlans.access, PVID | UNTAGGED)}"
            raise _wrong(f"Interface {gateway.name} is not in VLAN {conf.vlans.access}", details)
    return gateway


def _wanted(asked: Vlans, found: Filtering) -> vlan.Vlans:
    """Returns the VLANs that a port must have; none when the bridge's default is left to it."""
    if not asked.access and not asked.trunk:
        return {}
    kept = {found.default: UNTAGGED} if asked.keep_default and found.default else {}
    # With the reference a trunk that lists the port's own VLAN leaves it without one for untagged frames.
    return {**kept, **dict.fromkeys(asked.trunk or (), 0), asked.access or _NATIVE: PVID | UNTAGGED}


def _find(host: Socket, conf: BridgeConf) -> Link | None:
    """Returns the gateway's interface, up. An administrator may have made it another way, so its kind is not asked."""
    name = gateway_name(conf)
    (found,) = link.get(host, link.by_name(name))
    if found is None:
        return None
    if found.kind == "bridge":
        raise CniError(
            Code.INVALID_NETWORK_CONFIG,
            f'"{name}" already exists but is a bridge, not the interface of VLAN {conf.vlans.access}',
            'set "bridge" of either network to another name',
        )
    if not found.is_up:
        host.change(link.settings(found, up=True))
    return found


def _make(host: Socket, bridge: Link, outside: Link, conf: BridgeConf, undo: Undo) -> Link:
    """Makes the gateway's interface, one end of a pair whose other end is a port of the bridge, and returns it.

    It gets its name when its port is in the VLAN: who finds it can use it. When another ADD was quicker, that one's is
    returned.
    """
    name = gateway_name(conf)
    port, inner = (VethEnd("veth" + os.urandom(4).hex(), link.random_mac()) for _ in range(2))
    undo.push(f'delete "{name}"', partial(_delete_unused, host, bridge, outside, conf, (port, inner)))
    try:
        host.change(link.veth(port, inner, None, master=bridge.index, mtu=conf.mtu or bridge.mtu))
        for end in (port, inner):
            sysctl.attempt(f"ipv6/conf/{end.name}/accept_ra", "0")
        host_end, gateway = link.get(host, link.by_name(port.name), link.by_name(inner.name))
        if host_end is None or gateway is None:
            raise CniError(Code.TRY_AGAIN_LATER, f'"{port.name}" vanished again', "something else deleted it")
        access = Vlans(conf.vlans.access, None, conf.vlans.keep_default)
        # A bridge without an address of its own takes the lowest of its ports'; written back, the one it had stays.
        keeping = link.settings(bridge, mac=parse_mac(bridge.mac))
        joining = settings(host_end, access, filtering(host, bridge, access))
        host.change(*joining, keeping, link.settings(gateway, up=True, name=name))
    except KernelError as error:
        if error.errno != errno.EEXIST:
            raise error.prefixed(f'failed to make "{name}": ') from error
        _delete_unused(host, bridge, outside, conf, (port, inner))
    made = _find(host, conf)
    if made is None:
        raise CniError(Code.TRY_AGAIN_LATER, f'"{name}" vanished again', "something else deleted it")
    return made


def _delete_unused(host: Socket, bridge: Link, outside: Link, conf: BridgeConf, pair: tuple[VethEnd, VethEnd]) -> None:
    """Deletes the pair we made, unless it is the gateway's interface and others have joined the VLAN meanwhile.

    Who joins is in the VLAN long before it looks for the gateway's interface, so it is either seen here, or finds the
    interface missing and makes it.
    """
    port, gateway = link.get(host, link.by_name(pair[0].name), link.by_name(gateway_name(conf)))
    if port is None or port.mac != format_mac(pair[0].mac):
        return
    if gateway is not None and gateway.mac == format_mac(pair[1].mac):
        others = vlan.of_ports(host, bridge).items()
        own = (port.index, outside.index)
        if any(vlans.get(conf.vlans.access, 0) & PVID for index, vlans in others if index not in own):
            return
    host.change(link.deletion(port))


def _check_port(outside: Link, wanted: vlan.Vlans, ports: dict[int, vlan.Vlans]) -> None:
    present = ports.get(outside.index, {})
    for vid in sorted(wanted.keys() | present.keys()):
        if vid not in wanted:
            details = f"set it: {_command('del', outside.name, vid)}"
            raise _wrong(f"Interface {outside.name} is in VLAN {vid}, which is not asked for", details)
        if present.get(vid) != wanted[vid]:
            how = f"has lost VLAN {vid}"
            if vid in present:
                how = f"has VLAN {vid}{_words(present[vid]) or ' tagged'}, not{_words(wanted[vid]) or ' tagged'}"
            details = f"set it: {_command('add', outside.name, vid, wanted[vid])}"
            raise _wrong(f"Interface {outside.name} {how}", details)


def _check_gateway(host: Socket, conf: BridgeConf, prev_result: Result) -> Link:
    name = gateway_name(conf)
    listed = next((item for item in prev_result.interfaces if item.name == name and not item.sandbox), None)
    if listed is None:
        details = "the runtime gave the result of another attachment, or the configuration was changed since"
        raise _wrong(f'prevResult has no interface "{name}" on the host', details)
    (found,) = link.get(host, link.by_name(name))
    if found is None:
        raise _wrong(f"Interface name {name} not found", "the next container of this network makes it again")
    if listed.mac and found.mac != listed.mac:
        details = f'it is {found.mac}; set it back: ip link set "{name}" address {listed.mac}'
        raise _wrong(f"Interface {name} Mac doesn't match: {listed.mac}", details)
    if not found.is_up:
        raise _wrong(f"Interface {name} is down", f'set it up: ip link set "{name}" up')
    return found


def _command(verb: str, port: str, vid: int, flags: int = 0) -> str:
    return f'bridge vlan {verb} dev "{port}" vid {vid}{_words(flags)}'


def _words(flags: int) -> str:
    """Returns flags as bridge(8) has them, each after a blank."""
    return (" pvid" if flags & PVID else "") + (" untagged" if flags & UNTAGGED else "")


def _wrong(msg: str, details: str) -> CniError:
    return CniError(Code.INTERNAL, msg, details)
