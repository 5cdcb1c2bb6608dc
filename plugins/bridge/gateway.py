"""The gateway in a VLAN: the interface `<bridge>.<vlan>`, made, adopted or mended.

One rule: what is found under its name is complete. A pair of which both ends are here is made right, an administrator's
802.1Q interface is never changed, other kinds are taken as they are.
"""

from __future__ import annotations

import errno
import os
from functools import partial

from attachment import veth
from cni.address import format_mac
from cni.args import is_interface_name
from cni.errors import CniError, Code
from cni.result import Result
from kernel import link, sysctl, vlan
from kernel.errors import KernelError
from kernel.link import Link, VethEnd
from kernel.rtnl import Request, Socket
from kernel.vlan import PVID, UNTAGGED
from plugins.bridge import bridge_device, mtu
from plugins.bridge.conf import BridgeConf, Vlans
from plugins.bridge.vlan import compare, filtering, settings
from process.undo import Undo

_TRIES = 5  # each loss takes another ADD that fails within the same millisecond


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


def find_gateway(host: Socket, bridge: Link, conf: BridgeConf) -> Link | None:
    """Returns the interface that has the gateway's addresses, None where it is still to be made; raises KernelError."""
    if not conf.vlans.access:
        return bridge
    (found,) = link.get(host, link.by_name_request(gateway_name(conf)))
    return found


def add_gateways(host: Socket, bridge: Link, outside: Link, conf: BridgeConf, result: Result, undo: Undo) -> Link:
    """Puts the gateway addresses on the interface that is in the port's VLAN, made if missing, and returns it.

    Without a VLAN, that is the bridge. Another ADD that fails takes away the interface it made, perhaps between our
    look and our use. Raises CniError(7) for an address or a link in the way and for an 802.1Q interface that is cut off
    from the VLAN, KernelError.
    """
    if not (conf.vlans.access and result.ips):
        bridge_device.add_gateways(host, bridge, conf, result)
        return bridge
    for tries_left in reversed(range(_TRIES)):
        gateway = _find(host, bridge, conf) or _make(host, bridge, outside, conf, undo)
        try:
            _mend(host, bridge, gateway, conf)
            bridge_device.add_gateways(host, gateway, conf, result)
        except CniError:
            if not tries_left or link.get(host, link.by_index_request(gateway.index)) != [None]:
                raise
        else:
            mtu.warn_of_gateway(gateway, conf)
            return gateway
    raise AssertionError("unreachable")


def check(host: Socket, conf: BridgeConf, prev_result: Result, bridge: Link) -> Link:
    """Returns the link that has the gateway's addresses, the bridge without VLANs, if it is connected to its VLAN.

    Raises CniError(999), KernelError.
    """
    if not (conf.is_gateway and conf.vlans.access and prev_result.ips):
        return bridge
    gateway = _check_listed(host, conf, prev_result)
    fault = _fault(host, bridge, gateway, conf)
    if fault:
        raise _wrong(*fault)
    if _is_pair(gateway):
        _check_port(host, bridge, gateway, conf)
    return gateway


def _find(host: Socket, bridge: Link, conf: BridgeConf) -> Link | None:
    """Returns the gateway's interface, up. An administrator may have made it in any way but as a bridge."""
    name = gateway_name(conf)
    (found,) = link.get(host, link.by_name_request(name))
    if found is None:
        return None
    if found.kind == "bridge":
        raise CniError(
            Code.INVALID_NETWORK_CONFIG,
            f'"{name}" already exists but is a bridge, not the interface of VLAN {conf.vlans.access}',
            'set "bridge" of either network to another name',
        )
    fault = _fault(host, bridge, found, conf)
    if fault:
        raise CniError(Code.INVALID_NETWORK_CONFIG, *fault)
    if not found.is_up:
        host.change(link.set_request(found, up=True))
    return found


def _is_pair(gateway: Link) -> bool:
    return gateway.kind == "veth" and bool(gateway.lower) and gateway.lower_nsid is None


def _without_default(host: Socket, bridge: Link, present: vlan.Vlans, conf: BridgeConf) -> vlan.Vlans:
    """Returns VLANs but the bridge's default, which a network with "preserveDefaultVlan" leaves to the gateway."""
    if present.keys() <= {conf.vlans.access}:
        return present
    default = vlan.get_filtering(host, bridge).default
    return {vid: flags for vid, flags in present.items() if vid == conf.vlans.access or vid != default}


def _mend(host: Socket, bridge: Link, gateway: Link, conf: BridgeConf) -> None:
    """Makes the other end of a pair an up port of the bridge in the VLAN and in no other; one look-up if it is."""
    if not _is_pair(gateway):
        return
    right = {conf.vlans.access: PVID | UNTAGGED}
    member = vlan.get_member(host, bridge, gateway.lower)
    present = _without_default(host, bridge, member.vlans, conf) if member else {}
    if member and member.is_up and present == right:
        return
    (port,) = link.get(host, link.by_index_request(gateway.lower))
    if port is None:
        return  # and so is the gateway: noticed when it gets its address
    requests: list[Request] = []
    if member is None:  # down until it is in its VLAN; the bridge keeps its address
        requests += [link.set_request(port, up=False), link.set_request(port, master=bridge.index)]
        requests.append(link.set_request(bridge, mac=bridge.mac_bytes))
    if present != right:
        access = Vlans(conf.vlans.access, None, conf.vlans.keep_default)
        superfluous = present.keys() - right.keys()
        requests += [vlan.remove_request(port, superfluous)] if superfluous else []
        requests += settings(port, access, filtering(host, bridge, access))
    if member is None or not member.is_up:
        requests.append(link.set_request(port, up=True))
    host.change(*requests)


def _fault(host: Socket, bridge: Link, gateway: Link, conf: BridgeConf) -> tuple[str, str] | None:
    """Returns what cuts an 802.1Q interface off from the VLAN, and the cure; None when nothing does."""
    if gateway.kind != "vlan":
        return None
    vid = conf.vlans.access
    if gateway.lower != bridge.index or gateway.lower_nsid is not None or vlan.get_device_vlan(host, gateway) != vid:
        msg = f'"{gateway.name}" is an 802.1Q interface, but not that of VLAN {vid} on bridge "{bridge.name}"'
        return msg, f'delete it, and the next container of this network makes one: ip link delete "{gateway.name}"'
    member = vlan.get_member(host, bridge, bridge.index)
    if member is None or member.vlans.get(vid, UNTAGGED) & UNTAGGED:
        msg = f'bridge "{bridge.name}" does not pass VLAN {vid} to "{gateway.name}"'
        return msg, f'set it: bridge vlan add dev "{bridge.name}" vid {vid} self'
    return None


def _make(host: Socket, bridge: Link, outside: Link, conf: BridgeConf, undo: Undo) -> Link:
    """Makes the gateway's interface, one end of a pair whose other end is a port of the bridge, and returns it.

    It gets its name when its port is in the VLAN: who finds it can use it. When another ADD was quicker, that one's is
    returned.
    """
    name = gateway_name(conf)
    port, inner = (VethEnd("veth" + os.urandom(4).hex(), link.random_mac()) for _ in range(2))
    undo.push(f'delete "{name}"', partial(_delete_unused, host, bridge, outside, conf, (port, inner)))
    try:
        host.change(link.create_veth_request(port, inner, None, master=bridge.index, mtu=conf.mtu or bridge.mtu))
        for end in (port, inner):
            sysctl.try_write(f"ipv6/conf/{end.name}/accept_ra", "0")
        host_end, gateway = link.get(host, link.by_name_request(port.name), link.by_name_request(inner.name))
        if host_end is None or gateway is None:
            raise CniError(Code.TRY_AGAIN_LATER, f'"{port.name}" vanished again', "something else deleted it")
        access = Vlans(conf.vlans.access, None, conf.vlans.keep_default)
        # A bridge without an address of its own takes the lowest of its ports'; written back, the one it had stays.
        keeping = link.set_request(bridge, mac=bridge.mac_bytes)
        joining = settings(host_end, access, filtering(host, bridge, access))
        host.change(*joining, keeping, link.set_request(gateway, up=True, name=name))
    except KernelError as error:
        if error.errno != errno.EEXIST:
            reason = veth.full_bridge_error(bridge) if error.errno == errno.EXFULL else error
            raise reason.prefixed(f'failed to make "{name}": ') from error
        _delete_unused(host, bridge, outside, conf, (port, inner))
    made = _find(host, bridge, conf)
    if made is None:
        raise CniError(Code.TRY_AGAIN_LATER, f'"{name}" vanished again', "something else deleted it")
    return made


def _delete_unused(host: Socket, bridge: Link, outside: Link, conf: BridgeConf, ends: tuple[VethEnd, VethEnd]) -> None:
    """Deletes the pair we made, unless it is the gateway's interface and others have joined the VLAN meanwhile.

    Who joins is in the VLAN long before it looks for the gateway's interface, so it is either seen here, or finds the
    interface missing and makes it.
    """
    port, gateway = link.get(host, link.by_name_request(ends[0].name), link.by_name_request(gateway_name(conf)))
    if port is None or port.mac != format_mac(ends[0].mac):
        return
    if gateway is not None and gateway.mac == format_mac(ends[1].mac):
        others = vlan.list_by_port(host, bridge).items()
        own = (port.index, outside.index)
        if any(vlans.get(conf.vlans.access, 0) & PVID for index, vlans in others if index not in own):
            return
    host.change(link.delete_request(port))


def _check_listed(host: Socket, conf: BridgeConf, prev_result: Result) -> Link:
    name = gateway_name(conf)
    listed = next((item for item in prev_result.interfaces if item.name == name and not item.sandbox), None)
    if listed is None:
        details = "the runtime gave the result of another attachment, or the configuration was changed since"
        raise _wrong(f'prevResult has no interface "{name}" on the host', details)
    (found,) = link.get(host, link.by_name_request(name))
    if found is None:
        raise _wrong(f"Interface name {name} not found", "the next container of this network makes it again")
    if listed.mac and found.mac != listed.mac:
        details = f'it is {found.mac}; set it back: ip link set "{name}" address {listed.mac}'
        raise _wrong(f"Interface {name} Mac doesn't match: {listed.mac}", details)
    if not found.is_up:
        raise _wrong(f"Interface {name} is down", f'set it up: ip link set "{name}" up')
    return found


def _check_port(host: Socket, bridge: Link, gateway: Link, conf: BridgeConf) -> None:
    (port,) = link.get(host, link.by_index_request(gateway.lower))
    if port is None:
        raise _wrong(f"Interface {gateway.name} has no other end", "the next container of this network makes it again")
    member = vlan.get_member(host, bridge, port.index)
    if member is None:
        details = f'set it: ip link set "{port.name}" master "{bridge.name}"'
        raise _wrong(f"Interface {port.name}, the other end of {gateway.name}, is not a port of {bridge.name}", details)
    if not port.is_up:
        details = f'set it up: ip link set "{port.name}" up'
        raise _wrong(f"Interface {port.name}, the other end of {gateway.name}, is down", details)
    compare(port.name, {conf.vlans.access: PVID | UNTAGGED}, _without_default(host, bridge, member.vlans, conf))


def _wrong(msg: str, details: str) -> CniError:
    return CniError(Code.INTERNAL, msg, details)
