"""`podwire gc` removes objects of stopped pods and never those of running pods, whatever the cache contains."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.chained import differences
from tests.support.namespaces import Namespace
from tests.support.tool import PORTMAP, PORTS, Tool


@pytest.fixture
def node(tool: Tool) -> Tool:
    """A network whose plugins create every kind of object that GC removes."""
    tool.configure(tool.bridge(ipMasq=True), PORTMAP, {"type": "firewall"})
    return tool


def test_cache_without_attachments_of_the_network_is_refused(node: Tool, sandbox: Namespace):
    """GC refuses a cache without attachments of the network, since it would remove every attachment."""
    node.succeed("add", "net", sandbox.name, *PORTS)
    (entry,) = node.cache.iterdir()
    text = entry.read_text()
    entry.unlink()
    before = node.everything(sandbox)
    assert "knows no attachment" in node.fail(3, "gc", "net")
    assert "knows no attachment" in node.fail(3, "gc", "net", "--dry-run")
    (node.cache / "other-pod-eth0").write_text(text.replace('"networkName":"net"', '"networkName":"other"'))
    assert "knows no attachment" in node.fail(3, "gc", "net")
    (node.cache / "other-pod-eth0").unlink()
    assert differences(before, node.everything(sandbox)) == []


def test_pod_that_starts_while_gc_runs_keeps_its_address(node: Tool, tmp_path: Path, new_sandbox):
    """A pod that is added after GC listed the attachments, and before host-local collects, keeps its reservation."""
    known, young = new_sandbox(), new_sandbox()
    node.configure(node.bridge())
    node.succeed("add", "net", known.name)
    (tmp_path / "add.json").write_text(json.dumps({**node.bridge(), "name": "net", "cniVersion": "1.1.0"}))
    original = node.bin_dir / "bridge"
    variables = f"CNI_COMMAND=ADD CNI_CONTAINERID=young CNI_NETNS={young.path} CNI_IFNAME=eth0"
    add = f'[ "$CNI_COMMAND" != GC ] || {variables} {original} <{tmp_path}/add.json >/dev/null || exit'
    node.with_scripts(bridge=f"{add}; exec {original}").succeed("gc", "net")
    assert {path.read_text().split()[0] for path in node.leases.glob("10.*")} >= {"young"}


def test_addresses_of_a_plugin_without_gc(node: Tool, tmp_path: Path, new_sandbox):
    """Behind a plugin without GC that delegates to bridge, as flannel, addresses of stopped containers are released.

    The network's own configuration names no IPAM plugin, so that no GC of one is run.
    """
    running, stopped = new_sandbox(), new_sandbox()
    # Of an unknown plugin any namespace of the machine may be a pod: no other test has this subnet.
    ipam = {**node.bridge()["ipam"], "ranges": [[{"subnet": "10.122.77.0/24"}]]}
    bridge = {**node.bridge(ipam=ipam), "name": "net", "cniVersion": "1.0.0"}
    (tmp_path / "delegate.json").write_text(json.dumps(bridge))
    script = f'test "$CNI_COMMAND" && exec {node.bin_dir}/bridge <{tmp_path}/delegate.json'
    node = node.with_scripts(flannel=script)
    node.configure({"type": "flannel"}, version="1.0.0")
    node.configure(node.bridge(), name="other")  # of the same directory
    for pod in (running, stopped):
        node.succeed("add", "net", pod.name, "--container-id", pod.name)
    node.delete_netns(stopped)
    for entry in node.cache.glob(f"*{stopped.name}*"):
        entry.unlink()
    for file in node.leases.glob("10.*"):
        os.utime(file, (1, 1))
    assert "would release 1 address of containers" in node.succeed("gc", "net", "--dry-run")
    assert len(list(node.leases.glob("10.*"))) == 2
    assert node.json("gc", "net")["released"] == ["10.122.77.3"]
    assert [file.name for file in node.leases.glob("10.*")] == ["10.122.77.2"]


def test_address_of_an_owner_without_cache_entry_is_kept(node: Tool, new_sandbox: Callable[[], Namespace]):
    """A pod of another runtime and one whose ADD is still running are kept, and a stopped one is removed."""
    known, other, starting, stopped = (new_sandbox() for _ in range(4))
    for pod in (known, other, starting, stopped):
        node.succeed("add", "net", pod.name, "--container-id", pod.name)
    for pod in (other, starting, stopped):
        (node.cache / f"net-{pod.name}-eth0").unlink()
    for address in ("10.22.0.3", "10.22.0.5"):  # of `other` and `stopped`
        os.utime(node.leases / address, (1, 1))
    starting.ip("addr", "flush", "dev", "eth0")
    node.delete_netns(stopped)
    kept = [{"containerID": name, "ifname": "eth0"} for name in sorted(pod.name for pod in (known, other, starting))]
    printed = node.succeed("gc", "net", "--dry-run")
    assert [
        pod.name for pod in (known, other, starting, stopped) if f"in use or new: container {pod.name}" in printed
    ] == [other.name, starting.name]
    assert "release 10.22.0.5" in printed
    before = node.everything(known, other, starting)
    assert node.json("gc", "net")["kept"] == kept
    after = node.everything(known, other, starting)
    changed = [line for line in differences(before, after) if stopped.name not in line and "10.22.0.5" not in line]
    assert changed == []
    assert not (node.leases / "10.22.0.5").exists()
    for pod in (known, other, starting):
        (node.cache / f"net-{pod.name}-eth0").unlink(missing_ok=True)
    assert node.json("gc", "net", "--all")["kept"] == kept
