r"""What an interface was like before: a file for each attachment, shared with the reference plugin.

One rule: name, content and mode are the reference's to the byte; what else we must know stands in a note beside.

    <dataDir>/<container id>_<ifname>.json           what was changed, as it was (mode 0600)
    <dataDir>.podwire/<container id>_<ifname>.json   the note: whose it is, of which life of the container, which file

- The reference's name can be that of two attachments: `a_b_c.json` is of `a` and `b_c`, and of `a_b` and `c`. ADD saves
  such an attachment under a name with the container ID's SHA-512. A file under the shared name is read where there is
  none with the hash: the reference made it, or an earlier podwire, whose note names the attachment.
- The first values count, however many ADDs and entries of a chain there are: a file that is there gets what it lacks.
  Only one of another life of the container, by its note, is replaced.
- A note names its file by inode and time, so a file that the reference has written since has no note. Such a one is the
  reference's: it counts for DEL and for another ADD, and GC leaves it alone.
- A file appears with its content or not at all: it is written as a draft, `~` and what tells the network in front of
  its name, noted, and renamed. What a killed ADD leaves of that DEL removes, and GC, for which a note half written says
  nothing.

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
_MOST_BYTES = 1 << 16
_LONG = 200  # of 255 bytes (NAME_MAX)
_IFNAME_BYTES = 15  # IFNAMSIZ - 1 (linux/if.h)
# What is in the directories is ours or nobody's: a link there is not followed, and a FIFO is no reason to hang.
_OURS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EACCES)
_FOREIGN = (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EAGAIN)  # a link, a socket, a directory, a FIFO
_INT32_MAX, _UINT32_MAX = (1 << 31) - 1, (1 << 32) - 1


@dataclass(frozen=True)
class Saved:
    """What an interface was like, and what the note says: the host's end's MTU, and of which life it is ("" unknown).

    An unreadable file is one without any values. `is_shared`: the file may be another attachment's of the same name.
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
        self.draft = f"{data_dir}/{_drafted(network)}{name}"
        self.note = f"{_side(data_dir)}/{name}"


class Backup:
    """The backup of one attachment."""

    def __init__(self, data_dir: str, network: str, container_id: str, ifname: str) -> None:
        self._attachment, self._network = Attachment(container_id, ifname), network
        own, shared = _names(self._attachment)
        self._files = _Files(data_dir, network, own)
        self._shared = _Files(data_dir, network, shared) if shared != own else None

    def load(self) -> Saved | None:
        """Returns what is saved, None when nothing is; raises OSError when that cannot be told."""
        saved = self._load(self._files)
        if saved or not self._shared:
            return saved
        shared = self._load(self._shared)
        return shared and replace(shared, is_shared=not shared.life)

    def _load(self, files: _Files) -> Saved | None:
        try:
            content, status = _read(files.path)
        except OSError as error:
            if error.errno in _FOREIGN:
                return Saved(Attributes())
            if error.errno in _ABSENT:
                return None
            raise
        note = _noted(files.note)
        original = _decoded(content)
        if note is None or note.string("file") != _identity(status):
            return Saved(original)
        if _attachment_of(note) != self._attachment:
            return None
        return Saved(original, note.integer("hostMTU"), note.string("life"))

    def save(self, now: Saved, undo: Undo) -> None:
        """Saves `now`, but of this life's what is saved already; raises CniError(5).

        What was there is put back when a later step fails.
        """
        try:
            before = self._load(self._files)
            kept = before if before and before.life in ("", now.life) else None
            if kept:
                host_mtu = now.host_mtu if kept.host_mtu is None else kept.host_mtu
                now = Saved(kept.original.filled(now.original), host_mtu, now.life)
            if now == before:
                return
            undo.push(f"put {self._files.path} back", partial(self._take_back, before))
            if before and not kept:
                os.unlink(self._files.path)  # with the note of this life it would be taken for one of this life
            self._put(now)
        except OSError as error:
            doing = f"failed to save file {self._attachment.ifname}{_JSON}"
            path = error.filename or self._files.path
            hint = f'the file is {path}; "dataDir" must be a directory that can be written'
            raise CniError(Code.IO_FAILURE, f"{doing}: {reason(error.errno or 0)}", hint) from error

    def remove(self, *, shared: bool = False) -> None:
        """Removes the backup, its note and its draft, what can be of them; absent is success. Raises CniError.

        The note stays as long as the backup does: without it nobody knows later whose that is. A file under the
        reference's name without a note is removed only with `shared`.
        """
        all_files = [self._files]
        if self._shared and (saved := self._load(self._shared)) and (saved.life or shared):
            all_files.append(self._shared)
        run_all(*(partial(step, files) for files in all_files for step in (_remove_draft, _remove_noted)))

    def _take_back(self, before: Saved | None) -> None:
        """Makes file and note what they were; raises OSError."""
        _forget(self._files.draft)
        if before is None or not before.life:
            _forget(self._files.note)
        if before:
            self._put(before)
        else:
            _forget(self._files.path)

    def _put(self, saved: Saved) -> None:
        """Writes file and note, in an order in which neither is ever taken for another's; raises OSError."""
        status = _write(self._files.draft, gojson.dumps(_encoded(saved.original), indent=1))
        if saved.life:
            note = {
                "network": self._network,
                "containerID": self._attachment.container_id,
                "ifname": self._attachment.ifname,
                "life": saved.life,
                "file": _identity(status),
                **({"hostMTU": saved.host_mtu} if saved.host_mtu else {}),
            }
            _write(self._files.note, gojson.dumps(note))  # half written it is none
        os.rename(self._files.draft, self._files.path)
        record.change(f"save what {self._attachment.ifname} was like in {self._files.path}")


def _remove_draft(files: _Files) -> None:
    _forget(files.draft)


def _remove_noted(files: _Files) -> None:
    for path in (files.path, files.note):
        _forget(path)


def collect(data_dir: str, network: str, valid: Iterable[Attachment]) -> int:
    """Removes the backups of a network's attachments that are not `valid`; returns how many others name no network."""
    keep = frozenset(valid)
    kept, drafted, names = {name for item in keep for name in _names(item)}, _drafted(network), _listed(data_dir)
    unknown = {name for name in names if name.endswith(_JSON) and not name.startswith(_DRAFT)} - kept
    drafts = {name.removeprefix(drafted) for name in names if name.startswith(drafted)} - kept

    def collect_noted(name: str) -> None:
        note = _noted(f"{_side(data_dir)}/{name}")
        attachment = _attachment_of(note) if note else None
        if not note or not attachment or name not in _names(attachment):
            return
        backup = Backup(data_dir, network, *attachment)
        saved = backup.load()
        if saved and not saved.life:
            return  # the reference has written it since
        unknown.discard(name)
        if note.string("network") == network and attachment not in keep:
            backup.remove()

    noted = (partial(collect_noted, name) for name in _listed(_side(data_dir)))
    run_all(*noted, *(partial(_discard, data_dir, drafted, name) for name in drafts))
    return len(unknown)


def list_attachments(data_dir: str) -> list[tuple[str, Attachment]]:
    """Returns of whose interfaces there are backups, by their notes; raises OSError."""
    found = []
    for name in sorted(_listed(_side(data_dir))):
        note = _noted(f"{_side(data_dir)}/{name}")
        attachment = _attachment_of(note) if note else None
        if note and attachment and name in _names(attachment):
            found.append((note.string("network"), attachment))
    return found


def _discard(data_dir: str, drafted: str, name: str) -> None:
    """Removes the draft of a killed ADD, and its note when that was not finished; raises OSError."""
    note = f"{_side(data_dir)}/{name}"
    if _noted(note) is None:
        _forget(note)
    _forget(f"{data_dir}/{drafted}{name}")


def _drafted(network: str) -> str:
    """Returns what stands in front of a draft's name; of fixed length, as file names have limits."""
    return f"{_DRAFT}{sha512(network.encode()).hexdigest()[:16]}_"


def _side(data_dir: str) -> str:
    return f"{data_dir.rstrip('/') or '/'}{_SUFFIX}"


def _names(attachment: Attachment) -> tuple[str, str]:
    """Returns the name that ADD uses, and the reference's, which is the same unless another attachment may have it.

    A container ID that is too long for a file system is replaced by its hash in both.
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


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read(path: str) -> tuple[bytes, os.stat_result]:
    fd = os.open(path, os.O_RDONLY | _OURS)
    try:
        return os.read(fd, _MOST_BYTES), os.fstat(fd)
    finally:
        os.close(fd)


def _write(path: str, text: str) -> os.stat_result:
    """Writes a file; makes the directory if need be. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _OURS
    try:
        fd = os.open(path, flags, 0o600)
    except FileNotFoundError:
        directories.create(os.path.dirname(path), 0o700)  # the reference makes it 0600, which is of use to root only
        fd = os.open(path, flags, 0o600)
    try:
        directories.write(fd, text.encode())
        return os.fstat(fd)
    finally:
        os.close(fd)


def _forget(path: str) -> None:
    try:
        if record.is_dry_run():
            os.lstat(path)
        else:
            os.unlink(path)
        record.change(f"remove {path}")
    except OSError as error:
        if error.errno not in _ABSENT or (error.errno == errno.EACCES and os.path.lexists(path)):
            raise


def _identity(status: os.stat_result) -> str:
    return f"{status.st_ino} {status.st_mtime_ns}"


def _noted(path: str) -> Fields | None:
    """Returns a note, None when there is none that says all it must; raises OSError when that cannot be told."""
    try:
        content, _ = _read(path)
    except OSError as error:
        if error.errno in (*_ABSENT, *_FOREIGN):
            return None
        raise
    try:
        note = _object(content)
        for key in ("network", "containerID", "ifname", "life", "file"):
            note.string(key)
        note.integer("hostMTU", minimum=1, maximum=_INT32_MAX)
    except (ValueError, CniError):
        return None
    return note


def _decoded(content: bytes) -> Attributes:
    """Returns what a file says, nothing when it cannot be read."""
    try:
        fields = _object(content)
        return Attributes(
            mac=parse_mac(fields.string("mac")) if fields.string("mac") else None,
            promisc=fields.boolean("promisc") if fields.has("promisc") else None,
            mtu=fields.integer("mtu", minimum=0, maximum=_INT32_MAX) or None,
            allmulti=fields.boolean("allmulti") if fields.has("allmulti") else None,
            tx_queue=fields.integer("txQLen", minimum=0, maximum=_UINT32_MAX),
        )
    except (ValueError, CniError):
        return Attributes()


def _object(content: bytes) -> Fields:
    value = gojson.loads(content)
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    return Fields(value)


def _encoded(original: Attributes) -> dict[str, object]:
    """Returns the members in the reference's order, without those that were not asked for."""
    members = {
        "mac": None if original.mac is None else format_mac(original.mac),
        "promisc": original.promisc,
        "mtu": original.mtu,
        "allmulti": original.allmulti,
        "txQLen": original.tx_queue,
    }
    return {key: value for key, value in members.items() if value is not None}
