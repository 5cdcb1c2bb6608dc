"""Returns a device to the host, with the name, MAC address, MTU, addresses and state that it had before ADD.

A device is recognized by what ADD recorded, since a container may rename it, and the kernel does when it moves a
physical device out of a deleted namespace: then the device is on the host, as CNI_IFNAME or dev<N>.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from attachment.sandbox import Sandbox
from cni.address import parse_mac
from cni.errors import CniError, internal
from kernel import boot, device, link, saved_address
from kernel.device import Device
from kernel.link import Link
from kernel.netns import Netns
from kernel.rtnl import Socket
from plugins.host_device.backup import Saved
from process.stderr import one_line
from process.undo import Undo

_HOST = "/proc/self/ns/net"


def compute_life(namespace: Netns, socket: Socket) -> str:
    """Returns the boot ID, and the cookie of the namespace, unique in a boot, or (before Linux 5.14) its inode."""
    return f"{_boot_id()} {socket.get_namespace_cookie() or os.fstat(namespace.fileno()).st_ino}"


def is_of_this_boot(saved: Saved) -> bool:
    """Returns whether the device was moved in this boot; after a reboot all devices are on the host.

    If a boot ID could not be read, now or at ADD, the device counts as one of this boot.
    """
    boot_at_add, boot_now = saved.life.partition(" ")[0], _boot_id()
    return not boot_at_add or not boot_now or boot_at_add == boot_now


def return_device(host: Socket, sandbox: Sandbox, saved: Saved) -> bool:
    """Moves the device from the sandbox to the host; returns False if it is in neither. Raises CniError, KernelError.

    A device that is on the host already is only renamed and restored.
    """
    is_same_life = compute_life(sandbox.namespace, sandbox.socket) == saved.life
    candidate = find_in_sandbox(device.list_all(sandbox.socket), saved, is_same_life=is_same_life)
    if candidate is None:
        return restore_on_host(host, saved)
    move_to_host(host, sandbox, candidate, saved.name, saved.alias)
    _restore(host, saved)
    return True


def restore_on_host(host: Socket, saved: Saved) -> bool:
    """Renames and restores a device that the kernel moved to the host; returns False if there is none.

    Raises CniError(999) if its name is used, KernelError.
    """
    candidate = find_on_host(device.list_all(host), saved)
    if candidate is None:
        return False
    if candidate.name != saved.name:
        refuse_used_name(host, candidate.name, saved.name)
        host.change(link.set_request(candidate, up=False))
        host.change(link.set_request(candidate, name=saved.name))
    host.change(link.set_alias_request(candidate.index, saved.alias))
    _restore(host, saved)
    return True


def move_to_host(host: Socket, sandbox: Sandbox, candidate: Link, name: str, alias: str) -> None:
    """Moves a link from the sandbox to the host as `name`; a failure leaves it in the sandbox as it was.

    The link is renamed in the sandbox, so that programs on the host, such as udev, see no rename. If the container has
    another interface of that name, the kernel renames it after the move. Raises CniError(999), KernelError.
    """
    refuse_used_name(host, candidate.name, name)
    with Netns(_HOST) as host_namespace, Undo() as undo:
        undo.push(f'restore "{candidate.name}" in the container', partial(_restore_in_sandbox, sandbox, candidate))
        sandbox.socket.change(link.set_request(candidate, up=False), device.rename_request(candidate, name, alias))
        sandbox.socket.change(device.move_request(candidate, host_namespace, "the host", name=name, alias=alias))


def refuse_used_name(host: Socket, present: str, name: str) -> None:
    """Raises CniError(999), text of the reference plugin, if another link of the host has the name; KernelError."""
    (obstacle,) = link.get(host, link.by_name_request(name))
    if obstacle is not None:
        details = (
            f'another interface of the host got this name meanwhile, and "{present}" waits for it: rename the other '
            f'one (ip link set "{name}" name NEW); then DEL can be repeated'
        )
        raise internal(f'failed to move "{name}" to hostNS: file exists', details)


def _restore(host: Socket, saved: Saved) -> None:
    """Restores MAC address, MTU, state and addresses, each as far as possible; prints failures on stderr."""
    current = device.get(host, saved.name)
    if current is None:
        return
    item = current.link
    steps = []
    if saved.mac and item.mac != saved.mac:
        steps.append(link.set_request(item, mac=parse_mac(saved.mac)))
    if saved.mtu and item.mtu != saved.mtu:
        steps.append(link.set_request(item, mtu=saved.mtu))
    if saved.is_up != item.is_up:
        steps.append(link.set_request(item, up=saved.is_up))
    steps += [saved_address.add_request(item, address) for address in saved.addresses]
    for step in steps:
        try:
            host.change(step)
        except CniError as error:
            print(one_line(f"host-device: cannot restore the device: {error}"), file=sys.stderr)


def find_in_sandbox(devices: list[Device], saved: Saved, *, is_same_life: bool) -> Link | None:
    """Returns the device among the links of a sandbox, whatever its name; None if it is not there."""
    same_kind = [item for item in devices if item.link.kind == saved.kind]
    if is_same_life and saved.container_index:
        for item in same_kind:
            if item.link.index == saved.container_index and item.permanent_mac == saved.permanent_mac:
                return item.link
    return _find_alike(same_kind, saved)


def find_on_host(devices: list[Device], saved: Saved) -> Link | None:
    """Returns the device among the links of the host; None if it is not there.

    Without a permanent MAC address the device must have its index and its MAC address, or its alias.
    """
    same_kind = [item for item in devices if item.link.kind == saved.kind]
    if saved.permanent_mac:
        return _find_alike(same_kind, saved)
    indexes = (saved.container_index, saved.index)
    for item in same_kind:
        if item.link.index in indexes and (item.link.mac == saved.mac or item.link.alias == saved.name):
            return item.link
    return None


def _find_alike(devices: list[Device], saved: Saved) -> Link | None:
    """Returns the device by its permanent MAC address, else by its alias, else by name and MAC address."""
    if saved.permanent_mac:
        matching = [item.link for item in devices if item.permanent_mac == saved.permanent_mac]
    else:
        names = (saved.name, saved.attachment.ifname)
        matching = [item.link for item in devices if item.link.alias == saved.name] or [
            item.link for item in devices if item.link.mac == saved.mac and item.link.name in names
        ]
    # Functions of one card can share an address.
    return min(matching, key=lambda item: item.index != saved.container_index, default=None)


def _restore_in_sandbox(sandbox: Sandbox, before: Link) -> None:
    (present,) = link.get(sandbox.socket, link.by_index_request(before.index))
    if present is not None:
        sandbox.socket.change(device.rename_request(present, before.name, before.alias))
        sandbox.socket.change(link.set_request(present, up=before.is_up))


def _boot_id() -> str:
    return boot.get_boot_id().decode("ascii", "replace").strip()
