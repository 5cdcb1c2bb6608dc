"""resolv.conf read into `dns` (ipam.host_local.resolv): what else may lie at its path."""

import os

import pytest

from cni.errors import CniError
from cni.result import DNS
from ipam.host_local import resolv


def test_settings_are_read(tmp_path):
    """What is no UTF-8, or not understood, does not hide the rest."""
    (tmp_path / "resolv.conf").write_bytes(b"nameserver 10.0.0.1\n\xff\xfe\nsearch a b\n")
    assert resolv.read(str(tmp_path / "resolv.conf")) == DNS(nameservers=("10.0.0.1",), search=("a", "b"))


@pytest.mark.parametrize("path", ["/dev/zero", "/proc/kallsyms"])
def test_a_file_without_end_is_refused(path):
    """No more is read than a resolv.conf can have."""
    with pytest.raises(CniError, match="it has more than 64 KiB"):
        resolv.read(path)


def test_a_fifo_is_no_reason_to_hang(tmp_path):
    """A FIFO to which nobody writes is empty."""
    os.mkfifo(tmp_path / "resolv.conf")
    assert resolv.read(str(tmp_path / "resolv.conf")) == DNS()
