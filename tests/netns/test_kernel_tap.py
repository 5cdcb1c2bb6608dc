"""kernel.tap with a label: the child process that takes it on, with a stand-in for SELinux, which the kernels lack."""

import errno
import os

import pytest

from kernel import selinux, tap
from kernel.errors import KernelError
from kernel.tap import LabelError, TapOptions
from tests.support.errors import error_of
from tests.support.netstate import links, shown


@pytest.fixture
def labels(monkeypatch, tmp_path):
    """The file in which the stand-in records the process and its new label; it refuses the label "bad"."""
    file = tmp_path / "labels"

    def set_current_label(label):
        if label == "bad":
            raise OSError(errno.EACCES, "refused")
        file.write_text(f"{os.getpid()} {label}")

    monkeypatch.setattr(selinux, "set_current_label", set_current_label)
    return file


def create(sandbox, **options):
    with sandbox.entered():
        tap.create("eth0", TapOptions(**options))


def test_a_child_process_creates_the_device(sandbox, labels):
    """The device is created by a child with the label; this process keeps its own."""
    create(sandbox, multi_queue=True, owner=0, group=0, selinux_label="a:b:c:s0")
    pid, label = labels.read_text().split()
    assert (label, int(pid) != os.getpid()) == ("a:b:c:s0", True)
    data = shown(sandbox, "eth0")["linkinfo"]["info_data"]
    assert (data["persist"], data["multi_queue"], data["user"], data["group"]) == (True, True, "root", "root")
    with pytest.raises(ChildProcessError):
        os.waitpid(int(pid), 0)


def test_refused_label(sandbox, labels):
    """A refused label is a LabelError with the kernel's errno, and no device."""
    assert error_of(lambda: create(sandbox, selinux_label="bad"), LabelError).errno == errno.EACCES
    assert set(links(sandbox)) == {"lo"}


@pytest.mark.parametrize("label", ["", "a:b:c:s0"])
def test_existing_device_is_not_opened(sandbox, labels, label):
    """A tap device of this name, which TUNSETIFF would open, is refused with and without a label, and stays."""
    sandbox.ip("tuntap", "add", "eth0", "mode", "tap")
    before = shown(sandbox, "eth0")
    error = error_of(lambda: create(sandbox, selinux_label=label), KernelError)
    assert (error.errno, str(error)) == (errno.EBUSY, 'create tap "eth0": device or resource busy')
    assert shown(sandbox, "eth0") == before


@pytest.mark.parametrize("label", ["", "a:b:c:s0"])
def test_a_failure_before_it_is_persistent_leaves_no_device(sandbox, labels, label):
    """The kernel deletes a device whose owner was refused."""
    error = error_of(lambda: create(sandbox, owner=(1 << 32) - 1, selinux_label=label), KernelError)
    assert error.errno == errno.EINVAL
    assert set(links(sandbox)) == {"lo"}


def test_selinux_is_recognized_by_its_file_system(monkeypatch, tmp_path):
    """SELinux is enabled if the kernel has its file system."""
    assert selinux.is_enabled() is False
    monkeypatch.setattr(selinux, "_FILE_SYSTEMS", str(tmp_path / "filesystems"))
    (tmp_path / "filesystems").write_text("nodev\tproc\nnodev\tselinuxfs\n\text4\n")
    assert selinux.is_enabled() is True
