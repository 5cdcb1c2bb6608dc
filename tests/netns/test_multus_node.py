"""The tool on a node with Multus: pods with a second network, both caches, no file in net.d for the second network."""

import base64
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import libcni
from tests.support.namespaces import Namespace, delete_and_wait
from tests.support.netlist import NetworkList, runner
from tests.support.netstate import links
from tests.support.packet_node import PacketNode

pytestmark = pytest.mark.needs("nft_nat")
PORTS = [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]
_VERSION = "1.0.0"
_LOOPBACK = NetworkList("cni-loopback", _VERSION, ({"type": "loopback"},))


class MultusNode(PacketNode):
    """The node: `run_pod` attaches a pod to the cluster's network, and to further ones (net1, net2, ...)."""

    def __init__(self, host: Namespace, directory: Path, client: Namespace | None = None, **multus: Any) -> None:
        super().__init__(host, directory, client)
        cluster = self.bridge("cluster", "10.22.0.0/24", isDefaultGateway=True, ipMasq=True, hairpinMode=True)
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        self.cluster = NetworkList("cluster", _VERSION, (*cluster.plugins, ports))
        self.multus = {"cniVersion": _VERSION, "name": "multus-cni-network", "type": "multus", **multus}
        self.multus |= {"capabilities": {"portMappings": True}, "delegates": [self.cluster.config], **multus}
        self.configure("00-multus.conf", self.multus)
        supported = json.dumps({"cniVersion": _VERSION, "supportedVersions": ["0.4.0", _VERSION]})
        program = directory / "multus-bin" / "multus"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho '{supported}'")
        program.chmod(0o755)

    @property
    def delegates(self) -> Path:
        """Multus' cache directory, /var/lib/cni/multus."""
        return self.cache / "multus"

    def bridge(self, name: str, subnet: str, **keys: Any) -> NetworkList:
        """Returns a network of bridge that no file of net.d defines."""
        ipam = {"type": "host-local", "subnet": subnet, "dataDir": str(self.directory / "leases")}
        plugin = {"type": "bridge", "bridge": f"br-{name}", "ipMasqBackend": "nftables", "ipam": ipam, **keys}
        return NetworkList(name, _VERSION, (plugin,))

    def run_pod(self, pod: Namespace, *further: NetworkList, name: str, ports: bool = False) -> list[dict[str, Any]]:
        """Attaches a pod as kubelet, the runtime and Multus do; returns the results of Multus' networks."""
        cni_args = {"IgnoreUnknown": "1", "K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": name}
        self._attach(self.cache, _LOOPBACK, pod, "lo", cni_args)
        cluster = self.cluster.with_capabilities(portMappings=PORTS) if ports else self.cluster
        networks = [(cluster, "eth0"), *((one, f"net{number}") for number, one in enumerate(further, 1))]
        self.delegates.mkdir(parents=True, exist_ok=True)
        saved = [base64.b64encode(json.dumps(network.config).encode()).decode() for network, _ in networks]
        (self.delegates / pod.name).write_text(json.dumps([{"Conf": {}, "Bytes": text} for text in saved]))
        results = [self._attach(self.delegates, network, pod, ifname, cni_args) for network, ifname in networks]
        how: dict[str, Any] = {"config": self.multus, "capability_args": cluster.capability_args}
        how |= {"cni_args": cni_args, "result": results[0]}
        libcni.write_entry(self.cache, "multus-cni-network", pod.name, netns=pod.path, **how)
        return results

    def _attach(
        self, cache: Path, network: NetworkList, pod: Namespace, ifname: str, cni_args: dict[str, str]
    ) -> dict[str, Any]:
        args = ";".join(map("=".join, cni_args.items()))
        result = network.add(runner(self.host, pod, netns=pod.path, ifname=ifname, args=args))
        how: dict[str, Any] = {"config": network.config, "capability_args": network.capability_args}
        how |= {"cni_args": cni_args, "result": result}
        libcni.write_entry(cache, network.name, pod.name, netns=pod.path, ifname=ifname, **how)
        return result

    def command_line(self, *arguments: str, **options: Any) -> tuple[list[str], dict[str, str]]:
        """Returns the command line of `podwire`, which also has Multus among the plugins."""
        line, variables = super().command_line(*arguments, **options)
        return line, {**variables, "CNI_PATH": f"{self.bin_dir}:{self.directory / 'multus-bin'}"}


@pytest.fixture
def node(bin_dir, host, new_sandbox, tmp_path):
    """A node with Multus and an uplink."""
    return MultusNode(host, tmp_path, new_sandbox())


@pytest.fixture
def storage(node):
    """The second network."""
    return node.bridge("storage", "10.56.0.0/24")


@pytest.fixture
def pods(node, storage, new_sandbox):
    """Two pods with both networks, the first with a host port."""
    both = new_sandbox(), new_sandbox()
    for pod, name in zip(both, "ab", strict=True):
        node.run_pod(pod, storage, name=name, ports=name == "a")
    return both


def show(node, *arguments):
    """Returns the document of `podwire show`."""
    return json.loads(node.podwire("show", "--json", *arguments).stdout)


def test_show_has_one_row_for_each_interface(node, pods):
    """Each interface is listed once, with its network, its pod and its host ports; the networks have no problem."""
    document = show(node)
    rows = [(one["network"], one["pod"], one["ifname"], one["state"]) for one in document["attachments"]]
    assert [row for row in rows if row[2] != "lo"] == [
        (network, f"default/{pod}", ifname, "ok")
        for network, ifname in (("cluster", "eth0"), ("storage", "net1"))
        for pod in "ab"
    ]
    assert [port["hostPort"] for one in document["attachments"] for port in one["hostPorts"]] == [8080]
    assert [one["problem"] for one in document["networks"]] == [""] * 4
    assert (document["complete"], document["leaks"]) == (True, [])


def test_doctor_finds_nothing_on_a_healthy_node(node, pods):
    """Doctor is complete and has no finding: it checks the attachments of every network of Multus."""
    assert node.list_findings() == []


def test_a_default_route_with_a_higher_metric_is_not_the_pods(node, new_sandbox):
    """Packets to other networks are sent from the address of the default route with the lowest metric."""
    routes = [{"dst": "0.0.0.0/0", "gw": "10.57.0.1", "priority": 2000}]
    ipam = {"type": "host-local", "subnet": "10.57.0.0/24", "dataDir": str(node.directory / "leases"), "routes": routes}
    pod = new_sandbox()
    node.run_pod(pod, node.bridge("archive", "", ipam=ipam), name="a")
    assert node.trace("default/a", "192.0.2.2")["packet"]["source"] == "10.22.0.2"
    document = node.test("default/a", "--address", "192.0.2.2")
    assert {one["path"] for one in document["paths"] if one["network"] == "archive"} == {"duplicate"}
    assert {one["state"] for one in document["paths"]} <= {"ok", "slow"}, document


def test_doctor_names_a_fault_of_the_second_network(node, pods, host):
    """A bridge of a second network that is down is a finding, although no file of net.d defines the network."""
    host.ip("link", "set", "br-storage", "down")
    finding = node.find("bridge-down")
    assert finding["cure"] == "ip link set br-storage up"  # without the address of the network's router


def test_repair_and_metrics_know_the_second_network(node, pods, storage):
    """Repair goes through the attachments of both networks, and metrics count them."""
    lines = node.podwire("repair", "--dry-run").stdout.splitlines()
    assert sum(line.startswith(("cluster ", "storage ")) and line.endswith("in order") for line in lines) == 4
    metrics = node.podwire("metrics").stdout
    for network in ("cluster", "storage"):
        assert f'podwire_attachments{{network="{network}",state="ok"}} 2' in metrics


def test_each_network_is_tested_among_its_pods(node, pods, storage, new_sandbox):
    """No path of a healthy node is lost: without lo, and without paths between second networks, which are named."""
    other = node.bridge("backup", "10.57.0.0/24")
    node.run_pod(new_sandbox(), other, storage, name="c")
    document = node.test()
    paths = document["paths"]
    assert {one["state"] for one in paths} <= {"ok", "slow"}, document
    assert not any(one["source"] == one["destination"] == "127.0.0.1" and not one["port"] for one in paths)
    assert {one["pod"] for one in paths} == {"default/a", "default/b", "default/c"}
    of_storage = {(one["path"], one["destination"].rpartition(".")[0]) for one in paths if one["network"] == "storage"}
    assert of_storage == {("duplicate", "10.56.0"), ("pod-to-pod", "10.56.0")}
    assert not {one["path"] for one in paths if one["network"] == "backup"} - {"duplicate"}
    (text,) = document["leftOut"]
    assert text.startswith("backup, storage: ")
    done = node.podwire("test", "b")
    assert "default/b net1 of storage" in done.stdout.splitlines()
    assert done.stdout.splitlines()[-1].startswith("1 pod, ")


def test_test_names_a_fault_of_the_second_network(node, pods, host):
    """A bridge of a second network that is down loses the paths of that network, and no other."""
    host.ip("link", "set", "br-storage", "down")
    lost = {(one["network"], one["path"]) for one in node.test()["paths"] if one["state"] == "lost"}
    assert lost == {("storage", "pod-to-pod")}


def test_the_default_network_carries_the_default_route(node, host, new_sandbox):
    """A second network with the default route is the one from which the pod reaches the outside and its resolvers."""
    pod, exit_ = new_sandbox(), node.bridge("exit", "10.58.0.0/24", isDefaultGateway=True, ipMasq=True)
    cluster = {key: value for key, value in node.cluster.plugins[0].items() if key != "isDefaultGateway"}
    node.cluster = replace(node.cluster, plugins=({**cluster, "isGateway": True}, *node.cluster.plugins[1:]))
    node.run_pod(pod, exit_, name="a")
    document = node.test()
    assert {one["network"] for one in document["paths"] if one["path"] == "pod-to-outside"} == {"exit"}
    assert document["leftOut"][0].startswith("cluster: ")


def test_trace_sends_from_the_interface_in_the_subnet(node, pods):
    """A packet to an address of the second network has the source address that the pod's kernel would choose."""
    assert node.trace("a", "10.56.0.3")["packet"]["source"] == "10.56.0.2"
    assert node.trace("a", "10.22.0.3")["packet"]["source"] == "10.22.0.2"


def leave(node, pod):
    """Deletes a pod's namespace behind the back of runtime and Multus, as a reboot does."""
    delete_and_wait(pod, node.host)
    for path in [*node.cache.glob("results/*"), *node.delegates.glob("results/*")]:
        if pod.name in path.name:
            path.write_text(json.dumps({**json.loads(path.read_text()), "netns": libcni.MISSING_NETNS}))


def test_gc_collects_a_network_that_only_multus_cache_knows(node, pods, storage):
    """After a reboot gc removes lease, cache entries and rules of each network, and keeps the running pod's."""
    leave(node, pods[0])
    assert {leak["cure"] for leak in show(node)["leaks"]} >= {"podwire gc cluster", "podwire gc storage"}
    for network in ("storage", "cluster"):
        done = node.podwire("gc", network)
        assert done.returncode == 0, done
        assert f"network {network}: 2 attachments: 1 running, 1 no longer running" in done.stdout
    document = show(node, "storage")
    assert [one["pod"] for one in document["attachments"]] == ["default/b"]
    assert sorted(path.name.split("-")[0] for path in node.delegates.glob("results/*")) == ["cluster", "storage"]
    assert {leak["network"] for leak in show(node)["leaks"]} - {"cni-loopback"} == {"multus-cni-network"}
    assert node.list_findings("storage") == []


def test_gc_after_a_killed_add(node, storage, new_sandbox):
    """A lease whose ADD was killed before Multus wrote its cache is removed by the configuration that it saved."""
    pod = new_sandbox()
    node.run_pod(pod, storage, name="a")
    (node.delegates / "results" / f"storage-{pod.name}-net1").unlink()
    delete_and_wait(pod, node.host)
    for path in (node.directory / "leases" / "storage").glob("10.*"):
        os.utime(path, (0, 0))
    assert "there is no network" not in node.podwire("gc", "storage", "--all", "--dry-run").stderr
    done = node.podwire("gc", "storage", "--all")
    assert done.returncode == 0, done
    assert not list((node.directory / "leases" / "storage").glob("10.*"))


def test_gc_keeps_everything_without_multus_cache(node, pods, storage):
    """Without Multus' cache nothing proves which networks the pods have: gc refuses, show is incomplete."""
    for path in node.delegates.glob("results/*"):
        path.unlink()
    for network in ("storage", "cluster"):
        done = node.podwire("gc", network, "--all")
        assert (done.returncode, "its attachments would count as garbage" in done.stderr) == (3, True), done
    assert show(node)["complete"] is False
    (gap,) = [one for one in node.list_findings() if "its cache has no entry" in one["text"]]
    assert (gap["group"], gap["cure"].startswith("set Multus' cache with --cache-dir")) == ("runtime", True)
    done = node.podwire("repair", "--dry-run")
    assert (done.returncode, "not repaired: the networks of container " in done.stdout) == (1, True), done


@pytest.mark.parametrize("lost", ["", "file", "cache"])
def test_gc_of_the_agent_keeps_pods_of_multus(node, pods, lost):
    """The agent's `podwire gc` keeps the running pods of Multus, also without its file or its cache."""
    node.configure("10-cluster.conflist", node.cluster.config)
    if lost == "file":
        (node.directory / "net.d" / "00-multus.conf").unlink()
    for path in node.delegates.glob("results/*") if lost == "cache" else ():
        path.unlink()
    leases = node.directory / "leases" / "cluster"
    for path in leases.glob("10.*"):
        os.utime(path, (0, 0))  # no longer a new reservation

    def state():
        names = sorted(path.name for path in leases.glob("10.*"))
        return names, links(node.host), node.host.run("nft", "-s", "list", "ruleset")

    before = state()
    assert node.podwire("gc", "cluster").returncode == (3 if lost else 0)
    assert (len(before[0]), before) == (2, state())


def test_definitions_with_one_name(node, storage, new_sandbox):
    """Pods of two definitions with one name are judged by their bridges: no interface is moved, no path tested."""
    other = node.bridge("storage", "10.66.0.0/24", bridge="br-other")
    for network, name in ((storage, "a"), (other, "b"), (other, "c")):
        node.run_pod(new_sandbox(), network, name=name)
    assert node.list_findings() == []
    document = node.test()
    assert {one["state"] for one in document["paths"]} <= {"ok", "slow"}, document
    peers = {
        one["destination"] for one in document["paths"] if (one["network"], one["path"]) == ("storage", "pod-to-pod")
    }
    assert peers == {"10.66.0.2", "10.66.0.3"}
    assert "storage: between pods with different definitions of it (another bridge or master)" in document["leftOut"]


def test_equal_addresses_on_separate_networks(node, storage, new_sandbox):
    """Two second networks without the host may have one range; on one bridge, or in one pod, it is a problem."""
    twin, shared = node.bridge("twin", "10.56.0.0/24"), node.bridge("shared", "10.56.0.0/24", bridge="br-storage")
    node.run_pod(new_sandbox(), storage, name="a")
    node.run_pod(new_sandbox(), twin, name="b")
    assert node.list_findings() == []
    node.run_pod(new_sandbox(), shared, name="c")
    assert {one["name"] for one in node.list_findings()} >= {"address-twice", "subnets-overlap"}


def test_check_of_a_network_with_a_foreign_ipam_plugin(node, new_sandbox):
    """The interface of a network with whereabouts is checked; the note names whereabouts, not the interface plugin."""
    pod, far = new_sandbox(), node.bridge("far", "10.59.0.0/24")
    node.run_pod(pod, far, name="a")
    (entry,) = node.delegates.glob("results/far-*")
    body = json.loads(entry.read_text())
    config = {**far.config, "plugins": [{**far.plugins[0], "ipam": {"type": "whereabouts"}}]}
    entry.write_text(json.dumps({**body, "config": base64.b64encode(json.dumps(config).encode()).decode()}))
    (note,) = [one for one in node.list_findings() if one["group"] == "attachments"]
    assert note["text"].endswith("checked; not 1: the IPAM plugin whereabouts of bridge is not podwire's")
    pod.ip("address", "flush", "dev", "net1")
    assert "bridge: Expected address 10.59.0.2/24" in str(node.find("pod-address-missing"))


def test_another_interface_of_the_pod_is_no_duplicate(node, storage, new_sandbox):
    """A pod with two interfaces on one bridge answers ARP on both: a note, and no address that is used twice."""
    both, other = node.bridge("second", "10.60.0.0/24", bridge="br-storage"), new_sandbox()
    pod = new_sandbox()
    node.run_pod(pod, storage, both, name="a")
    node.run_pod(other, storage, name="b")
    duplicates = [one for one in node.test()["paths"] if one["path"] == "duplicate" and one["pod"] == "default/a"]
    assert [(one["network"], one["state"], one["detail"].partition(";")[0]) for one in duplicates] == [
        ("cluster", "ok", ""),
        ("second", "ok", "ARP flux: the pod's net1 answers, too"),
        ("storage", "ok", "ARP flux: the pod's net2 answers, too"),
    ]
    mac = links(pod)["net2"]["address"]
    for place, device in ((node.host, "br-storage"), (other, "net1")):
        place.ip("neighbour", "replace", "10.56.0.2", "lladdr", mac, "dev", device, "nud", "reachable")
    assert node.list_findings() == []
    other.ip("address", "add", "10.60.0.2/24", "dev", "net1")
    lost = [one for one in node.test()["paths"] if one["state"] == "lost"]
    assert ("second", "duplicate") in {(one["network"], one["path"]) for one in lost}
