"""podwire gc takes what is left of the dead, and never what lives, whatever the cache knows."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.support.chained import differences
from tests.support.namespaces import Namespace
from tests.support.tool import PORTMAP, Tool

PORTS = ("--capability-args", '{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}')


@pytest.fixture
def node(tool: Tool) -> Tool:
    """A network with everything that GC collects."""
    tool.configure(tool.bridge(ipMasq=True), PORTMAP, {"type": "firewall"})
    return tool


def test_a_cache_that_knows_nobody_is_no_witness(node: Tool, sandbox: Namespace):
    """With the cache of somebody else nothing is collected: what it does not know would be garbage."""
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


def test_who_has_an_address_and_is_not_in_the_cache_is_kept(node: Tool, new_sandbox: Callable[[], Namespace]):
    """Another runtime's pod, and one whose ADD is under way, keep what they have; what is neither goes."""
    known, other, coming, left = (new_sandbox() for _ in range(4))
    for pod in (known, other, coming, left):
        node.succeed("add", "net", pod.name, "--container-id", pod.name)
    for pod in (other, coming, left):
        (node.cache / f"net-{pod.name}-eth0").unlink()
    for address in ("10.22.0.3", "10.22.0.5"):  # of `other` and `left`
        os.utime(node.leases / address, (1, 1))
    coming.ip("addr", "flush", "dev", "eth0")
    node.delete_netns(left)
    kept = [{"containerID": name, "ifname": "eth0"} for name in sorted(pod.name for pod in (known, other, coming))]
    told = node.succeed("gc", "net", "--dry-run")
    assert [pod.name for pod in (known, other, coming, left) if f"in use or new: container {pod.name}" in told] == [
        other.name,
        coming.name,
    ]
    assert "release 10.22.0.5" in told
    before = node.everything(known, other, coming)
    assert node.json("gc", "net")["kept"] == kept
    after = node.everything(known, other, coming)
    changed = [line for line in differences(before, after) if left.name not in line and "10.22.0.5" not in line]
    assert changed == []
    assert not (node.leases / "10.22.0.5").exists()
    for pod in (known, other, coming):
        (node.cache / f"net-{pod.name}-eth0").unlink(missing_ok=True)
    assert node.json("gc", "net", "--all")["kept"] == kept
