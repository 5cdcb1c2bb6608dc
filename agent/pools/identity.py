"""The identity of a node: an ID that its disk keeps, the machine, and the boot.

One rule: two machines never use one ID. The file of the ID also names the machine, so the agent on a copied disk stops
before it reaches the store. The store's record names the machine, too (block_protocol.is_foreign), but a backup from
before a node joined lacks its record, and then the copy could be the first to register. Locks prevent a second agent on
one machine.

    /var/lib/podwire/node-id    {"node": "5f0c...", "machine": "4c4c4544-..."}
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from agent.instance_lock import InstanceLock
from cni.address import Address, format_ip
from cni.errors import CniError, Code
from kernel import address as addresses
from kernel import boot, device
from kernel.rtnl import Socket
from process import directories, durable, files

STATE_DIR = "/var/lib/podwire"
_ID = re.compile(r"[0-9a-f]{32}")
_MAX_BYTES = 4096
_RECLAIM = "`podwire ipam reclaim --node ID --powered-off`"
_LOCK = ".agent.lock"  # networks have files in the same directory, but no network's name begins with a dot
# IDs that are not on the disk: of a PC or a virtual machine, of a board with a device tree.
_MACHINE_FILES = ("/sys/class/dmi/id/product_uuid", "/sys/firmware/devicetree/base/serial-number")
# Values of machines whose maker set none.
_COMMON = {"03000200040005000006000700080009", "unknown", "none", "default", "tobefilledbyoem", "notspecified"}


class NodeIdentity(NamedTuple):
    """The node ID, the machine and the boot ID. `is_new`: the ID was created now, so the store has no entry."""

    node: str
    machine: str
    boot: str
    is_new: bool = False

    def instance(self, node_uid: str) -> str:
        """Returns the instance of this boot under a UID of the Node object, "" without one."""
        return f"{self.boot}/{node_uid}"


def uid_of(instance: str) -> str:
    """Returns the UID of the Node object in an instance, "" without one."""
    return instance.partition("/")[2]


def is_node_id(text: str) -> bool:
    """Returns whether a text is a node ID as `read` creates it."""
    return bool(_ID.fullmatch(text))


def get_permanent_mac(address: Address) -> str:
    """Returns the MAC address that the hardware gave to the link with an address, "" without one; raises KernelError.

    A virtual machine gets it from its hypervisor. Random MAC addresses, and those set on this machine, do not count.
    """
    with Socket() as socket:
        by_link = addresses.list_by_link(socket)
        links = {index for index, assigned in by_link.items() if any(a.packed == address.packed for a in assigned)}
        macs = (one.permanent_mac for one in device.list_all(socket) if one.link.index in links)
        return next(filter(None, macs), "")


def read(
    state_dir: str = STATE_DIR,
    machine: str = "",
    address: Address | None = None,
    machine_files: Iterable[str] = _MACHINE_FILES,
    permanent_mac: Callable[[Address], str] = get_permanent_mac,
) -> NodeIdentity:
    """Returns the identity; creates the node ID at the first start.

    The machine is `machine`, else what its firmware says, else its `address` with the permanent MAC address of the
    link that has it: a copy of the disk, even with the same address, runs on hardware with another MAC address.

    Raises CniError(7) if nothing identifies the machine, CniError(5) for a file that cannot be used.
    """
    boot_id = boot.get_boot_id()
    if not boot_id:
        raise CniError(
            Code.IO_FAILURE,
            "cannot read /proc/sys/kernel/random/boot_id",
            "mount /proc: the agent must notice each boot, because a boot ends all grants of addresses",
        )
    machine = machine or next(_machines(machine_files), "")
    if not machine and address and (mac := permanent_mac(address)):
        machine = f"{mac}@{format_ip(address)}"
    if not machine:
        raise CniError(
            Code.INVALID_NETWORK_CONFIG,
            f"nothing identifies this machine: {' and '.join(machine_files)} have no value of its own"
            + (f", and no link with a permanent MAC address has {format_ip(address)}" if address else ""),
            "set --machine-address to its address on a network card, or --machine to a text that no other machine "
            "has, and that a copy of the disk does not contain",
        )
    path = f"{state_dir}/node-id"
    try:
        node = _read_id(path, machine)
        return NodeIdentity(node or _create_id(path, machine), machine, boot_id, is_new=not node)
    except OSError as error:
        raise CniError(Code.IO_FAILURE, f"cannot use {path}: {error.strerror}", "set --state-dir") from error


@contextmanager
def locked(directories_: Iterable[str]) -> Iterator[None]:
    """Holds the lock of each directory in a `with` block; raises CniError(11) if another agent has one.

    The directories are those of the node ID and of the grants files: no two agents may share one.
    """
    with ExitStack() as stack:
        for directory in sorted(set(directories_)):
            stack.enter_context(InstanceLock(f"{directory}/{_LOCK}"))
        yield


def _machines(paths: Iterable[str]) -> Iterator[str]:
    """Yields the texts of the files that identify this machine."""
    for path in paths:
        with suppress(OSError, ValueError):
            text = files.read(path, _MAX_BYTES).decode("ascii", "replace").strip("\0 \n").lower()
            plain = re.sub(r"[^0-9a-z]", "", text)
            if len(set(plain)) > 1 and plain not in _COMMON:
                yield text


def _read_id(path: str, machine: str) -> str:
    """Returns the node ID, "" without a file; raises CniError(5) for a damaged file, or for that of another machine.

    With a new ID the node would lose its blocks, so the agent never replaces the file by itself.
    """
    try:
        content = json.loads(files.read(path, _MAX_BYTES))
        node, owner = content["node"], content["machine"]
        is_valid = bool(_ID.fullmatch(node)) and isinstance(owner, str)
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError):
        is_valid, node, owner = False, "", ""
    if not is_valid:
        raise CniError(
            Code.IO_FAILURE,
            f"{path} is damaged: it has no node ID and machine",
            f'write {{"node": "ID", "machine": "{machine}"}} with this node\'s ID, which `podwire ipam blocks` lists; '
            "or drain the node, delete the file and reboot: the node gets a new ID, and its old blocks wait for "
            f"{_RECLAIM}",
        )
    if owner != machine:
        raise CniError(
            Code.IO_FAILURE,
            f"{path} is of another machine: node {node} is {owner}, and this machine is {machine}",
            "if this disk is a copy, delete the file and reboot: this machine becomes a node of its own; if it "
            f"replaces the other machine, which is off, do the same, and free the old blocks with {_RECLAIM}",
        )
    return str(node)


def _create_id(path: str, machine: str) -> str:
    """Creates a node ID and writes its file; after a crash the file is complete or does not exist."""
    node = secrets.token_hex(16)
    write_durably(path, f"{json.dumps({'node': node, 'machine': machine})}\n".encode())
    return node


def write_durably(path: str, content: bytes) -> None:
    """Creates or replaces a file durably; creates its directory if that is missing. Raises OSError."""
    directory = os.path.dirname(path)
    directories.create(directory)
    durable.write(path, content, draft=os.path.join(directory, f"~{os.path.basename(path)}"))
