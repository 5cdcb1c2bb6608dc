"""tuning's backups as files (plugins.tuning.backup): whose they are, of which life, what goes and what stays."""

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
from plugins.tuning.backup import Backup, Saved, collect, list_attachments
from process.undo import Undo
from tests.support.errors import failure_of

MAC = bytes([2, 0, 0, 0, 0, 1])
WHOLE = Saved(Attributes(MAC, False, 1500, False, 1000), 1500, "boot 7 2")
DRAFT = f"~{sha512(b'net').hexdigest()[:16]}_"
TEXT = '{\n "mac": "02:00:00:00:00:01",\n "promisc": false,\n "mtu": 1500,\n "allmulti": false,\n "txQLen": 1000\n}'


@pytest.fixture
def backup(tmp_path):
    """The backup of one attachment, in a directory that does not exist yet."""
    return Backup(f"{tmp_path}/above/tuning", "net", "cid", "eth0")


def content(tmp_path):
    """Returns every file below the directory above, by its path."""
    found = (path for path in tmp_path.rglob("*") if path.is_file())
    return {str(path.relative_to(tmp_path / "above")): path.read_text() for path in found}


def save(backup, saved):
    with Undo() as undo:
        backup.save(saved, undo)


def test_what_is_saved_is_found(backup, tmp_path):
    """A backup has the reference's bytes, names and mode; the note is beside; both go together."""
    assert backup.load() is None
    save(backup, WHOLE)
    assert backup.load() == WHOLE
    files = content(tmp_path)
    assert files.keys() == {"tuning/cid_eth0.json", "tuning.podwire/cid_eth0.json"}
    assert files["tuning/cid_eth0.json"] == TEXT
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "above").rglob("*")}
    assert modes == {"tuning": 0o700, "tuning.podwire": 0o700, "cid_eth0.json": 0o600}
    for _ in range(2):
        backup.remove()
        assert content(tmp_path) == {}


def test_the_first_values_count(backup):
    """Of the same life, and of an unknown one, what is saved stays and what it lacks is added."""
    save(backup, Saved(Attributes(mtu=9000), None, "a"))
    save(backup, Saved(Attributes(mtu=1500, tx_queue=7), 4000, "a"))
    assert backup.load() == Saved(Attributes(mtu=9000, tx_queue=7), 4000, "a")
    save(backup, Saved(Attributes(mtu=1), 1, "a"))
    assert backup.load() == Saved(Attributes(mtu=9000, tx_queue=7), 4000, "a")
    save(backup, Saved(Attributes(mtu=1), None, "b"))
    assert backup.load() == Saved(Attributes(mtu=1), None, "b")


def test_what_was_there_is_put_back(backup, tmp_path):
    """After a failure there is what there was: nothing, a backup of another life, one of this life, the reference's."""
    theirs = tmp_path / "above/tuning/cid_eth0.json"

    def fail():
        with Undo() as undo:
            backup.save(WHOLE, undo)
            raise OSError(errno.EIO, "later")

    for before in (None, Saved(Attributes(mtu=9), 9, "other"), Saved(Attributes(mtu=9), None, WHOLE.life)):
        if before:
            save(backup, before)
        assert failure_of(fail, OSError)
        assert backup.load() == before
    theirs.write_text('{"mtu": 7}')
    assert failure_of(fail, OSError)
    assert backup.load() == Saved(Attributes(mtu=7))
    assert content(tmp_path).keys() == {"tuning/cid_eth0.json"}


def test_a_file_that_others_wrote_has_no_note(backup, tmp_path):
    """A note is of one file: when that was written again, in place or anew, its life is unknown."""
    path = tmp_path / "above/tuning/cid_eth0.json"
    for write in (lambda: path.write_text(TEXT), lambda: (path.unlink(), path.write_text(TEXT))):
        save(backup, WHOLE)
        write()
        assert backup.load() == Saved(WHOLE.original)
        backup.remove()


def test_links_are_not_followed(backup, tmp_path):
    """A link in the place of a backup, a draft or a note is neither read nor written through, and DEL removes it."""
    target = tmp_path / "target"
    for name in ("tuning/cid_eth0.json", f"tuning/{DRAFT}cid_eth0.json", "tuning.podwire/cid_eth0.json"):
        target.write_text(TEXT)
        path = tmp_path / "above" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
        assert backup.load() in (None, Saved(Attributes()))
        failure_of(lambda: save(backup, WHOLE), CniError)
        assert target.read_text() == TEXT
        backup.remove()
        assert not path.is_symlink()


def test_a_directory_that_cannot_be(tmp_path):
    """Where no file can be made the error names path and cure, and loading and removing find nothing."""
    (tmp_path / "file").touch()
    for data_dir in ("file", "file/x", "d" * 300):
        backup = Backup(f"{tmp_path}/{data_dir}", "net", "cid", "eth0")
        assert backup.load() is None
        backup.remove()
        error = failure_of(lambda backup=backup: save(backup, WHOLE), CniError)
        assert error.code == 5
        assert error.msg.startswith("failed to save file eth0.json: ")
        assert "dataDir" in error.details


def test_a_long_container_id(tmp_path):
    """An ID that no file's name has room for is saved, too, and its backup is found by GC."""
    backup = Backup(str(tmp_path / "tuning"), "net", "c" * 256, "eth0")
    save(backup, WHOLE)
    assert backup.load() == WHOLE
    assert collect(str(tmp_path / "tuning"), "net", [Attachment("c" * 256, "eth0")]) == 0
    assert backup.load() == WHOLE
    assert collect(str(tmp_path / "tuning"), "net", []) == 0
    assert backup.load() is None


ALIKE = (("a", "b_c"), ("a_b", "c"))  # the reference calls both files a_b_c.json


def of_an_earlier_release(data_dir, attachment, monkeypatch):
    """Saves a backup under the reference's name with a note, as earlier releases did."""
    with monkeypatch.context() as patched:
        patched.setattr(backup_module, "_names", lambda item: ("_".join(item) + ".json",) * 2)
        save(Backup(data_dir, "net", *attachment), WHOLE)


def test_attachments_of_which_the_reference_gives_both_the_same_name(tmp_path):
    """Each has a backup of its own: saving, loading, removing and collecting one leaves the other alone."""
    data_dir = str(tmp_path / "tuning")
    pair = [Backup(data_dir, "net", *attachment) for attachment in ALIKE]
    saved = [Saved(Attributes(mtu=mtu), None, f"life {mtu}") for mtu in (1400, 9000)]
    for one, values in zip(pair, saved, strict=True):
        save(one, values)
    assert [one.load() for one in pair] == saved
    assert sorted(list_attachments(data_dir)) == [("net", Attachment(*attachment)) for attachment in ALIKE]
    pair[0].remove()
    assert [one.load() for one in pair] == [None, saved[1]]
    save(pair[0], saved[0])
    assert collect(data_dir, "net", [Attachment(*ALIKE[0])]) == 0
    assert [one.load() for one in pair] == [saved[0], None]


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
def test_the_reference_name_is_used_unless_another_attachment_may_have_it(tmp_path, attachment, is_shared):
    """Only where another ID and a name of at most 15 characters join to the same text, the name has a hash."""
    save(Backup(str(tmp_path), "net", *attachment), WHOLE)
    assert ("_".join(attachment) + ".json" in os.listdir(tmp_path)) != is_shared


def test_a_file_of_the_reference_under_a_shared_name(tmp_path):
    """It is loaded for either attachment, not mixed into what ADD saves, and goes only on demand."""
    data_dir, shared = str(tmp_path), tmp_path / "a_b_c.json"
    shared.write_text('{"mtu": 7}')
    one, other = (Backup(data_dir, "net", *attachment) for attachment in ALIKE)
    assert one.load() == other.load() == Saved(Attributes(mtu=7), is_shared=True)
    save(one, WHOLE)
    assert one.load() == WHOLE
    for _ in range(2):
        one.remove()
        assert shared.exists()
    assert collect(data_dir, "net", [Attachment(*ALIKE[0])]) == 0
    assert collect(data_dir, "net", []) == 1
    other.remove(shared=True)
    assert not shared.exists()


def test_a_backup_of_an_earlier_release_under_a_shared_name(tmp_path, monkeypatch):
    """Its note says whose it is: that attachment's alone, for DEL as for GC."""
    data_dir = str(tmp_path / "tuning")
    one, other = (Backup(data_dir, "net", *attachment) for attachment in ALIKE)
    for take_away in (one.remove, lambda: collect(data_dir, "net", [Attachment(*ALIKE[1])])):
        of_an_earlier_release(data_dir, ALIKE[0], monkeypatch)
        assert (one.load(), other.load()) == (WHOLE, None)
        assert list_attachments(data_dir) == [("net", Attachment(*ALIKE[0]))]
        other.remove(shared=True)
        assert one.load() == WHOLE
        assert not take_away()
        assert one.load() is None
        assert os.listdir(data_dir) == os.listdir(f"{data_dir}.podwire") == []


def test_what_goes_and_what_stays(tmp_path):
    """Of a network's attachments what is not listed goes; another's stays, and what names no network is counted."""
    data_dir = str(tmp_path / "tuning")
    for network, container_id in (("net", "keep"), ("net", "stale"), ("net2", "stale2")):
        save(Backup(data_dir, network, container_id, "eth0"), WHOLE)
    for name in ("theirs_eth0.json", "live_eth0.json", "README", "~draft_eth0.json"):
        (tmp_path / "tuning" / name).write_text("{}")
    valid = [Attachment("keep", "eth0"), Attachment("live", "eth0")]
    for _ in range(2):
        assert collect(data_dir, "net", valid) == 1
    left = {"keep_eth0.json", "stale2_eth0.json", "theirs_eth0.json", "live_eth0.json", "README", "~draft_eth0.json"}
    assert set(os.listdir(data_dir)) == left
    assert set(os.listdir(f"{data_dir}.podwire")) == {"keep_eth0.json", "stale2_eth0.json"}
    assert collect(str(tmp_path / "none"), "net", []) == 0


def test_a_note_under_another_name(tmp_path):
    """A note that names another attachment than its own name says proves nothing."""
    data_dir = str(tmp_path / "tuning")
    save(Backup(data_dir, "net", "cid", "eth0"), WHOLE)
    note = tmp_path / "tuning.podwire" / "cid_eth0.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "containerID": "../cid"}))
    assert collect(data_dir, "net", []) == 1
    assert os.listdir(data_dir) == ["cid_eth0.json"]


@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_any_bytes(tmp_path_factory, data):
    """Whatever a backup or a note holds, it is values or none."""
    directory = tmp_path_factory.mktemp("any")
    backup = Backup(str(directory / "tuning"), "net", "cid", "eth0")
    save(backup, WHOLE)
    (directory / "tuning.podwire/cid_eth0.json").write_bytes(data)
    assert backup.load() == Saved(WHOLE.original)
    (directory / "tuning/cid_eth0.json").write_bytes(data)
    assert backup.load() == Saved(Attributes())
    collect(str(directory / "tuning"), "net", [])
    backup.remove()
    assert backup.load() is None


def test_what_a_killed_add_left_is_collected(tmp_path):
    """A draft of this network goes with GC, and its note if that was not finished; those listed stay, and others'."""
    data_dir, notes = tmp_path / "tuning", tmp_path / "tuning.podwire"
    save(Backup(str(data_dir), "net2", "noted", "eth0"), WHOLE)
    other = f"~{sha512(b'net2').hexdigest()[:16]}_cid_eth0.json"
    for name in (f"{DRAFT}cid_eth0.json", f"{DRAFT}noted_eth0.json", f"{DRAFT}keep_eth0.json", other):
        (data_dir / name).touch()
    for name in ("cid_eth0.json", "keep_eth0.json"):
        (notes / name).write_text('{"network')
    assert collect(str(data_dir), "net", [Attachment("keep", "eth0")]) == 0
    assert set(os.listdir(data_dir)) == {"noted_eth0.json", f"{DRAFT}keep_eth0.json", other}
    assert set(os.listdir(notes)) == {"noted_eth0.json", "keep_eth0.json"}
