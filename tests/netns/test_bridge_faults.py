"""Faults from outside: signals at any system call, a child that dies, no process left, nobody reading the answer.

System calls are made to fail, and signals to arrive at them, with strace's injection.
"""

import os
import re
import signal

import pytest

from tests.support.attaching import address, host_end, reaches
from tests.support.injection import run_injected as injection_into
from tests.support.netstate import links, state

CALLS = ("sendto", "recvfrom", "setns", "openat", "flock", "linkat", "close", "socket", "pwrite64")


def injected(network, command, pod, injection, **how):
    """Runs one verb of bridge on the network's host with one of strace's injections."""
    return injection_into(network.host, "bridge", command, network.config, pod, injection, **how)


@pytest.fixture
def attached(network, sandbox):
    """An attached pod: its network, namespace and result."""
    return network, sandbox, network.add(sandbox)


@pytest.mark.parametrize("call", CALLS)
def test_sigterm_at_any_call_of_add_is_told_truly(network, sandbox, new_sandbox, call):
    """Whenever SIGTERM comes, ADD either succeeds and all is there, or fails and nothing is."""
    network.add(new_sandbox())  # the bridge stays
    before = state(network.host), state(sandbox), network.leases()
    for occurrence in range(1, 12, 2):
        outcome = injected(network, "ADD", sandbox, f"{call}:signal=SIGTERM:when={occurrence}")
        if outcome.status == 0:
            assert address(outcome.result()) in network.leases()
            assert reaches(sandbox, "10.22.0.1")
            network.delete(sandbox)
        else:
            assert outcome.error()["code"] == 11
        assert (state(network.host), state(sandbox), network.leases()) == before


def test_a_deletion_whose_child_is_killed_is_carried_out_all_the_same(attached):
    """When the child that waits for the kernel dies before it has asked, DEL deletes the pair itself."""
    network, pod, result = attached
    injected(network, "DEL", pod, "close_range:signal=SIGKILL", follow=True).assert_silent()
    assert host_end(result) not in links(network.host)
    assert network.leases() == {}


def test_a_deletion_without_a_process_for_the_child_is_carried_out_all_the_same(attached):
    """Where no process can be made DEL waits for the kernel itself, and says so on stderr."""
    network, pod, result = attached
    outcome = injected(network, "DEL", pod, "clone:error=EAGAIN")
    outcome.assert_silent()
    assert "Resource temporarily unavailable" in outcome.stderr
    assert host_end(result) not in links(network.host)
    assert network.leases() == {}


def test_sigterm_during_del_lets_it_finish(attached):
    """SIGTERM does not stop a deletion half way: what is begun in milliseconds is ended in milliseconds."""
    network, pod, result = attached
    outcome = injected(network, "DEL", pod, "sendto:signal=SIGTERM:when=2")
    assert outcome.status == 0 or outcome.error()["code"] == 11
    network.delete(pod)
    assert host_end(result) not in links(network.host)
    assert network.leases() == {}


UNWRITABLE = {
    "closed": (">&-", "Bad file descriptor"),
    "full": (">/dev/full", "No space left on device"),
    "not open for writing": ("1</dev/null", "Bad file descriptor"),
    "a pipe without a reader": ("", "Broken pipe"),
}


@pytest.mark.parametrize("stdout", UNWRITABLE)
def test_an_attachment_whose_result_cannot_be_written_is_removed(network, sandbox, new_sandbox, stdout):
    """ADD that cannot write its result fails and leaves nothing: the runtime knows nothing of the attachment."""
    redirection, reason = UNWRITABLE[stdout]
    network.add(new_sandbox())
    before = state(network.host), state(sandbox), network.leases()
    reader, writer = os.pipe()
    os.close(reader)
    outcome = injected(network, "ADD", sandbox, "", stdout=writer, redirection=redirection)
    os.close(writer)
    assert outcome.status == 1
    assert re.search(f"^podwire: error writing to stdout: {reason}$", outcome.stderr, re.MULTILINE)
    assert (state(network.host), state(sandbox), network.leases()) == before


def test_a_result_told_in_part_is_not_followed_by_an_error(network, sandbox):
    """A write that fails in the middle leaves what was written; no second document is added."""
    outcome = injected(network, "ADD", sandbox, "write:error=ENOSPC:when=5+")
    assert outcome.status == 1
    assert outcome.stdout.count(b"{\n") <= 1
    assert network.leases() == {}


def test_equal_indexes_do_not_make_a_strangers_pair_ours(attached, host, new_sandbox):
    """DEL takes the pair of the namespace it was given, though another pod's has the same interface indexes."""
    network, pod, result = attached
    pod_index, host_index = (network_index(pod, "eth0"), network_index(host, host_end(result)))
    stranger, elsewhere = new_sandbox(), new_sandbox()
    veth = ["link", "add", "eth0", "index", str(pod_index), "type", "veth"]
    stranger.ip(*veth, "peer", "name", "p0", "index", str(host_index), "netns", elsewhere.name)
    assert (network_index(stranger, "eth0"), network_index(elsewhere, "p0")) == (pod_index, host_index)
    network.delete(stranger)
    assert host_index == network_index(host, host_end(result))
    assert reaches(pod, "10.22.0.1")
    assert "eth0" not in links(stranger)


def network_index(namespace, name):
    """Returns the ifindex of a link."""
    return int(namespace.ip("-o", "link", "show", name).split(":")[0])


def test_signals_held_back_are_not_inherited_by_delegates(scripted_network, sandbox):
    """An IPAM plugin starts with SIGTERM at its default, neither blocked nor ignored."""
    note = '[ "$CNI_COMMAND" != ADD ] || grep -E "Sig(Blk|Ign)" /proc/self/status > "$here/signals"'
    network = scripted_network([{"address": "10.22.0.9/16"}], body=note)
    network.run("ADD", sandbox).result()
    directory = network.path.partition(":")[0]
    with open(f"{directory}/signals") as file:
        for line in file:
            assert not int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1, line


OPERATORS_MISTAKES = {
    "a gateway of the other family": ([{"address": "10.22.0.9/16", "gateway": "fd00::1"}], {}, "other address family"),
    "no address left for a gateway": ([{"address": "255.255.255.255/32"}], {}, "no next address"),
    "itself as IPAM": ([], {"ipam": {"type": "bridge"}}, "is the plugin's own: bridge"),
    "a name that is a request to the kernel": ([], {"bridge": "br%d"}, "is not a valid interface name"),
    "a name that no interface can have": ([], {"bridge": "br\0"}, "is not a valid interface name"),
    "a list instead of a plugin": ([], {"type": None, "plugins": []}, "this is a network list"),
}


@pytest.mark.parametrize("case", OPERATORS_MISTAKES)
def test_an_operators_mistake_is_told_as_such(scripted_network, sandbox, case):
    """What a person can mend is a configuration error, code 7, that names it; nothing is changed."""
    ips, keys, text = OPERATORS_MISTAKES[case]
    network = scripted_network(ips)
    before = state(network.host), state(sandbox)
    error = network.having(**keys).run("ADD", sandbox).error()
    assert (error["code"], text in error["msg"]) == (7, True), error
    assert (state(network.host), state(sandbox)) == before


def test_a_name_no_interface_can_have_in_prevresult_is_passed_over(network):
    """DEL without a namespace does what it can with any prevResult."""
    names = ["veth" + "a" * 70_000, "veth%d", "veth/x", "vethaaaaaaaaaaaaaaaaaaaa"]
    interfaces = [{"name": name, "mac": "02:00:00:00:00:01"} for name in names]
    network.run("DEL", "", prev_result={"cniVersion": "1.0.0", "interfaces": interfaces}).assert_silent()
