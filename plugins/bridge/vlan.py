"""The VLANs of a port, and VLAN filtering of the bridge.

The port is in its VLANs, and the bridge filters by VLAN, before a frame can pass.
"""

from __future__ import annotations

import sys

from cni.errors import internal, invalid_conf
from kernel import vlan
from kernel.link import Link
from kernel.rtnl import Request, Socket
from kernel.vlan import PVID, UNTAGGED, Filtering
from plugins.bridge.conf import BridgeConf, PortVlans

_NATIVE = 1  # the VLAN for untagged frames of a trunk port without "vlan", as with the reference plugin


def get_required_filtering(host: Socket, bridge: Link, vlans: PortVlans) -> Filtering | None:
    """Returns the bridge's VLAN filtering state, None when no VLANs are configured.

    Raises KernelError, NoFilteringError, and CniError(7) when filtering cannot be enabled without cutting off ports.
    """
    if not vlans.filtering:
        return None
    filtering = vlan.get_filtering(host, bridge)
    if not filtering.on and not filtering.default:
        raise invalid_conf(
            f'bridge "{bridge.name}" does not filter by VLAN, and its default_pvid is 0: filtering would cut off '
            "its ports",
            f'add its ports to VLANs, then run: ip link set "{bridge.name}" type bridge vlan_filtering 1',
        )
    return filtering


def port_requests(port: Link, vlans: PortVlans, filtering: Filtering | None) -> list[Request]:
    """Returns the requests that add a new port to its VLANs, and remove it from the bridge's default VLAN."""
    desired = _desired_vlans(vlans, filtering) if filtering else {}
    if not filtering or not desired:
        return []
    superfluous = [filtering.default] if filtering.default and filtering.default not in desired else []
    removal = [vlan.remove_request(port, superfluous)] if superfluous else []
    return [*removal, vlan.add_request(port, desired)]


def ensure_filtering(host: Socket, bridge: Link, filtering: Filtering | None) -> None:
    """Enables VLAN filtering on the bridge if VLANs are configured, and reports that on stderr; raises KernelError.

    The reference plugin does not enable filtering on an existing bridge, where VLANs then separate nothing. Filtering
    is never disabled again, since other attachments may rely on it by then.
    """
    if filtering is None or filtering.on:
        return
    host.change(vlan.enable_filtering_request(bridge))
    print(
        f'bridge: enabled VLAN filtering on bridge "{bridge.name}": ports without a configured VLAN are in '
        f"VLAN {filtering.default}, and their frames with other tags are dropped",
        file=sys.stderr,
    )


def check(host: Socket, conf: BridgeConf, bridge: Link, host_veth: Link) -> None:
    """Checks that the bridge filters by VLAN and the port is in its VLANs; raises CniError(999), KernelError."""
    if not conf.vlans.filtering:
        return
    filtering = vlan.get_filtering(host, bridge)
    if not filtering.on:
        raise internal(
            f"Bridge interface {bridge.name} does not filter by VLAN",
            f'set it: ip link set "{bridge.name}" type bridge vlan_filtering 1',
        )
    desired = _desired_vlans(conf.vlans, filtering)
    if desired:
        member = vlan.get_member(host, bridge, host_veth.index)
        check_vlans(host_veth.name, desired, member.vlans if member else {})


def check_vlans(name: str, desired: vlan.VlanFlags, existing: vlan.VlanFlags) -> None:
    """Compares the VLANs of the port `name`; raises CniError(999) with the command that fixes the first difference.

    Pure.
    """
    for vid in sorted(desired.keys() | existing.keys()):
        if vid not in desired:
            details = f"remove it: {_command('del', name, vid)}"
            raise internal(f"Interface {name} is in VLAN {vid}, which is not configured", details)
        if existing.get(vid) != desired[vid]:
            difference = f"has lost VLAN {vid}"
            if vid in existing:
                existing_flags, desired_flags = (_flag_words(vlans[vid]) or " tagged" for vlans in (existing, desired))
                difference = f"has VLAN {vid}{existing_flags}, not{desired_flags}"
            details = f"set it: {_command('add', name, vid, desired[vid])}"
            raise internal(f"Interface {name} {difference}", details)


def _desired_vlans(vlans: PortVlans, filtering: Filtering) -> vlan.VlanFlags:
    """Returns the VLANs that a port must have; none if it stays in the bridge's default VLAN."""
    if not vlans.access and not vlans.trunk:
        return {}
    default = {filtering.default: UNTAGGED} if vlans.keep_default and filtering.default else {}
    # The reference plugin leaves the port without a PVID if the trunk lists the access VLAN, too; podwire does not.
    return {**default, **dict.fromkeys(vlans.trunk or (), 0), vlans.access or _NATIVE: PVID | UNTAGGED}


def _command(verb: str, port: str, vid: int, flags: int = 0) -> str:
    return f'bridge vlan {verb} dev "{port}" vid {vid}{_flag_words(flags)}'


def _flag_words(flags: int) -> str:
    """Returns the flags as arguments of bridge(8), each after a space."""
    return (" pvid" if flags & PVID else "") + (" untagged" if flags & UNTAGGED else "")
