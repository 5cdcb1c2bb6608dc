"""The life of pods under containerd's CRI: many, at once, badly ended, refused; each time nothing is left of them.

One rule: every test ends with the machine as it found it, seen as a whole.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tests.clients import cri as client
from tests.clients.cri import page, pb
from tests.clients.images import PAGE
from tests.support.machine import ADDRESS, CONF_DIR

BRIDGE = "cni-life"
NETWORK = client.network("life", BRIDGE, "10.72.0.0/24", "fd72::/64", backend="nftables", onConflict="fail")
ANNOTATIONS = {"kubernetes.io/ingress-bandwidth": "10M"}
FIRST_PORT = 9000
SEQUENCE, PARALLEL = 50, 8
# As Go's text/template: containerd fills in the podCIDRs of the node, and a default route for each family.
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
def cri(needs_programs, bin_dir, empty_machine):
    """The CRI of a containerd that has our plugins only, on a network that has had a pod."""
    needs_programs(*client.PROGRAMS)
    with client.ready(empty_machine, bin_dir) as made:
        made.configure(NETWORK)
        made.remove(made.run("first", [web_port(0)], ANNOTATIONS))
        yield made


@pytest.fixture
def unchanged(cri):
    """After the test, its pods removed, the machine is in whole as it was."""
    cri.configure(NETWORK)
    with cri.unchanged():
        yield


def web_port(number):
    """Returns the host port of a pod's web server."""
    return (FIRST_PORT + number, 80, pb.TCP, "")


def start(cri, number):
    """Starts a pod with a host port, each tenth with a limit."""
    return cri.run(f"pod{number}", [web_port(number)], ANNOTATIONS if number % 10 == 0 else None)


@pytest.mark.parametrize(("pods", "at_once"), [(SEQUENCE, 1), (PARALLEL, PARALLEL)])
def test_many_pods(cri, unchanged, pods, at_once):
    """Pods that start and end one after the other, or all at once, have addresses and host ports of their own."""
    with ThreadPoolExecutor(at_once) as threads:
        started = list(threads.map(lambda number: start(cri, number), range(pods)))
        assert len({pod.ips for pod in started}) == pods
        assert [page(cri.machine.peer, ADDRESS, FIRST_PORT + number) for number in range(pods)] == [PAGE] * pods
        assert cri.machine.run("tc", "qdisc", "show").count("qdisc tbf") == len(range(0, pods, 10))
        list(threads.map(cri.remove, started))
    assert cri.pods() == {}


def test_a_pod_is_stopped_and_removed_twice(cri, unchanged):
    """Kubelet repeats itself: stopping a pod that is stopped, or removing one that is gone, succeeds."""
    pod = cri.run("twice", [web_port(0)], ANNOTATIONS)
    cri.stop(pod)
    assert page(cri.machine.peer, ADDRESS, FIRST_PORT) == ""
    cri.stop(pod)
    cri.remove(pod)
    cri.call("RemovePodSandbox", pod_sandbox_id=pod.id)


def test_a_pod_whose_namespace_is_gone_is_removed(cri, unchanged):
    """A pod whose namespace lost its name can be stopped and removed, and takes its rules and addresses with it."""
    pod = cri.run("lost", [web_port(0)], ANNOTATIONS)
    path = f"/run/netns/{pod.namespace.name.rpartition('/')[2]}"
    cri.machine.run("umount", path)
    cri.machine.run("rm", path)
    cri.remove(pod)


def test_a_host_port_that_is_taken_is_told_to_kubelet(cri, unchanged):
    """A pod refused a host port fails in our words, leaves the other pod alone, and starts once that is gone."""
    first = cri.run("first", [web_port(0)])
    with pytest.raises(grpc.RpcError) as refused:
        cri.run("second", [web_port(0)])
    told = refused.value.details()
    assert 'plugin type="portmap" failed (add)' in told
    assert f"{FIRST_PORT}" in told
    assert first.id in told, "the pod that has the port is named"
    assert page(cri.machine.peer, ADDRESS, FIRST_PORT) == PAGE
    assert set(cri.pods()) == {"first"}
    cri.remove(first)
    assert page(cri.machine.peer, ADDRESS, FIRST_PORT) == ""
    cri.run("second", [web_port(0)], attempt=1)
    assert page(cri.machine.peer, ADDRESS, FIRST_PORT) == PAGE


def test_a_range_that_is_full_is_told_to_kubelet(cri):
    """When all addresses are given the next pod fails with our words, and starts when one is free again."""
    cri.configure(client.network("small", "cni-small", "10.73.0.0/30", backend="nftables"))
    with cri.nothing_left("cni-small"):
        first = cri.run("first")
        with pytest.raises(grpc.RpcError) as refused:
            cri.run("second")
        told = "no IP addresses available in range set: 10.73.0.1-10.73.0.2; 1 of 1 in use"
        assert told in refused.value.details()
        cri.remove(first)
        assert cri.run("second", attempt=1).ips == first.ips


def test_a_network_is_changed_under_living_pods(cri):
    """Once net.d is changed new pods have what it says, and those of before are removed as ever."""
    kind = client.network("changing", "cni-changing", "10.74.0.0/24", backend="nftables")
    cri.configure(kind)
    with cri.nothing_left("cni-changing"):
        old = cri.run("old")
        kind["plugins"][0]["mtu"] = 1400
        cri.configure(kind)
        new = cri.run("new")
        shown = [pod.namespace.run("ip", "link", "show", "eth0") for pod in (old, new)]
        assert ["mtu 1500" in shown[0], "mtu 1400" in shown[1]] == [True, True]
        cri.remove(old)
        cri.remove(new)


def test_a_node_gets_its_network_from_the_pod_cidr(cri):
    """Without a network no pod starts; kubelet's podCIDR makes one of a template, and its pods have such addresses."""
    cri.forget_networks()
    assert "cni plugin not initialized" in cri.not_ready()
    with pytest.raises(grpc.RpcError) as refused:
        cri.run("early")
    assert "cni plugin not initialized" in refused.value.details()
    cri.machine.write(client.CONF_TEMPLATE, TEMPLATE)
    given = pb.RuntimeConfig(network_config=pb.NetworkConfig(pod_cidr="10.75.3.0/24,fd75:3::/64"))
    cri.call("UpdateRuntimeConfig", runtime_config=given)
    assert cri.loads("node")
    assert cri.not_ready() == ""
    cri.remove_all()  # containerd kept the early one: a DEL without an ADD
    with cri.nothing_left("cni-node"):
        pod = cri.run("late")
        assert pod.ips == ("10.75.3.3", "fd75:3::3")
        assert "default via fd75:3::1 dev eth0" in pod.namespace.run("ip", "-6", "route")


def test_a_node_gets_its_network_from_podwire_install(cri, bin_dir):
    """What `podwire install --conf` writes while containerd runs is its network at once."""
    cri.forget_networks()
    cri.machine.run(str(bin_dir / "podwire"), "install", "--conf", "--subnet", "10.76.0.0/24")
    assert cri.loads("podwire")
    assert cri.machine.run("ls", str(CONF_DIR)).split() == ["10-podwire.conflist"]
    with cri.nothing_left("cni0"):
        assert cri.run("one").ips == ("10.76.0.3",)
