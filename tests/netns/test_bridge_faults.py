"""Faults that strace injects: a killed child process, no free process, unwritable stdout; wrong configurations."""

import os
import re
from typing import Any

import pytest

from tests.support.attaching import host_end, reaches
from tests.support.injection import run_injected as injection_into
from tests.support.netstate import links, state


def injected(network, command, pod, injection, **how):
    """Runs one verb of bridge on the network's host with one of strace's injections."""
    return injection_into(network.host, "bridge", command, network.config, pod, injection, **how)


@pytest.fixture
def attached(network, sandbox):
    """An attached pod: its network, namespace and result."""
    return network, sandbox, network.add(sandbox)


@pytest.mark.parametrize(
    ("injection", "text"),
    [("close_range:signal=SIGKILL", ""), ("clone:error=EAGAIN", "Resource temporarily unavailable")],
    ids=["killed", "not started"],
)
def test_del_without_a_child_deletes_the_veth(attached, injection, text):
    """If the child process dies or cannot be created, DEL deletes the veth and waits for the kernel itself."""
    network, pod, result = attached
    outcome = injected(network, "DEL", pod, injection, follow=True)
    outcome.assert_silent()
    assert text in outcome.stderr
    assert host_end(result) not in links(network.host)
    assert network.leases() == {}


UNWRITABLE = {
    "closed": (">&-", "Bad file descriptor"),
    "full": (">/dev/full", "No space left on device"),
    "not open for writing": ("1</dev/null", "Bad file descriptor"),
    "a pipe without a reader": ("", "Broken pipe"),
}


@pytest.mark.parametrize("stdout", UNWRITABLE)
def test_add_with_an_unwritable_stdout_is_rolled_back(network, sandbox, new_sandbox, stdout):
    """ADD that cannot write its result fails and leaves nothing: the runtime does not know the attachment."""
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


def test_partially_written_result_is_not_followed_by_an_error(network, sandbox):
    """If writing the result fails in the middle, no second document follows."""
    outcome = injected(network, "ADD", sandbox, "write:error=ENOSPC:when=5+")
    assert outcome.status == 1
    assert outcome.stdout.count(b"{\n") <= 1
    assert network.leases() == {}


def test_del_keeps_a_veth_with_the_same_ifindexes(attached, host, new_sandbox):
    """DEL deletes the veth of CNI_NETNS even if another pod's veth has the same interface indexes."""
    network, pod, result = attached
    pod_index, host_index = (get_ifindex(pod, "eth0"), get_ifindex(host, host_end(result)))
    other, elsewhere = new_sandbox(), new_sandbox()
    veth = ["link", "add", "eth0", "index", str(pod_index), "type", "veth"]
    other.ip(*veth, "peer", "name", "p0", "index", str(host_index), "netns", elsewhere.name)
    assert (get_ifindex(other, "eth0"), get_ifindex(elsewhere, "p0")) == (pod_index, host_index)
    network.delete(other)
    assert host_index == get_ifindex(host, host_end(result))
    assert reaches(pod, "10.22.0.1")
    assert "eth0" not in links(other)


def get_ifindex(namespace, name):
    """Returns the ifindex of a link."""
    return int(namespace.ip("-o", "link", "show", name).split(":")[0])


WRONG_FAMILY, TOO_SMALL = [{"address": "10.22.0.9/16", "gateway": "fd00::1"}], [{"address": "255.255.255.255/32"}]
NAME = "is not a valid interface name"
CONFIGURATION_ERRORS: dict[str, tuple[list[Any], dict[str, Any], str, str]] = {
    "a gateway of the other family": (WRONG_FAMILY, {}, "other address family", "correct the gateway"),
    "no address for a gateway": (TOO_SMALL, {}, "its subnet is too small to derive one", "larger subnet"),
    "itself as IPAM": ([], {"ipam": {"type": "bridge"}}, "is the plugin's own: bridge", ""),
    "a name that is a request to the kernel": ([], {"bridge": "br%d"}, NAME, ""),
    "a name that no interface can have": ([], {"bridge": "br\0"}, NAME, ""),
    "a list instead of a plugin": ([], {"type": None, "plugins": []}, "this is a network list", ""),
}


@pytest.mark.parametrize("case", CONFIGURATION_ERRORS)
def test_configuration_errors_have_code_7(scripted_network, sandbox, case):
    """An error that an operator can fix has code 7 and names its cause and the fix; nothing is changed."""
    ips, keys, text, fix = CONFIGURATION_ERRORS[case]
    network = scripted_network(ips)
    error = network.having(**keys).add_error(sandbox)
    assert (error["code"], text in error["msg"], fix in error.get("details", "")) == (7, True, True), error
