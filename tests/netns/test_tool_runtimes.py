"""The tool among caches as containerd 1.6 and podman 4 keep them: no namespaces, and a network of lo for each pod."""

import json

import pytest

from podwire.node.model import short_id
from tests.netns.conftest import NFTABLES
from tests.support import binaries, libcni
from tests.support.attaching import address, host_end
from tests.support.doctor_node import DoctorNode, list_problems
from tests.support.node import Node

LOOPBACK = {"cniVersion": "0.3.1", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}


@pytest.fixture(params=[NFTABLES])
def node(request, bin_dir, host, tmp_path):
    """A node with the whole chain by nftables."""
    return Node(host, tmp_path / "node", backend=request.param)


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
    return libcni.write_entry(directory, "cni-loopback", pod.name, **how)


def test_without_namespaces_all_is_told_alike(node, sandbox):
    """Where the cache has no namespace, the result's counts: nothing differs, and nothing living is marked."""
    node.attach(sandbox, "8080:80", name="web")
    before = node.show()
    rewrite(node.entry(sandbox))
    assert node.show() == before
    assert before["leaks"] == []


@pytest.mark.parametrize("told", [True, False])
def test_a_result_without_interfaces_marks_nobody(node, sandbox, told):
    """A result before CNI 0.3.0 tells of no namespace: its address finds the pod, whose veth is no leak."""
    result = node.attach(sandbox)
    old = {"cniVersion": "0.2.0", **({"ip4": {"ip": f"{address(result)}/24"}} if told else {})}
    rewrite(node.entry(sandbox), result=old)
    seen = node.show()
    assert seen["leaks"] == []
    (pod,) = seen["attachments"]
    assert (pod["state"], pod["hostInterface"]) == (("not checked", host_end(result)) if told else ("not seen", ""))


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
    assert len(node.show()["attachments"]) == 4


def test_lo_of_each_pod_is_no_finding(host, tmp_path, sandbox):
    """`podwire doctor` says nothing of a network that no file has, if it is the runtimes' own for lo."""
    doctor_node = DoctorNode(host, tmp_path)
    network = doctor_node.add_sample("10-podwire.conflist")
    doctor_node.attach(network, sandbox)
    before = [one["name"] for one in doctor_node.list_findings() if one["severity"] != "ok"]
    with_lo(doctor_node.cache, sandbox)
    found = doctor_node.list_findings()
    assert [one["name"] for one in found if one["severity"] != "ok"] == before
    assert list_problems(found) == []


def test_what_cannot_be_repaired_is_no_success(node, sandbox):
    """An attachment of which the cache lacks what ADD was asked is told as not repaired, and the exit status is 1."""
    node.attach(sandbox)
    rewrite(node.entry(sandbox), result=None)
    done = node.tool("repair", "--settle", "0", directories=False)
    assert done.status == 1, done
    assert "NOT REPAIRED" in done.stdout
    assert done.stdout.endswith("1 attachment: 1 unknown\n")


def test_a_host_port_without_its_rule_is_told(node, sandbox):
    """A flush is seen in show: the host port is marked, the cure stands below, and the exit status is 1."""
    node.attach(sandbox, "8080:80")
    assert (node.tool("show").status, "podwire repair" in node.tool("show").stdout) == (0, False)
    node.host.run("nft", "flush", "ruleset")
    done = node.tool("show")
    assert (done.status, "8080->80/tcp!" in done.stdout) == (1, True), done
    assert "podwire repair" in done.stdout


def test_names_are_whole_and_large_ranges_short(host, tmp_path, sandbox):
    """A container's name that is no hash is not cut off, and a range of 2^64 addresses is told so."""
    assert short_id("4c18d800e07d12017a2677bf4a1284be58f2413eccfe514b8a31d4fc5161ff45") == "4c18d800e07d"
    assert short_id("default-three") == "default-three"
    doctor_node = DoctorNode(host, tmp_path)
    doctor_node.attach(doctor_node.add_sample("20-dual-stack.conflist"), sandbox)
    assert " of 2^64\n" in doctor_node.podwire("show").stdout


def test_an_address_stands_once_in_the_list(node, sandbox):
    """Where the search for the next address begins is no line of the table, and is in the document."""
    own = address(node.attach(sandbox))
    assert node.tool("ipam", "list").stdout.count(f"{own} ") == 1
    assert [line["state"] for line in node.tool("ipam", "list", "--json").json] == ["living", "last_reserved"]


def test_an_unknown_option_is_told_with_its_command(node):
    """The usage that is printed is that of the command which does not know the option."""
    for words in (("show",), ("ipam", "list")):
        done = node.tool(*words, "--bin-dir", directories=False)
        assert done.status == 2, done
        assert done.stderr.startswith(f"usage: podwire {' '.join(words)} ")
        assert f"unrecognized: --bin-dir; see podwire {' '.join(words)} --help" in done.stderr


def test_a_del_of_nobody_says_so(node, sandbox):
    """DEL of what the cache does not have succeeds, as it must, and says that nothing was known."""
    places = ("--conf-dir", str(node.directory / "net.d"), "--bin-dir", str(binaries.directory()))
    done = node.tool("del", "podnet", sandbox.path, *places, directories=False)
    assert (done.status, "the cache has no such attachment" in done.stdout) == (0, True), done
