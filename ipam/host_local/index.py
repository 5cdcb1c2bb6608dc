"""The index of a store: finds the addresses of an attachment without reading every reservation.

One rule: the index is a cache that detects when it is stale. Every caller works without it, and a problem with the
index costs nothing but time.

The index is one file, `<dataDir>.podwire/<network>`, outside the directory in which scripts and people look for
reservations; the reference plugin does not know it. To detect changes by other programs, podwire compares timestamps of
two inodes. After each of its changes it sets the modification times of the store's directory and of the index to the
*same* moment in the past. When an entry of a directory is created, deleted or renamed, or a file is written, the kernel
sets the modification and change times of that inode to the current time. So while both modification times are equal,
and older than both change times, nothing else has changed the directory or the index: no reference plugin, no
administrator, no podwire that was killed in between. In every other case podwire scans the store once and rebuilds the
index.

- The timestamps do not reveal an edit of an existing reservation file. The store therefore verifies the names that the
  index returns (store.py). Only an owner that was written by hand into an existing file is missed until the next scan.
- Damage that keeps the timestamps, by a disk or by a tool that restores them, does not match the checksum of its bucket
  (table.py). A verb that reads such a bucket scans the store, too.
- After a power loss, the timestamps may have reached the disk before the contents. The header therefore contains the ID
  of the boot.
- A record also contains when its reservation was created, as far as it is known (boots.py): a reservation that an index
  of an earlier boot lists, and whose file has not changed since, is of an earlier boot. The index is therefore replaced
  as a whole, by rename. A killed process may leave its draft, which always has the same name; the next process
  overwrites it.
- The table is one file of fixed buckets (table.py), not a file or link per attachment, because creating an inode on
  ext4 is expensive: 15 us, or 150 us while ext4 skips inodes deleted in the last minutes. A table of sufficient size
  creates and deletes no files: a lookup is one read, a change is one write of a part of a page.
- If a bucket is full, the table is enlarged from its own records, without reading the store. A rebuilt table is written
  once, after all changes: GC of thousands of reservations does not write each record.
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
_DRAFT = "~"  # prefix of the file's name while it is being written; no network's name begins with it

_HEAD_BYTES = 1024
# A symbolic link in place of the index is not followed, and a FIFO does not block.
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK
_NS = 1_000_000_000
# How far the common modification time lies in the past: more than the coarsest timestamp of a file system (2 s).
_BACK_NS = 10 * _NS


class Index:
    """The index of one store; it may be changed only while the store's lock is held.

    Answers are reliable only while `complete` is true; otherwise scan the store and call `rebuild`. `damaged` is true
    after a bucket did not match its checksum.
    """

    def __init__(self, data_dir: str, network: str, store: str) -> None:
        self._store = store
        self._side, self._network = f"{data_dir.rstrip('/') or '/'}{_SUFFIX}", network
        self._fd = -1
        self._buckets = 0
        self._read_buckets: dict[int, bytes] = {}  # the buckets that were read, by offset
        # After `rebuild`: the reservations by owner, to be written by `close`, and the earlier records by identity.
        self._rebuilt: dict[bytes, list[str]] | None = None
        self._known: dict[bytes, bytes] = {}
        self._changed = False
        boot_id = boot.get_boot_id()
        self._boot = f"{boot_id}\n".encode() if boot_id else b""
        self._is_of_this_boot = False
        self._last_change_ns = 0  # of the index
        self.complete = self.damaged = False
        try:
            self._fd = os.open(f"{self._side}/{network}", os.O_RDWR | _SAFE)
            self.complete = self._matches_store()
        except OSError:
            pass

    def close(self) -> None:
        """Closes the index; if it was changed and is complete, first writes it and sets both modification times."""
        if (
            self._changed
            and self.complete
            and (self._rebuilt is None or self._write_table(self._rebuilt_records(self._rebuilt)))
        ):
            self._sync_times()
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def invalidate(self) -> None:
        """Marks the index as unreliable until it is rebuilt."""
        self.complete = False

    def find(self, owner: bytes) -> list[str]:
        """Returns the names of the reservations of `owner`."""
        if self._rebuilt is not None:
            return list(self._rebuilt.get(owner, ()))
        return [table.name_of(record) for _, record in self._records(table.key_of(owner))]

    def origin(self, owner: bytes, name: str) -> Origin:
        """Returns the origin of the reservation `name` of `owner`."""
        key = table.key_of(owner)
        if self._rebuilt is not None:
            known = self._known.get(table.identity(key, name))
            return Origin.UNKNOWN if known is None else table.origin_of(known)
        for _, record in self._records(key):
            if table.name_of(record) == name:
                return self._current_origin(record)[0]
        return Origin.UNKNOWN

    def add(self, owner: bytes, name: str) -> None:
        """Adds the reservation `name` of `owner`; the caller has already changed the store."""
        self._changed = True
        if not self.complete:
            return
        key = table.key_of(owner)
        new = table.pack(key, name, Origin.THIS_BOOT, 0)
        if self._rebuilt is not None:
            self._rebuilt[owner] = [*self._rebuilt.get(owner, ()), name]
            self._known[table.identity(key, name)] = new
            return
        self.complete = False
        offset = table.bucket_offset(key, self._buckets)
        bucket = self._bucket(offset)
        if not self.damaged:
            position = table.vacant_position(bucket)
            self.complete = self._put(offset, position, new) if position >= 0 else self._enlarge(new)

    def remove(self, owner: bytes, name: str) -> None:
        """Removes the reservation `name` of `owner`; the caller has already changed the store."""
        self._changed = True
        if not self.complete:
            return
        if self._rebuilt is not None:
            self._rebuilt[owner] = [other for other in self._rebuilt.get(owner, ()) if other != name]
            return
        self.complete = False
        key = table.key_of(owner)
        for position, record in self._records(key):
            if table.name_of(record) == name and not self.damaged:
                self.complete = self._put(table.bucket_offset(key, self._buckets), position, table.VACANT)
                return

    def rebuild(self, owners: Mapping[bytes, list[str]]) -> None:
        """Replaces the index with `owners`, the whole content of the store; `close` writes it."""
        self.complete, self._changed = bool(self._boot), True
        if self._rebuilt is None:
            for record in table.records(self._read_table()):
                verified = self._verified(record)
                if verified:
                    self._known[table.identity_of(record)] = verified
        self._rebuilt = dict(owners)

    def _verified(self, record: bytes) -> bytes:
        """Returns the record that a rebuilt index keeps of `record`, b"" if its origin is unknown."""
        if self._is_of_this_boot and table.origin_of(record) is not Origin.EARLIER_BOOT:
            return record
        origin, changed_ns = self._current_origin(record)
        return table.with_origin(record, origin, changed_ns) if origin is Origin.EARLIER_BOOT else b""

    def _rebuilt_records(self, owners: Mapping[bytes, list[str]]) -> list[bytes]:
        """Returns a record for every reservation, with its origin if an earlier record has it."""
        records = []
        for owner, names in owners.items():
            key = table.key_of(owner)
            for name in names:
                new = self._known.get(table.identity(key, name)) if self._known else None
                records.append(new or table.pack(key, name, Origin.UNKNOWN, 0))
        return records

    def _enlarge(self, new: bytes) -> bool:
        """Replaces the table with a larger one of its records and `new`; returns whether that succeeded."""
        content = self._read_table()
        is_whole = len(content) == self._buckets * BUCKET_BYTES and table.is_whole(content)
        return is_whole and self._write_table([*table.records(content), new])

    def _write_table(self, records: list[bytes]) -> bool:
        """Replaces the index file atomically with a table of `records`; returns whether that succeeded."""
        content = table.build(records)
        if content is None:  # an owner has more reservations than a bucket holds: the store has no index then
            return False
        draft = f"{self._side}/{_DRAFT}{self._network}"
        try:
            fd = self._create(draft)
        except OSError:
            return False
        try:
            _write(fd, content, _HEAD_BYTES)
            _write(fd, self._boot, 0)
            os.rename(draft, f"{self._side}/{self._network}")
        except OSError:
            os.close(fd)
            return False
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._buckets, self._is_of_this_boot = fd, len(content) // BUCKET_BYTES, True
        self._read_buckets.clear()
        return True

    def _create(self, path: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | _SAFE
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            os.mkdir(self._side, 0o700)
            return os.open(path, flags, 0o600)

    def _matches_store(self) -> bool:
        """Returns whether the index matches the store; compares their timestamps (see the module's docstring)."""
        index_status = os.fstat(self._fd)
        self._buckets = max(0, index_status.st_size - _HEAD_BYTES) // BUCKET_BYTES
        if self._buckets > table.MOST_BUCKETS:
            self._buckets = 0
        # The change time of an index from a backup is the time of the restoration.
        self._last_change_ns = min(index_status.st_ctime_ns, index_status.st_mtime_ns + _BACK_NS)
        self._is_of_this_boot = bool(self._boot) and os.pread(self._fd, len(self._boot), 0) == self._boot
        store_status = os.stat(self._store)
        if store_status.st_mtime_ns != index_status.st_mtime_ns:
            return False
        newest = store_status.st_mtime_ns + _NS
        if store_status.st_ctime_ns < newest or index_status.st_ctime_ns < newest:
            return False
        return self._buckets > 0 and self._is_of_this_boot

    def _sync_times(self) -> None:
        past = time.time_ns() - _BACK_NS
        try:
            os.utime(self._store, ns=(past, past))
            os.utime(self._fd, ns=(past, past))
        except OSError:
            pass

    def _bucket(self, offset: int) -> bytes:
        """Returns the bucket at `offset` of the table; a damaged one makes the index incomplete.

        Then only `origin` uses its records, since an origin is never the only evidence (boots.py).
        """
        bucket = self._read_buckets.get(offset)
        if bucket is None:
            try:
                bucket = os.pread(self._fd, BUCKET_BYTES, _HEAD_BYTES + offset)
            except OSError:
                bucket = b""
            self._read_buckets[offset] = bucket
            if not table.is_intact(bucket, offset):
                self.complete, self.damaged = False, True
        return bucket

    def _read_table(self) -> bytes:
        """Returns the content of the table, b"" if it cannot be read."""
        try:
            return os.pread(self._fd, self._buckets * BUCKET_BYTES, _HEAD_BYTES) if self._buckets else b""
        except OSError:
            return b""

    def _put(self, offset: int, position: int, record: bytes) -> bool:
        """Writes a record to `position` of the bucket at `offset`; returns whether that succeeded."""
        bucket = self._read_buckets[offset] = table.with_record(self._bucket(offset), position, record, offset)
        try:
            _write(self._fd, bucket, _HEAD_BYTES + offset)
        except OSError:
            return False
        return True

    def _records(self, key: bytes) -> list[tuple[int, bytes]]:
        """Returns the records of a key with their positions in its bucket; [] without a table."""
        return table.find(self._bucket(table.bucket_offset(key, self._buckets)), key) if self._buckets else []

    def _current_origin(self, record: bytes) -> tuple[Origin, int]:
        """Returns the origin of a record's reservation and the file's change time in ns, 0 if that is not needed."""
        known = table.origin_of(record)
        if not self._boot:  # the boot ID cannot be read: no record is provably of another boot
            return Origin.UNKNOWN, 0
        if self._is_of_this_boot and known is not Origin.EARLIER_BOOT:
            return known, 0
        try:
            changed_ns = os.lstat(f"{self._store}/{table.name_of(record)}").st_ctime_ns
        except (OSError, ValueError):  # the file was deleted, or the record is damaged
            return Origin.UNKNOWN, 0
        if self._is_of_this_boot:
            is_unchanged = changed_ns == table.changed_of(record)
        else:
            is_unchanged = changed_ns <= self._last_change_ns
        return (Origin.EARLIER_BOOT, changed_ns) if is_unchanged else (Origin.UNKNOWN, 0)


def _write(fd: int, data: bytes | bytearray, offset: int) -> None:
    """Writes all of `data`; raises OSError after a partial write."""
    if os.pwrite(fd, data, offset) != len(data):
        raise OSError("short write")
