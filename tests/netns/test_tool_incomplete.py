"""What could not be looked at is never reported as healthy: exit status 4 of doctor, show and ipam."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.doctor_node import DoctorNode
from tests.support.namespaces import Namespace

NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all"
COMMANDS = ["doctor", "show", "ipam verify"]


@pytest.fixture
def node(host: Namespace, tmp_path: Path) -> DoctorNode:
    return DoctorNode(host, tmp_path)


@pytest.fixture
def pod(node: DoctorNode, sandbox: Namespace) -> Path:
    """A healthy node with one pod, whose file in the cache this is."""
    network = node.add_sample("60-podman.conflist")
    node.attach(network, sandbox)
    return node.cache_file(network, sandbox)


def looked(node: DoctorNode, command: str, *options: str, **how: Any) -> tuple[int, bool, str]:
    """Runs a command; returns its exit status, what it says of itself with --json, and what it prints without."""
    status = node.podwire(*command.split(), *options, **how)
    document = node.podwire(*command.split(), "--json", *options, **how)
    assert document.returncode == status.returncode, (status, document)
    return status.returncode, json.loads(document.stdout)["complete"], status.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_a_healthy_node_is_looked_at_completely(node, pod, command):
    """Each command says that it looked at everything, and nothing is wrong."""
    leases = f"--data-dir={node.directory}/leases"
    status, complete, _ = looked(node, command, *([] if command == "doctor" else [leases]))
    assert (status, complete) == (0, True)


@pytest.mark.parametrize("command", COMMANDS)
def test_without_root(node, pod, command):
    """As nobody, to whom the cache is closed, a command does not say that nothing is wrong."""
    above = [str(path) for path in (node.directory, *node.directory.parents) if len(path.parts) > 2]
    before = f"chmod o+x {' '.join(above)}; chmod 0700 /var/lib/cni/results"
    status, complete, text = looked(node, command, before=before, wrapper=NOBODY)
    assert (status, complete) == (4, False), text
    assert "/var/lib/cni/results: Permission denied" in text
    assert "nothing wrong" not in text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_cache_directory_that_is_not_there(node, pod, command):
    """A misspelt --cache-dir is reported."""
    status, complete, text = looked(node, command, "--cache-dir=/var/lib/cnii")
    assert (status, complete) == (4, False), text
    assert "the cache /var/lib/cnii/results does not exist" in text


@pytest.mark.parametrize(
    "before", ["mv /var/lib/cni/results /var/lib/cni/elsewhere", "mount -t tmpfs none /var/lib/cni"]
)
def test_the_usual_cache_is_missing(node, pod, before):
    """Doctor reports a default cache without attachments on a node where pods have addresses."""
    status, complete, text = looked(node, "doctor", before=before)
    assert (status, complete) == (4, False), text
    assert "/var/lib/cni/results has no attachment of it" in text
    if "elsewhere" in before:
        (pod.parent.parent / "elsewhere").rename(pod.parent.parent / "results")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_entry_that_was_truncated(node, pod, command):
    """A file of the cache that ends in the middle is named."""
    pod.write_text(pod.read_text()[:100])
    status, complete, text = looked(node, command)
    assert (status, complete) == (4, False), text
    assert f"/var/lib/cni/results/{pod.name}" in text


def test_a_fault_wins(node, pod):
    """A fault that is certain is exit status 1, also where not everything could be looked at."""
    (pod.parent / "podwire-podman-other-eth0").write_text("{")
    node.host.ip("link", "set", "cni4", "down")
    for command in ("doctor", "show"):
        status, complete, text = looked(node, command)
        assert (status, complete) == (1, False), text


def test_a_node_without_pods_is_healthy(node):
    """Where no pod was ever attached there is no cache, and nothing is missing."""
    node.add_sample("60-podman.conflist")
    for command in COMMANDS:
        status, complete, text = looked(node, command, before="rm -r /var/lib/cni/results")
        assert (status, complete) == (0, True), text


def test_addresses_that_cannot_be_listed(node, pod):
    """As nobody a closed store is not an empty one."""
    store = node.directory / "leases" / "podwire-podman"
    above = [str(path) for path in (node.directory, *node.directory.parents) if len(path.parts) > 2]
    before = f"chmod o+x {' '.join(above)}; chmod 0700 {store}"
    done = node.podwire("ipam", "list", f"--data-dir={store.parent}", before=before, wrapper=NOBODY)
    assert done.returncode == 4
    assert f"{store}: Permission denied" in done.stdout
    assert "no addresses" not in done.stdout
