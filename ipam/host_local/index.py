"""The index of a store: which addresses an attachment has, found without reading every reservation.

One rule: the index is a hint that proves itself. Whoever uses it must be able to do without, and anything that goes
wrong with it costs time only.

It is one file, `<dataDir>.podwire/<network>`, beside the directory in which scripts and people look for reservations,
and the reference plugin knows nothing of it. Its proof is in the clocks of two inodes: after each change of ours the
store directory and the index get the *same* modification time, a moment in the past. The kernel sets an inode's
modification and change time to the same "now" whenever something is created, removed or renamed in a directory, or
written to a file. So as long as the two times are equal and older than both change times, nobody has touched either
since we left them: not the reference plugin, not an administrator, not a podwire that was killed half way. In every
other case the store is scanned once and the index written anew.

- What is edited inside an existing reservation does not show. A positive answer is therefore checked against the
  reservation itself (store.py); only an owner written by hand into an existing file is not found until the next scan.
- Damage that keeps the times, by a disk or by a tool that restores them, does not match the checksum of its bucket
  (table.py). A verb that reads such a bucket scans the store, too.
- After a power loss the times may have reached the disk before the contents; hence the boot id in the head.
- A record tells, too, when its reservation was made, as far as it is known (boots.py): what an index of an earlier boot
  knows, and has not been changed since, is of an earlier boot. An index is therefore replaced as a whole, by rename: a
  kill may leave its draft, which has one name and goes with the next.
- The table is a file of fixed buckets (table.py) instead of a file or link per attachment, because creating an inode is
  what costs on ext4: 15 us, and 150 while inodes freed in the last minutes have to be passed over. Nothing is created
  or freed here in the long run: a lookup is one read, a change one write of a page's part.
- A record that finds no room has the table made larger out of its own records: the store is not read for that. A table
  that is made anew is written once, when all changes are made: GC of thousands writes no record by itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress

from ipam.host_local import table
from ipam.host_local.boots import Origin
from ipam.host_local.table import BUCKET_BYTES
from kernel import boot

_SUFFIX = ".podwire"
_DRAFT = "~"  # in front of the name while it is written: no network's name begins like that

_HEAD_BYTES = 1024
# The index is a file of ours; what somebody put in its place, a link to his own file say, is not written to.
_OURS = os.O_NOFOLLOW | os.O_NONBLOCK
_NS = 1_000_000_000
# How far in the past the common time lies: more than the coarsest timestamps of a file system (2 s).
_BACK_NS = 10 * _NS


class Index:
    """The index of one store, to be used while its lock is held only.

    `complete` tells whether answers can be relied upon; when it is False, scan the store and `rebuild`. `damaged`: a
    bucket that was read does not match its checksum.
    """

    def __init__(self, data_dir: str, network: str, store: str) -> None:
        self._store = store
        self._side, self._network = f"{data_dir.rstrip('/') or '/'}{_SUFFIX}", network
        self._fd = -1
        self._buckets = 0
        self._seen: dict[int, bytes] = {}  # buckets that have been read
        # What is to be written when all is done: each owner's reservations, and the records of those known before.
        self._anew: dict[bytes, list[str]] | None = None
        self._known: dict[bytes, bytes] = {}
        self._changed = False
        self._boot = boot.get_boot_id()
        self._is_of_this_boot = False
        self._left_ns = 0  # when the index was changed last
        self.complete = self.damaged = False
        try:
            self._fd = os.open(f"{self._side}/{network}", os.O_RDWR | _OURS)
            self.complete = self._is_true()
        except OSError:
            pass

    def close(self) -> None:
        """Writes and proves the index, if something was changed and is known completely, and closes it."""
        if self._changed and self.complete and (self._anew is None or self._is_written(self._all_anew(self._anew))):
            self._settle()
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def distrust(self) -> None:
        """Gives the index up until it is rebuilt."""
        self.complete = False

    def find(self, owner: bytes) -> list[str]:
        """Returns the names of the reservations whose content is `owner`."""
        if self._anew is not None:
            return list(self._anew.get(owner, ()))
        return [table.name_of(record) for _, record in self._records(table.key_of(owner))]

    def origin(self, owner: bytes, name: str) -> Origin:
        """Tells when the reservation `name` of `owner` was made, as far as it is known."""
        key = table.key_of(owner)
        if self._anew is not None:
            known = self._known.get(table.identity(key, name))
            return Origin.UNKNOWN if known is None else table.origin_of(known)
        for _, record in self._records(key):
            if table.name_of(record) == name:
                return self._judged(record)[0]
        return Origin.UNKNOWN

    def add(self, owner: bytes, name: str) -> None:
        """Notes that `owner` now has the reservation `name`; called after the store was changed."""
        self._changed = True
        if not self.complete:
            return
        key = table.key_of(owner)
        new = table.packed(key, name, Origin.THIS_BOOT, 0)
        if self._anew is not None:
            self._anew[owner] = [*self._anew.get(owner, ()), name]
            self._known[table.identity(key, name)] = new
            return
        self.complete = False
        offset = table.place(key, self._buckets)
        bucket = self._bucket(offset)
        if not self.damaged:
            at = table.vacancy(bucket)
            self.complete = self._is_put(offset, at, new) if at >= 0 else self._is_grown(new)

    def remove(self, owner: bytes, name: str) -> None:
        """Forgets the reservation `name` of `owner`; called after the store was changed."""
        self._changed = True
        if not self.complete:
            return
        if self._anew is not None:
            self._anew[owner] = [other for other in self._anew.get(owner, ()) if other != name]
            return
        self.complete = False
        key = table.key_of(owner)
        for at, record in self._records(key):
            if table.name_of(record) == name and not self.damaged:
                self.complete = self._is_put(table.place(key, self._buckets), at, table.VACANT)
                return

    def rebuild(self, owners: Mapping[bytes, list[str]]) -> None:
        """Makes the index anew from the whole content of the store; it is written at the end."""
        self.complete, self._changed = bool(self._boot), True
        if self._anew is None:
            for record in table.records(self._all()):
                verified = self._verified(record)
                if verified:
                    self._known[table.identity_of(record)] = verified
        self._anew = dict(owners)

    def _verified(self, record: bytes) -> bytes:
        """Returns what a record of the file says in the index that takes its place, b"" where that is nothing."""
        if self._is_of_this_boot and table.origin_of(record) is not Origin.EARLIER_BOOT:
            return record
        origin, changed_ns = self._judged(record)
        return table.judged(record, origin, changed_ns) if origin is Origin.EARLIER_BOOT else b""

    def _all_anew(self, anew: Mapping[bytes, list[str]]) -> list[bytes]:
        """Returns the records of all reservations."""
        records = []
        for owner, names in anew.items():
            key = table.key_of(owner)
            for name in names:
                new = self._known.get(table.identity(key, name)) if self._known else None
                records.append(new or table.packed(key, name, Origin.UNKNOWN, 0))
        return records

    def _is_grown(self, new: bytes) -> bool:
        """Makes a larger table of its own records and a new one; tells whether that has been done."""
        whole = self._all()
        is_whole = len(whole) == self._buckets * BUCKET_BYTES and table.is_whole(whole)
        return is_whole and self._is_written([*table.records(whole), new])

    def _is_written(self, records: list[bytes]) -> bool:
        """Puts a new file in the place of the index, tells whether it is there: a kill leaves the old one or this."""
        anew = table.made_of(records)
        if anew is None:  # more reservations of one owner than a bucket holds: then without an index
            return False
        draft = f"{self._side}/{_DRAFT}{self._network}"
        try:
            fd = self._create(draft)
        except OSError:
            return False
        try:
            _write(fd, anew, _HEAD_BYTES)
            _write(fd, self._boot, 0)
            os.rename(draft, f"{self._side}/{self._network}")
        except OSError:
            os.close(fd)
            return False
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._buckets, self._is_of_this_boot = fd, len(anew) // BUCKET_BYTES, True
        self._seen.clear()
        return True

    def _create(self, path: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | _OURS
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            os.mkdir(self._side, 0o700)
            return os.open(path, flags, 0o600)

    def _is_true(self) -> bool:
        """Tells whether the index describes the store as it is (see the head of this module)."""
        index = os.fstat(self._fd)
        self._buckets = max(0, index.st_size - _HEAD_BYTES) // BUCKET_BYTES
        if self._buckets > table.MOST_BUCKETS:
            self._buckets = 0
        # Of a copy, out of a backup say, the change time tells when it was put back.
        self._left_ns = min(index.st_ctime_ns, index.st_mtime_ns + _BACK_NS)
        self._is_of_this_boot = bool(self._boot) and os.pread(self._fd, len(self._boot), 0) == self._boot
        store = os.stat(self._store)
        if store.st_mtime_ns != index.st_mtime_ns:
            return False
        newest = store.st_mtime_ns + _NS
        if store.st_ctime_ns < newest or index.st_ctime_ns < newest:
            return False
        return self._buckets > 0 and self._is_of_this_boot

    def _settle(self) -> None:
        past = time.time_ns() - _BACK_NS
        try:
            os.utime(self._store, ns=(past, past))
            os.utime(self._fd, ns=(past, past))
        except OSError:
            pass

    def _bucket(self, offset: int) -> bytes:
        """Returns the bucket that begins at `offset` of the table; a damaged one makes the index incomplete.

        Then only `origin` still uses its records, since an origin by itself proves nothing (boots.py).
        """
        bucket = self._seen.get(offset)
        if bucket is None:
            try:
                bucket = os.pread(self._fd, BUCKET_BYTES, _HEAD_BYTES + offset)
            except OSError:
                bucket = b""
            self._seen[offset] = bucket
            if not table.is_intact(bucket, offset):
                self.complete, self.damaged = False, True
        return bucket

    def _all(self) -> bytes:
        """Returns the table, none of one that cannot be read."""
        try:
            return os.pread(self._fd, self._buckets * BUCKET_BYTES, _HEAD_BYTES) if self._buckets else b""
        except OSError:
            return b""

    def _is_put(self, offset: int, at: int, record: bytes) -> bool:
        """Writes a record to its place in the bucket at `offset`; tells whether it is there."""
        bucket = self._seen[offset] = table.changed(self._bucket(offset), at, record, offset)
        try:
            _write(self._fd, bucket, _HEAD_BYTES + offset)
        except OSError:
            return False
        return True

    def _records(self, key: bytes) -> list[tuple[int, bytes]]:
        """Returns the records of a key, with their places in its bucket; none when there is no table."""
        return table.found(self._bucket(table.place(key, self._buckets)), key) if self._buckets else []

    def _judged(self, record: bytes) -> tuple[Origin, int]:
        """Returns when the reservation of a record was made, and its change time in ns, 0 where that says nothing."""
        known = table.origin_of(record)
        if not self._boot:  # /proc/sys is hidden: no record is known to be of another boot
            return Origin.UNKNOWN, 0
        if self._is_of_this_boot and known is not Origin.EARLIER_BOOT:
            return known, 0
        try:
            changed_ns = os.lstat(f"{self._store}/{table.name_of(record)}").st_ctime_ns
        except (OSError, ValueError):  # it is gone, or was never a name
            return Origin.UNKNOWN, 0
        same = changed_ns == table.changed_of(record) if self._is_of_this_boot else changed_ns <= self._left_ns
        return (Origin.EARLIER_BOOT, changed_ns) if same else (Origin.UNKNOWN, 0)


def _write(fd: int, data: bytes | bytearray, offset: int) -> None:
    """Writes all of `data`; raises OSError when the disk takes only a part of it."""
    if os.pwrite(fd, data, offset) != len(data):
        raise OSError("short write")
