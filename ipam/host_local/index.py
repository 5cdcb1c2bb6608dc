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
- The table is a file of fixed buckets instead of a file or link per attachment, because creating an inode is what
  costs on ext4: 15 us, and 150 while inodes freed in the last minutes have to be passed over. Nothing is created or
  freed here in the long run: a lookup is one read, a change one write of a page's part.
- Records that find no room make the index incomplete; the next scan chooses a larger table. 10,000 reservations take
  about seven scans on the way.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping

_SUFFIX = ".podwire"

_HEAD_BYTES = 1024
_RECORD_BYTES = 64  # length of the name, name, key
_KEY_BYTES = 16
_NAME_BYTES = _RECORD_BYTES - _KEY_BYTES - 1  # an address takes at most 39
_KEY_AT = 1 + _NAME_BYTES
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
        self._path = f"{data_dir.rstrip('/')}{_SUFFIX}/{network}"
        self._fd = -1
        self._buckets = 0
        self._changed = False
        self.complete = False
        try:
            self._fd = os.open(self._path, os.O_RDWR | _OURS)
            self.complete = self._is_true()
        except OSError:
            pass

    def close(self) -> None:
        """Proves the index, if something was changed and is known completely, and closes it."""
        if self._changed and self.complete:
            self._settle()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def distrust(self) -> None:
        """Gives the index up until it is rebuilt."""
        self.complete = False

    def find(self, owner: bytes) -> list[str]:
        """Returns the names of the reservations whose content is `owner`."""
        key = _key(owner)
        bucket = self._read(self._offset(key))
        names = []
        at = bucket.find(key)
        while at >= 0:
            start = at - _KEY_AT
            if start % _RECORD_BYTES == 0 and bucket[start]:
                names.append(bucket[start + 1 : start + 1 + bucket[start]].decode())
            at = bucket.find(key, at + 1)
        return names

    def add(self, owner: bytes, name: str) -> None:
        """Notes that `owner` has the reservation `name`; called after the store was changed."""
        key = _key(owner)
        self._replace(key, _EMPTY, _record(key, name))

    def remove(self, owner: bytes, name: str) -> None:
        """Forgets the reservation `name` of `owner`; called after the store was changed."""
        key = _key(owner)
        self._replace(key, _record(key, name), _EMPTY)

    def rebuild(self, owners: Mapping[bytes, list[str]]) -> None:
        """Writes the index anew from the whole content of the store."""
        self.complete, self._changed = False, True
        boot = _boot_id()
        if not boot:
            return
        records = [_record(_key(owner), name) for owner, names in owners.items() for name in names]
        self._buckets = _LEAST_BUCKETS
        while self._buckets * _LOAD < len(records):
            self._buckets *= 2
        most = self._buckets * _SPARSE
        while (table := self._table(records)) is None:
            self._buckets *= 2
            if self._buckets > most:  # more reservations of one owner than a bucket holds: then without an index
                return
        try:
            if self._fd < 0:
                self._create()
            os.ftruncate(self._fd, 0)
            os.ftruncate(self._fd, _HEAD_BYTES + len(table))
            if records:  # otherwise it is all zeros, which needs no blocks
                _write(self._fd, table, _HEAD_BYTES)
            _write(self._fd, boot, 0)
        except OSError:
            return
        self.complete = True

    def _create(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | _OURS
        try:
            self._fd = os.open(self._path, flags, 0o600)
        except FileNotFoundError:
            os.mkdir(os.path.dirname(self._path), 0o700)
            self._fd = os.open(self._path, flags, 0o600)

    def _table(self, records: list[bytes]) -> bytearray | None:
        """Returns all buckets, or None when a bucket overflows."""
        table = bytearray(self._buckets * _BUCKET_BYTES)
        used = bytearray(self._buckets)
        for record in records:
            at = self._offset(record[_KEY_AT:]) - _HEAD_BYTES
            number = at // _BUCKET_BYTES
            if used[number] == _BUCKET_BYTES // _RECORD_BYTES:
                return None
            at += used[number] * _RECORD_BYTES
            table[at : at + _RECORD_BYTES] = record
            used[number] += 1
        return table

    def _is_true(self) -> bool:
        """Tells whether the index describes the store as it is (see the head of this module)."""
        store, index = os.stat(self._store), os.fstat(self._fd)
        if store.st_mtime_ns != index.st_mtime_ns:
            return False
        newest = store.st_mtime_ns + _NS
        if store.st_ctime_ns < newest or index.st_ctime_ns < newest:
            return False
        self._buckets = (index.st_size - _HEAD_BYTES) // _BUCKET_BYTES
        boot = _boot_id()
        return self._buckets > 0 and bool(boot) and os.pread(self._fd, len(boot), 0) == boot

    def _settle(self) -> None:
        past = time.time_ns() - _BACK_NS
        try:
            os.utime(self._store, ns=(past, past))
            os.utime(self._fd, ns=(past, past))
        except OSError:
            pass

    def _offset(self, key: bytes) -> int:
        return _HEAD_BYTES + int.from_bytes(key[:8]) % self._buckets * _BUCKET_BYTES

    def _read(self, offset: int) -> bytes:
        try:
            return os.pread(self._fd, _BUCKET_BYTES, offset)
        except OSError:
            self.complete = False
            return b""

    def _replace(self, key: bytes, old: bytes, new: bytes) -> None:
        """Puts record `new` in the place of `old`; without such a place the index is incomplete."""
        self._changed = True
        if not self.complete:
            return
        self.complete = False
        offset = self._offset(key)
        bucket = self._read(offset)
        at = bucket.find(old)
        while at > 0 and at % _RECORD_BYTES:  # zeros across two records
            at = bucket.find(old, at + 1)
        if at < 0:
            return
        try:
            _write(self._fd, new, offset + at)
        except OSError:
            return
        self.complete = True


def _key(owner: bytes) -> bytes:
    return hashlib.blake2b(owner, digest_size=_KEY_BYTES).digest()


def _record(key: bytes, name: str) -> bytes:
    text = name.encode()[:_NAME_BYTES]
    return bytes((len(text),)) + text.ljust(_NAME_BYTES, b"\0") + key


def _write(fd: int, data: bytes | bytearray, offset: int) -> None:
    """Writes all of `data`; raises OSError when the disk takes only a part of it."""
    if os.pwrite(fd, data, offset) != len(data):
        raise OSError("short write")


def _boot_id() -> bytes:
    try:
        fd = os.open("/proc/sys/kernel/random/boot_id", os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(fd, 64)
    finally:
        os.close(fd)
