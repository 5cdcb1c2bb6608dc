"""What is in a store, file by file: for who looks after it.

One rule: nothing is changed and no lock is taken, so what is told may be different a moment later.
"""

from __future__ import annotations

import os
import re
import stat
from ipaddress import ip_address
from typing import NamedTuple

from ipam.host_local.store import Store

_BOOKKEEPING = re.compile(r"lock|last_reserved_ip\.(\d+)")


class ReservationFile(NamedTuple):
    """A reservation as it stands: `owner` is b"" where its file names nobody.

    `written_ns` is when it was written, by its modification time; `changed_ns` when anything of it was changed last.
    `residue` tells that it is free, what a crash has left; `unreadable` that we may not read whose it is.
    """

    name: str
    owner: bytes
    written_ns: int
    changed_ns: int
    residue: bool = False
    unreadable: bool = False


def list_reservations(store: Store) -> list[ReservationFile]:
    """Returns all reservations, in the order of their addresses; raises OSError."""
    found = []
    for name in sorted(store.names(), key=_in_order):
        path = f"{store.directory}/{name}"
        try:
            status = os.lstat(path)
            owner = store.get_owner(name)
        except FileNotFoundError:
            continue
        unreadable = not owner and stat.S_ISREG(status.st_mode) and not os.access(path, os.R_OK)
        residue = not owner and store.is_free(name)
        found.append(ReservationFile(name, owner, status.st_mtime_ns, status.st_ctime_ns, residue, unreadable))
    return found


def read_other_files(store: Store) -> tuple[dict[int, str], list[str]]:
    """Returns what each `last_reserved_ip.N` holds, and the names of files that are not the store's; raises OSError."""
    last, foreign, known = {}, [], set(store.names())
    for name in sorted(os.listdir(store.directory)):
        own = _BOOKKEEPING.fullmatch(name)
        if own and own[1]:
            last[int(own[1])] = store.last_reserved(int(own[1]))
        elif not own and name not in known:
            foreign.append(name)
    return last, foreign


def list_unindexed(store: Store) -> list[str]:
    """Returns the reservations of which an index that proves itself says otherwise; raises OSError.

    Where the index is not proven, or not any more when all has been read, nothing is told.
    """
    index = store.open_index()
    try:
        if not index.complete:
            return []
        owned = [(owner, name) for owner, names in store.list_owners().items() if owner for name in names]
        wrong = [name for owner, name in owned if name not in index.find(owner)]
        if index.damaged:  # the next verb that reads the damaged part rebuilds it
            return []
    finally:
        index.close()
    again = store.open_index()
    try:
        return wrong if again.complete else []
    finally:
        again.close()


def _in_order(name: str) -> tuple[int, int]:
    address = ip_address(name)
    return address.version, int(address)
