"""The private copy of a directory in which others go on working."""

import os
from pathlib import Path

from kernel import mounts


def test_what_goes_meanwhile_is_left_out(tmp_path, monkeypatch):
    """Files, links and directories that are removed between the listing and the copying are not missed."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    for name in ("gone", "stays"):
        (old / name).write_text(name)
    (old / "link").symlink_to("stays")
    (old / "directory").mkdir()
    listed = os.scandir

    def scandir(path):
        if Path(path) != old:
            return listed(path)
        entries = list(listed(path))
        (old / "gone").unlink()
        (old / "link").unlink()
        (old / "directory").rmdir()
        return entries

    monkeypatch.setattr(os, "scandir", scandir)
    mounts._copy(str(old), str(new), old.stat().st_dev, 0)
    assert {path.name: path.read_text() for path in new.iterdir()} == {"stays": "stays"}
