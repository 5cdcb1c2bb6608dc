r"""The previous attributes of an interface: a file per attachment, shared with the reference plugin.

Name, content and mode equal the reference plugin's byte for byte; other data is in a note beside the file.

    <dataDir>/<container ID>_<ifname>.json           the previous values of changed attributes (mode 0600)
    <dataDir>.podwire/<container ID>_<ifname>.json   the note: attachment, life of the container, file

- In the reference plugin two attachments can have the same file name: `a_b_c.json` is of `a` and `b_c`, and of `a_b`
  and `c`. ADD saves such an attachment under a name with the container ID's SHA-512. A file with the shared name is
  read if there is none with the hash: the reference plugin wrote it, or an earlier podwire, whose note names the
  attachment.
- The first values count, however many ADDs and entries of a chain there are: an existing file only gets missing values.
  It is replaced only if, by its note, it is of another life of the container.
- A note identifies its file by inode and time, so a file that the reference plugin has written since has no valid note.
  Such a file is the reference plugin's: DEL and further ADDs use it, and GC ignores it.
- A file appears with its content or not at all: it is written as a draft (`~` and the network's hash before its name),
  gets a note, and is renamed. DEL and GC delete the draft of a killed ADD; to GC an incomplete note is no note.

ADD makes ten system calls for a backup, DEL without one makes four.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from functools import partial
from hashlib import sha512

from cni import gojson
from cni.address import format_mac, parse_mac
from cni.conf import Attachment
from cni.errors import CniError, Code, run_all
from cni.fields import Fields
from kernel.errors import reason
from plugins.tuning.attributes import Attributes
from process import directories, record
from process.undo import Undo
from process.values import dataclass, replace

_SUFFIX, _DRAFT, _JSON = ".podwire", "~", ".json"  # no container's name begins with a tilde
_MAX_BYTES = 1 << 16
_LONG = 200  # of 255 bytes (NAME_MAX)
_IFNAME_BYTES = 15  # IFNAMSIZ - 1 (linux/if.h)
# Entries in the directories are opened without following symbolic links, and without blocking on a FIFO.
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EACCES)
_FOREIGN = (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EAGAIN)  # a link, a socket, a directory, a FIFO
_INT32_MAX, _UINT32_MAX = (1 << 31) - 1, (1 << 32) - 1


@dataclass(frozen=True)
class SavedAttributes:
    """The saved attributes, and from the note the MTU of the host end and the container's life ("" if unknown).

    An unreadable file has no attributes. `is_shared`: the file may be of another attachment with the same name.
    """

    original: Attributes
    host_mtu: int | None = None
    life: str = ""
    is_shared: bool = False


class _Files:
    """The paths of one backup: the file, its draft and its note."""

    __slots__ = ("draft", "note", "path")

    def __init__(self, data_dir: str, network: str, name: str) -> None:
        self.path = f"{data_dir}/{name}"
        self.draft = f"{data_dir}/{_draft_prefix(network)}{name}"
        self.note = f"{_side(data_dir)}/{name}"


class Backup:
    """The backup of one attachment."""

    def __init__(self, data_dir: str, network: str, container_id: str, ifname: str) -> None:
        self._attachment, self._network = Attachment(container_id, ifname), network
        unique, shared = _names(self._attachment)
        self._files = _Files(data_dir, network, unique)
        self._shared = _Files(data_dir, network, shared) if shared != unique else None

    def load(self) -> SavedAttributes | None:
        """Returns the saved attributes, None if there are none; raises OSError if they cannot be read."""
        saved = self._load(self._files)
        if saved or not self._shared:
            return saved
        shared = self._load(self._shared)
        return shared and replace(shared, is_shared=not shared.life)

    def _load(self, files: _Files) -> SavedAttributes | None:
        try:
            content, status = _read(files.path)
        except OSError as error:
            if error.errno in _FOREIGN:
                return SavedAttributes(Attributes())
            if error.errno in _ABSENT:
                return None
            raise
        note = _read_note(files.note)
        original = _parse(content)
        if note is None or note.string("file") != _identity(status):
            return SavedAttributes(original)
        if _attachment_of(note) != self._attachment:
            return None
        return SavedAttributes(original, note.integer("hostMTU"), note.string("life"))

    def save(self, current: SavedAttributes, undo: Undo) -> None:
        """Saves `current`, except values already saved in this life of the container; raises CniError(5).

        The undo restores the previous file and note.
        """
        try:
            before = self._load(self._files)
            saved = before if before and before.life in ("", current.life) else None
            if saved:
                host_mtu = current.host_mtu if saved.host_mtu is None else saved.host_mtu
                current = SavedAttributes(saved.original.with_defaults(current.original), host_mtu, current.life)
            if current == before:
                return
            undo.push(f"restore {self._files.path}", partial(self._restore, before))
            if before and not saved:
                os.unlink(self._files.path)  # otherwise the new note would make the old file look like one of this life
            self._put(current)
        except OSError as error:
            msg = f"failed to save file {self._attachment.ifname}{_JSON}"
            path = error.filename or self._files.path
            hint = f'the file is {path}; set "dataDir" to a writable directory'
            raise CniError(Code.IO_FAILURE, f"{msg}: {reason(error.errno or 0)}", hint) from error

    def remove(self, *, shared: bool = False) -> None:
        """Deletes the backup, its note and its draft as far as possible; missing files are success. Raises CniError.

        The note is deleted only after the backup, since it names the owner of the backup. A file with the shared name
        and without a note is deleted only with `shared`.
        """
        all_files = [self._files]
        if self._shared and (saved := self._load(self._shared)) and (saved.life or shared):
            all_files.append(self._shared)
        run_all(*(partial(step, files) for files in all_files for step in (_remove_draft, _remove_noted)))

    def _restore(self, before: SavedAttributes | None) -> None:
        """Restores file and note; raises OSError."""
        _delete(self._files.draft)
        if before is None or not before.life:
            _delete(self._files.note)
        if before:
            self._put(before)
        else:
            _delete(self._files.path)

    def _put(self, saved: SavedAttributes) -> None:
        """Writes file and note, in an order that never attributes either to another attachment; raises OSError."""
        status = _write(self._files.draft, gojson.dumps(_members(saved.original), indent=1))
        if saved.life:
            note = {
                "network": self._network,
                "containerID": self._attachment.container_id,
                "ifname": self._attachment.ifname,
                "life": saved.life,
                "file": _identity(status),
                **({"hostMTU": saved.host_mtu} if saved.host_mtu else {}),
            }
            _write(self._files.note, gojson.dumps(note))  # an incomplete note counts as none
        os.rename(self._files.draft, self._files.path)
        record.note_change(f"save the attributes of {self._attachment.ifname} in {self._files.path}")


def _remove_draft(files: _Files) -> None:
    _delete(files.draft)


def _remove_noted(files: _Files) -> None:
    for path in (files.path, files.note):
        _delete(path)


def gc(data_dir: str, network: str, valid: Iterable[Attachment]) -> int:
    """Deletes the network's backups of attachments not in `valid`; returns how many backups name no network."""
    keep = frozenset(valid)
    kept, drafted, names = {name for item in keep for name in _names(item)}, _draft_prefix(network), _list(data_dir)
    unknown = {name for name in names if name.endswith(_JSON) and not name.startswith(_DRAFT)} - kept
    drafts = {name.removeprefix(drafted) for name in names if name.startswith(drafted)} - kept

    def collect_noted(name: str) -> None:
        note = _read_note(f"{_side(data_dir)}/{name}")
        attachment = _attachment_of(note) if note else None
        if not note or not attachment or name not in _names(attachment):
            return
        backup = Backup(data_dir, network, *attachment)
        saved = backup.load()
        if saved and not saved.life:
            return  # the reference plugin has written it since
        unknown.discard(name)
        if note.string("network") == network and attachment not in keep:
            backup.remove()

    noted = (partial(collect_noted, name) for name in _list(_side(data_dir)))
    run_all(*noted, *(partial(_discard, data_dir, drafted, name) for name in drafts))
    return len(unknown)


def list_attachments(data_dir: str) -> list[tuple[str, Attachment]]:
    """Returns network and attachment of every backup with a note; raises OSError."""
    attachments = []
    for name in sorted(_list(_side(data_dir))):
        note = _read_note(f"{_side(data_dir)}/{name}")
        attachment = _attachment_of(note) if note else None
        if note and attachment and name in _names(attachment):
            attachments.append((note.string("network"), attachment))
    return attachments


def _discard(data_dir: str, drafted: str, name: str) -> None:
    """Deletes the draft of a killed ADD, and its note if it is incomplete; raises OSError."""
    note = f"{_side(data_dir)}/{name}"
    if _read_note(note) is None:
        _delete(note)
    _delete(f"{data_dir}/{drafted}{name}")


def _draft_prefix(network: str) -> str:
    """Returns the prefix of a draft's name; of fixed length, since file names are limited."""
    return f"{_DRAFT}{sha512(network.encode()).hexdigest()[:16]}_"


def _side(data_dir: str) -> str:
    return f"{data_dir.rstrip('/') or '/'}{_SUFFIX}"


def _names(attachment: Attachment) -> tuple[str, str]:
    """Returns the file name that ADD uses, and the reference plugin's; they differ if another attachment may share it.

    In both, a container ID that is too long for a file name is replaced by its hash.
    """
    container_id, ifname = attachment
    hashed = f"{sha512(container_id.encode()).hexdigest()}_{ifname}{_JSON}"
    if len(container_id) > _LONG:
        return hashed, hashed
    joined = f"{container_id}_{ifname}"
    others = joined[1:][-_IFNAME_BYTES - 1 : -1].count("_") - 1  # container IDs with the rest as an interface's name
    return hashed if others > 0 else f"{joined}{_JSON}", f"{joined}{_JSON}"


def _attachment_of(note: Fields) -> Attachment:
    return Attachment(note.string("containerID"), note.string("ifname"))


def _list(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read(path: str) -> tuple[bytes, os.stat_result]:
    fd = os.open(path, os.O_RDONLY | _SAFE)
    try:
        return os.read(fd, _MAX_BYTES), os.fstat(fd)
    finally:
        os.close(fd)


def _write(path: str, text: str) -> os.stat_result:
    """Writes a file; creates the directory if it is missing. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _SAFE
    try:
        fd = os.open(path, flags, 0o600)
    except FileNotFoundError:
        directories.create(
            os.path.dirname(path), 0o700
        )  # the reference plugin creates it with mode 0600, usable by root only
        fd = os.open(path, flags, 0o600)
    try:
        directories.write(fd, text.encode())
        return os.fstat(fd)
    finally:
        os.close(fd)


def _delete(path: str) -> None:
    try:
        if record.is_dry_run():
            os.lstat(path)
        else:
            os.unlink(path)
        record.note_change(f"remove {path}")
    except OSError as error:
        if error.errno not in _ABSENT or (error.errno == errno.EACCES and os.path.lexists(path)):
            raise


def _identity(status: os.stat_result) -> str:
    return f"{status.st_ino} {status.st_mtime_ns}"


def _read_note(path: str) -> Fields | None:
    """Returns a note, None if it is missing or incomplete; raises OSError if it cannot be read."""
    try:
        content, _ = _read(path)
    except OSError as error:
        if error.errno in (*_ABSENT, *_FOREIGN):
            return None
        raise
    try:
        note = _parse_object(content)
        for key in ("network", "containerID", "ifname", "life", "file"):
            note.string(key)
        note.integer("hostMTU", minimum=1, maximum=_INT32_MAX)
    except (ValueError, CniError):
        return None
    return note


def _parse(content: bytes) -> Attributes:
    """Returns the attributes in a file, none if it is invalid."""
    try:
        fields = _parse_object(content)
        return Attributes(
            mac=parse_mac(fields.string("mac")) if fields.string("mac") else None,
            promisc=fields.boolean("promisc") if fields.has("promisc") else None,
            mtu=fields.integer("mtu", minimum=0, maximum=_INT32_MAX) or None,
            allmulti=fields.boolean("allmulti") if fields.has("allmulti") else None,
            tx_queue=fields.integer("txQLen", minimum=0, maximum=_UINT32_MAX),
        )
    except (ValueError, CniError):
        return Attributes()


def _parse_object(content: bytes) -> Fields:
    value = gojson.loads(content)
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    return Fields(value)


def _members(original: Attributes) -> dict[str, object]:
    """Returns the JSON members in the reference plugin's order, without unset ones."""
    members = {
        "mac": None if original.mac is None else format_mac(original.mac),
        "promisc": original.promisc,
        "mtu": original.mtu,
        "allmulti": original.allmulti,
        "txQLen": original.tx_queue,
    }
    return {key: value for key, value in members.items() if value is not None}
