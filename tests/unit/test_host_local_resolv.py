"""Reading resolv.conf (ipam.host_local.resolv), and other files at its path."""

import os

import pytest

from cni.errors import CniError
from cni.result import DNS
from ipam.host_local import resolv


def test_settings_are_read(tmp_path):
    """Lines that are not UTF-8, or unknown, do not hide the others."""
    (tmp_path / "resolv.conf").write_bytes(b"nameserver 10.0.0.1\n\xff\xfe\nsearch a b\n")
    assert resolv.read(str(tmp_path / "resolv.conf")) == DNS(nameservers=("10.0.0.1",), search=("a", "b"))


@pytest.mark.parametrize("path", ["/dev/zero", "/proc/kallsyms"])
def test_file_without_end_is_refused(path):
    """At most the size of a resolv.conf is read."""
    with pytest.raises(CniError, match="it has more than 64 KiB"):
        resolv.read(path)


def test_fifo_does_not_block(tmp_path):
    """A FIFO without a writer counts as empty."""
    os.mkfifo(tmp_path / "resolv.conf")
    assert resolv.read(str(tmp_path / "resolv.conf")) == DNS()
