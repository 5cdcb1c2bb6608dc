"""The life of pods under containerd's CRI: many, in parallel, with failures; no pod leaves anything.

One rule: every test compares the machine's whole state before and after.
"""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tests.clients import cri as client
from tests.clients.cri import page, pb
from tests.clients.images import PAGE
from tests.support.machine import ADDRESS, CONF_DIR, machine

BRIDGE = "cni-life"
NETWORK = client.network("life", BRIDGE, "10.72.0.0/24", "fd72::/64", backend="nftables", onConflict="fail")
ANNOTATIONS = {"kubernetes.io/ingress-bandwidth": "10M"}
FIRST_PORT = 9000
SEQUENCE, PARALLEL = 50, 8
# A Go text/template: containerd fills in the podCIDRs of the node, and a default route for each family.
TEMPLATE = """{
  "cniVersion": "1.0.0",
  "name": "node",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "cni-node",
      "isGateway": true,
      "ipMasq": true,
      "ipam": {
        "type": "host-local",
        "ranges": [{{range $number, $range := .PodCIDRRanges}}{{if $number}}, {{end}}[{"subnet": "{{$range}}"}]{{end}}],
        "routes": [{{range $number, $route := .Routes}}{{if $number}}, {{end}}{"dst": "{{$route}}"}{{end}}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}},
    {"type": "bandwidth", "capabilities": {"bandwidth": true}}
  ]
}
"""


@pytest.fixture(scope="module")
def used_network(cri):
    """Makes the network one that has had a pod."""
    cri.configure(NETWORK)
    cri.remove(cri.run("first", [web_port(0)], ANNOTATIONS))


@pytest.fixture
def unchanged(cri, used_network):
    """Asserts that the machine, without the test's pods, is in the same state as before the test."""
    cri.configure(NETWORK)
    with cri.unchanged():
        yield


def web_port(number):
    """Returns the host port of a pod's web server."""
    return (FIRST_PORT + number, 80, pb.TCP, "")


def start(cri, number):
    """Starts a pod with a host port, and every tenth with a limit."""
    return cri.run(f"pod{number}", [web_port(number)], ANNOTATIONS if number % 10 == 0 else None)


@pytest.mark.parametrize(("pods", "threads_max"), [(SEQUENCE, 1), (PARALLEL, PARALLEL)])
def test_many_pods(cri, unchanged, pods, threads_max):
    """Pods that start and end sequentially, or in parallel, have different addresses and host ports."""
    with ThreadPoolExecutor(threads_max) as threads:
        started = list(threads.map(lambda number: start(cri, number), range(pods)))
        assert len({pod.ips for pod in started}) == pods
        assert [page(cri.machine.peer, ADDRESS, FIRST_PORT + number) for number in range(pods)] == [PAGE] * pods
        assert cri.machine.run("tc", "qdisc", "show").count("qdisc tbf") == len(range(0, pods, 10))
        list(threads.map(cri.remove, started))
    assert cri.pods() == {}


def test_pod_is_stopped_and_removed_twice(cri, unchanged):
    """Stopping a stopped pod and removing a removed one succeed, since kubelet repeats both."""
    pod = cri.run("twice", [web_port(0)], ANNOTATIONS)
    cri.stop(pod)
    assert page(cri.machine.peer, ADDRESS, FIRST_PORT) == ""
    cri.stop(pod)
    cri.remove(pod)
    cri.call("RemovePodSandbox", pod_sandbox_id=pod.id)


def test_pod_with_unmounted_namespace_is_removed(cri, unchanged):
    """A pod whose namespace lost its path can be stopped and removed; its rules and addresses are removed, too."""
    pod = cri.run("lost", [web_port(0)], ANNOTATIONS)
    cri.lose_namespace(pod)
    cri.remove(pod)


def test_port_conflict_is_reported_to_kubelet(cri, unchanged):
    """A pod with another pod's host port fails with podwire's message, and starts once that pod is removed."""
    first = cri.run("first", [web_port(0)])
    with pytest.raises(grpc.RpcError) as refused:
        cri.run("second", [web_port(0)])
    details = refused.value.details()
    assert 'plugin type="portmap" failed (add)' in details
    assert f"{FIRST_PORT}" in details
    assert first.id in details, "the pod that has the port is named"
    assert page(cri.machine.peer, ADDRESS, FIRST_PORT) == PAGE
    assert set(cri.pods()) == {"first"}
    cri.remove(first)
    assert page(cri.machine.peer, ADDRESS, FIRST_PORT) == ""
    cri.run("second", [web_port(0)], attempt=1)
    assert page(cri.machine.peer, ADDRESS, FIRST_PORT) == PAGE


def test_exhausted_range_is_reported_to_kubelet(cri):
    """If all addresses are in use, the next pod fails with podwire's message, and starts once one is released."""
    cri.configure(client.network("small", "cni-small", "10.73.0.0/30", backend="nftables"))
    with cri.no_leftovers("cni-small"):
        first = cri.run("first")
        with pytest.raises(grpc.RpcError) as refused:
            cri.run("second")
        message = "no IP addresses available in range set: 10.73.0.1-10.73.0.2; 1 of 1 in use"
        assert message in refused.value.details()
        cri.remove(first)
        assert cri.run("second", attempt=1).ips == first.ips


def test_network_is_changed_while_pods_are_running(cri):
    """After a change of net.d new pods use the new network, and older pods can be removed."""
    network = client.network("changing", "cni-changing", "10.74.0.0/24", backend="nftables")
    cri.configure(network)
    with cri.no_leftovers("cni-changing"):
        old = cri.run("old")
        network["plugins"][0]["mtu"] = 1400
        cri.configure(network)
        new = cri.run("new")
        outputs = [pod.namespace.run("ip", "link", "show", "eth0") for pod in (old, new)]
        assert ["mtu 1500" in outputs[0], "mtu 1400" in outputs[1]] == [True, True]
        cri.remove(old)
        cri.remove(new)


def test_node_gets_its_network_from_the_pod_cidr(cri):
    """Without a network no pod starts; containerd creates one from a template and kubelet's podCIDR."""
    cri.remove_networks()
    assert "cni plugin not initialized" in cri.not_ready()
    with pytest.raises(grpc.RpcError) as refused:
        cri.run("early")
    assert "cni plugin not initialized" in refused.value.details()
    cri.machine.write(client.CONF_TEMPLATE, TEMPLATE)
    runtime_config = pb.RuntimeConfig(network_config=pb.NetworkConfig(pod_cidr="10.75.3.0/24,fd75:3::/64"))
    cri.call("UpdateRuntimeConfig", runtime_config=runtime_config)
    assert cri.loads("node")
    assert cri.not_ready() == ""
    cri.remove_all()  # containerd kept the pod "early": a DEL without an ADD
    with cri.no_leftovers("cni-node"):
        pod = cri.run("late")
        assert pod.ips == ("10.75.3.3", "fd75:3::3")
        assert "default via fd75:3::1 dev eth0" in pod.namespace.run("ip", "-6", "route")


def test_node_gets_its_network_from_podwire_install(cri, bin_dir):
    """Containerd loads the network of `podwire install --conf` as soon as it is written."""
    cri.remove_networks()
    cri.machine.run(str(bin_dir / "podwire"), "install", "--conf", "--subnet", "10.76.0.0/24")
    assert cri.loads("podwire")
    assert cri.machine.run("ls", str(CONF_DIR)).split() == ["10-podwire.conflist"]
    with cri.no_leftovers("cni0"):
        assert cri.run("one").ips == ("10.76.0.3",)


def test_pods_outlive_containerd(needs_programs, bin_dir, tmp_path):
    """Pods keep their network while containerd is dead; a new containerd knows them, and removes them completely."""
    needs_programs(*client.PROGRAMS)
    with machine(tmp_path) as node:
        with client.ready(node, bin_dir) as first:
            first.configure(NETWORK)
            first.remove(first.run("trial", [web_port(0)], ANNOTATIONS))
            before = node.picture()
            web = first.run("web", [web_port(0)], ANNOTATIONS)
            plain = first.run("plain")
        assert page(node.peer, ADDRESS, FIRST_PORT) == PAGE
        with client.containerd(node) as second, node.unchanged(before):
            assert second.pods() == {"web": web.id, "plain": plain.id}
            assert [second.pod(pod.id, pod.name) for pod in (web, plain)] == [web, plain]
            assert page(node.peer, ADDRESS, FIRST_PORT) == PAGE
            assert page(plain.namespace, ADDRESS, FIRST_PORT) == PAGE
            assert second.run("late").ips not in (web.ips, plain.ips)
            second.remove_all()
            assert page(node.peer, ADDRESS, FIRST_PORT) == ""
