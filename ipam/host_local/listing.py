"""Lists the files of a store, for `podwire ipam` and `podwire doctor`.

One rule: these functions change nothing and do not lock the store, so the state may differ a moment later.
"""

from __future__ import annotations

import os
import re
import stat
from ipaddress import ip_address
from typing import NamedTuple

from ipam.host_local.store import ReservationStore

_OTHER_FILES = re.compile(r"lock|last_reserved_ip\.(\d+)")


class ReservationFile(NamedTuple):
    """A reservation file: `owner` is b"" if the file names no owner.

    `written_ns` is its modification time, `changed_ns` its change time. `residue`: a crash left the file empty, and its
    address counts as free. `unreadable`: this process has no permission to read the owner.
    """

    name: str
    owner: bytes
    written_ns: int
    changed_ns: int
    residue: bool = False
    unreadable: bool = False


def list_reservations(store: ReservationStore) -> list[ReservationFile]:
    """Returns all reservation files, ordered by address; raises OSError."""
    files = []
    for name in sorted(store.names(), key=_sort_key):
        path = f"{store.directory}/{name}"
        try:
            status = os.lstat(path)
            owner = store.get_owner(name)
        except FileNotFoundError:
            continue
        unreadable = not owner and stat.S_ISREG(status.st_mode) and not os.access(path, os.R_OK)
        residue = not owner and store.is_free(name)
        files.append(ReservationFile(name, owner, status.st_mtime_ns, status.st_ctime_ns, residue, unreadable))
    return files


def read_other_files(store: ReservationStore) -> tuple[dict[int, str], list[str]]:
    """Returns the content of each `last_reserved_ip.N`, and the names of foreign files; raises OSError."""
    last, foreign, known = {}, [], set(store.names())
    for name in sorted(os.listdir(store.directory)):
        match = _OTHER_FILES.fullmatch(name)
        if match and match[1]:
            last[int(match[1])] = store.last_reserved(int(match[1]))
        elif not match and name not in known:
            foreign.append(name)
    return last, foreign


def list_unindexed(store: ReservationStore) -> list[str]:
    """Returns the reservations that are missing in an index that seems complete; raises OSError.

    Returns [] if the index is stale, or becomes stale while the reservations are read.
    """
    index = store.open_index()
    try:
        if not index.complete:
            return []
        reservations = [(owner, name) for owner, names in store.list_owners().items() if owner for name in names]
        missing = [name for owner, name in reservations if name not in index.find(owner)]
        if index.damaged:  # the next verb that reads the damaged part rebuilds it
            return []
    finally:
        index.close()
    again = store.open_index()
    try:
        return missing if again.complete else []
    finally:
        again.close()


def _sort_key(name: str) -> tuple[int, int]:
    address = ip_address(name)
    return address.version, int(address)
