"""The tool with caches of containerd 1.6 and podman 4: no namespaces, and a loopback network for each pod."""

import json
import re

import pytest

from podwire.node.model import short_id
from tests.netns.conftest import NFTABLES
from tests.support import binaries, libcni
from tests.support.attaching import address, host_end
from tests.support.doctor_node import DoctorNode
from tests.support.node import Node

LOOPBACK = {"cniVersion": "0.3.1", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}


@pytest.fixture(params=[NFTABLES])
def node(request, bin_dir, host, tmp_path):
    """A node with a list of all plugins, with nftables."""
    return Node(host, tmp_path / "node", backend=request.param)


def rewrite(path, **changes):
    """Changes an entry of the cache, and removes its namespace."""
    entry = {**json.loads(path.read_text()), **changes}
    del entry["netns"]
    path.write_text(json.dumps(entry))


def write_loopback_entry(directory, pod):
    """Writes the cache entry that containerd and CRI-O keep for a pod's lo."""
    lo = {"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": pod.path}
    ips = [
        {"version": "4", "interface": 0, "address": "127.0.0.1/8"},
        {"version": "6", "interface": 0, "address": "::1/128"},
    ]
    result = {"cniVersion": "0.3.1", "interfaces": [lo], "ips": ips, "dns": {}}
    pair = {"K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": pod.name}
    how = {"netns": pod.path, "ifname": "lo", "result": result, "config": LOOPBACK, "cni_args": pair}
    return libcni.write_entry(directory, "cni-loopback", pod.name, **how)


def test_cache_without_namespaces_gives_the_same_output(node, sandbox):
    """If the cache has no namespace, the result's is used: the output is the same, without leaks."""
    node.attach(sandbox, "8080:80", name="web")
    before = node.show()
    rewrite(node.entry(sandbox))
    assert node.show() | {"time": before["time"]} == before
    assert before["leaks"] == []


@pytest.mark.parametrize("has_address", [True, False])
def test_result_without_interfaces_is_no_leak(node, sandbox, has_address):
    """A pod whose result is older than CNI 0.3.0 and has no namespace is identified by its address, and is no leak."""
    result = node.attach(sandbox)
    old = {"cniVersion": "0.2.0", **({"ip4": {"ip": f"{address(result)}/24"}} if has_address else {})}
    rewrite(node.entry(sandbox), result=old)
    seen = node.show()
    assert seen["leaks"] == []
    (pod,) = seen["attachments"]
    assert (pod["state"], pod["hostInterface"]) == (
        ("not checked", host_end(result)) if has_address else ("not seen", "")
    )


def test_loopback_networks_are_hidden(node, new_sandbox):
    """The runtimes' loopback network is no finding of verify, and show leaves it out of its tables."""
    for pod in (new_sandbox(), new_sandbox()):
        node.attach(pod)
        write_loopback_entry(node.directory, pod)
    verify = node.tool("ipam", "verify")
    assert (verify.status, verify.stdout.endswith("2 reservations, nothing wrong\n")) == (0, True), verify
    show = node.tool("show")
    assert (show.status, "127.0.0.1" in show.stdout) == (0, False), show
    assert "\nlo of 2 pods: podwire show cni-loopback\n" in show.stdout
    assert "127.0.0.1" in node.tool("show", "cni-loopback").stdout
    assert len(node.show()["attachments"]) == 4


def test_attachment_that_cannot_be_repaired_is_a_failure(node, sandbox):
    """An attachment whose cache entry lacks the result is reported as not repaired, with exit status 1."""
    node.attach(sandbox)
    rewrite(node.entry(sandbox), result=None)
    done = node.tool("repair", "--settle", "0", directories=False)
    assert done.status == 1, done
    assert "NOT REPAIRED" in done.stdout
    assert done.stdout.endswith("1 attachment: 1 not repaired\n")


def test_names_are_complete_and_large_ranges_have_no_size(host, tmp_path, sandbox):
    """A container ID that is not a hash is not cut, and of a range of 2^64 addresses only the used ones are counted."""
    assert short_id("4c18d800e07d12017a2677bf4a1284be58f2413eccfe514b8a31d4fc5161ff45") == "4c18d800e07d"
    assert short_id("default-three") == "default-three"
    doctor_node = DoctorNode(host, tmp_path)
    doctor_node.attach(doctor_node.add_sample("20-dual-stack.conflist"), sandbox)
    assert re.search(r" 1 of \d+\n.* 1\n", doctor_node.podwire("show").stdout)


def test_address_is_listed_once(node, sandbox):
    """The start of the next search for an address is in the JSON document, but not in the table."""
    pod_address = address(node.attach(sandbox))
    assert node.tool("ipam", "list").stdout.count(f"{pod_address} ") == 1
    assert [line["state"] for line in node.tool("ipam", "list", "--json").json] == ["running", "last_reserved"]


def test_del_of_an_unknown_attachment(node, sandbox):
    """DEL of an attachment without a cache entry succeeds, as required, and reports the missing entry."""
    places = ("--conf-dir", str(node.directory / "net.d"), "--bin-dir", str(binaries.directory()))
    done = node.tool("del", "podnet", sandbox.path, *places, directories=False)
    assert (done.status, "the cache has no such attachment" in done.stdout) == (0, True), done
