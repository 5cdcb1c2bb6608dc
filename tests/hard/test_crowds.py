"""Crowds: as many pods as the kernel allows on one bridge, and hundreds of pods with a full chain.

One rule: each pod is attached by ADD, and the state of the node after the last DEL equals the state before the first
ADD. Times are printed, not asserted: they depend on the machine.
"""

import statistics
import time

import pytest

from tests.netns.conftest import NFTABLES
from tests.support import bandwidth_network, binaries, namespaces, netstate
from tests.support.attaching import Network, address, host_end, reaches
from tests.support.machine import unchanged
from tests.support.node import Node
from tests.support.processes import output

PORTS = 1023  # of a bridge: the kernel's limit (BR_MAX_PORTS)
ON_ONE_BRIDGE, SAMPLE_ON_ONE_BRIDGE = PORTS, 40
WITH_CHAIN, SAMPLE_WITH_CHAIN = 250, 20  # a /24 has 253 addresses for pods
ENDED = 5  # pods whose namespace is deleted without a DEL
FIRST_PORT = 20_000


class Times:
    """The durations of the calls of each verb, in the order of the calls."""

    def __init__(self):
        self.ms = {}

    def run(self, verb, function, *args, **keys):
        """Calls a function, records its duration and returns its result."""
        start = time.monotonic()
        result = function(*args, **keys)
        self.ms.setdefault(verb, []).append((time.monotonic() - start) * 1000)
        return result

    def show(self, capsys, title):
        """Prints for each verb how long the first and the last tenth of its calls took."""
        with capsys.disabled():
            print(f"\n{title}, ms per call, medians")
            for verb, durations in self.ms.items():
                tenth = max(1, len(durations) // 10)
                first, last = statistics.median(durations[:tenth]), statistics.median(durations[-tenth:])
                text = f"{first:.1f}" if len(durations) == 1 else f"first tenth {first:.1f}, last tenth {last:.1f}"
                print(f"  {verb:<12} {len(durations):>5} calls: {text}")


@pytest.fixture
def times():
    """An empty record of durations."""
    return Times()


@pytest.fixture
def network(bin_dir, host, store):
    """A network with a /16 for pods, and a bridge that exists."""
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/16"}]], "dataDir": str(store)}
    keys = {"bridge": "cni0", "isDefaultGateway": True, "ipam": ipam}
    return Network(host, {"cniVersion": "1.1.0", "name": "net", "type": "bridge", **keys})


def fill_bridge(host, ports):
    """Attaches interfaces that are no pod's to cni0 until `ports` more of its ports are in use."""
    lines = []
    for number in range((ports + 1) // 2):
        lines.append(f"link add name a{number} type veth peer name b{number}")
        lines += [f"link set {end}{number} master cni0" for end in "ab"[: ports - 2 * number]]
    output("ip", "-n", host.name, "-batch", "-", stdin="\n".join(lines))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_bridge_with_every_port_in_use(network, host, sandbox, new_sandbox, nightly, times, capsys):
    """A bridge takes 1,023 pods; the next ADD fails and leaves nothing, and STATUS returns 50 until a pod ends."""
    network.delete(sandbox, network.add(sandbox))
    pods = [new_sandbox() for _ in range(ON_ONE_BRIDGE if nightly else SAMPLE_ON_ONE_BRIDGE)]
    with unchanged(lambda: {**netstate.state(host, netfilter=True), "leases": network.leases()}):
        results = [times.run("ADD", network.add, pod) for pod in pods]
        fill_bridge(host, PORTS - len(pods))
        text = 'bridge "cni0" is full: it has 1023 ports, and the kernel allows no more'
        before = set(netstate.links(host)), network.leases(), netstate.state(sandbox)
        error = network.run("ADD", sandbox).error()
        assert (error["code"], error["msg"]) == (50, f"failed to make veth pair: {text}")
        assert (set(netstate.links(host)), network.leases(), netstate.state(sandbox)) == before
        status = network.run("STATUS").error()
        assert (status["code"], status["msg"], status["details"]) == (50, text, error["details"])
        for pod, result in zip(pods, results, strict=True):
            times.run("CHECK", network.check, pod, result)
        assert len(set(map(address, results))) == len(set(map(host_end, results))) == len(pods)
        assert reaches(pods[0], address(results[-1]))
        assert reaches(pods[-1], address(results[0]))
        network.delete(pods[0], results[0])
        times.run("STATUS", network.run, "STATUS").assert_silent()
        results[0] = network.add(pods[0])
        for pod, result in zip(pods, results, strict=True):
            times.run("DEL", network.delete, pod, result)
        filling = [name for name in netstate.links(host) if name[0] == "a"]
        output("ip", "-n", host.name, "-batch", "-", stdin="\n".join(f"link del {name}" for name in filling))
    times.show(capsys, f"{len(pods)} pods on a bridge of {PORTS} ports")


@pytest.fixture(params=[NFTABLES, "iptables"])
def node(request, bin_dir, host, tmp_path):
    """A node with a list of bridge, portmap, bandwidth, firewall and tuning, for each backend."""
    return Node(host, tmp_path / "node", backend=request.param)


@pytest.mark.timeout(1800)
def test_many_pods_with_a_full_chain(node, host, sandbox, new_sandbox, nightly, times, capsys):
    """250 pods with a host port and limits are attached, checked, inspected by the tool, collected and detached."""
    attach(node, sandbox, 0)
    node.detach(sandbox)
    pods = [new_sandbox() for _ in range(WITH_CHAIN if nightly else SAMPLE_WITH_CHAIN)]
    with unchanged(lambda: picture(node)):
        for number, pod in enumerate(pods):
            times.run("ADD", attach, node, pod, number)
        for pod in pods:
            times.run("CHECK", node.check, pod)
        inspect(node, pods, times)
        for pod in pods[:ENDED]:
            namespaces.delete_and_wait(pod, host)
        collected = times.run("gc", tool, node, "gc", node.name, "--json").json
        assert sorted(item["containerID"] for item in collected["deleted"]) == sorted(pod.name for pod in pods[:ENDED])
        assert len(collected["kept"]) == len(pods) - ENDED
        for pod in pods[ENDED:]:
            times.run("DEL", node.detach, pod)
    times.show(capsys, f"{len(pods)} pods, each with a chain of five plugins, {node.backend}")


def attach(node, pod, number):
    """Runs ADD of the chain with a host port of the pod's own."""
    node.attach(pod, f"{FIRST_PORT + number}:80")


def tool(node, *words):
    """Runs a command of the tool with podwire's plugins and the node's directories."""
    directories = ["--conf-dir", str(node.directory / "net.d"), "--bin-dir", str(binaries.directory())]
    return node.tool(*words, *directories, directories=False)


def inspect(node, pods, times):
    """Asserts that the tool describes each pod, and finds neither leaks nor faults of the pods."""
    document = times.run("show", node.tool, "show", "--json").json
    assert document["leaks"] == []
    assert {item["containerID"] for item in document["attachments"]} == {pod.name for pod in pods}
    assert {item["state"] for item in document["attachments"]} == {"ok"}
    report = times.run("doctor", tool, node, "doctor", "--json").json
    # The machine's runtimes use other directories than this node.
    faults = [each for each in report["checks"] if each["severity"] != "ok" and each["group"] != "runtime"]
    expected = {"range-nearly-full"} if len(pods) == WITH_CHAIN else set()
    assert {each["name"] for each in faults if each["severity"] != "note"} == expected, faults
    assert [each for each in faults if each["name"] == "not-seen"] == []
    dry = times.run("gc --dry-run", tool, node, "gc", node.name, "--dry-run", "--json").json
    assert (dry["deleted"], len(dry["kept"])) == ([], len(pods))


def picture(node):
    """Returns all that the chain changes on the host, and its files."""
    rules = {"nft": sorted(netstate.nft_rules(node.host))}
    files = sorted(str(path) for path in node.directory.rglob("*") if path.is_file())
    return {**bandwidth_network.state(node.host), **rules, "files": files}
