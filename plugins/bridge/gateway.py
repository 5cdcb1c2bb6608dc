"""The gateway interface of a VLAN, `<bridge>.<vlan>`: created, reused or repaired.

One rule: an interface that has this name is ready for use. A veth pair with both ends on this host is repaired, an
administrator's 802.1Q interface is only checked, and other kinds of interfaces are used as they are.
"""

from __future__ import annotations

import errno
import os
from functools import partial

from attachment import veth
from attachment.prev_result import OTHER_ATTACHMENT
from cni.address import format_mac
from cni.args import is_interface_name
from cni.errors import CniError, Code, internal, invalid_conf
from cni.result import Result
from kernel import link, sysctl, vlan
from kernel.errors import KernelError
from kernel.link import Link, VethEnd
from kernel.rtnl import Request, Socket
from kernel.vlan import PVID, UNTAGGED
from plugins.bridge import bridge_device, mtu
from plugins.bridge.conf import BridgeConf, Vlans
from plugins.bridge.vlan import check_vlans, get_filtering, port_requests
from process.undo import Undo

_TRIES = 5  # a retry is needed only if another ADD rolls back between our look-up and our use
_RECREATED = "the next container of this network makes it again"


def gateway_name(conf: BridgeConf) -> str:
    """Returns the name of the interface that has the gateway addresses in a VLAN (the reference plugin's)."""
    return f"{conf.bridge}.{conf.vlans.access}"


def refuse_long_name(conf: BridgeConf) -> None:
    """Raises CniError(7) when the gateway interface's name, the bridge's and the VLAN, is longer than 15 bytes."""
    name = gateway_name(conf)
    if conf.is_gateway and conf.vlans.access and not is_interface_name(name):
        raise invalid_conf(
            f'"bridge" "{conf.bridge}" with "vlan" {conf.vlans.access} makes the gateway\'s interface "{name}", '
            "a name longer than 15 bytes",
            f'set "bridge" to a name of at most {15 - len(name) + len(conf.bridge)} bytes',
        )


def get_gateway(host: Socket, bridge: Link, conf: BridgeConf) -> Link | None:
    """Returns the interface for the gateway addresses, None if it does not exist yet; raises KernelError."""
    if not conf.vlans.access:
        return bridge
    (existing,) = link.get(host, link.by_name_request(gateway_name(conf)))
    return existing


def add_gateways(host: Socket, bridge: Link, host_veth: Link, conf: BridgeConf, result: Result, undo: Undo) -> Link:
    """Adds the gateway addresses to the interface in the port's VLAN, creates it if missing, and returns it.

    Without a VLAN that is the bridge. If another ADD created the interface and rolls back after this one has found it,
    it is created again. Raises CniError(7) for a conflicting address or link and for an 802.1Q
    interface that is cut off from the VLAN, KernelError.
    """
    if not (conf.vlans.access and result.ips):
        bridge_device.add_gateways(host, bridge, conf, result)
        return bridge
    for tries_left in reversed(range(_TRIES)):
        gateway = _reuse(host, bridge, conf) or _create(host, bridge, host_veth, conf, undo)
        try:
            _repair_port(host, bridge, gateway, conf)
            bridge_device.add_gateways(host, gateway, conf, result)
        except CniError:
            if not tries_left or link.get(host, link.by_index_request(gateway.index)) != [None]:
                raise
        else:
            mtu.warn_of_larger_gateway(gateway, conf)
            return gateway
    raise AssertionError("unreachable")


def check(host: Socket, conf: BridgeConf, prev_result: Result, bridge: Link) -> Link:
    """Returns the link with the gateway addresses, after checking that it is connected to its VLAN.

    Without a VLAN that is the bridge. Raises CniError(999), KernelError.
    """
    if not (conf.is_gateway and conf.vlans.access and prev_result.ips):
        return bridge
    gateway = _check_listed(host, conf, prev_result)
    problem = _vlan_device_problem(host, bridge, gateway, conf)
    if problem:
        raise internal(*problem)
    if _is_local_veth(gateway):
        _check_port(host, bridge, gateway, conf)
    return gateway


def _reuse(host: Socket, bridge: Link, conf: BridgeConf) -> Link | None:
    """Returns the existing gateway interface after setting it up; None if there is none.

    It may be of any kind except a bridge, since an administrator may have created it. Raises CniError(7), KernelError.
    """
    name = gateway_name(conf)
    (existing,) = link.get(host, link.by_name_request(name))
    if existing is None:
        return None
    if existing.kind == "bridge":
        raise invalid_conf(
            f'"{name}" already exists but is a bridge, not the interface of VLAN {conf.vlans.access}',
            'set "bridge" of either network to another name',
        )
    problem = _vlan_device_problem(host, bridge, existing, conf)
    if problem:
        raise invalid_conf(*problem)
    if not existing.is_up:
        host.change(link.set_request(existing, up=True))
    return existing


def _is_local_veth(gateway: Link) -> bool:
    """Returns whether the interface is a veth whose other end is on this host, too."""
    return gateway.kind == "veth" and bool(gateway.iflink) and gateway.iflink_nsid is None


def _without_default(host: Socket, bridge: Link, existing: vlan.Vlans, conf: BridgeConf) -> vlan.Vlans:
    """Returns the VLANs without the bridge's default, where a network with "preserveDefaultVlan" leaves the port."""
    if existing.keys() <= {conf.vlans.access}:
        return existing
    default = vlan.get_filtering(host, bridge).default
    return {vid: flags for vid, flags in existing.items() if vid == conf.vlans.access or vid != default}


def _repair_port(host: Socket, bridge: Link, gateway: Link, conf: BridgeConf) -> None:
    """Makes the other end of a local veth pair an up port of the bridge, in the VLAN and in no other.

    If it is one already this costs one look-up. Raises KernelError.
    """
    if not _is_local_veth(gateway):
        return
    desired = {conf.vlans.access: PVID | UNTAGGED}
    member = vlan.get_member(host, bridge, gateway.iflink)
    existing = _without_default(host, bridge, member.vlans, conf) if member else {}
    if member and member.is_up and existing == desired:
        return
    (port,) = link.get(host, link.by_index_request(gateway.iflink))
    if port is None:
        return  # the gateway is deleted, too: adding its address will fail
    requests: list[Request] = []
    if member is None:  # the port stays down until it is in its VLAN; the bridge keeps its MAC
        requests += [link.set_request(port, up=False), link.set_request(port, master=bridge.index)]
        requests.append(link.set_request(bridge, mac=bridge.mac_bytes))
    if existing != desired:
        access = Vlans(conf.vlans.access, None, conf.vlans.keep_default)
        superfluous = existing.keys() - desired.keys()
        requests += [vlan.remove_request(port, superfluous)] if superfluous else []
        requests += port_requests(port, access, get_filtering(host, bridge, access))
    if member is None or not member.is_up:
        requests.append(link.set_request(port, up=True))
    host.change(*requests)


def _vlan_device_problem(host: Socket, bridge: Link, gateway: Link, conf: BridgeConf) -> tuple[str, str] | None:
    """Returns why an 802.1Q interface is cut off from the VLAN, and the fix; None if it is not, or of another kind."""
    if gateway.kind != "vlan":
        return None
    vid = conf.vlans.access
    if gateway.iflink != bridge.index or gateway.iflink_nsid is not None or vlan.get_device_vlan(host, gateway) != vid:
        msg = f'"{gateway.name}" is an 802.1Q interface, but not that of VLAN {vid} on bridge "{bridge.name}"'
        return msg, f'delete it, and the next container of this network makes one: ip link delete "{gateway.name}"'
    member = vlan.get_member(host, bridge, bridge.index)
    if member is None or member.vlans.get(vid, UNTAGGED) & UNTAGGED:
        msg = f'bridge "{bridge.name}" does not pass VLAN {vid} to "{gateway.name}"'
        return msg, f'set it: bridge vlan add dev "{bridge.name}" vid {vid} self'
    return None


def _create(host: Socket, bridge: Link, host_veth: Link, conf: BridgeConf, undo: Undo) -> Link:
    """Creates the gateway interface, a veth whose other end is a port of the bridge, and returns it.

    It gets its name only when its port is in the VLAN, so that an interface with this name is ready for use. If another
    ADD was quicker, its interface is returned.
    """
    name = gateway_name(conf)
    port, inner = (VethEnd("veth" + os.urandom(4).hex(), link.random_mac()) for _ in range(2))
    undo.push(f'delete "{name}"', partial(_delete_unused, host, bridge, host_veth, conf, (port, inner)))
    try:
        host.change(link.create_veth_request(port, inner, None, master=bridge.index, mtu=conf.mtu or bridge.mtu))
        for end in (port, inner):
            sysctl.try_write(f"ipv6/conf/{end.name}/accept_ra", "0")
        port_link, gateway = link.get(host, link.by_name_request(port.name), link.by_name_request(inner.name))
        if port_link is None or gateway is None:
            raise CniError(Code.TRY_AGAIN_LATER, f'"{port.name}" vanished again', "something else deleted it")
        access = Vlans(conf.vlans.access, None, conf.vlans.keep_default)
        # A bridge whose MAC was never set takes the lowest MAC of its ports; writing its MAC back keeps it.
        keep_mac = link.set_request(bridge, mac=bridge.mac_bytes)
        access_requests = port_requests(port_link, access, get_filtering(host, bridge, access))
        host.change(*access_requests, keep_mac, link.set_request(gateway, up=True, name=name))
    except KernelError as error:
        if error.errno != errno.EEXIST:
            reason = veth.full_bridge_error(bridge) if error.errno == errno.EXFULL else error
            raise reason.prefixed(f'failed to make "{name}": ') from error
        _delete_unused(host, bridge, host_veth, conf, (port, inner))
    created = _reuse(host, bridge, conf)
    if created is None:
        raise CniError(Code.TRY_AGAIN_LATER, f'"{name}" vanished again', "something else deleted it")
    return created


def _delete_unused(
    host: Socket, bridge: Link, host_veth: Link, conf: BridgeConf, ends: tuple[VethEnd, VethEnd]
) -> None:
    """Deletes the veth pair `ends` that this ADD created, unless other ports use it as the gateway of their VLAN.

    There is no race: another ADD puts its port in the VLAN first and looks up the gateway interface later. Either its
    port is seen here, or that ADD finds the interface missing and creates it.
    """
    port, gateway = link.get(host, link.by_name_request(ends[0].name), link.by_name_request(gateway_name(conf)))
    if port is None or port.mac != format_mac(ends[0].mac):
        return
    if gateway is not None and gateway.mac == format_mac(ends[1].mac):
        vlans_by_port = vlan.list_by_port(host, bridge).items()
        ignored = (port.index, host_veth.index)
        if any(vlans.get(conf.vlans.access, 0) & PVID for index, vlans in vlans_by_port if index not in ignored):
            return
    host.change(link.delete_request(port))


def _check_listed(host: Socket, conf: BridgeConf, prev_result: Result) -> Link:
    """Returns the gateway interface that prevResult lists, if it is up with its MAC; raises CniError(999)."""
    name = gateway_name(conf)
    listed = next((item for item in prev_result.interfaces if item.name == name and not item.sandbox), None)
    if listed is None:
        raise internal(f'prevResult has no interface "{name}" on the host', OTHER_ATTACHMENT)
    (existing,) = link.get(host, link.by_name_request(name))
    if existing is None:
        raise internal(f"Interface name {name} not found", _RECREATED)
    if listed.mac and existing.mac != listed.mac:
        details = f'it is {existing.mac}; set it back: ip link set "{name}" address {listed.mac}'
        raise internal(f"Interface {name} Mac doesn't match: {listed.mac}", details)
    if not existing.is_up:
        raise internal(f"Interface {name} is down", f'set it up: ip link set "{name}" up')
    return existing


def _check_port(host: Socket, bridge: Link, gateway: Link, conf: BridgeConf) -> None:
    """Checks that the other end of a local veth pair is an up port of the bridge in its VLAN; raises CniError(999)."""
    (port,) = link.get(host, link.by_index_request(gateway.iflink))
    if port is None:
        raise internal(f"Interface {gateway.name} has no other end", _RECREATED)
    member = vlan.get_member(host, bridge, port.index)
    if member is None:
        details = f'set it: ip link set "{port.name}" master "{bridge.name}"'
        raise internal(
            f"Interface {port.name}, the other end of {gateway.name}, is not a port of {bridge.name}", details
        )
    if not port.is_up:
        details = f'set it up: ip link set "{port.name}" up'
        raise internal(f"Interface {port.name}, the other end of {gateway.name}, is down", details)
    check_vlans(port.name, {conf.vlans.access: PVID | UNTAGGED}, _without_default(host, bridge, member.vlans, conf))
