"""The records of pods with networkPolicy: a file under /run for each attachment, for podwire-agent and for DEL.

One rule: a process that acts on a record holds its lock (flock). DEL holds it exclusively until it has removed the
pod's addresses from the packet filter and deleted the record. The agent holds it shared until the addresses are in the
filter: otherwise it could add them after DEL, when they may belong to another pod.

    /run/podwire/policy/pods/<name>    JSON, created by rename; names that begin with "." are drafts

    {"boot": "6f1d...", "namespace": "shop", "name": "web-0", "uid": "...", "network": "net", "containerID": "...",
     "ifname": "eth0", "hostVeth": "veth0940712e", "mac": "32:0d:96:52:29:c7", "addresses": ["10.22.0.2"],
     "guard": "bridge"}

A container that Kubernetes did not start has no namespace: the agent skips its record. `guard` is the kind of guard of
its port: "bridge" or "routed" (attachment.policy.port_guard).
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from attachment.policy import table
from cni import gojson
from cni.address import Address, parse_ip
from cni.errors import CniError, from_os_error
from cni.fields import Fields
from kernel import flock, system
from process import directories, record
from process.stderr import one_line
from process.values import dataclass

_MAX_BYTES = 1 << 16
_NAME_DIGITS = 32
# The strings of a record: field of PodRecord, and key in JSON.
_KEYS = {
    "boot": "boot",
    "namespace": "namespace",
    "pod": "name",
    "uid": "uid",
    "network": "network",
    "container_id": "containerID",
    "ifname": "ifname",
    "host_veth": "hostVeth",
    "mac": "mac",
    "guard": "guard",
}


@dataclass(frozen=True)
class PodRecord:
    """An attachment; `namespace`, `pod` (its name) and `uid` identify the pod in Kubernetes, "" if unknown."""

    boot: str
    namespace: str
    pod: str
    uid: str
    network: str
    container_id: str
    ifname: str
    host_veth: str
    mac: str
    addresses: tuple[Address, ...]
    guard: str

    @property
    def file_name(self) -> str:
        """The name of the record's file."""
        return file_name_of(self.network, self.container_id, self.ifname)


def file_name_of(network: str, container_id: str, ifname: str) -> str:
    """Returns the name of the file of an attachment's record."""
    return hashlib.sha256(f"{network}:{container_id}:{ifname}".encode()).hexdigest()[:_NAME_DIGITS]


def write(pod: PodRecord) -> None:
    """Creates or replaces a record; raises CniError(5)."""
    document: dict[str, object] = {key: getattr(pod, field) for field, key in _KEYS.items()}
    document["addresses"] = [str(address) for address in pod.addresses]
    path, draft = path_of(pod.file_name), path_of(f".{pod.file_name}")
    try:
        directories.create(os.path.dirname(path))
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            directories.write(fd, gojson.dumps(document).encode())
        finally:
            os.close(fd)
        os.rename(draft, path)
    except OSError as error:
        raise from_os_error(error).prefixed("cannot write the record of the pod for podwire-agent: ") from error


def read(file_name: str) -> PodRecord:
    """Returns a record; raises OSError, FileNotFoundError if it is absent, ValueError."""
    fd = os.open(path_of(file_name), os.O_RDONLY | os.O_CLOEXEC)
    try:
        return parse(os.read(fd, _MAX_BYTES), file_name)
    finally:
        os.close(fd)


def get_time_ns(file_name: str) -> int:
    """Returns when a record was written, in nanoseconds since 1970; raises OSError."""
    return os.stat(path_of(file_name)).st_mtime_ns


def parse(data: bytes, file_name: str) -> PodRecord:
    """Returns the record in a file's content; raises ValueError if it is not that of the attachment `file_name`."""
    try:
        fields = parse_fields(data)
        texts = {field: fields.string(key) for field, key in _KEYS.items()}
        pod = PodRecord(**texts, addresses=tuple(map(parse_ip, fields.strings("addresses"))))
    except CniError as error:
        raise ValueError(str(error)) from None
    if pod.file_name != file_name:
        raise ValueError("it is the record of another attachment")
    return pod


def parse_fields(data: bytes) -> Fields:
    """Returns the JSON object in `data`; raises ValueError."""
    document = gojson.loads(data)
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    return Fields(document)


def list_file_names() -> list[str]:
    """Returns the file names of all records, none if the directory is missing; raises OSError."""
    try:
        return [name for name in os.listdir(path_of("")) if not name.startswith(".")]
    except FileNotFoundError:
        return []


def delete(file_name: str, release: Callable[[PodRecord], object]) -> None:
    """Locks a record, calls `release` with it, and deletes it; absent is success, and costs one system call.

    If `release` raises an error, the record remains. Raises CniError(11) if another process holds the lock too long,
    OSError.
    """
    path = path_of(file_name)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        flock.acquire(fd, path, "podwire-agent, which uses the record of the pod")
        if not os.fstat(fd).st_nlink:
            return  # another DEL has deleted it; the addresses may already be another pod's
        try:
            pod = parse(os.read(fd, _MAX_BYTES), file_name)
        except ValueError as error:
            print(one_line(f"podwire: {path} is damaged, its addresses are unknown: {error}"), file=sys.stderr)
        else:
            release(pod)
        if record.allows_change(f"delete {path}"):
            os.unlink(path)
    finally:
        os.close(fd)


def delete_draft(file_name: str) -> None:
    """Deletes the draft of an ADD that was killed; absent is success. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path_of(f".{file_name}"))


def path_of(file_name: str) -> str:
    """Returns the path of a record's file; for "", the path of the directory."""
    return system.current.state_path(f"{table.PODS_DIRECTORY}/{file_name}")
