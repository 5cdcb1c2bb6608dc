r"""The store of one network: a directory with a file per reserved address, shared with the reference plugin.

One rule: names, contents and modes are the reference's to the byte, and everything is changed under its lock, so that
either plugin can take over from the other at any moment.

    <dataDir>/<network>/10.1.2.2             "<container id>\r\n<ifname>" (long ago: only the id), mode 0600
    <dataDir>/<network>/last_reserved_ip.0   "10.1.2.2", the last address given out of range set 0, mode 0600
    <dataDir>/<network>/lock                 empty, flock(2)ed, mode 0750, never removed
    <dataDir>.podwire/<network>              the index, ours alone (index.py)

An owner, below, is the content of a reservation without surrounding white space.

- A reservation appears with its content or not at all: it is written to a file without a name (O_TMPFILE), which then
  gets one by linkat(2); that fails when the name is taken. No temporary name is left behind by a kill.
- Nothing is fsync'ed: after a power loss every container is gone, and a reservation whose content did not reach the
  disk is an empty file. Such a file, which the reference leaves when it is killed, too, is free: who writes one holds
  the lock, so under the lock it is residue.
- `last_reserved_ip.N` is overwritten in place by one write, which no kill can tear, instead of replaced by rename:
  ext4 flushes a file that replaces another (80 us), and every replaced one is an inode more to pass over (index.py).
- SIGTERM and SIGINT are held back by who takes the lock, as in each verb (process/signals.py), and arrive only while he
  waits for it: what is done under it is short and all or nothing.

An ADD of one address makes 25 system calls here, DEL 19, CHECK 15, STATUS 10, however many reservations there are:
0.2 ms in a warm process, 1 ms in a fresh one, whose first use of each page of the start-up image is a page fault.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from socket import AF_INET, AF_INET6, inet_pton

from cni.errors import CniError, Code
from ipam.host_local import lock
from ipam.host_local.boots import Origin
from ipam.host_local.index import Index
from process import directories, record

# What reading a name in the store may answer without being a failure of ours: not there, or no file of ours.
_FOREIGN = (errno.ENOENT, errno.EISDIR, errno.EACCES, errno.ELOOP, errno.ENXIO, errno.EAGAIN)
# The directory may be a link, as /var/lib/cni may be; what is in it is ours or nobody's: a link in it is not followed
# to a file elsewhere, and a FIFO is no reason to hang.
_OURS = os.O_NOFOLLOW | os.O_NONBLOCK
_READING = os.O_RDONLY | _OURS
_MOSTLY_BYTES = 256  # an owner is far shorter
_OWNER_BYTES = 1 << 17  # of one that is not: a variable of the environment has no more (MAX_ARG_STRLEN)

Owners = dict[bytes, list[str]]
Origins = Callable[[bytes, str], Origin]


def owner_of(container_id: str, ifname: str) -> bytes:
    """Returns the content of a reservation of this attachment; without `ifname` that of a legacy one."""
    return os.fsencode(f"{container_id}\r\n{ifname}" if ifname else container_id)


class Store:
    """The store of `network`; reading alone needs no lock, `locked` gives the rest."""

    def __init__(self, data_dir: str, network: str, *, lock_wait_s: float = lock.LOCK_WAIT_S) -> None:
        self.directory = f"{data_dir}/{network}"
        self._data_dir = data_dir
        self._network = network
        self._lock_wait_s = lock_wait_s

    @contextmanager
    def locked(self) -> Iterator[Reservations]:
        """Makes the directory when it is not there, and holds its lock; the signals are held back by the caller.

        Raises CniError(11) when the lock is not to be had, CniError(5) when the directory cannot be used.
        """
        path = f"{self.directory}/lock"
        fd = -1
        try:
            fd = _open_lock(path)
            if fd >= 0:
                with record.timed_step(f"wait for the lock {path}"):
                    lock.acquire(fd, path, self._lock_wait_s)
            index = self.open_index()
            try:
                yield Reservations(self.directory, index)
            except CniError:
                raise
            except BaseException:
                index.distrust()  # the change that failed may be half done
                raise
            finally:
                index.close()
        except OSError as error:
            raise self.unusable(error) from error
        finally:
            if fd >= 0:
                with suppress(OSError):  # nothing was written to it
                    os.close(fd)

    def unusable(self, error: OSError) -> CniError:
        """Returns the CniError(5) that names the path of an OSError."""
        return CniError(
            Code.IO_FAILURE,
            f"cannot use the reservations in {self.directory}: {error.strerror}",
            f'the file is {error.filename or self.directory}; "dataDir" must be a local directory that can be written',
        )

    def exists(self) -> bool:
        """Tells whether the store has been made; raises OSError when it cannot be."""
        try:
            status = os.stat(self.directory)
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.directory)
        return True

    def check_usable(self) -> bool:
        """Tells whether the store has been made.

        Raises the OSError that reserving an address would meet, as far as that can be known without doing so.
        """
        exists = self.exists()
        directories.check_writable(self.directory)
        path = f"{self.directory}/lock"
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return exists

    def is_free(self, name: str) -> bool:
        """Tells whether nobody has the reservation `name`, by a look without the lock."""
        return _is_free(f"{self.directory}/{name}")

    def names(self) -> list[str]:
        """Returns the names of all reservations, residue of a crash among them."""
        return _names(self.directory)

    def list_used(self, version: int) -> set[int]:
        """Returns all addresses of family 4 or 6 that have a reservation, residue of a crash among them."""
        return set(values(version, os.listdir(self.directory)))

    def get_owner(self, name: str) -> bytes:
        """Returns the owner of the reservation `name`, b"" when there is none; by a look without the lock."""
        return _content(f"{self.directory}/{name}")

    def open_index(self) -> Index:
        """Returns the index, to be closed; without the lock it is to be looked at only."""
        return Index(self._data_dir, self._network, self.directory)

    def list_owners(self) -> Owners:
        """Returns all reservations by owner, residue left out."""
        return _read_all(self.directory)[0]

    def last_reserved(self, number: int) -> str:
        """Returns what `last_reserved_ip.<number>` holds, "" when there is none."""
        return _last_reserved(self.directory, number)

    @contextmanager
    def origins(self) -> Iterator[Origins]:
        """Yields what tells the origin of an owner's reservation, by a look into the index without the lock."""
        index = self.open_index()
        try:
            yield index.origin
        finally:
            index.close()


class Reservations:
    """The store while its lock is held."""

    def __init__(self, directory: str, index: Index) -> None:
        self.directory = directory
        self._index = index
        self._last: dict[int, str] = {}

    def find(self, owner: bytes) -> list[str]:
        """Returns the names of the reservations that `owner` has."""
        if self._index.complete:
            names = self._index.find(owner)
            if all(self.get_owner(name) == owner for name in names) and self._index.complete:
                return names
        return self.scan().get(owner, [])

    def get_owner(self, name: str) -> bytes:
        """Returns the owner of the reservation `name`, b"" when there is none."""
        return _content(f"{self.directory}/{name}")

    def is_free(self, name: str) -> bool:
        """Tells whether nobody has the reservation `name`."""
        return _is_free(f"{self.directory}/{name}")

    def list_used(self, version: int) -> set[int]:
        """Returns all addresses of family 4 or 6 that have a reservation, residue of a crash among them."""
        return set(values(version, os.listdir(self.directory)))

    def scan(self) -> Owners:
        """Reads all reservations, by owner; removes the residue of crashes and writes the index anew."""
        if record.is_dry_run() and not os.path.isdir(self.directory):
            return {}  # it would have been made
        owners, residue = _read_all(self.directory)
        for name in residue:
            if record.change(f"remove {self.directory}/{name}, which a crash left empty"):
                os.unlink(f"{self.directory}/{name}")
        if not record.is_dry_run():
            self._index.rebuild({owner: names for owner, names in owners.items() if owner})
        return owners

    def last_reserved(self, number: int) -> str:
        """Returns what `last_reserved_ip.<number>` holds, "" when there is none."""
        if number not in self._last:
            self._last[number] = _last_reserved(self.directory, number)
        return self._last[number]

    def origin(self, owner: bytes, name: str) -> Origin:
        """Tells when `owner`'s reservation `name` was made, as far as it is known."""
        return self._index.origin(owner, name)

    def reserve(self, name: str, owner: bytes) -> bool:
        """Reserves `name` for `owner`; returns False when somebody has it."""
        path = f"{self.directory}/{name}"
        try:
            _create(self.directory, path, owner)
        except FileExistsError:
            if not _is_residue(os.lstat(path)):
                return False
            os.unlink(path)
            _create(self.directory, path, owner)
        if record.is_recording():
            record.change(_words("reserve", name, owner))
        self._index.add(owner, name)
        return True

    def note_last_reserved(self, number: int, name: str) -> None:
        """Writes `last_reserved_ip.<number>`, at which the next search of that range set begins."""
        path = f"{self.directory}/last_reserved_ip.{number}"
        record.change(f"write {name} to {path}")
        text = name.encode()
        if len(text) < len(self.last_reserved(number)):
            os.unlink(path)  # the rest of a longer text would have to be cut off in a second step
        self._last.pop(number, None)
        try:
            fd = os.open(path, os.O_WRONLY | _OURS)
        except FileNotFoundError:
            _create(self.directory, path, text)
            return
        except OSError as error:
            if error.errno not in _FOREIGN:
                raise
            return  # somebody's directory, link or FIFO: the search begins at the range's start then
        try:
            os.pwrite(fd, text, 0)
        finally:
            os.close(fd)

    def release(self, name: str, owner: bytes) -> None:
        """Frees the reservation `name` that `owner` has; one that is gone already is success."""
        if record.is_recording() and not record.change(_words("release", name, owner)):
            return
        with suppress(FileNotFoundError):
            os.unlink(f"{self.directory}/{name}")
        self._index.remove(owner, name)


def _words(doing: str, name: str, owner: bytes) -> str:
    container_id, _, ifname = owner.partition(b"\r\n")
    where = [os.fsdecode(text) for text in (container_id, ifname) if text]
    return f"{doing} {name} of {' '.join(where)}"


def _open_lock(path: str) -> int:
    """Opens the lock, made with its directory when it is not there: -1 when that is only planned."""
    flags = os.O_RDONLY | _OURS | (0 if record.is_dry_run() else os.O_CREAT)
    try:
        return os.open(path, flags, 0o750)
    except FileNotFoundError:
        directories.create(os.path.dirname(path))
        if record.is_dry_run():
            return -1
        return os.open(path, flags, 0o750)


def _create(directory: str, path: str, content: bytes) -> None:
    """Makes a file that has its content from the first moment; raises FileExistsError when the name is taken."""
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_WRONLY, 0o600)
    except OSError:
        _create_in_place(path, content)
        return
    try:
        directories.write(fd, content)
        # An absolute source ignores the directory it is given with; with one, Python calls linkat(2) and has it follow
        # the symbolic link, which is the way to name a nameless file (open(2), O_TMPFILE).
        os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd)
    except FileNotFoundError:  # no /proc here
        _create_in_place(path, content)
    finally:
        with suppress(OSError):  # it has its name by now, or never will
            os.close(fd)


def _create_in_place(path: str, content: bytes) -> None:
    """Makes a file as the reference does, where the file system has no nameless ones (NFS, old overlayfs).

    A kill between the two steps leaves an empty file, which is free.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            directories.write(fd, content)
        finally:
            os.close(fd)  # NFS tells only now that the disk is full
    except BaseException:
        os.unlink(path)
        raise


def _content(path: str) -> bytes:
    return _read_ours(path).strip()


def _last_reserved(directory: str, number: int) -> str:
    return _read_ours(f"{directory}/last_reserved_ip.{number}").decode("ascii", "replace")


def _read_ours(path: str) -> bytes:
    """Returns what a file of ours holds, b"" when there is none or the name is somebody else's."""
    try:
        fd = os.open(path, _READING)
        try:
            content = os.read(fd, _MOSTLY_BYTES)
            return content if len(content) < _MOSTLY_BYTES else content + os.read(fd, _OWNER_BYTES)
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
        try:  # noqa: SIM105 - of thousands: a context for each takes six times as long
            yield int.from_bytes(inet_pton(family, name))
        except (OSError, ValueError):  # the other family, or no address
            pass


def _is_address(name: str) -> bool:
    """Tells a reservation from everything else in the directory, which is somebody else's."""
    try:
        inet_pton(AF_INET6 if ":" in name else AF_INET, name)
    except (OSError, ValueError):
        return False
    return True


def _read_all(directory: str) -> tuple[Owners, list[str]]:
    """Returns reservations by owner, and the names of files that a crash left empty.

    What takes an address and names nobody (a blank file, a directory, a link) is owned by b"".
    """
    owners: Owners = {}
    residue = []
    for name in _names(directory):
        path = f"{directory}/{name}"
        owner = _read_ours(path).strip()
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
