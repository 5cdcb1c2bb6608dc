"""The table of an index (index.py): a record for each reservation, in the bucket that its owner's key chooses.

One rule: pure, bytes in and bytes out.

A bucket has room for 15 records and ends with a checksum; a record that finds no room needs a table of more buckets. A
vacant record is all zeros. The place of the checksum begins with a zero, so that a podwire without checksums takes it
for a vacant record. Such a podwire writes a 16th record there, or nothing, and the bucket then counts as damaged.
"""

from __future__ import annotations

import hashlib
import struct
from itertools import compress

from ipam.host_local.boots import Origin

# Origin and length of the name, name, its reservation's change time in ns (of those of an earlier boot), key.
_NAME_BYTES = 39
_RECORD = struct.Struct(f"<B{_NAME_BYTES}sQ16s")
RECORD_BYTES = _RECORD.size
BUCKET_BYTES = 16 * RECORD_BYTES
VACANT = bytes(RECORD_BYTES)
_KEY_BYTES = 16
_KEY_AT = RECORD_BYTES - _KEY_BYTES
_CHANGED_AT = _KEY_AT - 8
_ORIGIN_SHIFT, _LENGTH_MASK = 6, 63
_ORIGINS: tuple[Origin, ...] = (*Origin, Origin.UNKNOWN)
_CHECKSUM_BYTES = 16
_CHECKSUM_AT = BUCKET_BYTES - RECORD_BYTES
_LOAD = 4  # records per bucket at first: the chance that one of them gets 16 is about 1 in 200,000
_LEAST_BUCKETS = 32
MOST_BUCKETS = 1 << 20  # of millions of reservations; what is larger is no table of ours
_SPARSE = 16  # how many times as many may be tried when one of them overflows


def key_of(owner: bytes) -> bytes:
    """Returns what stands for an owner in the table."""
    return hashlib.blake2b(owner, digest_size=_KEY_BYTES).digest()


def packed(key: bytes, name: str, origin: Origin, changed_ns: int) -> bytes:
    """Returns the record of a reservation."""
    text = name.encode()  # an address takes at most 39
    return _RECORD.pack(origin << _ORIGIN_SHIFT | len(text), text, changed_ns, key)


def judged(record: bytes, origin: Origin, changed_ns: int) -> bytes:
    """Returns a record with what has been found out of its reservation's origin."""
    head = origin << _ORIGIN_SHIFT | record[0] & _LENGTH_MASK
    return bytes((head,)) + record[1:_CHANGED_AT] + changed_ns.to_bytes(8, "little") + record[_KEY_AT:]


def origin_of(record: bytes) -> Origin:
    """Returns when the reservation of a record was made, as it was known when that was written."""
    return _ORIGINS[record[0] >> _ORIGIN_SHIFT]


def changed_of(record: bytes) -> int:
    """Returns the change time in ns that a record has of its reservation, 0 where it has none."""
    return int.from_bytes(record[_CHANGED_AT:_KEY_AT], "little")


def name_of(record: bytes) -> str:
    """Returns the name in a record."""
    return record[1 : 1 + (record[0] & _LENGTH_MASK)].decode("ascii", "replace")


def place(key: bytes, buckets: int) -> int:
    """Returns where the bucket of a key begins in a table."""
    return int.from_bytes(key[:8]) % buckets * BUCKET_BYTES


def found(bucket: bytes, key: bytes) -> list[tuple[int, bytes]]:
    """Returns the records of a key in its bucket, with their places there."""
    records = []
    at = bucket.find(key)
    while at >= 0:
        start = at - _KEY_AT
        if start % RECORD_BYTES == 0 and bucket[start]:
            records.append((start, bucket[start : start + RECORD_BYTES]))
        at = bucket.find(key, at + 1)
    return records


def vacancy(bucket: bytes) -> int:
    """Returns where there is room in a bucket, -1 when there is none."""
    at = bucket.find(VACANT)
    while at > 0 and at % RECORD_BYTES:  # zeros across two records
        at = bucket.find(VACANT, at + 1)
    return at


def with_checksum(content: bytes | bytearray, offset: int) -> bytes:
    """Returns the bucket that begins at `offset` of the table, made of `content`: its records, or an earlier bucket."""
    own = content[:_CHECKSUM_AT]
    return bytes(own.ljust(BUCKET_BYTES - _CHECKSUM_BYTES, b"\0")) + _checksum(own, offset)


def changed(bucket: bytes, at: int, record: bytes, offset: int) -> bytes:
    """Returns a bucket with `record` at its place `at`."""
    return with_checksum(bucket[:at] + record + bucket[at + RECORD_BYTES :], offset)


def is_intact(bucket: bytes, offset: int) -> bool:
    """Tells whether a bucket is as it was written, and at its place."""
    return bucket == with_checksum(bucket, offset)


def is_whole(table: bytes) -> bool:
    """Tells whether all buckets of a table are as they were written."""
    return all(is_intact(table[at : at + BUCKET_BYTES], at) for at in range(0, len(table), BUCKET_BYTES))


def records(table: bytes | bytearray) -> list[bytes]:
    """Returns all records of a table."""
    starts = range(0, len(table) - RECORD_BYTES + 1, RECORD_BYTES)
    return [bytes(table[start : start + RECORD_BYTES]) for start in compress(starts, table[::RECORD_BYTES])]


def identity(key: bytes, name: str) -> bytes:
    """Returns what is the same in all records of a name and its owner."""
    return name.encode().ljust(_NAME_BYTES, b"\0") + key


def identity_of(record: bytes) -> bytes:
    """Returns the identity of a record's reservation."""
    return record[1:_CHANGED_AT] + record[_KEY_AT:]


def made_of(records: list[bytes]) -> bytearray | None:
    """Returns a table with room for more; None when there are too many, or more of one key than a bucket holds."""
    buckets = _LEAST_BUCKETS
    while buckets * _LOAD < len(records):
        buckets *= 2
    most = min(buckets * _SPARSE, MOST_BUCKETS)
    while (table := _filled(records, buckets)) is None:
        buckets *= 2
        if buckets > most:
            return None
    return table


def _filled(records: list[bytes], buckets: int) -> bytearray | None:
    """Returns all buckets, or None when a bucket overflows."""
    filled: dict[int, list[bytes]] = {}
    for record in records:
        filled.setdefault(place(record[_KEY_AT:], buckets), []).append(record)
    if max(map(len, filled.values()), default=0) > _CHECKSUM_AT // RECORD_BYTES:
        return None
    table = bytearray(buckets * BUCKET_BYTES)
    for at in range(0, len(table), BUCKET_BYTES):
        table[at : at + BUCKET_BYTES] = with_checksum(b"".join(filled.get(at, ())), at)
    return table


def _checksum(content: bytes | bytearray, offset: int) -> bytes:
    """Returns the checksum of a bucket's records; most of them are vacant, and zeros at the end tell nothing."""
    return hashlib.blake2b(b"%d " % offset + content.rstrip(b"\0"), digest_size=_CHECKSUM_BYTES).digest()
