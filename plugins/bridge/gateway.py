"""The gateway interface of a VLAN, `<bridge>.<vlan>`: created, reused or repaired.

podwire's gateway interface is one end of a veth with both ends on the host; the other end is a port of the bridge in
the VLAN. The gateway interface gets its name only once the port is in the VLAN, so an interface with this name is ready
for use. If another program has changed the port since, the next ADD repairs it. An administrator may have created
another kind of interface: ADD checks an 802.1Q interface and reports what is wrong, and uses other kinds unchanged.
"""

from __future__ import annotations

import errno
from functools import partial

from attachment import veth
from attachment.prev_result import OTHER_ATTACHMENT_HINT, RECREATE_HINT
from cni.address import format_mac
from cni.errors import CniError, Code, internal, invalid_conf
from cni.result import Interface, Result
from kernel import link, sysctl, system, vlan
from kernel.errors import KernelError
from kernel.link import Link, VethEnd
from kernel.rtnl import Request, Socket
from kernel.vlan import PVID, UNTAGGED
from plugins.bridge import bridge_device, mtu
from plugins.bridge.conf import BridgeConf, PortVlans, gateway_name
from plugins.bridge.vlan import check_vlans, get_required_filtering, port_requests
from process.undo import Undo

_TRIES = 5  # a retry is needed only if another ADD rolls back after this one has looked up the interface
_NEXT_ADD_HINT = "the next ADD in this network creates it again"


def get_gateway_link(host: Socket, bridge: Link, conf: BridgeConf) -> Link | None:
    """Returns the link for the gateway addresses: the bridge, or in a VLAN the gateway interface; raises KernelError.

    None if the gateway interface does not exist yet.
    """
    if not conf.vlans.access:
        return bridge
    (existing,) = link.get(host, link.by_name_request(gateway_name(bridge.name, conf)))
    return existing


def ensure_gateways(host: Socket, bridge: Link, host_veth: Link, conf: BridgeConf, result: Result, undo: Undo) -> Link:
    """Adds the gateway addresses to the bridge, or in a VLAN to the gateway interface; returns that link.

    A missing gateway interface is created. Another ADD that created it may roll back and delete it after this ADD has
    looked it up; then this ADD creates it again. Raises KernelError, and CniError(7) for a conflicting address or link
    and for an 802.1Q interface that is not connected to the VLAN.
    """
    if not (conf.vlans.access and result.ips):
        bridge_device.add_gateways(host, bridge, conf, result)
        return bridge
    for tries_left in reversed(range(_TRIES)):
        gateway_link = _reuse(host, bridge, conf) or _create(host, bridge, host_veth, conf, undo)
        try:
            _repair_port(host, bridge, gateway_link, conf)
            bridge_device.add_gateways(host, gateway_link, conf, result)
        except CniError:
            if not tries_left or link.get(host, link.by_index_request(gateway_link.index)) != [None]:
                raise
        else:
            mtu.warn_of_larger_gateway_mtu(gateway_link, conf)
            return gateway_link
    raise AssertionError("unreachable")


def check(host: Socket, conf: BridgeConf, prev_result: Result, bridge: Link) -> Link:
    """Checks the gateway interface of a VLAN; returns it, or without a VLAN the bridge.

    Raises KernelError, and CniError(999) if it is missing, down or not connected to the VLAN.
    """
    if not (conf.is_gateway and conf.vlans.access and prev_result.ips):
        return bridge
    gateway_link = _check_listed(host, gateway_name(bridge.name, conf), prev_result)
    problem = _get_vlan_device_problem(host, bridge, gateway_link, conf)
    if problem:
        raise internal(*problem)
    if _is_local_veth(gateway_link):
        _check_port(host, bridge, gateway_link, conf)
    return gateway_link


def _reuse(host: Socket, bridge: Link, conf: BridgeConf) -> Link | None:
    """Brings the existing gateway interface up and returns it, None if it does not exist.

    It may be of any kind except a bridge, since an administrator may have created it. Raises CniError(7), KernelError.
    """
    existing = get_gateway_link(host, bridge, conf)
    if existing is None:
        return None
    if existing.kind == "bridge":
        raise invalid_conf(
            f'"{existing.name}" already exists but is a bridge, not the interface of VLAN {conf.vlans.access}',
            'set "bridge" of either network to another name',
        )
    problem = _get_vlan_device_problem(host, bridge, existing, conf)
    if problem:
        raise invalid_conf(*problem)
    if not existing.is_up:
        host.change(link.set_request(existing, up=True))
    return existing


def _is_local_veth(gateway_link: Link) -> bool:
    """Returns whether the gateway interface is a veth whose other end is also on this host."""
    return gateway_link.kind == "veth" and bool(gateway_link.iflink) and gateway_link.iflink_nsid is None


def _without_default(host: Socket, bridge: Link, existing: vlan.VlanFlags, conf: BridgeConf) -> vlan.VlanFlags:
    """Returns a port's VLANs without the bridge's default VLAN, unless that is the configured VLAN.

    A network with "preserveDefaultVlan" leaves the port in the default VLAN, too, so a port in it is no error.
    """
    if existing.keys() <= {conf.vlans.access}:
        return existing
    default = vlan.get_filtering(host, bridge).default
    return {vid: flags for vid, flags in existing.items() if vid == conf.vlans.access or vid != default}


def _repair_port(host: Socket, bridge: Link, gateway_link: Link, conf: BridgeConf) -> None:
    """Attaches the other end of a local veth to the bridge, brings it up, and puts it in the VLAN and in no other.

    Reads the port's state first, and changes nothing if it is right. Raises KernelError.
    """
    if not _is_local_veth(gateway_link):
        return
    desired = {conf.vlans.access: PVID | UNTAGGED}
    member = vlan.get_member(host, bridge, gateway_link.iflink)
    existing = _without_default(host, bridge, member.vlans, conf) if member else {}
    if member and member.is_up and existing == desired:
        return
    (port,) = link.get(host, link.by_index_request(gateway_link.iflink))
    if port is None:
        return  # a veth is deleted with its peer, so adding the gateway address fails, and ensure_gateways() retries
    requests: list[Request] = []
    if member is None:  # the port stays down until it is in its VLAN; the bridge keeps its MAC address
        requests += [link.set_request(port, up=False), link.set_request(port, master=bridge.index)]
        requests.append(link.set_request(bridge, mac=bridge.mac_bytes))
    if existing != desired:
        port_vlans = PortVlans(conf.vlans.access, None, conf.vlans.keep_default)
        superfluous = existing.keys() - desired.keys()
        requests += [vlan.remove_request(port, superfluous)] if superfluous else []
        requests += port_requests(port, port_vlans, get_required_filtering(host, bridge, port_vlans))
    if member is None or not member.is_up:
        requests.append(link.set_request(port, up=True))
    host.change(*requests)


def _get_vlan_device_problem(
    host: Socket, bridge: Link, gateway_link: Link, conf: BridgeConf
) -> tuple[str, str] | None:
    """Returns why an 802.1Q interface is not connected to the VLAN, and the fix; None if it is connected.

    None also for an interface of another kind. Raises KernelError.
    """
    if gateway_link.kind != "vlan":
        return None
    vid, name = conf.vlans.access, gateway_link.name
    is_on_bridge = gateway_link.iflink == bridge.index and gateway_link.iflink_nsid is None
    if not is_on_bridge or vlan.get_device_vlan(host, gateway_link) != vid:
        msg = f'"{name}" is an 802.1Q interface, but not that of VLAN {vid} on bridge "{bridge.name}"'
        return msg, f'delete it, and the next ADD in this network creates the right one: ip link delete "{name}"'
    member = vlan.get_member(host, bridge, bridge.index)
    if member is None or member.vlans.get(vid, UNTAGGED) & UNTAGGED:
        msg = f'bridge "{bridge.name}" does not pass VLAN {vid} to "{name}"'
        return msg, f'set it: bridge vlan add dev "{bridge.name}" vid {vid} self'
    return None


def _create(host: Socket, bridge: Link, host_veth: Link, conf: BridgeConf, undo: Undo) -> Link:
    """Creates the gateway interface, a veth whose other end is a port of the bridge, and returns it.

    It has a random name until its port is in the VLAN. If another ADD has created the gateway interface meanwhile, this
    one's veth is deleted and the other's returned. Raises KernelError, CniError(11), and CniError(50) for a full
    bridge.
    """
    name = gateway_name(bridge.name, conf)
    port_end, gateway_end = ends = _random_end(), _random_end()
    undo.push(f'delete "{name}"', partial(_delete_unused, host, bridge, host_veth, conf, ends))
    try:
        veth_request = link.create_veth_request(
            port_end, gateway_end, None, master=bridge.index, mtu=conf.mtu or bridge.mtu
        )
        host.change(veth_request)
        for end in ends:
            sysctl.try_write(f"ipv6/conf/{end.name}/accept_ra", "0")
        bridge_device.disable_dad(gateway_end.name, conf)
        port, gateway_link = link.get(host, *(link.by_name_request(end.name) for end in ends))
        if port is None or gateway_link is None:
            raise _deleted_error(port_end.name)
        port_vlans = PortVlans(conf.vlans.access, None, conf.vlans.keep_default)
        # A bridge uses the lowest MAC address of its ports until one is set: keep the present one.
        keep_mac = link.set_request(bridge, mac=bridge.mac_bytes)
        vlan_requests = port_requests(port, port_vlans, get_required_filtering(host, bridge, port_vlans))
        host.change(*vlan_requests, keep_mac, link.set_request(gateway_link, up=True, name=name))
    except KernelError as error:
        if error.errno != errno.EEXIST:
            failure = veth.full_bridge_error(bridge) if error.errno == errno.EXFULL else error
            raise failure.prefixed(f'failed to create "{name}": ') from error
        _delete_unused(host, bridge, host_veth, conf, ends)
    created = _reuse(host, bridge, conf)
    if created is None:
        raise _deleted_error(name)
    return created


def _random_end() -> VethEnd:
    return VethEnd("veth" + system.current.random_bytes(4).hex(), link.random_mac())


def _deleted_error(name: str) -> CniError:
    details = "another ADD that failed, or another program, deleted it; try again"
    return CniError(Code.TRY_AGAIN_LATER, f'"{name}" was deleted during this ADD', details)


def _delete_unused(
    host: Socket, bridge: Link, host_veth: Link, conf: BridgeConf, ends: tuple[VethEnd, VethEnd]
) -> None:
    """Deletes the veth `ends` that this ADD created, unless other ports use it as the gateway of their VLAN.

    There is no race: another ADD first puts its port in the VLAN and then looks up the gateway interface. So either its
    port is in the list here, or that ADD finds no gateway interface and creates one.
    """
    port_end, gateway_end = ends
    names = port_end.name, gateway_name(bridge.name, conf)
    port, gateway_link = link.get(host, *map(link.by_name_request, names))
    if port is None or port.mac != format_mac(port_end.mac):
        return
    if gateway_link is not None and gateway_link.mac == format_mac(gateway_end.mac):
        vlans_by_port = vlan.list_by_port(host, bridge).items()
        ignored = (port.index, host_veth.index)
        if any(vlans.get(conf.vlans.access, 0) & PVID for index, vlans in vlans_by_port if index not in ignored):
            return
    host.change(link.delete_request(port))


def mac_hint(existing: Link, listed: Interface) -> str:
    """Returns what to do about an interface of all pods whose MAC address differs from a pod's result.

    After it was created again, newer results have the newer address.
    """
    command = f'ip link set "{existing.name}" address {listed.mac}'
    return f"it is {existing.mac}; {RECREATE_HINT}; if no other container was created since, set it back: {command}"


def _check_listed(host: Socket, name: str, prev_result: Result) -> Link:
    """Checks that the gateway interface exists as prevResult lists it, and is up; returns it, raises CniError(999)."""
    listed = next((item for item in prev_result.interfaces if item.name == name and not item.sandbox), None)
    if listed is None:
        raise internal(f'prevResult has no interface "{name}" on the host', OTHER_ATTACHMENT_HINT)
    (existing,) = link.get(host, link.by_name_request(name))
    if existing is None:
        raise internal(f"Interface name {name} not found", _NEXT_ADD_HINT)
    if listed.mac and existing.mac != listed.mac:
        raise internal(f"Interface {name} Mac doesn't match: {listed.mac}", mac_hint(existing, listed))
    if not existing.is_up:
        raise internal(f"Interface {name} is down", f'bring it up: ip link set "{name}" up')
    return existing


def _check_port(host: Socket, bridge: Link, gateway_link: Link, conf: BridgeConf) -> None:
    """Checks that the other end of a local veth is a port of the bridge, up, in its VLAN; raises CniError(999)."""
    name = gateway_link.name
    (port,) = link.get(host, link.by_index_request(gateway_link.iflink))
    if port is None:
        raise internal(f"Interface {name} has no other end", _NEXT_ADD_HINT)
    member = vlan.get_member(host, bridge, port.index)
    if member is None:
        details = f'set it: ip link set "{port.name}" master "{bridge.name}"'
        raise internal(f"Interface {port.name}, the other end of {name}, is not a port of {bridge.name}", details)
    if not port.is_up:
        details = f'bring it up: ip link set "{port.name}" up'
        raise internal(f"Interface {port.name}, the other end of {name}, is down", details)
    check_vlans(port.name, {conf.vlans.access: PVID | UNTAGGED}, _without_default(host, bridge, member.vlans, conf))
