"""Saves the state of a device before ADD: a file for each attachment, by which DEL recognizes and restores the device.

    <dataDir>/<container ID>:<ifname>.json      (mode 0600)

- No interface name contains a colon, so each file is one attachment's. A long container ID is replaced by its hash.
- A file appears with its content or not at all: it is written as a draft and renamed. All writers share one draft,
  under a lock on the directory: of killed ADDs at most one draft remains, until the next ADD, DEL or GC.
- A file of an earlier boot is obsolete: after a reboot all devices are on the host, as the node's boot sets them up.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha512

from cni import gojson
from cni.address import parse_ip
from cni.conf import Attachment
from cni.errors import CniError, Code
from cni.fields import Fields
from kernel import flock
from kernel.errors import reason
from kernel.saved_address import SavedAddress
from process import directories, files, record
from process.undo import Undo
from process.values import dataclass

_JSON, _DRAFT = ".json", "~draft"  # no container ID begins with a tilde
# Errors of this process or of the disk: the file may be a valid one.
_TEMPORARY = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
_MAX_BYTES = 1 << 16
_UINT32_MAX = (1 << 32) - 1
_MAX_ID_CHARACTERS = 200  # a file name has at most 255 bytes (NAME_MAX)


@dataclass(frozen=True)
class SavedDevice:
    """The state of a device before ADD, and the attachment that has the device.

    `index` is its ifindex on the host, `container_index` the one in the container, 0 while the move is not finished.
    `life` names the boot and the container's network namespace. `addresses` are its permanent addresses on the host.
    `flags`, `tx_queue` and `group` are None in a file without them. `returning_mac` is the MAC address with which DEL
    moves the device back, "" until then.
    """

    network: str
    attachment: Attachment
    netns: str
    life: str
    name: str
    kind: str
    index: int
    container_index: int
    mac: str
    permanent_mac: str
    pci_id: str
    alias: str
    mtu: int
    is_up: bool
    flags: int | None
    tx_queue: int | None
    group: int | None
    altnames: tuple[str, ...]
    addresses: tuple[SavedAddress, ...]
    returning_mac: str = ""


class BackupStore:
    """The files in one directory."""

    def __init__(self, data_dir: str) -> None:
        self.data_dir = data_dir

    def load(self, attachment: Attachment) -> SavedDevice | None:
        """Returns the state of an attachment's device, None without a valid file; raises CniError(5)."""
        saved = self._read(self._path(attachment))
        return saved if saved and saved.attachment == attachment else None

    def save(self, saved: SavedDevice, undo: Undo) -> None:
        """Writes the file of an attachment, and pushes its deletion on `undo`; raises CniError(5)."""
        undo.push(f"remove {self._path(saved.attachment)}", partial(self.remove, saved.attachment))
        self.update(saved)

    def update(self, saved: SavedDevice) -> None:
        """Writes the file of an attachment; raises CniError(5)."""
        path = self._path(saved.attachment)
        try:
            self._write(path, gojson.dumps(_to_json(saved), indent=1))
        except OSError as error:
            msg = f'failed to save the state of "{saved.name}" in {path}: {reason(error.errno or 0)}'
            raise CniError(Code.IO_FAILURE, msg, 'set "dataDir" to a writable directory') from error

    def remove(self, attachment: Attachment) -> None:
        """Deletes the file of an attachment, and the draft of a killed ADD; raises OSError, CniError(11)."""
        self.remove_draft()
        _delete(self._path(attachment))

    def remove_draft(self) -> None:
        """Deletes the draft of a killed ADD; raises OSError, CniError(11)."""
        if os.path.lexists(f"{self.data_dir}/{_DRAFT}"):
            with self._locked():  # unless it is being written
                _delete(f"{self.data_dir}/{_DRAFT}")

    def list_all(self) -> list[SavedDevice]:
        """Returns all valid states, of all networks; raises CniError(5) if one cannot be read."""
        try:
            names = sorted(os.listdir(self.data_dir))
        except OSError as error:
            if error.errno in _TEMPORARY:
                raise _unreadable(self.data_dir, error) from error
            return []
        paths = [f"{self.data_dir}/{name}" for name in names if name.endswith(_JSON)]
        return [saved for saved in map(self._read, paths) if saved]

    def _path(self, attachment: Attachment) -> str:
        container_id, ifname = attachment
        if len(container_id) > _MAX_ID_CHARACTERS:
            container_id = sha512(container_id.encode()).hexdigest()
        return f"{self.data_dir}/{container_id}:{ifname}{_JSON}"

    def _read(self, path: str) -> SavedDevice | None:
        try:
            return _parse(files.read(path, _MAX_BYTES))
        except OSError as error:
            if error.errno in _TEMPORARY:
                raise _unreadable(path, error) from error
            return None
        except (ValueError, CniError):
            return None

    def _write(self, path: str, text: str) -> None:
        if record.allows_change(f"save {path}"):
            if not os.path.isdir(self.data_dir):
                directories.create(self.data_dir, 0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            draft = f"{self.data_dir}/{_DRAFT}"
            with self._locked():
                fd = os.open(draft, flags, 0o600)
                try:
                    directories.write(fd, text.encode())
                finally:
                    os.close(fd)
                os.rename(draft, path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self.data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            flock.acquire(fd, self.data_dir, "the states of devices")
            yield
        finally:
            os.close(fd)


def _unreadable(path: str, error: OSError) -> CniError:
    return CniError(Code.IO_FAILURE, f"failed to read {path}: {reason(error.errno or 0)}", "the verb can be repeated")


def _to_json(saved: SavedDevice) -> dict[str, object]:
    return {
        "network": saved.network,
        "containerID": saved.attachment.container_id,
        "ifname": saved.attachment.ifname,
        "netns": saved.netns,
        "life": saved.life,
        "name": saved.name,
        "kind": saved.kind,
        "index": saved.index,
        "containerIndex": saved.container_index,
        "mac": saved.mac,
        "permanentMAC": saved.permanent_mac,
        "pciID": saved.pci_id,
        "alias": saved.alias,
        "mtu": saved.mtu,
        "up": saved.is_up,
        "flags": saved.flags,
        "txQueue": saved.tx_queue,
        "group": saved.group,
        "altnames": list(saved.altnames),
        "returningMAC": saved.returning_mac,
        "addresses": [item._asdict() for item in saved.addresses],
    }


def _parse(content: bytes) -> SavedDevice:
    """Returns the state in a file; raises ValueError, CniError for an invalid one."""
    value = gojson.loads(content)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    fields = Fields(value)
    saved = SavedDevice(
        network=fields.string("network"),
        attachment=Attachment(fields.string("containerID"), fields.string("ifname")),
        netns=fields.string("netns"),
        life=fields.string("life"),
        name=fields.string("name"),
        kind=fields.string("kind"),
        index=fields.integer("index", minimum=0) or 0,
        container_index=fields.integer("containerIndex", minimum=0) or 0,
        mac=fields.string("mac"),
        permanent_mac=fields.string("permanentMAC"),
        pci_id=fields.string("pciID"),
        alias=fields.string("alias"),
        mtu=fields.integer("mtu", minimum=0, maximum=(1 << 31) - 1) or 0,
        is_up=fields.boolean("up"),
        flags=fields.integer("flags", minimum=0, maximum=_UINT32_MAX),
        tx_queue=fields.integer("txQueue", minimum=0, maximum=_UINT32_MAX),
        group=fields.integer("group", minimum=0, maximum=_UINT32_MAX),
        altnames=fields.strings("altnames"),
        returning_mac=fields.string("returningMAC"),
        addresses=tuple(_parse_address(item) for item in fields.objects("addresses")),
    )
    if not saved.name or not saved.life:
        raise ValueError("it is incomplete")
    return saved


def _parse_address(fields: Fields) -> SavedAddress:
    """Returns an address in a file; raises ValueError, CniError for an invalid one."""

    def number(key: str, maximum: int) -> int:
        return fields.integer(key, minimum=0, maximum=maximum) or 0

    local, peer, broadcast = map(fields.string, ("local", "peer", "broadcast"))
    for text in (local, *filter(None, (peer, broadcast))):
        parse_ip(text)
    prefix, scope = number("prefix", 128), number("scope", 255)
    return SavedAddress(local, prefix, scope, number("flags", _UINT32_MAX), peer, broadcast)


def _delete(path: str) -> None:
    try:
        if record.is_dry_run():
            os.lstat(path)
        else:
            os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    record.note_change(f"remove {path}")
