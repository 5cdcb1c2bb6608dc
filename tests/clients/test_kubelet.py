"""Kubelet's habits: probing, repeating, giving up and starting anew, as go-cni and ocicni hand them on to plugins.

One rule: every scene is on a node with a neighbour, and ends with the node as it was before, seen as a whole.
"""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import kubelet, namespaces, netstate
from tests.support.kubelet import PODS, Runtime, Sandbox, capabilities
from tests.support.machine import eventually, files_of_pods, unchanged
from tests.support.namespaces import Namespace
from tests.support.processes import output

AT_ONCE = 10
FIRST_PORT = 20000


class Node:
    """A node and its runtime, and a pod that lives through the whole scene."""

    def __init__(self, host, bin_dir, *, version="1.0.0", **portmap_keys):
        network = kubelet.conflist("pods", "cni0", "10.80.0.0/24", version=version, **portmap_keys)
        self.host, self.runtime = host, Runtime(bin_dir, network)
        self._numbers = itertools.count()
        self.neighbour = self.sandbox(FIRST_PORT - 1, limited=True)
        self.runtime.set_up(self.neighbour)
        first = self.sandbox(FIRST_PORT, limited=True)  # what the first pod of all makes is the node's
        self.runtime.set_up(first)
        self.end(first)

    def sandbox(self, *ports, limited=False):
        """Makes a namespace and returns a sandbox that has it."""
        number = next(self._numbers)
        asked = capabilities(*ports, limited=limited)
        return Sandbox(f"pod-{number}", f"{number:064x}", namespaces.create().path, asked, number)

    def end(self, sandbox):
        """Ends a sandbox as containerd does: down, its namespace removed, and down again, which then has none."""
        self.runtime.tear_down(sandbox)
        forget(sandbox)
        self.runtime.tear_down(sandbox, "")

    def picture(self):
        """Returns the node in whole: its network, packet filter, limits, and the files below /run and /var/lib/cni."""
        return {
            **netstate.state(self.host, netfilter=True),
            "qdiscs": netstate.qdiscs(self.host),
            "files": files_of_pods(output("find", "/run", "/var/lib/cni", "-type", "f")),
        }

    def unchanged(self):
        """Demands that the node is after a block as it was before, once what goes by itself has gone."""
        return unchanged(self.picture)


def forget(sandbox):
    """Removes a sandbox's namespace."""
    Namespace(Path(sandbox.netns).name).delete()


@pytest.fixture
def play(root, bin_dir):
    """A function that runs a scene, which is given a node with our plugins."""
    return lambda scene, **keys: kubelet.run_on_node(lambda host: scene(Node(host, bin_dir, **keys)))


def crowd(host, bin_dir):
    """Has as many pods as a node may have come and go; returns the seconds that it took and what is left."""
    node = Node(host, bin_dir)
    before = node.picture()
    sandboxes = [kubelet.typical_sandbox(10 + number, namespaces.create().path, FIRST_PORT) for number in range(PODS)]
    started = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        results = list(threads.map(node.runtime.set_up, sandboxes))
        assert len({result["ips"][0]["address"] for result in results}) == PODS
        list(threads.map(node.end, sandboxes))
    took = time.monotonic() - started
    eventually(lambda: node.picture() == before)
    return took, [key for key, value in node.picture().items() if value != before[key]]


def test_110_pods_come_and_go_and_leave_nothing(root, bin_dir, reference, capsys):
    """As many pods as a node may have start ten at a time, are all different, and end twice, without a trace.

    The reference plugins do the same on a node of their own; what both take, and leave, is printed.
    """
    ours, left = kubelet.run_on_node(lambda host: crowd(host, bin_dir))
    theirs, left_by_them = kubelet.run_on_node(lambda host: crowd(host, reference))
    with capsys.disabled():
        told = f"{ours:.1f} s, reference {theirs:.1f} s (ratio {ours / theirs:.2f}), which leaves: {left_by_them}"
        print(f"\n{PODS} pods up and down, {AT_ONCE} at a time: {told}")
    assert left == []


def test_arguments_come_in_any_order(play):
    """Wherever CNI_ARGS begin, a pod is attached, checked and detached alike."""

    def scene(node):
        for order in range(len(node.neighbour.pairs)):
            sandbox = replace(node.sandbox(FIRST_PORT), order=order)
            with node.unchanged():
                node.runtime.set_up(sandbox)
                node.runtime.check(sandbox)
                node.runtime.tear_down(sandbox)

    play(scene)


# What kubelet asks after an ADD, and after none: `None` is DEL with the namespace's path, "" DEL without, and "gone" is
# the namespace's end.
ENDINGS = {
    "twice": [None, None, "gone"],
    "twice without a path": [None, "gone", "", ""],
    "without a path first": ["", None, "gone"],
    "only without a path": ["", "gone"],
    "after the namespace": ["gone", None],
    "after the namespace, without a path": ["gone", "", ""],
}


@pytest.mark.parametrize("added", [True, False], ids=["after ADD", "before ADD"])
def test_however_a_pod_is_deleted_nothing_is_left(play, added):
    """DEL twice, with no path, without a namespace or without an ADD: it succeeds, and nothing of the pod is left."""

    def scene(node):
        for steps in ENDINGS.values():
            with node.unchanged():
                sandbox = node.sandbox(FIRST_PORT, limited=True)
                if added:
                    node.runtime.set_up(sandbox)
                for step in steps:
                    forget(sandbox) if step == "gone" else node.runtime.tear_down(sandbox, step)

    play(scene)


def test_deletes_that_overtake_each_other(play):
    """A pod that is deleted four times at once, and started anew in between, ends; the new one has its network."""

    def scene(node):
        with node.unchanged():
            old, new = node.sandbox(FIRST_PORT), node.sandbox(FIRST_PORT + 1, limited=True)
            node.runtime.set_up(old)
            with ThreadPoolExecutor(5) as threads:
                calls = [threads.submit(node.runtime.tear_down, old, path) for path in (None, "", None, "")]
                calls.append(threads.submit(node.runtime.set_up, replace(new, pod=old.pod)))
                for call in calls:
                    call.result()
            forget(old)
            node.runtime.check(new)
            node.end(new)

    play(scene)


def test_a_pod_that_could_not_start_is_tried_again(play):
    """After an ADD that failed in the middle of the list DEL takes all of it back, and a new sandbox can start."""

    def scene(node):
        with node.unchanged():
            refused = node.sandbox(FIRST_PORT - 1, limited=True)
            with pytest.raises(AssertionError, match=f"{FIRST_PORT - 1}"):
                node.runtime.set_up(refused)
            node.end(refused)
        with node.unchanged():
            again = replace(node.sandbox(FIRST_PORT, limited=True), pod=refused.pod)
            node.runtime.set_up(again)
            node.runtime.check(again)
            node.end(again)

    play(scene, onConflict="fail")


def test_runtimes_spell_capabilities_differently(play):
    """What containerd says in its own spelling and CRI-O in another makes the same host port and the same limit."""
    own = {"hostPort": FIRST_PORT, "containerPort": 80, "protocol": "tcp", "hostIP": ""}
    no_burst = 2**35 - 9  # CRI-O's
    rates = {"ingressRate": 10_000_000, "ingressBurst": no_burst, "egressRate": 0, "egressBurst": 0}
    ocicni = {"portMappings": [own], "bandwidth": rates, "cgroupPath": "/kubepods.slice/pod1.slice"}
    capitals = {**ocicni, "portMappings": [{**own, "protocol": "TCP"}]}

    def made(node, sandbox):
        result = node.runtime.set_up(sandbox)
        address = result["ips"][0]["address"].partition("/")[0]
        host_end = result["interfaces"][1]["name"]
        rules = [line for line in netstate.iptables_rules(node.host) if sandbox.id in line or str(FIRST_PORT) in line]
        limits = [line for line in output("tc", "qdisc", "show").splitlines() if f"dev {host_end} " in line]
        node.runtime.tear_down(sandbox)
        return [line.replace(address, "ADDRESS").replace(host_end, "LINK") for line in [*rules, *limits]]

    def scene(node):
        sandbox = node.sandbox(FIRST_PORT, limited=True)
        wanted = made(node, sandbox)
        assert any("DNAT" in line for line in wanted)
        assert any("tbf" in line for line in wanted)
        for spelling in (ocicni, capitals):
            assert made(node, replace(sandbox, capabilities=spelling)) == wanted

    play(scene)


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.0.0"])
def test_networks_of_older_versions(play, version):
    """In an older version a pod is attached, checked where there is CHECK, and gone after DEL as libcni asks then."""

    def scene(node):
        with node.unchanged():
            sandbox = node.sandbox(FIRST_PORT, limited=True)
            assert node.runtime.set_up(sandbox)["cniVersion"] == version
            if version != "0.3.1":
                node.runtime.check(sandbox)
            node.end(sandbox)

    play(scene, version=version)
