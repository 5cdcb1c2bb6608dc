"""The message of a verb that waits for a lock."""

import subprocess

import pytest

from tests.support.invocation import feed, finish, run_plugin, start_plugin
from tests.support.sbr_network import GATEWAY, IPV4, connect, rules


@pytest.fixture
def run_while_locked():
    """A function that runs a verb while a process holds a lock, until the verb prints a line; returns line, outcome."""

    def run(lock, plugin, command, config, **how):
        with subprocess.Popen(
            ["flock", "-F", lock, "sh", "-c", "echo; exec sleep 60"], stdout=subprocess.PIPE
        ) as holder:
            assert holder.stdout
            holder.stdout.readline()
            process = start_plugin(plugin, command, **how)
            feed(process, config)
            assert process.stderr
            line = process.stderr.readline().decode()
            holder.kill()
        return line, finish(process)

    return run


def test_a_wait_for_the_namespace_of_a_pod(sbr, host, sandbox, run_while_locked):
    """ADD of sbr waits for the lock of the namespace's file, as the reference plugin does, and names its holder."""
    prev_result = connect(host, sandbox, IPV4, gateways=[GATEWAY])
    config = {**sbr.config, "prevResult": prev_result}
    line, outcome = run_while_locked(sandbox.path, "sbr", "ADD", config, netns=sandbox, host=host)
    assert (outcome.result(), outcome.stderr) == (prev_result, "")
    assert f"waiting for the rules of the network namespace: the lock {sandbox.path} is held by process " in line
    assert rules(sandbox) == ["32765: from 10.1.0.2 lookup 100"]


def test_a_long_wait_for_the_store_names_the_holder(tmp_path, run_while_locked):
    """A verb that waits for seconds prints the lock and the process that holds it to stderr, and then succeeds."""
    ipam = {"type": "host-local", "subnet": "10.1.0.0/24", "dataDir": str(tmp_path)}
    config = {"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": ipam}
    assert run_plugin("host-local", "ADD", config, netns="/run/netns/none").stderr == ""
    lock = tmp_path / "net" / "lock"
    line, outcome = run_while_locked(lock, "host-local", "DEL", config, netns="/run/netns/none")
    outcome.assert_silent()
    assert outcome.stderr == ""
    assert f"waiting for the store of addresses: the lock {lock} is held by process " in line
    assert "(sleep 60)" in line
