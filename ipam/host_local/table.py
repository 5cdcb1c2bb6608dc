"""The table of an index (index.py): a record per reservation, in a bucket chosen by its owner's key.

One rule: pure functions from bytes to bytes.

A bucket contains 15 records and a checksum; if it is full, the table needs more buckets. A vacant record is all zeros.
The checksum follows a zero in the place of the 16th record, so that an older podwire, without checksums, treats it as a
vacant record. If that podwire writes a record there, or changes another one, the bucket counts as damaged.
"""

from __future__ import annotations

import hashlib
import struct
from itertools import compress

from ipam.host_local.boots import Origin

# Origin and length of the name; name; change time of the reservation file in ns (only of an earlier boot); key.
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
_LOAD = 4  # records per bucket of a new table: the chance that a bucket gets 16 is about 1 in 200,000
_LEAST_BUCKETS = 32
MOST_BUCKETS = 1 << 20  # enough for millions of reservations; podwire never writes a larger table
_SPARSE = 16  # if buckets overflow, a table may be this many times larger than its records need


def key_of(owner: bytes) -> bytes:
    """Returns the key of an owner in the table."""
    return hashlib.blake2b(owner, digest_size=_KEY_BYTES).digest()


def pack(key: bytes, name: str, origin: Origin, changed_ns: int) -> bytes:
    """Returns the record of a reservation."""
    text = name.encode()  # an address has at most 39 bytes
    return _RECORD.pack(origin << _ORIGIN_SHIFT | len(text), text, changed_ns, key)


def with_origin(record: bytes, origin: Origin, changed_ns: int) -> bytes:
    """Returns a record with another origin and change time."""
    head = origin << _ORIGIN_SHIFT | record[0] & _LENGTH_MASK
    return bytes((head,)) + record[1:_CHANGED_AT] + changed_ns.to_bytes(8, "little") + record[_KEY_AT:]


def origin_of(record: bytes) -> Origin:
    """Returns the origin of a record's reservation, as of the time when the record was written."""
    return _ORIGINS[record[0] >> _ORIGIN_SHIFT]


def changed_of(record: bytes) -> int:
    """Returns the change time in ns of a record's reservation file, 0 if the record does not contain it."""
    return int.from_bytes(record[_CHANGED_AT:_KEY_AT], "little")


def name_of(record: bytes) -> str:
    """Returns the name in a record."""
    return record[1 : 1 + (record[0] & _LENGTH_MASK)].decode("ascii", "replace")


def bucket_offset(key: bytes, buckets: int) -> int:
    """Returns the offset of a key's bucket in a table of `buckets` buckets."""
    return int.from_bytes(key[:8]) % buckets * BUCKET_BYTES


def find(bucket: bytes, key: bytes) -> list[tuple[int, bytes]]:
    """Returns the records of a key in its bucket, with their positions."""
    records = []
    key_position = bucket.find(key)
    while key_position >= 0:
        position = key_position - _KEY_AT
        if position % RECORD_BYTES == 0 and bucket[position]:
            records.append((position, bucket[position : position + RECORD_BYTES]))
        key_position = bucket.find(key, key_position + 1)
    return records


def vacant_position(bucket: bytes) -> int:
    """Returns the position of the first vacant record in a bucket, -1 if it is full."""
    position = bucket.find(VACANT)
    while position > 0 and position % RECORD_BYTES:  # these zeros belong to two records
        position = bucket.find(VACANT, position + 1)
    return position


def with_checksum(content: bytes | bytearray, offset: int) -> bytes:
    """Returns the bucket at `offset` of the table, with the records of `content` and their checksum."""
    packed = content[:_CHECKSUM_AT]
    return bytes(packed.ljust(BUCKET_BYTES - _CHECKSUM_BYTES, b"\0")) + _checksum(packed, offset)


def with_record(bucket: bytes, position: int, record: bytes, offset: int) -> bytes:
    """Returns the bucket at `offset` of the table with `record` at `position`."""
    return with_checksum(bucket[:position] + record + bucket[position + RECORD_BYTES :], offset)


def is_intact(bucket: bytes, offset: int) -> bool:
    """Returns whether a bucket matches its checksum and its offset."""
    return bucket == with_checksum(bucket, offset)


def is_whole(table: bytes) -> bool:
    """Returns whether all buckets of a table match their checksums."""
    return all(
        is_intact(table[offset : offset + BUCKET_BYTES], offset) for offset in range(0, len(table), BUCKET_BYTES)
    )


def records(table: bytes | bytearray) -> list[bytes]:
    """Returns all records of a table."""
    starts = range(0, len(table) - RECORD_BYTES + 1, RECORD_BYTES)
    return [bytes(table[start : start + RECORD_BYTES]) for start in compress(starts, table[::RECORD_BYTES])]


def identity(key: bytes, name: str) -> bytes:
    """Returns the bytes that all records of the same name and owner have in common."""
    return name.encode().ljust(_NAME_BYTES, b"\0") + key


def identity_of(record: bytes) -> bytes:
    """Returns the identity of a record's reservation."""
    return record[1:_CHANGED_AT] + record[_KEY_AT:]


def build(records: list[bytes]) -> bytearray | None:
    """Returns a table of the records, with room for more; None if there are too many records, or too many of a key."""
    buckets = _LEAST_BUCKETS
    while buckets * _LOAD < len(records):
        buckets *= 2
    most = min(buckets * _SPARSE, MOST_BUCKETS)
    while (table := _fill(records, buckets)) is None:
        buckets *= 2
        if buckets > most:
            return None
    return table


def _fill(records: list[bytes], buckets: int) -> bytearray | None:
    """Returns a table of `buckets` buckets, None if a bucket overflows."""
    filled: dict[int, list[bytes]] = {}
    for record in records:
        filled.setdefault(bucket_offset(record[_KEY_AT:], buckets), []).append(record)
    if max(map(len, filled.values()), default=0) > _CHECKSUM_AT // RECORD_BYTES:
        return None
    table = bytearray(buckets * BUCKET_BYTES)
    for offset in range(0, len(table), BUCKET_BYTES):
        table[offset : offset + BUCKET_BYTES] = with_checksum(b"".join(filled.get(offset, ())), offset)
    return table


def _checksum(content: bytes | bytearray, offset: int) -> bytes:
    """Returns the checksum of a bucket's records, without the vacant ones at the end, which are most of them."""
    return hashlib.blake2b(b"%d " % offset + content.rstrip(b"\0"), digest_size=_CHECKSUM_BYTES).digest()
