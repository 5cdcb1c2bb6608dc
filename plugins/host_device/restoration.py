"""Moves a device back to the host, and restores the names, settings, addresses and state that it had before ADD.

The device is recognized by the state that ADD saved, not by its name: the container may rename it, and the kernel does
so when it moves a physical device out of a deleted namespace. Then the device is on the host, called CNI_IFNAME or
dev<N>.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

from attachment.sandbox import Sandbox
from cni.address import parse_mac
from cni.errors import CniError, internal
from kernel import boot, device, link, saved_address
from kernel.device import Device
from kernel.link import Link
from kernel.netns import Netns, NetnsMissingError
from kernel.rtnl import Socket
from plugins.host_device.backup import BackupStore, SavedDevice
from process.stderr import one_line
from process.undo import Undo
from process.values import replace

_HOST_NETNS = "/proc/self/ns/net"


def get_life(namespace: Netns, socket: Socket) -> str:
    """Returns the boot ID and the namespace's cookie, which is unique in a boot; before Linux 5.14 its inode."""
    return f"{boot.get_boot_id()} {socket.get_namespace_cookie() or os.fstat(namespace.fileno()).st_ino}"


def is_of_this_boot(saved: SavedDevice) -> bool:
    """Returns whether the device was moved in this boot; after a reboot all devices are on the host.

    If a boot ID could not be read, now or at ADD, the device counts as one of this boot.
    """
    boot_at_add, boot_now = saved.life.partition(" ")[0], boot.get_boot_id()
    return not boot_at_add or not boot_now or boot_at_add == boot_now


def has_namespace(saved: SavedDevice) -> bool:
    """Returns whether the container's namespace still exists at the path of ADD; raises CniError, KernelError."""
    try:
        with Netns(saved.netns) as namespace, Sandbox(namespace, saved.attachment.ifname) as sandbox:
            return get_life(namespace, sandbox.socket) == saved.life
    except NetnsMissingError:
        return False


def bring_back(host: Socket, sandbox: Sandbox, saved: SavedDevice, store: BackupStore | None = None) -> bool:
    """Moves the device from the sandbox to the host and restores it; returns False if it is in neither.

    A device that is on the host already is only renamed and restored. `store` saves the MAC address with which the
    device comes back: if DEL is killed after the move, the next DEL recognizes the device by it. The pod chose that
    address, so it is stored only if no other interface of the host has the name. Raises CniError, KernelError.
    """
    candidate = find_in_sandbox(sandbox, saved)
    if candidate is None:
        return restore_on_host(host, saved)
    if store and candidate.link.mac != saved.mac:
        _refuse_used_names(host, candidate, saved.name, saved.altnames)
        _try(partial(store.update, replace(saved, returning_mac=candidate.link.mac)))
    move_to_host(host, sandbox, candidate, saved.name, saved.alias, saved.altnames)
    restore(host, saved)
    return True


def restore_on_host(host: Socket, saved: SavedDevice) -> bool:
    """Renames and restores a device that the kernel moved to the host; returns False if there is none.

    Raises CniError(999) if its name is used, KernelError.
    """
    candidate = find_on_host(device.list_all(host), saved)
    if candidate is None:
        return False
    item = candidate.link
    if foreign := _foreign_altnames(candidate, saved.altnames):
        host.change(device.delete_altnames_request(item, foreign))
    if item.name != saved.name:
        refuse_used_name(host, item.name, saved.name, index=item.index)
        host.change(link.set_request(item, up=False))
        host.change(link.set_request(item, name=saved.name))
    host.change(link.set_alias_request(item.index, saved.alias))
    restore(host, saved)
    return True


def move_to_host(
    host: Socket, sandbox: Sandbox, candidate: Device, name: str, alias: str, altnames: tuple[str, ...] | None = None
) -> None:
    """Moves a link from the sandbox to the host as `name`; a failure leaves it in the sandbox as it was.

    The link is renamed in the sandbox, so that programs on the host, such as udev, see no rename. If the container has
    another interface of that name, the kernel renames the link after the move. The host must not get names that the pod
    chose: altnames other than `altnames` are deleted in the sandbox. `altnames` is None for a device without a file:
    then all stay. Raises CniError(999), KernelError.
    """
    item, foreign = candidate.link, _foreign_altnames(candidate, altnames)
    _refuse_used_names(host, candidate, name, altnames)
    with Netns(_HOST_NETNS) as host_namespace, Undo() as undo:
        if foreign:
            undo.push("restore altnames", partial(sandbox.socket.change, device.add_altnames_request(item, foreign)))
            sandbox.socket.change(device.delete_altnames_request(item, foreign))
        undo.push(f'restore "{item.name}" in the container', partial(_restore_in_sandbox, sandbox, item))
        sandbox.socket.change(link.set_request(item, up=False), device.rename_request(item, name, alias))
        sandbox.socket.change(device.move_request(item, host_namespace, "the host", name=name, alias=alias))


def refuse_used_name(host: Socket, present: str, name: str, *, index: int = 0, is_recorded: bool = True) -> None:
    """Raises CniError(999), text of the reference plugin, if another link of the host has the name; KernelError.

    `index` is that of a device on the host, which a parallel DEL or GC may have renamed just now.
    If no file identifies the device (`is_recorded`), the other link may have the name rightly: the error says so.
    """
    (obstacle,) = link.get(host, link.by_name_request(name))
    if obstacle is None or obstacle.index == index:
        return
    other = f'"{obstacle.name}"'
    if obstacle.name != name:
        release = f'delete this altname of {other} (ip link property del dev {other} altname "{name}")'
    else:  # before Linux 6.4 only an interface that is down can be renamed
        command = f"ip link set {other} down && ip link set {other} name NEW && ip link set NEW up"
        release = f"rename the interface that has it ({command})"
    if is_recorded:
        details = f'the host got another interface of this name meanwhile, and "{present}" waits for it: {release}'
    else:
        details = (
            f'"{present}" in the container has it as alias, and no record proves that it is this device: {release}, or '
            f'if "{present}" is the pod\'s own, delete it there'
        )
    details += "; then DEL can be repeated"
    raise internal(f'failed to move "{name}" to hostNS: file exists', details)


def restore(host: Socket, saved: SavedDevice) -> None:
    """Restores settings, state, addresses and altnames of a device on the host; prints what fails on stderr."""
    current = device.get(host, saved.name)
    if current is None:
        return
    item = current.link
    steps = []
    if saved.mac and item.mac != saved.mac:
        steps.append(link.set_request(item, mac=parse_mac(saved.mac)))
    if saved.mtu and item.mtu != saved.mtu:
        steps.append(link.set_request(item, mtu=saved.mtu))
    if saved.flags is not None and saved.tx_queue is not None and saved.group is not None:
        before = (saved.flags & device.FLAGS, saved.tx_queue, saved.group)
        if before != (item.flags & device.FLAGS, item.tx_queue, current.group):
            steps.append(device.set_flags_request(item, *before))
    if saved.is_up != item.is_up:
        steps.append(link.set_request(item, up=saved.is_up))
    steps += [saved_address.add_request(item, address) for address in saved.addresses]
    missing = [name for name in saved.altnames if name not in current.altnames]
    steps += [device.add_altnames_request(item, (name,)) for name in missing]
    for step in steps:
        _try(partial(host.change, step))


def find_in_sandbox(sandbox: Sandbox, saved: SavedDevice) -> Device | None:
    """Returns the device among the links of a sandbox, whatever its name; None if it is not there.

    Raises KernelError.
    """
    same_kind = [item for item in device.list_all(sandbox.socket) if item.link.kind == saved.kind]
    if saved.container_index and get_life(sandbox.namespace, sandbox.socket) == saved.life:
        for item in same_kind:
            if item.link.index == saved.container_index and item.permanent_mac == saved.permanent_mac:
                return item
    return _find_alike(same_kind, saved)


def find_on_host(devices: list[Device], saved: SavedDevice) -> Device | None:
    """Returns the device among the links of the host; None if it is not there.

    Without a permanent MAC address the device must have its index and its MAC address or alias; or, as the kernel
    changes an index that another link has, its MAC address and its name or alias.
    """
    same_kind = [item for item in devices if item.link.kind == saved.kind]
    if saved.permanent_mac:
        return _find_alike(same_kind, saved)
    indexes = (saved.container_index, saved.index)
    for item in same_kind:
        if item.link.index in indexes and (item.link.mac == saved.mac or item.link.alias == saved.name):
            return item
    macs = set(filter(None, (saved.mac, saved.returning_mac)))
    for item in same_kind:
        if item.link.mac in macs and saved.name in (item.link.name, item.link.alias):
            return item
    return None


def _find_alike(devices: list[Device], saved: SavedDevice) -> Device | None:
    """Returns the device by its permanent MAC address, else by its alias, else by name and MAC address."""
    if saved.permanent_mac:
        matching = [item for item in devices if item.permanent_mac == saved.permanent_mac]
    else:
        names = (saved.name, saved.attachment.ifname)
        matching = [item for item in devices if item.link.alias == saved.name] or [
            item for item in devices if item.link.mac == saved.mac and item.link.name in names
        ]
    # Functions of one card can share an address.
    return min(matching, key=lambda item: item.link.index != saved.container_index, default=None)


def _refuse_used_names(host: Socket, candidate: Device, name: str, altnames: tuple[str, ...] | None) -> None:
    """Raises CniError(999) if another link of the host has `name` or an altname that the device keeps; KernelError."""
    foreign = _foreign_altnames(candidate, altnames)
    for used in (name, *(other for other in candidate.altnames if other not in foreign)):
        refuse_used_name(host, candidate.link.name, used, is_recorded=altnames is not None)


def _foreign_altnames(candidate: Device, altnames: tuple[str, ...] | None) -> tuple[str, ...]:
    """Returns the altnames of the device that are not in `altnames`, those at ADD; none if `altnames` is None."""
    return () if altnames is None else tuple(name for name in candidate.altnames if name not in altnames)


def _try(step: Callable[[], object]) -> None:
    try:
        step()
    except CniError as error:
        print(one_line(f"host-device: cannot restore the device: {error}"), file=sys.stderr)


def _restore_in_sandbox(sandbox: Sandbox, before: Link) -> None:
    (present,) = link.get(sandbox.socket, link.by_index_request(before.index))
    if present is not None:
        sandbox.socket.change(device.rename_request(present, before.name, before.alias))
        sandbox.socket.change(link.set_request(present, up=before.is_up))
