"""Files that `podwire install` writes and `uninstall` removes, and two podwire processes at one directory."""

import os
import stat
import subprocess
import sys

import pytest

from cni.errors import CniError
from podwire import default_network, installing, pod_cidrs
from podwire.commands import install
from podwire.installing import Directory, Manifest, write_atomically
from podwire.lock import exclusive_lock, exclusive_namespace


@pytest.fixture
def umask():
    """Returns a function that sets the umask, and restores it after the test."""
    before = os.umask(0)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o000, 0o644), (0o022, 0o644), (0o077, 0o600)])
def test_written_file_is_not_writable_by_others(tmp_path, umask, mask, mode):
    """A written file is not writable by others, whatever the umask."""
    umask(mask)
    write_atomically(str(tmp_path / "file"), b"x")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_installed_program_is_executable_by_all(tmp_path, umask):
    """A program is copied whole and may be run by every user, whatever the umask."""
    umask(0o077)
    (tmp_path / "new").write_bytes(b"program")
    installing._copy(str(tmp_path / "new"), str(tmp_path / "podwire"))
    assert (tmp_path / "podwire").read_bytes() == b"program"
    assert stat.S_IMODE((tmp_path / "podwire").stat().st_mode) == 0o755


def test_subnets_come_from_a_node_object(tmp_path):
    """A Node's subnets are read; another object, as kubectl prints for an error, is refused even if it has some."""
    path, spec = tmp_path / "node.json", '"spec": {"podCIDRs": ["10.244.3.0/24", "fd00::/64"]}'
    path.write_text(f'{{"kind": "Node", {spec}}}')
    assert pod_cidrs.read(str(path)) == ("10.244.3.0/24", "fd00::/64")
    path.write_text(f'{{"kind": "NodeList", {spec}}}')
    with pytest.raises(CniError, match="is not a Node object, but a NodeList"):
        pod_cidrs.read(str(path))


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_copy_keeps_its_permissions(tmp_path, mode):
    """The copy of an overwritten file has the permissions of that file."""
    path = tmp_path / "10-podwire.conflist"
    path.write_bytes(b"foreign")
    path.chmod(mode)
    (tmp_path / "bin").mkdir()
    install._configure(Directory(str(tmp_path / "bin"), ["podwire"]), str(path), b"{}")
    copy = path.with_name(f"{path.name}.podwire-backup")
    assert (copy.read_bytes(), stat.S_IMODE(copy.stat().st_mode)) == (b"foreign", mode)
    assert path.read_bytes() == b"{}"


@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "below a file", "loop"])
def test_uninstall_keeps_other_kinds_of_files(tmp_path, kind):
    """Uninstall reports a network's path that is no longer a regular file, and removes the rest."""
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
    nothing = [f"nothing to do: {tmp_path}/bin has no podwire"]
    actions = nothing if kind == "below a file" else [f"left {path}: it was changed since"]
    assert directory.actions == actions


@pytest.mark.parametrize(
    "subnet", ["10.0.0.0/32", "10.0.0.0", "10.0.0.0/31", "fd00::/128", "fe80::%eth0/64", "::ffff:10.0.0.0/120"]
)
def test_unusable_subnets_are_refused(subnet):
    """A subnet that host-local would refuse at each ADD is refused when the network is written."""
    with pytest.raises(CniError, match="cannot be a network for pods"):
        default_network.render(default_network.STANDARD, [subnet])


@pytest.mark.parametrize("subnet", ["10.0.0.0/30", "fd00::/126"])
def test_smallest_subnets_are_written(subnet):
    """The smallest subnets from which host-local can allocate are accepted."""
    assert subnet.encode() in default_network.render(default_network.STANDARD, [subnet])


def test_second_process_names_the_holder(tmp_path):
    """The second process does not wait, and its error names the process that holds the lock."""
    with subprocess.Popen(["flock", tmp_path, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdin
        assert first.stdout
        first.stdin.write(b"\n")
        first.stdin.flush()
        first.stdout.readline()
        with pytest.raises(CniError) as caught, exclusive_lock(os.open(tmp_path, os.O_RDONLY), "installs here"):
            pass
        first.stdin.close()
    assert caught.value.msg == "another podwire installs here"
    assert caught.value.details == f"wait until it has finished; process {first.pid}: flock {tmp_path} cat"


LISTENER = """
import socket, sys
with socket.socket(socket.AF_UNIX) as holder:
    holder.bind(sys.argv[1].replace("@", chr(0)))
    holder.listen()
    print(flush=True)
    input()
"""


def test_second_process_of_a_namespace_names_the_holder(tmp_path):
    """The second process in a namespace fails with the first one's ID; afterwards the namespace is free."""
    place = os.stat(tmp_path)
    line = [sys.executable, "-c", LISTENER, f"@podwire {place.st_dev}:{place.st_ino}"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdin
        assert first.stdout
        first.stdout.readline()
        with pytest.raises(CniError) as caught, exclusive_namespace(place, "attaches here"):
            pass
        first.stdin.close()
    assert caught.value.msg == "another podwire attaches here"
    assert caught.value.details.startswith(f"wait until it has finished; process {first.pid}: {sys.executable} -c")
    with exclusive_namespace(place, "attaches here"):
        pass
