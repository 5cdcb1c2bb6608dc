"""An incomplete inspection is never reported as healthy: exit status 4 of doctor, show and ipam."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.doctor_node import DoctorNode
from tests.support.namespaces import Namespace

UNPRIVILEGED = "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all"
COMMANDS = ["doctor", "show", "ipam verify"]


@pytest.fixture
def pod(node: DoctorNode, sandbox: Namespace) -> Path:
    """Attaches a pod on a healthy node, and returns its cache file."""
    network = node.add_sample("60-podman.conflist")
    node.attach(network, sandbox)
    return node.cache_file(network, sandbox)


def run_command(node: DoctorNode, command: str, *options: str, **how: Any) -> tuple[int, bool, str]:
    """Runs a command; returns its exit status, `complete` of its JSON document, and its text output."""
    status = node.podwire(*command.split(), *options, **how)
    document = node.podwire(*command.split(), "--json", *options, **how)
    assert document.returncode == status.returncode, (status, document)
    return status.returncode, json.loads(document.stdout)["complete"], status.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_healthy_node_is_complete(node, pod, command):
    """Each command reports a complete inspection without a fault."""
    leases = f"--data-dir={node.directory}/leases"
    status, complete, _ = run_command(node, command, *([] if command == "doctor" else [leases]))
    assert (status, complete) == (0, True)


@pytest.mark.parametrize("command", COMMANDS)
def test_unprivileged_user_gets_an_incomplete_report(node, pod, command):
    """A command that may not read the cache does not report that nothing is wrong."""
    above = [str(path) for path in (node.directory, *node.directory.parents) if len(path.parts) > 2]
    before = f"chmod o+x {' '.join(above)}; chmod 0700 /var/lib/cni/results"
    status, complete, text = run_command(node, command, before=before, wrapper=UNPRIVILEGED)
    assert (status, complete) == (4, False), text
    assert "/var/lib/cni/results: Permission denied" in text
    assert "nothing wrong" not in text


@pytest.mark.parametrize("command", COMMANDS)
def test_missing_cache_directory(node, pod, command):
    """A misspelt --cache-dir is reported."""
    status, complete, text = run_command(node, command, "--cache-dir=/var/lib/cnii")
    assert (status, complete) == (4, False), text
    assert "the cache /var/lib/cnii/results does not exist" in text


@pytest.mark.parametrize(
    "before", ["mv /var/lib/cni/results /var/lib/cni/elsewhere", "mount -t tmpfs none /var/lib/cni"]
)
def test_missing_default_cache(node, pod, before):
    """Doctor reports a default cache without attachments on a node where pods have addresses."""
    status, complete, text = run_command(node, "doctor", before=before)
    assert (status, complete) == (4, False), text
    assert "no attachment of it is in /var/lib/cni/results" in text
    if "elsewhere" in before:
        (pod.parent.parent / "elsewhere").rename(pod.parent.parent / "results")


@pytest.mark.parametrize("command", COMMANDS)
def test_truncated_cache_entry(node, pod, command):
    """The output names a truncated file of the cache."""
    pod.write_text(pod.read_text()[:100])
    status, complete, text = run_command(node, command)
    assert (status, complete) == (4, False), text
    assert f"/var/lib/cni/results/{pod.name}" in text


def test_fault_takes_precedence(node, pod):
    """A detected fault is exit status 1, even if the inspection is incomplete."""
    (pod.parent / "podwire-podman-other-eth0").write_text("{")
    node.host.ip("link", "set", "cni4", "down")
    for command in ("doctor", "show"):
        status, complete, text = run_command(node, command)
        assert (status, complete) == (1, False), text


def test_node_without_pods_is_healthy(node):
    """A node on which no pod was ever attached has no cache and is healthy."""
    node.add_sample("60-podman.conflist")
    for command in COMMANDS:
        status, complete, text = run_command(node, command, before="rm -r /var/lib/cni/results")
        assert (status, complete) == (0, True), text


def test_unreadable_store_is_not_empty(node, pod):
    """A store that the user may not read is not reported as empty."""
    store = node.directory / "leases" / "podwire-podman"
    above = [str(path) for path in (node.directory, *node.directory.parents) if len(path.parts) > 2]
    before = f"chmod o+x {' '.join(above)}; chmod 0700 {store}"
    done = node.podwire("ipam", "list", f"--data-dir={store.parent}", before=before, wrapper=UNPRIVILEGED)
    assert done.returncode == 4
    assert f"{store}: Permission denied" in done.stdout
    assert "no addresses" not in done.stdout
