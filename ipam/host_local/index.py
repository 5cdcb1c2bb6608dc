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
- After a power loss the times may have reached the disk before the contents; hence the boot id in the head.
- A record tells, too, when its reservation was made, as far as it is known (boots.py): what an index of an earlier boot
  knows, and has not been changed since, is of an earlier boot. An index is therefore replaced as a whole, by rename: a
  kill may leave its draft, which has one name and goes with the next.
- The table is a file of fixed buckets instead of a file or link per attachment, because creating an inode is what
  costs on ext4: 15 us, and 150 while inodes freed in the last minutes have to be passed over. Nothing is created or
  freed here in the long run: a lookup is one read, a change one write of a page's part.
- Records that find no room make the index incomplete; the next scan chooses a larger table. 10,000 reservations take
  about seven scans on the way.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

from ipam.host_local.boots import Origin
from kernel import boot

_SUFFIX = ".podwire"
_DRAFT = "~"  # in front of the name while it is written: no network's name begins like that

_HEAD_BYTES = 1024
# Origin and length of the name, name, its reservation's change time in ns (of those of an earlier boot), key.
_RECORD = struct.Struct("<B39sQ16s")
_RECORD_BYTES = _RECORD.size
_KEY_BYTES = 16
_KEY_AT = _RECORD_BYTES - _KEY_BYTES
_ORIGIN_SHIFT, _LENGTH_MASK = 6, 63
_ORIGINS = (*Origin, Origin.UNKNOWN)
_BUCKET_BYTES = 16 * _RECORD_BYTES
_LOAD = 4  # records per bucket at first: the chance that one of them gets 17 is about 1 in a million
# The index is a file of ours; what somebody put in its place, a link to his own file say, is not written to.
_OURS = os.O_NOFOLLOW | os.O_NONBLOCK
_LEAST_BUCKETS = 32
_SPARSE = 16  # how many times as many may be tried when one of them overflows
_NS = 1_000_000_000
# How far in the past the common time lies: more than the coarsest timestamps of a file system (2 s).
_BACK_NS = 10 * _NS
_EMPTY = bytes(_RECORD_BYTES)


class Index:
    """The index of one store, to be used while its lock is held only.

    `complete` tells whether answers can be relied upon; when it is False, scan the store and `rebuild`.
    """

    def __init__(self, data_dir: str, network: str, store: str) -> None:
        self._store = store
        self._side, self._network = f"{data_dir.rstrip('/') or '/'}{_SUFFIX}", network
        self._fd = -1
        self._buckets = 0
        self._changed = False
        self._boot = boot.boot_id()
        self._is_of_this_boot = False
        self._left_ns = 0  # when the index was changed last
        self.complete = False
        try:
            self._fd = os.open(f"{self._side}/{network}", os.O_RDWR | _OURS)
            self.complete = self._is_true()
        except OSError:
            pass

    def close(self) -> None:
        """Proves the index, if something was changed and is known completely, and closes it."""
        if self._changed and self.complete:
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
        return [_name(record) for _, record in self._records(_key(owner))]

    def origin(self, owner: bytes, name: str) -> Origin:
        """Tells when the reservation `name` of `owner` was made, as far as it is known."""
        return self._origin(_key(owner), name)[0]

    def add(self, owner: bytes, name: str) -> None:
        """Notes that `owner` now has the reservation `name`; called after the store was changed."""
        key = _key(owner)
        self._replace(key, None, _record(key, name, Origin.THIS_BOOT, 0))

    def remove(self, owner: bytes, name: str) -> None:
        """Forgets the reservation `name` of `owner`; called after the store was changed."""
        self._replace(_key(owner), name, _EMPTY)

    def rebuild(self, owners: Mapping[bytes, list[str]]) -> None:
        """Writes the index anew from the whole content of the store."""
        self.complete, self._changed = False, True
        if not self._boot:
            return
        keys = [(_key(owner), names) for owner, names in owners.items()]
        records = [_record(key, name, *self._origin(key, name)) for key, names in keys for name in names]
        buckets = _LEAST_BUCKETS
        while buckets * _LOAD < len(records):
            buckets *= 2
        most = buckets * _SPARSE
        while (table := _table(records, buckets)) is None:
            buckets *= 2
            if buckets > most:  # more reservations of one owner than a bucket holds: then without an index
                return
        try:
            self._write(table, is_empty=not records)
        except OSError:
            return
        self._buckets, self._is_of_this_boot, self.complete = buckets, True, True

    def _write(self, table: bytearray, *, is_empty: bool) -> None:
        """Puts a new file in the place of the index: a kill leaves the one or the other."""
        draft = f"{self._side}/{_DRAFT}{self._network}"
        fd = self._create(draft)
        try:
            os.ftruncate(fd, _HEAD_BYTES + len(table))
            if not is_empty:  # otherwise it is all zeros, which needs no blocks
                _write(fd, table, _HEAD_BYTES)
            _write(fd, self._boot, 0)
            os.rename(draft, f"{self._side}/{self._network}")
        except OSError:
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd

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
        self._buckets = max(0, index.st_size - _HEAD_BYTES) // _BUCKET_BYTES
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

    def _read(self, offset: int) -> bytes:
        try:
            return os.pread(self._fd, _BUCKET_BYTES, offset)
        except OSError:
            self.complete = False
            return b""

    def _records(self, key: bytes) -> Iterator[tuple[int, bytes]]:
        """Yields the records of a key, with their places in the file; of nothing when there is no table."""
        if not self._buckets:
            return
        offset = _HEAD_BYTES + _place(key, self._buckets)
        bucket = self._read(offset)
        at = bucket.find(key)
        while at >= 0:
            start = at - _KEY_AT
            if start % _RECORD_BYTES == 0 and bucket[start]:
                yield offset + start, bucket[start : start + _RECORD_BYTES]
            at = bucket.find(key, at + 1)

    def _origin(self, key: bytes, name: str) -> tuple[Origin, int]:
        """Returns when a reservation was made, and its change time in ns, 0 where that says nothing."""
        record = next((record for _, record in self._records(key) if _name(record) == name), None)
        if record is None:
            return Origin.UNKNOWN, 0
        known = _ORIGINS[record[0] >> _ORIGIN_SHIFT]
        if self._is_of_this_boot and known is not Origin.EARLIER_BOOT:
            return known, 0
        try:
            changed_ns = os.lstat(f"{self._store}/{name}").st_ctime_ns
        except OSError:
            return Origin.UNKNOWN, 0
        (*_, known_ns, _) = _RECORD.unpack(record)
        same = changed_ns == known_ns if self._is_of_this_boot else changed_ns <= self._left_ns
        return (Origin.EARLIER_BOOT, changed_ns) if same else (Origin.UNKNOWN, 0)

    def _replace(self, key: bytes, name: str | None, new: bytes) -> None:
        """Puts record `new` in the place of that of `name`, or a vacant one; the index is incomplete without one."""
        self._changed = True
        if not self.complete:
            return
        self.complete = False
        if name is None:
            at = self._vacancy(key)
        else:
            at = next((place for place, record in self._records(key) if _name(record) == name), -1)
        if at < 0:
            return
        try:
            _write(self._fd, new, at)
        except OSError:
            return
        self.complete = True

    def _vacancy(self, key: bytes) -> int:
        """Returns where there is room in the file for a record of `key`, -1 when there is none."""
        offset = _HEAD_BYTES + _place(key, self._buckets)
        bucket = self._read(offset)
        at = bucket.find(_EMPTY)
        while at > 0 and at % _RECORD_BYTES:  # zeros across two records
            at = bucket.find(_EMPTY, at + 1)
        return offset + at if at >= 0 else -1


def _key(owner: bytes) -> bytes:
    return hashlib.blake2b(owner, digest_size=_KEY_BYTES).digest()


def _place(key: bytes, buckets: int) -> int:
    """Returns where the bucket of a key begins in a table."""
    return int.from_bytes(key[:8]) % buckets * _BUCKET_BYTES


def _table(records: list[bytes], buckets: int) -> bytearray | None:
    """Returns all buckets, or None when a bucket overflows."""
    table = bytearray(buckets * _BUCKET_BYTES)
    used = bytearray(buckets)
    for record in records:
        at = _place(record[_KEY_AT:], buckets)
        number = at // _BUCKET_BYTES
        if used[number] == _BUCKET_BYTES // _RECORD_BYTES:
            return None
        at += used[number] * _RECORD_BYTES
        table[at : at + _RECORD_BYTES] = record
        used[number] += 1
    return table


def _record(key: bytes, name: str, origin: Origin, changed_ns: int) -> bytes:
    text = name.encode()  # an address takes at most 39
    return _RECORD.pack(origin << _ORIGIN_SHIFT | len(text), text, changed_ns, key)


def _name(record: bytes) -> str:
    return record[1 : 1 + (record[0] & _LENGTH_MASK)].decode("ascii", "replace")


def _write(fd: int, data: bytes | bytearray, offset: int) -> None:
    """Writes all of `data`; raises OSError when the disk takes only a part of it."""
    if os.pwrite(fd, data, offset) != len(data):
        raise OSError("short write")
