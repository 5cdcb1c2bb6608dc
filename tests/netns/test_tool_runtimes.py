"""The tool among caches as containerd 1.6 and podman 4 keep them: no namespaces, and a network of lo for each pod."""

import json

import pytest

from tests.support import libcni
from tests.support.attaching import address, host_end
from tests.support.doctoring import Clinic, bad
from tests.support.node import Node

LOOPBACK = {"cniVersion": "0.3.1", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}


@pytest.fixture
def node(bin_dir, host, tmp_path):
    """A node with the whole chain by nftables."""
    return Node(host, tmp_path / "node")


def rewrite(path, **changes):
    """Changes an entry of the cache, and takes its namespace away."""
    entry = {**json.loads(path.read_text()), **changes}
    del entry["netns"]
    path.write_text(json.dumps(entry))


def with_lo(directory, pod):
    """Writes what containerd and CRI-O keep of a pod's lo."""
    lo = {"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": pod.path}
    ips = [
        {"version": "4", "interface": 0, "address": "127.0.0.1/8"},
        {"version": "6", "interface": 0, "address": "::1/128"},
    ]
    result = {"cniVersion": "0.3.1", "interfaces": [lo], "ips": ips, "dns": {}}
    pair = {"K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": pod.name}
    how = {"netns": pod.path, "ifname": "lo", "result": result, "config": LOOPBACK, "cni_args": pair}
    return libcni.remember(directory, "cni-loopback", pod.name, **how)


def test_without_namespaces_all_is_told_alike(node, sandbox):
    """Where the cache has no namespace, the result's counts: nothing differs, and nothing living is marked."""
    node.attach(sandbox, "8080:80", name="web")
    before = node.seen()
    rewrite(node.entry(sandbox))
    assert node.seen() == before
    assert before["leaks"] == []


@pytest.mark.parametrize("told", [True, False])
def test_a_result_without_interfaces_marks_nobody(node, sandbox, told):
    """A result before CNI 0.3.0 tells of no namespace: by its address the pod is found, and never is its veth leaked."""
    result = node.attach(sandbox)
    old = {"cniVersion": "0.2.0", **({"ip4": {"ip": f"{address(result)}/24"}} if told else {})}
    rewrite(node.entry(sandbox), result=old)
    seen = node.seen()
    assert seen["leaks"] == []
    (pod,) = seen["attachments"]
    assert (pod["state"], pod["hostInterface"]) == (("ok", host_end(result)) if told else ("not seen", ""))


def test_lo_of_each_pod_is_nobody_s_trouble(node, new_sandbox):
    """The runtimes' own network of lo is no finding of verify or doctor, and show leaves it out of its tables."""
    for pod in (new_sandbox(), new_sandbox()):
        node.attach(pod)
        with_lo(node.directory, pod)
    verify = node.tool("ipam", "verify")
    assert (verify.status, verify.stdout.endswith("2 reservations, nothing wrong\n")) == (0, True), verify
    show = node.tool("show")
    assert (show.status, "127.0.0.1" in show.stdout) == (0, False), show
    assert "\nlo of 2 pods: podwire show cni-loopback\n" in show.stdout
    assert "127.0.0.1" in node.tool("show", "cni-loopback").stdout
    assert len(node.seen()["attachments"]) == 4


def test_lo_of_each_pod_is_no_finding(host, tmp_path, sandbox):
    """`podwire doctor` says nothing of a network that no file has, if it is the runtimes' own for lo."""
    clinic = Clinic(host, tmp_path)
    network = clinic.sample("10-podwire.conflist")
    clinic.attach(network, sandbox)
    before = [one["name"] for one in clinic.findings() if one["severity"] != "ok"]
    with_lo(clinic.cache, sandbox)
    found = clinic.findings()
    assert [one["name"] for one in found if one["severity"] != "ok"] == before
    assert bad(found) == []
