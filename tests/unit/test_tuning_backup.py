"""Tuning's backup files (plugins.tuning.backup): their owner, the life of the container, restoring and collecting."""

import errno
import json
import os
from hashlib import sha512

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.conf import Attachment
from cni.errors import CniError
from plugins.tuning import backup as backup_module
from plugins.tuning.attributes import Attributes
from plugins.tuning.backup import Backup, SavedAttributes, gc, list_attachments
from process.undo import Undo
from process.values import replace
from tests.support.errors import failure_of

MAC = bytes([2, 0, 0, 0, 0, 1])
WHOLE = SavedAttributes(Attributes(MAC, False, 1500, False, 1000), 1500, "boot 7 2")
DRAFT = f"~{sha512(b'net').hexdigest()[:16]}_"
TEXT = '{\n "mac": "02:00:00:00:00:01",\n "promisc": false,\n "mtu": 1500,\n "allmulti": false,\n "txQLen": 1000\n}'


@pytest.fixture
def backup(tmp_path):
    """The backup of one attachment, in a directory that does not exist yet."""
    return Backup(f"{tmp_path}/above/tuning", "net", "cid", "eth0")


def read_files(tmp_path):
    """Returns the content of every file in `above`, by relative path."""
    paths = (path for path in tmp_path.rglob("*") if path.is_file())
    return {str(path.relative_to(tmp_path / "above")): path.read_text() for path in paths}


def save(backup, saved):
    with Undo() as undo:
        backup.save(saved, undo)


def test_failed_add_restores_the_previous_backup(backup, tmp_path):
    """A failed ADD restores the previous state: no backup, another life's, this life's or the reference plugin's."""
    reference_file = tmp_path / "above/tuning/cid_eth0.json"

    def fail():
        with Undo() as undo:
            backup.save(WHOLE, undo)
            raise OSError(errno.EIO, "later")

    for before in (
        None,
        SavedAttributes(Attributes(mtu=9), 9, "other"),
        SavedAttributes(Attributes(mtu=9), None, WHOLE.life),
    ):
        if before:
            save(backup, before)
        assert failure_of(fail, OSError)
        assert backup.load() == before
    reference_file.write_text('{"mtu": 7}')
    assert failure_of(fail, OSError)
    assert backup.load() == SavedAttributes(Attributes(mtu=7))
    assert read_files(tmp_path).keys() == {"tuning/cid_eth0.json"}


def test_rewritten_file_has_no_valid_note(backup, tmp_path):
    """The life in a note is unknown once the file was written again, in place or as a new file."""
    path = tmp_path / "above/tuning/cid_eth0.json"
    for write in (lambda: path.write_text(TEXT), lambda: (path.unlink(), path.write_text(TEXT))):
        save(backup, WHOLE)
        write()
        assert backup.load() == SavedAttributes(WHOLE.original)
        backup.remove()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("create", [os.symlink, lambda _, path: os.mkfifo(path)])
@pytest.mark.every_case
def test_links_and_fifos_are_not_opened(backup, tmp_path, create):
    """A link or FIFO in place of a backup, draft or note is not followed, blocks no verb, and DEL removes it."""
    target = tmp_path / "target"
    for name in ("tuning/cid_eth0.json", f"tuning/{DRAFT}cid_eth0.json", "tuning.podwire/cid_eth0.json"):
        target.write_text(TEXT)
        path = tmp_path / "above" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        create(target, path)
        assert backup.load() in (None, SavedAttributes(Attributes()))
        failure_of(lambda: save(backup, WHOLE), CniError)
        assert target.read_text() == TEXT
        backup.remove()
        assert not os.path.lexists(path)


def test_long_container_id(tmp_path):
    """A backup of a container ID that is too long for a file name is saved, loaded and collected."""
    backup = Backup(str(tmp_path / "tuning"), "net", "c" * 256, "eth0")
    save(backup, WHOLE)
    assert backup.load() == WHOLE
    assert gc(str(tmp_path / "tuning"), "net", [Attachment("c" * 256, "eth0")]) == 0
    assert backup.load() == WHOLE
    assert gc(str(tmp_path / "tuning"), "net", []) == 0
    assert backup.load() is None


SAME_NAME = (("a", "b_c"), ("a_b", "c"))  # the reference plugin names both files a_b_c.json


def save_like_earlier_release(data_dir, attachment, monkeypatch):
    """Saves a backup with a note under the reference plugin's name, like earlier releases."""
    with monkeypatch.context() as patched:
        patched.setattr(backup_module, "_names", lambda item: ("_".join(item) + ".json",) * 2)
        save(Backup(data_dir, "net", *attachment), WHOLE)


def test_attachments_with_the_same_name_in_the_reference_plugin(tmp_path):
    """Saving, loading, removing and collecting one backup does not affect the other."""
    data_dir = str(tmp_path / "tuning")
    backups = [Backup(data_dir, "net", *attachment) for attachment in SAME_NAME]
    saved = [SavedAttributes(Attributes(mtu=mtu), None, f"life {mtu}") for mtu in (1400, 9000)]
    for backup, values in zip(backups, saved, strict=True):
        save(backup, values)
    assert [backup.load() for backup in backups] == saved
    assert sorted(list_attachments(data_dir)) == [("net", Attachment(*attachment)) for attachment in SAME_NAME]
    backups[0].remove()
    assert [backup.load() for backup in backups] == [None, saved[1]]
    save(backups[0], saved[0])
    assert gc(data_dir, "net", [Attachment(*SAME_NAME[0])]) == 0
    assert [backup.load() for backup in backups] == [saved[0], None]


@pytest.mark.parametrize(
    ("attachment", "is_shared"),
    [
        (("cid", "eth0"), False),
        (("c" * 64, "net_1"), True),
        (("c" * 64, "eth0"), False),
        (("pod_" + "c" * 64, "eth0"), False),
        (("pod_01234567890", "eth0"), False),
        (("pod_0123456789", "eth0"), True),
        (("cid", "e_"), False),
        (("cid", "_e"), True),
        (("c", "_"), False),
    ],
)
def test_file_name_has_a_hash_if_another_attachment_may_share_it(tmp_path, attachment, is_shared):
    """A file name has a hash only if another ID and an interface name of at most 15 characters give the same name."""
    save(Backup(str(tmp_path), "net", *attachment), WHOLE)
    assert ("_".join(attachment) + ".json" in os.listdir(tmp_path)) != is_shared


def test_reference_file_with_a_shared_name(tmp_path):
    """The reference plugin's file is loaded for both attachments, not merged by ADD, and removed only on demand."""
    data_dir, shared = str(tmp_path), tmp_path / "a_b_c.json"
    shared.write_text('{"mtu": 7}')
    one, other = (Backup(data_dir, "net", *attachment) for attachment in SAME_NAME)
    assert one.load() == other.load() == SavedAttributes(Attributes(mtu=7), is_shared=True)
    save(one, WHOLE)
    assert one.load() == WHOLE
    for _ in range(2):
        one.remove()
        assert shared.exists()
    assert gc(data_dir, "net", [Attachment(*SAME_NAME[0])]) == 0
    assert gc(data_dir, "net", []) == 1
    other.remove(shared=True)
    assert not shared.exists()


def test_backup_of_an_earlier_release_with_a_shared_name(tmp_path, monkeypatch):
    """The backup belongs only to the attachment that its note names, for DEL and GC."""
    data_dir = str(tmp_path / "tuning")
    one, other = (Backup(data_dir, "net", *attachment) for attachment in SAME_NAME)
    for remove in (one.remove, lambda: gc(data_dir, "net", [Attachment(*SAME_NAME[1])])):
        save_like_earlier_release(data_dir, SAME_NAME[0], monkeypatch)
        assert (one.load(), other.load()) == (WHOLE, None)
        assert list_attachments(data_dir) == [("net", Attachment(*SAME_NAME[0]))]
        other.remove(shared=True)
        assert one.load() == WHOLE
        assert not remove()
        assert one.load() is None
        assert os.listdir(data_dir) == os.listdir(f"{data_dir}.podwire") == []


def test_note_with_another_file_name(tmp_path):
    """A note whose file name does not match its attachment is ignored."""
    data_dir = str(tmp_path / "tuning")
    save(Backup(data_dir, "net", "cid", "eth0"), WHOLE)
    note = tmp_path / "tuning.podwire" / "cid_eth0.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "containerID": "../cid"}))
    assert gc(data_dir, "net", []) == 1
    assert os.listdir(data_dir) == ["cid_eth0.json"]


def test_values_that_the_kernel_would_refuse_are_not_restored(backup, tmp_path):
    """A file or note with a value that no interface can have counts as invalid: restoring it would fail each DEL."""
    path, note = tmp_path / "above/tuning/cid_eth0.json", tmp_path / "above/tuning.podwire/cid_eth0.json"
    save(backup, WHOLE)
    mtu, tx_queue = 2**31 - 1, 2**32 - 1
    for key, largest, expected in (
        ("mtu", mtu, Attributes(mtu=mtu)),
        ("txQLen", tx_queue, Attributes(tx_queue=tx_queue)),
    ):
        loaded = []
        for value in (largest, largest + 1):
            path.write_text(json.dumps({key: value}))
            loaded.append(backup.load().original)
        assert loaded == [expected, Attributes()]
    backup.remove()
    for value, saved in ((2**31 - 1, replace(WHOLE, host_mtu=2**31 - 1)), (2**31, SavedAttributes(WHOLE.original))):
        save(backup, WHOLE)
        note.write_text(json.dumps({**json.loads(note.read_text()), "hostMTU": value}))
        assert backup.load() == saved


@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_any_bytes_can_be_loaded(tmp_path_factory, data):
    """Any content of a backup or a note is loaded without an error."""
    directory = tmp_path_factory.mktemp("any")
    backup = Backup(str(directory / "tuning"), "net", "cid", "eth0")
    save(backup, WHOLE)
    (directory / "tuning.podwire/cid_eth0.json").write_bytes(data)
    assert backup.load() == SavedAttributes(WHOLE.original)
    (directory / "tuning/cid_eth0.json").write_bytes(data)
    assert backup.load() == SavedAttributes(Attributes())
    gc(str(directory / "tuning"), "net", [])
    backup.remove()
    assert backup.load() is None


def test_gc_removes_drafts_of_a_killed_add(tmp_path):
    """GC removes this network's drafts and incomplete notes, but not those of valid attachments or other networks."""
    data_dir, notes = tmp_path / "tuning", tmp_path / "tuning.podwire"
    save(Backup(str(data_dir), "net2", "noted", "eth0"), WHOLE)
    other = f"~{sha512(b'net2').hexdigest()[:16]}_cid_eth0.json"
    for name in (f"{DRAFT}cid_eth0.json", f"{DRAFT}noted_eth0.json", f"{DRAFT}keep_eth0.json", other):
        (data_dir / name).touch()
    for name in ("cid_eth0.json", "keep_eth0.json"):
        (notes / name).write_text('{"network')
    assert gc(str(data_dir), "net", [Attachment("keep", "eth0")]) == 0
    assert set(os.listdir(data_dir)) == {"noted_eth0.json", f"{DRAFT}keep_eth0.json", other}
    assert set(os.listdir(notes)) == {"noted_eth0.json", "keep_eth0.json"}
