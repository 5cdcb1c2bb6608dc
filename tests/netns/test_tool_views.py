"""Podwire where /run/netns is not the runtime's, as in a container: no running pod is taken for gone.

Two views: one in which process 1 (a process with the runtime's view stands for it) can be looked at, one in which it
cannot, and /proc/1 is empty.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import binaries, namespaces
from tests.support.invocation import Outcome
from tests.support.namespaces import Namespace
from tests.support.processes import PATH
from tests.support.tool import PORTMAP, Tool

# Only processes of the host with the runtime's view tell of the pods' namespaces; here there is none.
_READABLE = "mount --bind /proc/{pid} /proc/1"
_HIDDEN = "mount -t tmpfs podwire /proc/1"
_OTHER_RUN = "mount -t tmpfs podwire /run; mkdir /run/netns"
_CONTAINER = _OTHER_RUN + "; mount -t tmpfs podwire /etc; mkdir -p /etc/cni"


@dataclass(frozen=True)
class View:
    """The tool in a mount namespace of its own, in which `script` has been run."""

    tool: Tool
    script: str

    def run(self, *words: str) -> Outcome:
        """Runs a command; a traceback fails the test."""
        directory = self.tool.directory
        options = [f"--conf-dir={directory}/net.d", f"--cache-dir={directory}/cache"]
        if words[0] not in ("show", "ipam"):
            options.append(f"--bin-dir={self.tool.bin_dir}")
        program = binaries.directory() / "podwire"
        line = ["unshare", "--mount", "sh", "-ec", f'{self.script}; exec "$@"', "sh", str(program), *words, *options]
        with self.tool.host.entered():
            done = subprocess.run(line, env={"PATH": PATH}, capture_output=True, timeout=60, check=False)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return Outcome(done.returncode, done.stdout, done.stderr.decode())

    def said(self, status: int, *words: str) -> str:
        """Runs a command, which must end with `status`, and returns all that it printed."""
        done = self.run(*words)
        assert done.status == status, f"{done.status}: {done.stdout.decode()}{done.stderr}"
        return done.stdout.decode() + done.stderr


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory that is not below /run, which another view hides."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
def node(tool: Tool) -> Tool:
    """A network with everything that GC collects."""
    tool.configure(tool.bridge(ipMasq=True), PORTMAP, {"type": "firewall"})
    return tool


def seeing(node: Tool, kind: str) -> View:
    """Returns the node in another view, from where process 1 can be looked at, or not ("blind")."""
    other = _CONTAINER if "container" in kind else _OTHER_RUN
    return View(node, f"{_HIDDEN if 'blind' in kind else _READABLE.format(pid=os.getpid())}; {other}")


@pytest.fixture(params=["unshare", "container"])
def view(request: pytest.FixtureRequest, node: Tool) -> View:
    """The node as it is seen with another /run, from where process 1 can be looked at."""
    return seeing(node, request.param)


@pytest.fixture(params=["blind unshare", "blind container"])
def blind(request: pytest.FixtureRequest, node: Tool) -> View:
    """The same from where process 1 cannot be looked at."""
    return seeing(node, request.param)


@pytest.fixture(params=["unshare", "container", "blind unshare", "blind container"])
def other_view(request: pytest.FixtureRequest, node: Tool) -> View:
    """All of these."""
    return seeing(node, request.param)


def attached(tool: Tool, *pods: Namespace) -> None:
    for number, pod in enumerate(pods):
        ports = f'{{"portMappings": [{{"hostPort": {8080 + number}, "containerPort": 80, "protocol": "tcp"}}]}}'
        tool.succeed("add", "net", pod.name, "--container-id", pod.name, "--capability-args", ports)
        os.utime(tool.leases / f"10.22.0.{2 + number}", (1, 1))


def test_nothing_is_removed_of_pods_that_are_not_visible(
    other_view: View, node: Tool, new_sandbox: Callable[[], Namespace]
):
    """The commands gc and ipam free remove nothing, and doctor, show, ipam verify and repair recommend no removal."""
    view = other_view
    pods = new_sandbox(), new_sandbox()
    attached(node, *pods)
    before = node.everything(*pods)
    assert "would be removed" not in view.said(0, "gc", "net", "--dry-run")
    view.said(0, "gc", "net")
    assert "kept" not in view.said(0, "ipam", "free", "--gone", "net")
    assert "10.22.0.2" in view.said(1, "ipam", "free", "10.22.0.2", "net")
    doctor = view.said(1, "doctor")
    assert "2 attachments may be running, but /run/netns/" in doctor
    shown = view.said(4, "show")
    verified = view.said(4, "ipam", "verify")
    repaired = view.run("repair").stdout.decode()
    assert repaired.count("NOT REPAIRED: its network namespace cannot be seen from here") == 2
    for text in (doctor, shown, verified, repaired):
        assert not any(word in text for word in ("podwire gc", "ipam free", "ip link delete", "gone:", " gone ")), text
    assert node.everything(*pods) == before


def test_what_is_gone_is_collected_from_where_process_1_can_be_looked_at(
    view: View, node: Tool, new_sandbox: Callable[[], Namespace]
):
    """In another view, too, gc collects a pod whose namespace is gone in the view of process 1, and no other."""
    running, lost = new_sandbox(), new_sandbox()
    attached(node, running, lost)
    node.delete_netns(lost)
    assert "dead-attachments" in view.said(1, "doctor", "--json")
    assert f"container {lost.name}" in view.said(0, "gc", "net")
    assert [path.name for path in node.cache.iterdir()] == [f"net-{running.name}-eth0"]
    assert sorted(path.name for path in node.leases.glob("10.*")) == ["10.22.0.2"]


def test_without_a_look_at_process_1_gc_refuses(blind: View, node: Tool, new_sandbox: Callable[[], Namespace]):
    """The command gc exits with 3, says why, and with --force collects the containers that are named and no other."""
    running, lost, other = new_sandbox(), new_sandbox(), new_sandbox()
    attached(node, running, lost, other)
    node.delete_netns(lost)
    node.delete_netns(other)
    before = node.everything(running)
    for words in (("gc", "net"), ("gc", "net", "--dry-run")):
        said = blind.said(3, *words)
        assert "may be running" in said
        assert "/proc/1/root cannot be read" in said
        assert "--force ID" in said
    assert "is running" in blind.said(3, "gc", "net", "--force", running.name)
    assert "knows no container" in blind.said(3, "gc", "net", "--force", "somebody")
    assert node.everything(running) == before
    blind.said(0, "gc", "net", "--force", lost.name)
    assert sorted(path.name for path in node.cache.iterdir()) == sorted(
        f"net-{pod.name}-eth0" for pod in (running, other)
    )
    assert sorted(path.name for path in node.leases.glob("10.*")) == ["10.22.0.2", "10.22.0.4"]


def test_an_address_whose_owner_may_be_running(blind: View, node: Tool, new_sandbox: Callable[[], Namespace]):
    """Where nothing proves that a pod is gone, ipam list and ipam verify name its address and exit with 4."""
    lost = new_sandbox()
    attached(node, lost)
    node.delete_netns(lost)
    for words in (("ipam", "list"), ("ipam", "verify", "net")):
        said = blind.said(4, *words)
        assert "not seen: network net: nothing proves here that the owner of 10.22.0.2 is gone" in said
        assert "nothing wrong" not in said
    document = blind.run("ipam", "verify", "--json")
    assert (document.status, document.json["complete"], document.json["findings"]) == (4, False, [])


def test_all_gone_and_a_veth_that_leads_somewhere(view: View, node: Tool, new_sandbox: Callable[[], Namespace]):
    """Where all look gone and a veth of the bridge leads into a namespace that cannot be found, gc refuses."""
    pods = new_sandbox(), new_sandbox()
    attached(node, *pods)
    for path in node.cache.iterdir():
        path.write_text(path.read_text().replace("veth", "gone").replace("/run/netns/", "/run/netns/elsewhere-"))
    for end in [line.split(":")[1].split("@")[0].strip() for line in node.host.ip("-o", "link").splitlines()]:
        if end.startswith("veth"):
            node.host.ip("link", "set", end, "address", f"02:00:00:00:00:{int(end[-2:], 16):02x}")
    assert "is in a network namespace that cannot be seen" in view.said(3, "gc", "net")
    doctor = view.said(1, "doctor")
    assert "podwire gc" not in doctor, doctor


def test_an_address_counts_only_where_it_leads_to_the_network(node: Tool, new_sandbox: Callable[[], Namespace]):
    """Another network's pod, or another host's, with the same address on an eth0 keeps nobody's reservation."""
    known, lost = new_sandbox(), new_sandbox()
    attached(node, known, lost)
    (node.cache / f"net-{lost.name}-eth0").unlink()
    node.delete_netns(lost)
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
def test_a_network_without_a_file_is_collected_from_the_cache(
    tool: Tool, new_sandbox: Callable[[], Namespace], version: str
):
    """The default network of podman, or one whose file was removed, is collected as the cache remembers it."""
    tool.configure(tool.bridge(ipMasq=True), PORTMAP, {"type": "firewall"}, version=version)
    running, lost, forgotten = new_sandbox(), new_sandbox(), new_sandbox()
    attached(tool, running, lost, forgotten)
    (tool.directory / "net.d" / "net.conflist").unlink()
    tool.delete_netns(lost)
    (tool.cache / f"net-{forgotten.name}-eth0").unlink()
    tool.delete_netns(forgotten)
    assert "using the configuration in the cache" in tool.succeed("gc", "net")
    assert [path.name for path in tool.cache.iterdir()] == [f"net-{running.name}-eth0"]
    assert sorted(path.name for path in tool.leases.glob("10.*")) == ["10.22.0.2"]
    assert tool.host.run("nft", "list", "ruleset").count("10.22.0.4") == 0
