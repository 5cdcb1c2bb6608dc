"""VLANs: those that a port is in, and a bridge that keeps them apart.

One rule: a port is in its VLANs, and the bridge keeps them apart, before a frame can pass.
"""

from __future__ import annotations

import sys

from cni.errors import CniError, Code
from kernel import vlan
from kernel.link import Link
from kernel.rtnl import Request, Socket
from kernel.vlan import PVID, UNTAGGED, Filtering
from plugins.bridge.conf import BridgeConf, Vlans

_NATIVE = 1  # untagged frames of a trunk port are in this VLAN when none is asked for (reference)


def filtering(host: Socket, bridge: Link, asked: Vlans) -> Filtering | None:
    """Returns how the bridge treats VLANs, None when nothing is asked for.

    Raises NoFilteringError, CniError(7) when the bridge must not be made to filter, KernelError.
    """
    if not asked.filtering:
        return None
    found = vlan.get_filtering(host, bridge)
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
    removal = [vlan.remove_request(port, superfluous)] if superfluous else []
    return [*removal, vlan.add_request(port, wanted)]


def enforce(host: Socket, bridge: Link, found: Filtering | None) -> None:
    """Has the bridge filter by VLAN if that is asked for, and says so; raises KernelError.

    The reference leaves an existing bridge as it is, and then VLANs separate nothing. It is not undone, since others
    may rely on it by then.
    """
    if found is None or found.on:
        return
    host.change(vlan.enable_filtering_request(bridge))
    print(
        f'podwire: bridge "{bridge.name}" did not filter by VLAN and does now: '
        f"ports that were in no VLAN of their own are in VLAN {found.default}, tagged frames are dropped",
        file=sys.stderr,
    )


def check(host: Socket, conf: BridgeConf, bridge: Link, outside: Link) -> None:
    """Checks that the bridge filters and the port is in its VLANs; raises CniError(999), KernelError."""
    if not conf.vlans.filtering:
        return
    found = vlan.get_filtering(host, bridge)
    if not found.on:
        raise _wrong(
            f"Bridge interface {bridge.name} does not filter by VLAN",
            f'set it: ip link set "{bridge.name}" type bridge vlan_filtering 1',
        )
    wanted = _wanted(conf.vlans, found)
    if wanted:
        member = vlan.get_member(host, bridge, outside.index)
        compare(outside.name, wanted, member.vlans if member else {})


def compare(name: str, wanted: vlan.Vlans, present: vlan.Vlans) -> None:
    """Compares the VLANs of a port; raises CniError(999) with the command that mends the first difference."""
    for vid in sorted(wanted.keys() | present.keys()):
        if vid not in wanted:
            details = f"set it: {_command('del', name, vid)}"
            raise _wrong(f"Interface {name} is in VLAN {vid}, which is not asked for", details)
        if present.get(vid) != wanted[vid]:
            how = f"has lost VLAN {vid}"
            if vid in present:
                how = f"has VLAN {vid}{_words(present[vid]) or ' tagged'}, not{_words(wanted[vid]) or ' tagged'}"
            details = f"set it: {_command('add', name, vid, wanted[vid])}"
            raise _wrong(f"Interface {name} {how}", details)


def _wanted(asked: Vlans, found: Filtering) -> vlan.Vlans:
    """Returns the VLANs that a port must have; none when the bridge's default is left to it."""
    if not asked.access and not asked.trunk:
        return {}
    kept = {found.default: UNTAGGED} if asked.keep_default and found.default else {}
    # With the reference a trunk that lists the port's own VLAN leaves it without one for untagged frames.
    return {**kept, **dict.fromkeys(asked.trunk or (), 0), asked.access or _NATIVE: PVID | UNTAGGED}


def _command(verb: str, port: str, vid: int, flags: int = 0) -> str:
    return f'bridge vlan {verb} dev "{port}" vid {vid}{_words(flags)}'


def _words(flags: int) -> str:
    """Returns flags as bridge(8) has them, each after a blank."""
    return (" pvid" if flags & PVID else "") + (" untagged" if flags & UNTAGGED else "")


def _wrong(msg: str, details: str) -> CniError:
    return CniError(Code.INTERNAL, msg, details)
