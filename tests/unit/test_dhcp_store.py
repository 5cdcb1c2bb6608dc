"""The lease files of dhcp's daemon: what is written is read again, whatever the lease; other files are reported."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface

import pytest

from cni.result import DNS, Route
from ipam.dhcp.lease import INFINITE, Lease
from ipam.dhcp.record import Owner, Record, Target, from_json, to_json
from ipam.dhcp.store import Store, UnreadableLease

LEASE = Lease(
    address=IPv4Interface("10.25.0.7/24"),
    server=IPv4Address("10.25.0.1"),
    gateway=IPv4Address("10.25.0.1"),
    routes=(Route(IPv4Interface("0.0.0.0/0"), IPv4Address("10.25.0.1")),),
    dns=DNS(("10.25.0.53",), "example.org", ("a.org",)),
    mtu=1400,
    granted_s=1000.25,
    renewal_s=1800.0,
    rebinding_s=3150.0,
    lifetime_s=3600.0,
    server_mac="02:00:00:00:00:01",
)
TARGET = Target(2, "02:00:00:00:00:02", 4711, "br0", shares_mac=True)
OWNER = Owner("net", "c1", "eth0", "/run/netns/c1", "K8S_POD_NAME=web", b'{"name": "net"}')
RECORD = Record(OWNER, TARGET, "boot", LEASE, None)


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        replace(RECORD, ipv4=replace(LEASE, renewal_s=INFINITE, rebinding_s=INFINITE, lifetime_s=INFINITE)),
        replace(RECORD, ipv4=replace(LEASE, gateway=None, routes=(), dns=DNS(), mtu=0, server_mac="")),
        replace(RECORD, owner=replace(OWNER, container_id="c" * 256)),
    ],
)
def test_lease_file_is_read_as_it_was_written(record, tmp_path):
    """A lease is the same after it was written and read; the file can be read only by root, and has no draft."""
    store = Store(str(tmp_path))
    store.write(record)
    assert list(store.read_all()) == [record]
    assert list(store.read_all("net")) == [record]
    assert list(store.read_all("other")) == []
    (file,) = (tmp_path / "net").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert store.note_release(*record.owner.key)
    assert store.must_release(record)
    store.delete(*record.owner.key)
    assert list(tmp_path.iterdir()) == []


def test_text_that_is_not_utf8_is_stored(tmp_path):
    """Bytes that are not UTF-8, in the configuration or in CNI_ARGS, do not prevent the lease from being stored."""
    store = Store(str(tmp_path))
    written, stored = (("A=\udcff", b'{"x": "\xff"}'), ("A=?", '{"x": "\ufffd"}'.encode()))
    store.write(replace(RECORD, owner=replace(OWNER, args=written[0], stdin=written[1])))
    assert list(store.read_all()) == [replace(RECORD, owner=replace(OWNER, args=stored[0], stdin=stored[1]))]


def test_release_without_a_lease_is_not_noted(tmp_path):
    """Without a lease there is nothing to note, and no directory is created."""
    assert not Store(str(tmp_path / "none")).note_release("net", "c1", "eth0")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"ipv4": 1}', b'{"ipv4": {"server": "x"}}', b"\xff", None]
)
def test_other_files_are_reported(content, tmp_path):
    """A file with any other content, and a directory, are UnreadableLease; other leases are read."""
    store = Store(str(tmp_path))
    store.write(RECORD)
    bad = tmp_path / "net" / "bad:eth0.json"
    if content is None:
        bad.mkdir()
    else:
        bad.write_bytes(content)
    unreadable, record = store.read_all()
    assert record == RECORD
    assert isinstance(unreadable, UnreadableLease)
    assert unreadable.path == str(bad)


@pytest.mark.parametrize(
    ("section", "changed"),
    [
        *((None, {"containerID": name}) for name in ("../../evil", "c\0")),
        *((None, {"ifname": "x/../y"}), ("interface", {"mac": "zz"}), ("ipv4", {"serverMAC": "zz"})),
    ],
)
def test_lease_file_with_unusable_values(section, changed):
    """A file with a name that leaves the directory, or with no MAC address, is refused when it is read."""
    stored = json.loads(json.dumps(to_json(RECORD)))
    assert from_json(stored) == RECORD
    (stored[section] if section else stored).update(changed)
    with pytest.raises(ValueError, match=r"invalid|contains"):
        from_json(stored)


def test_failed_write_keeps_the_former_file(tmp_path, monkeypatch):
    """A lease that cannot be written, as on a full disk, leaves no draft; the former file stays."""
    store = Store(str(tmp_path))
    store.write(RECORD)

    def fail(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        store.write(replace(RECORD, boot_id="another"))
    assert list(store.read_all()) == [RECORD]
    assert len(list((tmp_path / "net").iterdir())) == 1


def test_drafts_of_a_killed_daemon_are_deleted(tmp_path):
    """A draft is deleted, and so is the directory of a network without leases."""
    store = Store(str(tmp_path))
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "c1:eth0.json.tmp").write_text("{")
    store.delete_drafts()
    assert list(tmp_path.iterdir()) == []
