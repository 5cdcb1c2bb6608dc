r"""The store of one network: a directory with a file per reserved address, shared with the reference plugin.

One rule: file names, contents and modes equal the reference plugin's byte for byte, and podwire holds the same lock for
every change, so that either plugin can replace the other at any moment.

    <dataDir>/<network>/10.1.2.2             "<container id>\r\n<ifname>", mode 0600
    <dataDir>/<network>/last_reserved_ip.0   "10.1.2.2", the last address allocated from range set 0, mode 0600
    <dataDir>/<network>/lock                 empty, flock(2)ed, mode 0750, never removed
    <dataDir>.podwire/<network>              the index, which only podwire uses (index.py)

An owner, below, is the content of a reservation file without surrounding white space. Old versions of the
reference plugin wrote only the container ID; such a file is called a reservation without interface.

- A reservation file never exists without its content: podwire writes the content to a nameless file (O_TMPFILE), then
  linkat(2) names the file, or fails if the name exists. A killed process leaves no temporary file.
- No file is fsync'ed: no container survives a power loss, and a reservation whose content did not reach the disk is an
  empty file. A killed reference plugin leaves empty files, too. They are called residue, and their addresses count as
  free: every writer holds the lock, so nothing else is writing an empty file while podwire holds it.
- `last_reserved_ip.N` is overwritten in place, by one write that a kill cannot interrupt, not replaced by rename: ext4
  flushes a file that replaces another (80 us), and each replaced inode slows down later ones (index.py).
- The caller blocks SIGTERM and SIGINT, as every verb does (process/signals.py); they are delivered only while it waits
  for the lock. The changes under the lock are short and atomic.

An ADD of one address makes 25 system calls here, DEL 19, CHECK 15, STATUS 10, whatever the number of reservations is:
0.2 ms in a warm process, 1 ms in a new one, whose first use of each page of the start-up image is a page fault.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from socket import AF_INET, AF_INET6, inet_pton

from cni.errors import CniError, Code
from ipam.host_local.boots import Origin
from ipam.host_local.index import Index
from kernel import flock
from process import directories, record

# Errors of reading a name in the store that are ignored: the file is missing, or is not a file of the store.
_FOREIGN = (errno.ENOENT, errno.EISDIR, errno.EACCES, errno.ELOOP, errno.ENXIO, errno.EAGAIN)
# The store's directory may be a symbolic link, as /var/lib/cni may be. An entry that is a symbolic link is not
# followed, and a FIFO does not block.
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK
_READING = os.O_RDONLY | _SAFE
_FIRST_READ_BYTES = 256  # enough for nearly every owner
_CLOCK_TICK_NS = 10_000_000  # of the time of a file, which may be that of the last tick
_MAX_OWNER_BYTES = 1 << 17  # the limit of an environment variable (MAX_ARG_STRLEN)

Owners = dict[bytes, list[str]]
Origins = Callable[[bytes, str], Origin]


def owner_of(container_id: str, ifname: str) -> bytes:
    """Returns the content of an attachment's reservation files; for an `ifname` of "" that without interface."""
    return os.fsencode(f"{container_id}\r\n{ifname}" if ifname else container_id)


class StoreFiles:
    """The files in the directory of a store; reading them needs no lock."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def is_free(self, name: str) -> bool:
        """Returns whether the address `name` is free."""
        return _is_free(f"{self.directory}/{name}")

    def list_used(self, version: int) -> set[int]:
        """Returns all addresses of family 4 or 6 that have a reservation file, residue included."""
        return set(values(version, os.listdir(self.directory)))

    def get_owner(self, name: str) -> bytes:
        """Returns the owner of the reservation `name`, b"" if there is none."""
        return _content(f"{self.directory}/{name}")

    def last_reserved(self, number: int) -> str:
        """Returns the content of `last_reserved_ip.<number>`, "" if there is none."""
        return _read_file(f"{self.directory}/last_reserved_ip.{number}").decode("ascii", "replace")


class ReservationStore(StoreFiles):
    """The store of `network`. Changes need `locked`."""

    def __init__(self, data_dir: str, network: str, *, lock_wait_s: float = flock.LOCK_WAIT_S) -> None:
        super().__init__(f"{data_dir}/{network}")
        self._data_dir = data_dir
        self._network = network
        self._lock_wait_s = lock_wait_s

    @contextmanager
    def locked(self) -> Iterator[Reservations]:
        """Creates the directory if it is missing, and holds its lock; the caller blocks SIGTERM and SIGINT.

        Raises CniError(11) if the wait for the lock times out, and CniError(5) if the directory cannot be used.
        """
        path = f"{self.directory}/lock"
        fd = -1
        try:
            fd = _open_lock(path)
            if fd >= 0:
                with record.timed_step(f"wait for the lock {path}"):
                    flock.acquire(fd, path, "the store of addresses", self._lock_wait_s)
            index = self.open_index()
            try:
                yield Reservations(self.directory, index)
            except CniError:
                raise
            except BaseException:
                index.invalidate()  # a change may have been made in part
                raise
            finally:
                index.close()
        except OSError as error:
            raise self.unusable(error) from error
        finally:
            if fd >= 0:
                with suppress(OSError):  # close() reports lost writes, and nothing was written to the lock file
                    os.close(fd)

    def unusable(self, error: OSError) -> CniError:
        """Returns a CniError(5) that names the path of `error`."""
        return CniError(
            Code.IO_FAILURE,
            f"cannot use the reservations in {self.directory}: {error.strerror}",
            f'the file is {error.filename or self.directory}; "dataDir" must be a writable directory of this machine',
        )

    def exists(self) -> bool:
        """Returns whether the directory exists; raises OSError if its path is not a directory."""
        try:
            status = os.stat(self.directory)
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.directory)
        return True

    def check_usable(self) -> bool:
        """Returns whether the directory exists.

        Raises the OSError that an ADD would get, as far as it can be predicted without a change.
        """
        exists = self.exists()
        directories.check_writable(self.directory)
        path = f"{self.directory}/lock"
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return exists

    def names(self) -> list[str]:
        """Returns the names of all reservation files, including residue."""
        return _names(self.directory)

    def open_index(self) -> Index:
        """Opens the index, which the caller closes; without the lock it must only be read."""
        return Index(self._data_dir, self._network, self.directory)

    def list_owners(self) -> Owners:
        """Returns the names of all reservations by owner, without residue."""
        return _read_all(self.directory)[0]

    @contextmanager
    def origins(self) -> Iterator[Origins]:
        """Yields a function that reads the origin of an owner's reservation from the index, without the lock."""
        index = self.open_index()
        try:
            yield index.origin
        finally:
            index.close()


class Reservations(StoreFiles):
    """The store while its lock is held."""

    def __init__(self, directory: str, index: Index) -> None:
        super().__init__(directory)
        self._index = index
        self._last: dict[int, str] = {}

    def find(self, owner: bytes) -> list[str]:
        """Returns the names of the reservations of `owner`."""
        if self._index.complete:
            names = self._index.find(owner)
            if all(self.get_owner(name) == owner for name in names) and self._index.complete:
                return names
        return self.scan().get(owner, [])

    def scan(self) -> Owners:
        """Returns the names of all reservations by owner; deletes residue and rebuilds the index."""
        if record.is_dry_run() and not os.path.isdir(self.directory):
            return {}  # an ADD that is not a dry run would have created the directory
        owners, residue = _read_all(self.directory)
        for name in residue:
            if record.allows_change(f"remove {self.directory}/{name}, which a crash left empty"):
                os.unlink(f"{self.directory}/{name}")
        if not record.is_dry_run():
            self._index.rebuild({owner: names for owner, names in owners.items() if owner})
        return owners

    def last_reserved(self, number: int) -> str:
        """Returns the content of `last_reserved_ip.<number>`, "" if there is none."""
        if number not in self._last:
            self._last[number] = super().last_reserved(number)
        return self._last[number]

    def origin(self, owner: bytes, name: str) -> Origin:
        """Returns the origin of the reservation `name` of `owner`."""
        return self._index.origin(owner, name)

    def reserve(self, name: str, owner: bytes) -> bool:
        """Reserves `name` for `owner`; returns False if it is already reserved."""
        path = f"{self.directory}/{name}"
        try:
            _create(self.directory, path, owner)
        except FileExistsError:
            if not _is_residue(os.lstat(path)):
                return False
            os.unlink(path)
            _create(self.directory, path, owner)
        if record.is_recording():
            record.note_change(_describe("reserve", name, owner))
        self._index.add(owner, name)
        return True

    def note_last_reserved(self, number: int, name: str) -> None:
        """Writes `last_reserved_ip.<number>`, after which the next search of that range set begins."""
        path = f"{self.directory}/last_reserved_ip.{number}"
        record.note_change(f"write {name} to {path}")
        text = name.encode()
        if len(text) < len(self.last_reserved(number)):
            os.unlink(path)  # overwriting a longer text would need a second step that truncates the file
        self._last.pop(number, None)
        try:
            fd = os.open(path, os.O_WRONLY | _SAFE)
        except FileNotFoundError:
            _create(self.directory, path, text)
            return
        except OSError as error:
            if error.errno not in _FOREIGN:
                raise
            return  # not a file, but a directory, link or FIFO: the next search begins at the start of the range
        try:
            os.pwrite(fd, text, 0)
        finally:
            os.close(fd)

    def is_younger(self, name: str, time_ns: int) -> bool:
        """Returns whether the reservation `name` is not older than a time (nanoseconds since 1970)."""
        try:
            return os.stat(f"{self.directory}/{name}").st_mtime_ns >= time_ns - _CLOCK_TICK_NS
        except FileNotFoundError:
            return False

    def release(self, name: str, owner: bytes) -> None:
        """Releases the reservation `name` of `owner`; a missing one is success."""
        if record.is_recording() and not record.allows_change(_describe("release", name, owner)):
            return
        with suppress(FileNotFoundError):
            os.unlink(f"{self.directory}/{name}")
        self._index.remove(owner, name)


def _describe(action: str, name: str, owner: bytes) -> str:
    container_id, _, ifname = owner.partition(b"\r\n")
    parts = [os.fsdecode(text) for text in (container_id, ifname) if text]
    return f"{action} {name} of {' '.join(parts)}"


def _open_lock(path: str) -> int:
    """Opens the lock file, creates it and its directory if missing; a dry run returns -1 instead of creating it."""
    flags = os.O_RDONLY | _SAFE | (0 if record.is_dry_run() else os.O_CREAT)
    try:
        return os.open(path, flags, 0o750)
    except FileNotFoundError:
        directories.create(os.path.dirname(path))
        if record.is_dry_run():
            return -1
        return os.open(path, flags, 0o750)


def _create(directory: str, path: str, content: bytes) -> None:
    """Creates a file atomically with its content; raises FileExistsError if the name exists."""
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_WRONLY, 0o600)
    except OSError:
        _create_in_place(path, content)
        return
    try:
        directories.write(fd, content)
        # linkat(2) with AT_SYMLINK_FOLLOW names a nameless file (open(2), O_TMPFILE). Python sets that flag only if the
        # caller passes a directory, which the kernel ignores with an absolute source path.
        os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd)
    except FileNotFoundError:  # no /proc here
        _create_in_place(path, content)
    finally:
        with suppress(OSError):  # by now the file has its name, or an error is being raised
            os.close(fd)


def _create_in_place(path: str, content: bytes) -> None:
    """Creates a file as the reference plugin does; used where O_TMPFILE is not supported (NFS, old overlayfs).

    A kill between the two steps leaves an empty file, which counts as free.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            directories.write(fd, content)
        finally:
            os.close(fd)  # NFS reports a full disk only on close
    except BaseException:
        os.unlink(path)
        raise


def _content(path: str) -> bytes:
    return _read_file(path).strip()


def _read_file(path: str) -> bytes:
    """Returns the content of a file of the store, b"" if it is missing or is a directory, link or FIFO."""
    try:
        fd = os.open(path, _READING)
        try:
            content = os.read(fd, _FIRST_READ_BYTES)
            return content if len(content) < _FIRST_READ_BYTES else content + os.read(fd, _MAX_OWNER_BYTES)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in _FOREIGN:
            raise
        return b""


def _names(directory: str) -> list[str]:
    return [name for name in os.listdir(directory) if _is_address(name)]


def values(version: int, names: Iterable[str]) -> Iterator[int]:
    """Yields the addresses of family 4 or 6 among `names`."""
    family = AF_INET if version == 4 else AF_INET6
    for name in names:
        try:  # noqa: SIM105 - a context manager would take six times as long, for thousands of names
            yield int.from_bytes(inet_pton(family, name))
        except (OSError, ValueError):  # the other family, or not an address
            pass


def _is_address(name: str) -> bool:
    """Returns whether a file name is an address; only such files are reservations."""
    try:
        inet_pton(AF_INET6 if ":" in name else AF_INET, name)
    except (OSError, ValueError):
        return False
    return True


def _read_all(directory: str) -> tuple[Owners, list[str]]:
    """Returns the reservations by owner, and the names of residue files.

    Entries that occupy an address but name no owner (a file of white space, a directory, a link) are listed under b"".
    """
    owners: Owners = {}
    residue = []
    for name in _names(directory):
        path = f"{directory}/{name}"
        owner = _read_file(path).strip()
        if not owner:
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                continue
            if _is_residue(status):
                residue.append(name)
                continue
        owners.setdefault(owner, []).append(name)
    return owners, residue


def _is_free(path: str) -> bool:
    try:
        return _is_residue(os.lstat(path))
    except FileNotFoundError:
        return True


def _is_residue(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_size == 0
