"""Kubelet probes, repeats, gives up and starts again; go-cni and ocicni pass all of that to the plugins.

One rule: every scenario runs on a node with another pod, and compares the node's whole state before and after.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import kubelet, namespaces, netstate
from tests.support.kubelet import Runtime, Sandbox, capabilities
from tests.support.machine import files_of_pods, unchanged
from tests.support.namespaces import Namespace
from tests.support.processes import output

FIRST_PORT = 20000


class Node:
    """A node, its runtime, and a pod that runs during the whole scenario."""

    def __init__(self, host, bin_dir):
        network = kubelet.conflist("pods", "cni0", "10.80.0.0/24")
        self.host, self.runtime = host, Runtime(bin_dir, network)
        self._numbers = itertools.count()
        self.neighbour = self.sandbox(FIRST_PORT - 1, limited=True)
        self.runtime.set_up(self.neighbour)
        first = self.sandbox(FIRST_PORT, limited=True)  # the first pod leaves what stays by design
        self.runtime.set_up(first)
        self.end(first)

    def sandbox(self, *ports, limited=False):
        """Creates a namespace and returns a sandbox with it."""
        number = next(self._numbers)
        args = capabilities(*ports, limited=limited)
        return Sandbox(f"pod-{number}", f"{number:064x}", namespaces.create().path, args, number)

    def end(self, sandbox):
        """Ends a sandbox as containerd does: DEL, removal of its namespace, and DEL again without a namespace."""
        self.runtime.tear_down(sandbox)
        delete_namespace(sandbox)
        self.runtime.tear_down(sandbox, "")

    def picture(self):
        """Returns the node's state: links, routes, packet filter, limits, and the files of /run and /var/lib/cni."""
        return {
            **netstate.state(self.host, netfilter=True),
            "qdiscs": netstate.qdiscs(self.host),
            "files": files_of_pods(output("find", "/run", "/var/lib/cni", "-type", "f")),
        }

    def unchanged(self):
        """Asserts that the node is in the same state after a block, once what the kernel deletes is deleted."""
        return unchanged(self.picture)


def delete_namespace(sandbox):
    """Deletes a sandbox's namespace."""
    Namespace(Path(sandbox.netns).name).delete()


@pytest.fixture
def run_scenario(root, bin_dir):
    """A function that runs a scenario with a node that has podwire's plugins."""
    return lambda scenario: kubelet.run_on_node(lambda host: scenario(Node(host, bin_dir)))


def test_cni_args_may_have_any_order(run_scenario):
    """Whatever the order of CNI_ARGS is, a pod is attached, checked and detached."""

    def scenario(node):
        for order in range(len(node.neighbour.pairs)):
            sandbox = replace(node.sandbox(FIRST_PORT), order=order)
            with node.unchanged():
                node.runtime.set_up(sandbox)
                node.runtime.check(sandbox)
                node.runtime.tear_down(sandbox)

    run_scenario(scenario)


def test_parallel_dels_and_a_new_add_succeed(run_scenario):
    """A pod that is deleted four times in parallel, and started again in between, ends; the new one has its network."""

    def scenario(node):
        with node.unchanged():
            old, new = node.sandbox(FIRST_PORT), node.sandbox(FIRST_PORT + 1, limited=True)
            node.runtime.set_up(old)
            with ThreadPoolExecutor(5) as threads:
                calls = [threads.submit(node.runtime.tear_down, old, path) for path in (None, "", None, "")]
                calls.append(threads.submit(node.runtime.set_up, replace(new, pod=old.pod)))
                for call in calls:
                    call.result()
            delete_namespace(old)
            node.runtime.check(new)
            node.end(new)

    run_scenario(scenario)


def test_spelling_of_capabilities_makes_no_difference(run_scenario):
    """The spellings of containerd and CRI-O produce the same host port and the same limit."""
    mapping = {"hostPort": FIRST_PORT, "containerPort": 80, "protocol": "tcp", "hostIP": ""}
    no_burst = 2**35 - 9  # CRI-O's
    rates = {"ingressRate": 10_000_000, "ingressBurst": no_burst, "egressRate": 0, "egressBurst": 0}
    ocicni = {"portMappings": [mapping], "bandwidth": rates, "cgroupPath": "/kubepods.slice/pod1.slice"}
    capitals = {**ocicni, "portMappings": [{**mapping, "protocol": "TCP"}]}

    def list_rules(node, sandbox):
        result = node.runtime.set_up(sandbox)
        address = result["ips"][0]["address"].partition("/")[0]
        host_veth = result["interfaces"][1]["name"]
        rules = [line for line in netstate.iptables_rules(node.host) if sandbox.id in line or str(FIRST_PORT) in line]
        limits = [line for line in output("tc", "qdisc", "show").splitlines() if f"dev {host_veth} " in line]
        node.runtime.tear_down(sandbox)
        return [line.replace(address, "ADDRESS").replace(host_veth, "LINK") for line in [*rules, *limits]]

    def scenario(node):
        sandbox = node.sandbox(FIRST_PORT, limited=True)
        expected = list_rules(node, sandbox)
        assert any("DNAT" in line for line in expected)
        assert any("tbf" in line for line in expected)
        for spelling in (ocicni, capitals):
            assert list_rules(node, replace(sandbox, capabilities=spelling)) == expected

    run_scenario(scenario)
