"""The message of a verb that waits for a lock."""

from __future__ import annotations

import subprocess

from tests.support.invocation import run_plugin
from tests.support.sbr_network import GATEWAY, IPV4, connect, rules

HELD_S = 5  # longer than a plugin waits before it reports


def test_a_wait_for_the_namespace_of_a_pod(sbr, host, sandbox):
    """ADD of sbr waits for the lock of the namespace's file, as the reference plugin does, and names its holder."""
    prev_result = connect(host, sandbox, IPV4, gateways=[GATEWAY])
    command = ["flock", sandbox.path, "sh", "-c", f"echo; exec sleep {HELD_S}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        outcome = sbr.run("ADD", sandbox, prev_result)
    assert outcome.result() == prev_result
    (line,) = outcome.stderr.splitlines()
    assert f"waiting for the rules of the network namespace: the lock {sandbox.path} is held by process " in line
    assert rules(sandbox) == ["32765: from 10.1.0.2 lookup 100"]


def test_a_long_wait_for_the_store_names_the_holder(tmp_path):
    """A verb that waits for seconds prints the lock and the process that holds it to stderr, and then succeeds."""
    ipam = {"type": "host-local", "subnet": "10.1.0.0/24", "dataDir": str(tmp_path)}
    config = {"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": ipam}
    assert run_plugin("host-local", "ADD", config, netns="/run/netns/none").stderr == ""
    lock = tmp_path / "net" / "lock"
    command = ["flock", str(lock), "sh", "-c", f"echo; exec sleep {HELD_S}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        done = run_plugin("host-local", "DEL", config, netns="/run/netns/none")
    done.assert_silent()
    (line,) = done.stderr.splitlines()
    assert f"waiting for the store of addresses: the lock {lock} is held by process " in line
    assert f"(sleep {HELD_S})" in line or f"(flock {lock}" in line
