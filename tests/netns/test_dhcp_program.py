"""The program `dhcp daemon`: flags, pid file, socket, socket activation, paths in a container."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import dhcp_forger, dhcp_node
from tests.support.attaching import address
from tests.support.dhcp_node import Node
from tests.support.machine import eventually
from tests.support.uplink import WIRE


@pytest.fixture
def node(host, new_sandbox, bin_dir, tmp_path) -> Iterator[Node]:
    """A node whose server runs, without a daemon."""
    with dhcp_node.created(host, new_sandbox(), tmp_path) as node:
        node.start_server()
        yield node


def run_daemon(node: Node, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs a daemon that is expected to fail."""
    argv = (*node.daemon.argv, *flags)
    return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)


def test_pid_file_is_written_and_removed(node):
    """The pid file has the process ID without a newline; SIGTERM removes it."""
    file = node.directory / "dhcp.pid"
    node.daemon.argv = (*node.daemon.argv, "-pidfile", str(file))
    node.start_daemon()
    assert eventually(file.exists)
    assert file.read_text() == str(node.daemon.process.pid)
    assert file.stat().st_mode & 0o777 == 0o644
    assert node.daemon.stop(signal.SIGINT) == 0
    assert not file.exists()


@pytest.mark.parametrize("flags", [("-timeout", "10"), ("-timeout=1x",), ("-broadcast=perhaps",), ("-unknown",)])
def test_wrong_flags_are_refused(node, flags):
    """A flag that is unknown or has a wrong value is an error with exit status 2, as in Go's programs."""
    outcome = run_daemon(node, *flags)
    assert outcome.returncode == 2
    assert "Traceback" not in outcome.stderr
    assert flags[0].partition("=")[0] in outcome.stderr


def test_second_daemon_is_refused(node, sandbox, tmp_path):
    """A second daemon on the same socket, or with the same leases, fails, and the first one continues."""
    node.start_daemon()
    outcome = run_daemon(node)
    text = f"dhcp daemon: Error getting listener: listen unix {node.socket}: bind: address already in use\n"
    assert (outcome.returncode, outcome.stderr) == (1, text)
    outcome = run_daemon(node, "-socketpath", str(tmp_path / "other.sock"))
    assert (outcome.returncode, "another daemon maintains the leases" in outcome.stderr) == (1, True)
    assert not (tmp_path / "other.sock").exists()
    node.network().add(sandbox)


@pytest.mark.parametrize(
    ("flag", "message"), [("-socketpath", "address already in use"), ("-pidfile", "path not absolute")]
)
def test_other_files_are_not_deleted(node, flag, message):
    """A daemon that cannot start deletes no file that it did not create."""
    file = node.directory / "precious"
    file.write_text("kept")
    outcome = run_daemon(node, flag, os.path.relpath(file) if flag == "-pidfile" else str(file))
    assert (outcome.returncode, message in outcome.stderr) == (1, True)
    assert file.read_text() == "kept"


def test_socket_of_systemd_is_used(node, sandbox):
    """With socket activation the daemon uses the passed socket, and leaves its file when it ends."""
    activate = (
        "import os, socket, sys\n"
        "listening = socket.socket(socket.AF_UNIX)\n"
        "listening.bind(sys.argv[1]); listening.listen()\n"
        "os.dup2(listening.fileno(), 3); os.set_inheritable(3, True)\n"
        "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=sys.argv[2])\n"
        "os.execv(sys.argv[3], sys.argv[3:])\n"
    )
    argv = node.daemon.argv
    node.daemon.argv = ("python3", "-c", activate, str(node.socket), "1", *argv)
    node.start_daemon()
    result = node.network().add(sandbox)
    assert node.list_leases() == [address(result)]
    assert node.daemon.stop(signal.SIGTERM) == 0
    assert node.socket.exists()
    node.socket.unlink()
    node.daemon.argv = ("python3", "-c", activate, str(node.socket), "2", *argv)
    node.daemon.start()
    assert eventually(lambda: node.daemon.logged("Too many (2) FDs passed through socket activation"))


def test_paths_of_the_host_get_the_prefix(node, sandbox):
    """In a container, the paths of socket and namespaces begin with -hostprefix."""
    prefix = Path(tempfile.mkdtemp(dir="/tmp")) / "h"  # the path of a socket has at most 107 bytes
    prefix.symlink_to("/")
    node.daemon.argv = (*node.daemon.argv, f"-hostprefix={prefix}")
    node.start_daemon()
    result = node.network().add(sandbox)
    assert node.list_leases() == [address(result)]
    shutil.rmtree(prefix.parent)


def test_answers_are_broadcast_if_a_flag_says_so(node, sandbox):
    """With -broadcast each request wants a broadcast answer, for networks where unicast to a new pod fails."""
    node.daemon.argv = (*node.daemon.argv, "-broadcast")
    node.start_daemon()
    with dhcp_forger.running(node.machine, lambda _: []) as observer:
        node.network().add(sandbox)
    assert {request.broadcast for request in observer.requests} == {True}


@pytest.mark.needs("ipvlan")
def test_ipvlan_pods_share_a_mac_and_have_different_leases(node, new_sandbox):
    """Pods of an ipvlan network in mode l2 have the same MAC address; servers distinguish them by their identifiers."""
    node.start_daemon()
    net, pods = node.network("ipvlan"), [new_sandbox() for _ in range(2)]
    results = [net.add(pod) for pod in pods]
    assert sorted(map(address, results)) == sorted(node.list_leases())
    assert len(node.list_leases()) == 2
    for pod, result in zip(pods, results, strict=True):
        net.check(pod, result)
        net.delete(pod, result)
    assert eventually(lambda: node.list_leases() == [])


@pytest.mark.needs("vlan_device")
def test_vlan_pod_gets_a_lease(node, sandbox):
    """A pod with a VLAN interface gets its lease from the server in that VLAN, and releases it."""
    node.machine.ip("link", "add", "link", WIRE, "name", "wire5", "type", "vlan", "id", "5")
    node.machine.ip("address", "add", "10.25.5.1/24", "dev", "wire5")
    node.machine.ip("link", "set", "wire5", "up")
    node.start_server("--interface=wire5", "--dhcp-range=10.25.5.100,10.25.5.149,255.255.255.0,1h")
    node.start_daemon()
    net = node.network("vlan")
    result = net.add(sandbox)
    assert address(result).startswith("10.25.5.1")
    assert node.list_leases() == [address(result)]
    net.delete(sandbox, result)
    assert eventually(lambda: node.list_leases() == [])
