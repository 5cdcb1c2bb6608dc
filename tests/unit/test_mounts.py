"""The private copy of a directory that other processes change."""

import os
from pathlib import Path

from kernel import mounts


def test_files_deleted_during_the_copy_are_skipped(tmp_path, monkeypatch):
    """Files, links and directories that are deleted between listing and copying are skipped without an error."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    for name in ("deleted", "stays"):
        (old / name).write_text(name)
    (old / "link").symlink_to("stays")
    (old / "directory").mkdir()
    listed = os.scandir

    def scandir(path):
        if Path(path) != old:
            return listed(path)
        entries = list(listed(path))
        (old / "deleted").unlink()
        (old / "link").unlink()
        (old / "directory").rmdir()
        return entries

    monkeypatch.setattr(os, "scandir", scandir)
    mounts._copy(str(old), str(new), old.stat().st_dev, 0)
    assert {path.name: path.read_text() for path in new.iterdir()} == {"stays": "stays"}
