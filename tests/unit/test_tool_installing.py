"""What `podwire install` writes and `uninstall` takes away: whoever may read it, whatever has its name meanwhile."""

import os
import stat

import pytest

from cni.errors import CniError
from podwire import default_network
from podwire.commands import install
from podwire.installing import Directory, Manifest, write_atomically


@pytest.fixture
def umask():
    """A function that sets the umask, which is put back."""
    before = os.umask(0)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o000, 0o644), (0o022, 0o644), (0o077, 0o600)])
def test_what_is_written_is_for_nobody_else_to_write(tmp_path, umask, mask, mode):
    """A network, of which root's programs run, is not writable by others where the umask would leave it so."""
    umask(mask)
    write_atomically(str(tmp_path / "file"), b"x")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_a_copy_is_read_by_whoever_could_read_it(tmp_path, mode):
    """What is overwritten is kept with its permissions."""
    path = tmp_path / "10-podwire.conflist"
    path.write_bytes(b"somebody else's")
    path.chmod(mode)
    (tmp_path / "bin").mkdir()
    install._configure(Directory(str(tmp_path / "bin"), ["podwire"]), str(path), b"{}")
    copy = path.with_name(f"{path.name}.podwire-backup")
    assert (copy.read_bytes(), stat.S_IMODE(copy.stat().st_mode)) == (b"somebody else's", mode)
    assert path.read_bytes() == b"{}"


@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "below a file", "loop"])
def test_what_has_a_networks_name_since_is_left(tmp_path, kind):
    """A network's name that is no file any more is told of, and the rest is taken away all the same."""
    path = tmp_path / "net.d"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    else:
        path.write_text("x")
        path = path / "file"
    (tmp_path / "bin").mkdir()
    directory = Directory(str(tmp_path / "bin"), ["podwire"])
    directory.note(Manifest([], {str(path): "0", str(tmp_path / "other"): "0"}))
    directory.uninstall("/proc/self/exe")
    assert list((tmp_path / "bin").iterdir()) == []
    told = [] if kind == "below a file" else [f"left {path}: it was changed since"]
    assert directory.actions == told


@pytest.mark.parametrize(
    "subnet", ["10.0.0.0/32", "10.0.0.0", "10.0.0.0/31", "fd00::/128", "fe80::%eth0/64", "::ffff:10.0.0.0/120"]
)
def test_a_subnet_of_which_no_pod_gets_an_address(subnet):
    """What host-local would refuse at each pod is refused when it is written."""
    with pytest.raises(CniError, match="cannot be a network for pods"):
        default_network.render(default_network.STANDARD, [subnet])


@pytest.mark.parametrize("subnet", ["10.0.0.0/30", "fd00::/126"])
def test_the_smallest_subnets(subnet):
    """What host-local can allocate from is written."""
    assert subnet.encode() in default_network.render(default_network.STANDARD, [subnet])
