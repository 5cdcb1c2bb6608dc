"""podwire with another /run/netns than the runtime's, as in a container: no running pod counts as stopped.

Two kinds of view: in one the mounts of process 1 are readable (another process stands for it), in the other /proc/1 is
empty.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import namespaces
from tests.support.namespaces import Namespace
from tests.support.tool import PORTMAP, Tool

# Stands for process 1, whose mounts have the runtime's /run/netns.
_READABLE = "mount --bind /proc/{pid} /proc/1"
_HIDDEN = "mount -t tmpfs podwire /proc/1"
_OTHER_RUN = "mount -t tmpfs podwire /run; mkdir /run/netns"
_CONTAINER = _OTHER_RUN + "; mount -t tmpfs podwire /etc; mkdir -p /etc/cni"


@dataclass(frozen=True)
class View(Tool):
    """The tool in a separate mount namespace, after `script`."""

    script: str = ""

    def command_line(self, *words: str) -> list[str]:
        """Returns the command line; `show` runs no plugin."""
        line = [word for word in super().command_line(*words) if words[0] != "show" or "--bin-dir" not in word]
        return ["unshare", "--mount", "sh", "-ec", f'{self.script}; exec "$@"', "sh", *line]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory that is not below /run, which another view hides."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
def node(tool: Tool) -> Tool:
    """A network whose plugins create every kind of object that GC removes."""
    tool.configure(tool.bridge(ipMasq=True), PORTMAP, {"type": "firewall"})
    return tool


@pytest.fixture
def view(request: pytest.FixtureRequest, node: Tool) -> View:
    """The node in another view, with readable mounts of process 1 or without ("blind")."""
    other = _CONTAINER if "container" in request.param else _OTHER_RUN
    script = _HIDDEN if "blind" in request.param else _READABLE.format(pid=os.getpid())
    return View(node.host, node.directory, script=f"{script}; {other}")


READABLE, BLIND = ["unshare", "container"], ["blind unshare", "blind container"]


def attach(tool: Tool, *pods: Namespace) -> None:
    for number, pod in enumerate(pods):
        ports = f'{{"portMappings": [{{"hostPort": {8080 + number}, "containerPort": 80, "protocol": "tcp"}}]}}'
        tool.succeed("add", "net", pod.name, "--container-id", pod.name, "--capability-args", ports)
        os.utime(tool.leases / f"10.22.0.{2 + number}", (1, 1))


@pytest.mark.parametrize("view", READABLE + BLIND, indirect=True)
def test_objects_of_invisible_pods_are_kept(view: View, node: Tool, new_sandbox: Callable[[], Namespace]):
    """The commands gc and ipam free remove nothing, and doctor, show, ipam verify and repair recommend no removal."""
    pods = new_sandbox(), new_sandbox()
    attach(node, *pods)
    before = node.everything(*pods)
    assert "would be removed" not in view.succeed("gc", "net", "--dry-run")
    view.succeed("gc", "net")
    assert "kept" not in view.succeed("ipam", "free", "--gone", "net")
    assert "10.22.0.2" in view.fail(1, "ipam", "free", "10.22.0.2", "net")
    doctor = view.fail(1, "doctor")
    assert "2 attachments may be running, but /run/netns/" in doctor
    show_output = view.fail(4, "show")
    verify_output = view.fail(4, "ipam", "verify")
    repair_output = view.run("repair").stdout.decode()
    assert repair_output.count("NOT REPAIRED: its network namespace cannot be seen from here") == 2
    for text in (doctor, show_output, verify_output, repair_output):
        assert not any(word in text for word in ("podwire gc", "ipam free", "ip link delete", "gone:", " gone ")), text
    assert node.everything(*pods) == before


@pytest.mark.parametrize("view", READABLE, indirect=True)
def test_gc_uses_the_view_of_process_1(view: View, node: Tool, new_sandbox: Callable[[], Namespace]):
    """GC removes a pod whose namespace is missing in the view of process 1, and no other."""
    running, stopped = new_sandbox(), new_sandbox()
    attach(node, running, stopped)
    node.delete_netns(stopped)
    assert "dead-attachments" in view.fail(1, "doctor", "--json")
    assert f"container {stopped.name}" in view.succeed("gc", "net")
    assert [path.name for path in node.cache.iterdir()] == [f"net-{running.name}-eth0"]
    assert sorted(path.name for path in node.leases.glob("10.*")) == ["10.22.0.2"]


@pytest.mark.parametrize("view", BLIND, indirect=True)
def test_gc_refuses_without_the_view_of_process_1(view: View, node: Tool, new_sandbox: Callable[[], Namespace]):
    """GC exits with 3 and the reason, and with --force removes only the named containers."""
    running, stopped, other = new_sandbox(), new_sandbox(), new_sandbox()
    attach(node, running, stopped, other)
    node.delete_netns(stopped)
    node.delete_netns(other)
    before = node.everything(running)
    for words in (("gc", "net"), ("gc", "net", "--dry-run")):
        printed = view.fail(3, *words)
        assert "may be running" in printed
        assert "/proc/1/root cannot be read" in printed
        assert "--force ID" in printed
    assert "is running" in view.fail(3, "gc", "net", "--force", running.name)
    assert "knows no container" in view.fail(3, "gc", "net", "--force", "absent")
    assert node.everything(running) == before
    view.succeed("gc", "net", "--force", stopped.name)
    assert sorted(path.name for path in node.cache.iterdir()) == sorted(
        f"net-{pod.name}-eth0" for pod in (running, other)
    )
    assert sorted(path.name for path in node.leases.glob("10.*")) == ["10.22.0.2", "10.22.0.4"]


@pytest.mark.parametrize("view", BLIND, indirect=True)
def test_address_of_a_possibly_running_owner(view: View, node: Tool, new_sandbox: Callable[[], Namespace]):
    """If nothing proves that a pod has stopped, ipam list and ipam verify name its address and exit with 4."""
    stopped = new_sandbox()
    attach(node, stopped)
    node.delete_netns(stopped)
    for words in (("ipam", "list"), ("ipam", "verify", "net")):
        printed = view.fail(4, *words)
        assert "not seen: network net: nothing proves here that the owner of 10.22.0.2 is gone" in printed
        assert "nothing wrong" not in printed
    document = view.run("ipam", "verify", "--json")
    assert (document.status, document.json["complete"], document.json["findings"]) == (4, False, [])


@pytest.mark.parametrize("view", READABLE, indirect=True)
def test_gc_refuses_with_an_unknown_veth_peer(view: View, node: Tool, new_sandbox: Callable[[], Namespace]):
    """If all pods seem stopped, but a veth on the bridge has its peer in an unknown namespace, GC refuses."""
    pods = new_sandbox(), new_sandbox()
    attach(node, *pods)
    for path in node.cache.iterdir():
        path.write_text(path.read_text().replace("veth", "gone").replace("/run/netns/", "/run/netns/elsewhere-"))
    for end in [line.split(":")[1].split("@")[0].strip() for line in node.host.ip("-o", "link").splitlines()]:
        if end.startswith("veth"):
            node.host.ip("link", "set", end, "address", f"02:00:00:00:00:{int(end[-2:], 16):02x}")
    assert "is in a network namespace that cannot be seen" in view.fail(3, "gc", "net")
    doctor = view.fail(1, "doctor")
    assert "podwire gc" not in doctor, doctor


def test_equal_address_in_another_network_keeps_no_reservation(node: Tool, new_sandbox: Callable[[], Namespace]):
    """A pod of another network or host with the same address on eth0 keeps no reservation of this network."""
    known, stopped = new_sandbox(), new_sandbox()
    attach(node, known, stopped)
    (node.cache / f"net-{stopped.name}-eth0").unlink()
    node.delete_netns(stopped)
    with namespaces.temporary("host") as elsewhere, namespaces.temporary() as theirs:
        elsewhere.ip("link", "add", "veth0", "type", "veth", "peer", "name", "eth0", "netns", theirs.name)
        theirs.ip("addr", "add", "10.22.0.3/24", "dev", "eth0")
        docker = new_sandbox()
        node.host.ip("link", "add", "docker0", "type", "bridge")
        node.host.ip("link", "add", "veth0", "master", "docker0", "type", "veth", "peer", "eth0", "netns", docker.name)
        docker.ip("addr", "add", "10.22.0.3/24", "dev", "eth0")
        assert "not in the cache" not in node.succeed("gc", "net")
    assert not (node.leases / "10.22.0.3").exists()
    assert (node.leases / "10.22.0.2").exists()


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0"])
def test_gc_of_a_network_without_a_file(tool: Tool, new_sandbox: Callable[[], Namespace], version: str):
    """GC of podman's default network, or one whose file was removed, uses the configuration in the cache."""
    tool.configure(tool.bridge(ipMasq=True), PORTMAP, {"type": "firewall"}, version=version)
    running, stopped, forgotten = new_sandbox(), new_sandbox(), new_sandbox()
    attach(tool, running, stopped, forgotten)
    (tool.directory / "net.d" / "net.conflist").unlink()
    tool.delete_netns(stopped)
    (tool.cache / f"net-{forgotten.name}-eth0").unlink()
    tool.delete_netns(forgotten)
    assert "using the configuration in the cache" in tool.succeed("gc", "net")
    assert [path.name for path in tool.cache.iterdir()] == [f"net-{running.name}-eth0"]
    assert sorted(path.name for path in tool.leases.glob("10.*")) == ["10.22.0.2"]
    assert tool.host.run("nft", "list", "ruleset").count("10.22.0.4") == 0
