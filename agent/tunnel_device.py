"""The VXLAN device of this node: created, repaired, or left alone if it is another program's.

A device is the agent's if its alias or its MAC address says so.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from agent.route_plan import RouteOptions, mac_of
from cni.address import Address, format_mac
from kernel import checksum_offload, link, modules, vxlan
from kernel.errors import KernelError
from kernel.link import Link
from kernel.rtnl import Request, Socket
from kernel.vxlan import Tunnel

ALIAS = "podwire-agent"


class TunnelError(Exception):
    """The device cannot be used; the text says why, and what to do."""


class DeviceSpec(NamedTuple):
    """The desired device: its settings, MAC address and MTU."""

    name: str
    tunnel: Tunnel
    mac: bytes
    mtu: int
    checksum_offload: bool


def spec_of(options: RouteOptions, node_name: str, local: Address, underlay_mtu: int) -> DeviceSpec:
    """Returns the desired device; `local` is this node's address, `underlay_mtu` the MTU of the link that has it."""
    mtu = underlay_mtu - vxlan.OVERHEAD[local.version]
    tunnel = Tunnel(options.vni, options.port, local)
    return DeviceSpec(options.device, tunnel, mac_of(node_name), mtu, options.checksum_offload)


def find(socket: Socket, name: str, mac: bytes | None = None) -> Link | None:
    """Returns the agent's device of a name, None if it is missing or another program's; raises KernelError."""
    (device,) = link.get(socket, link.by_name_request(name))
    return device if device and _is_ours(device, mac) else None


def ensure(socket: Socket, spec: DeviceSpec) -> tuple[Link, list[str]]:
    """Creates the device or sets what differs from `spec`; returns it, and the changes as texts.

    Raises TunnelError, KernelError.
    """
    try:
        return _ensure(socket, spec)
    except KernelError as error:
        cause = _describe_cause(socket, spec, error.errno)
        if not cause:
            raise
        raise TunnelError(f"{error}: {cause}") from error


def _ensure(socket: Socket, spec: DeviceSpec) -> tuple[Link, list[str]]:
    (device,) = link.get(socket, link.by_name_request(spec.name))
    if device is None:
        return _create(socket, spec)
    if not _is_ours(device, spec.mac):
        kind = device.kind or "physical"
        raise TunnelError(f'the interface "{spec.name}" ({kind}) belongs to another program: rename it')
    existing = vxlan.get(socket, device)
    if existing is None or not _can_become(existing, spec.tunnel):
        socket.change(link.delete_request(device))
        return _create(socket, spec)
    requests = _repair_requests(device, existing, spec)
    socket.change(*requests)
    texts = [request.description for request in requests] + _ensure_offload(spec)
    return device._replace(mtu=spec.mtu), texts


def _create(socket: Socket, spec: DeviceSpec) -> tuple[Link, list[str]]:
    requests = vxlan.create_requests(spec.name, spec.tunnel, spec.mac, spec.mtu, ALIAS)
    texts = []
    try:
        socket.change(*requests)
    except KernelError as error:
        conflict = vxlan.find_conflict(socket, spec.name, spec.tunnel)
        if conflict is None:
            _delete_unusable(socket, spec)
            raise
        if not _is_ours(conflict, spec.mac):
            raise TunnelError(
                f'the VXLAN device "{conflict.name}" of another program has VNI {spec.tunnel.vni} and port '
                f"{spec.tunnel.port}: set --vxlan-id or --vxlan-port to another number, on all nodes"
            ) from error
        deletion = link.delete_request(conflict)  # the conflict is this agent's device of an earlier name
        socket.change(deletion)
        socket.change(*requests)
        texts.append(deletion.description)
    texts += [requests[0].description, *_ensure_offload(spec)]
    (device,) = link.get(socket, link.by_name_request(spec.name))
    if device is None:  # in a dry run
        device = Link(0, spec.name, format_mac(spec.mac), spec.mtu, link.IFF_UP, vxlan.KIND, 0, 0, None, 0)
    return device, texts


def _delete_unusable(socket: Socket, spec: DeviceSpec) -> None:
    """Deletes the device that was just created and cannot be brought up."""
    (device,) = link.get(socket, link.by_name_request(spec.name))
    if device and _is_ours(device, spec.mac):
        socket.change(link.delete_request(device))


def _describe_cause(socket: Socket, spec: DeviceSpec, error_number: int) -> str:
    """Returns cause and fix of an error of the kernel, "" if they are unknown."""
    if error_number == errno.EOPNOTSUPP and not any(link.get(socket, link.by_name_request(spec.name))):
        fix = modules.explain_missing("vxlan")
        return f"the kernel has no VXLAN devices; on the node {fix}; or set --routes to direct on all nodes"
    if error_number == errno.EADDRINUSE:
        holder = vxlan.find_on_port(socket, spec.name, spec.tunnel.port)
        name = f'the VXLAN device "{holder.name}"' if holder else f"a program (`ss -lunp sport = {spec.tunnel.port}`)"
        return f"{name} has UDP port {spec.tunnel.port}: remove it, or set --vxlan-port to another port on all nodes"
    return ""


def _repair_requests(device: Link, existing: Tunnel, spec: DeviceSpec) -> list[Request]:
    requests = []
    if existing != spec.tunnel:
        requests.append(vxlan.set_request(device, spec.tunnel))
    mac = spec.mac if device.mac != format_mac(spec.mac) else b""
    mtu = spec.mtu if device.mtu != spec.mtu else 0
    up = None if device.is_up else True
    if mac or mtu or up:
        requests.append(link.set_request(device, mac=mac, mtu=mtu, up=up))
    if device.alias != ALIAS:
        requests.append(link.set_alias_request(device.index, ALIAS))
    return requests


def _ensure_offload(spec: DeviceSpec) -> list[str]:
    if spec.checksum_offload or not checksum_offload.get(spec.name):
        return []
    checksum_offload.set_offload(spec.name, on=False)
    return [f'switch checksum offload of "{spec.name}" off']


def _is_ours(device: Link, mac: bytes | None) -> bool:
    if device.kind != vxlan.KIND:
        return False
    return device.alias == ALIAS or (mac is not None and device.mac == format_mac(mac))


def _can_become(existing: Tunnel, desired: Tunnel) -> bool:
    """Returns whether the kernel can change the settings of a device without deleting it."""
    if existing.local is None or desired.local is None or existing.local.version != desired.local.version:
        return False
    return (existing.vni, existing.port) == (desired.vni, desired.port)
