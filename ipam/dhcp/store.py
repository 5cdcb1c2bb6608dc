"""The lease files: one for each interface, which the daemon writes and `podwire ipam list` reads.

    <directory>/<network>/<container ID>:<interface>.json      the lease, mode 0600
    <directory>/<network>/<container ID>:<interface>.release   a note of a DEL that did not reach the daemon

A container ID of more than 64 characters is cut, and followed by "~" and a hash.

One rule: a file is complete or missing. It is written under another name, synchronized to the disk and renamed, so a
lease that an ADD has answered survives a loss of power. A container ID has no colon and no tilde, an interface name no
colon.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress

from cni import gojson
from ipam.dhcp.record import LeaseRecord, from_json, to_json
from process import directories, durable, files

_LEASE, _NOTE, _DRAFT = ".json", ".release", ".tmp"
_LONG = 64  # characters: the IDs of containerd, CRI-O and podman


class LeaseStore:
    """The lease files below `directory`."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def lock(self) -> bool:
        """Locks the directory until this process ends; returns False if another one has locked it. Raises OSError.

        Two daemons would renew each lease twice, and release addresses that the server has given to others.
        """
        directories.create(self.directory)
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # stays open
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        return True

    def write(self, record: LeaseRecord) -> None:
        """Creates or replaces a lease file; it is on the disk when this returns. Raises OSError."""
        path = self._path(*record.owner.key, _LEASE)
        directories.create(os.path.dirname(path), 0o700)
        content = (gojson.dumps(to_json(record), indent=2) + "\n").encode()
        durable.write(path, content, 0o600, draft=path + _DRAFT)

    def delete(self, network: str, container_id: str, ifname: str) -> None:
        """Deletes an interface's lease file and note; missing ones are success. Raises OSError."""
        path = self._path(network, container_id, ifname, "")
        deleted = [_unlink(path + suffix) for suffix in (_LEASE, _NOTE)]
        if any(deleted):
            durable.synchronize(os.path.dirname(path))
            with suppress(OSError):  # other leases of the network are in it
                os.rmdir(os.path.dirname(path))

    def delete_drafts(self) -> None:
        """Deletes the drafts of a killed daemon; only the daemon, of which there is one, may call it."""
        for name in _names(self.directory):
            for file in _names(f"{self.directory}/{name}"):
                if file.endswith(_DRAFT):
                    with suppress(OSError):  # a read-only disk: it stays, and harms nothing
                        _unlink(f"{self.directory}/{name}/{file}")
            with suppress(OSError):  # there are leases in it
                os.rmdir(f"{self.directory}/{name}")

    def note_release(self, network: str, container_id: str, ifname: str) -> bool:
        """Notes that a lease must be released; returns False if there is none. Raises OSError."""
        path = self._path(network, container_id, ifname, "")
        if not os.path.lexists(path + _LEASE):
            return False
        os.close(os.open(path + _NOTE, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        return True

    def path_of(self, record: LeaseRecord) -> str:
        """Returns the path of a lease file."""
        return self._path(*record.owner.key, _LEASE)

    def must_release(self, record: LeaseRecord) -> bool:
        """Returns whether there is a note for a lease."""
        return os.path.lexists(self._path(*record.owner.key, _NOTE))

    def read_all(self, network: str = "") -> Iterator[LeaseRecord | UnreadableLease]:
        """Yields the leases of `network`, or ("") of all networks; a file that is no lease as an UnreadableLease."""
        for name in [network] if network else _names(self.directory):
            for file in _names(f"{self.directory}/{name}"):
                path = f"{self.directory}/{name}/{file}"
                if file.endswith(_LEASE) and os.path.lexists(path):  # a release meanwhile deletes it
                    yield self._read(path)

    def _read(self, path: str) -> LeaseRecord | UnreadableLease:
        try:
            return from_json(gojson.loads(files.read(path, gojson.MAX_BYTES)))
        except (OSError, ValueError) as error:
            return UnreadableLease(path, str(error))

    def _path(self, network: str, container_id: str, ifname: str, suffix: str) -> str:
        if len(container_id) > _LONG:  # the name of a file has at most 255 bytes
            digest = hashlib.sha256(container_id.encode()).hexdigest()[:_LONG]
            container_id = f"{container_id[:_LONG]}~{digest}"
        return f"{self.directory}/{network}/{container_id}:{ifname}{suffix}"


class UnreadableLease:
    """A lease file that cannot be read: its path and why."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True
