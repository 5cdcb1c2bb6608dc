"""Pods of containerd's CRI survive a change of plugins, and kubelet removes them after a reboot.

One rule: containerd is not notified: other files are in /opt/cni/bin, or containerd starts on a node that rebooted.
"""

import pytest

from tests.clients import cri as client
from tests.clients.cri import page, pb
from tests.clients.images import PAGE
from tests.support.machine import ADDRESS, machine

BRIDGE = "cni-moving"
NETWORK = client.network("moving", BRIDGE, "10.78.0.0/24")
LIMITS = {"kubernetes.io/ingress-bandwidth": "8M", "kubernetes.io/egress-bandwidth": "16M"}


def ports(host_port: int) -> tuple[tuple[int, int, int, str], ...]:
    """Returns a host port in the form of a pod's request."""
    return ((host_port, 80, pb.TCP, ""),)


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_pods_survive_a_change_of_plugins(needs_programs, bin_dir, reference, empty_machine, command):
    """A pod from before the change keeps its host port, reaches a later pod, and both are removed completely."""
    needs_programs(*client.PROGRAMS)
    node, tool = empty_machine, str(bin_dir / "podwire")
    with client.ready(node, reference) as cri:
        if command == "uninstall":
            node.run(tool, "install")
        cri.configure(NETWORK)
        old = cri.run("old", ports(8001), LIMITS)
        assert page(node.peer, ADDRESS, 8001) == PAGE
        node.run(tool, command)
        new = cri.run("new", ports(8002), LIMITS)
        assert page(node.peer, ADDRESS, 8002) == PAGE
        assert page(node.peer, ADDRESS, 8001) == PAGE
        assert page(new.namespace, old.ips[0]) == page(old.namespace, new.ips[0]) == PAGE
        cri.remove(old)
        assert page(node.peer, ADDRESS, 8001) == ""
        assert page(node.peer, ADDRESS, 8002) == PAGE
        cri.remove(new)
        assert node.leftovers(links=[BRIDGE]) == []


@pytest.mark.parametrize("plugins", ["reference", "podwire"])
def test_pods_from_before_a_reboot_are_removed(needs_programs, bin_dir, reference, tmp_path, plugins):
    """Kubelet stops and removes pods from before a reboot, which leave nothing; pods of the same names can start."""
    needs_programs(*client.PROGRAMS)
    with machine(tmp_path) as node, client.ready(node, bin_dir if plugins == "podwire" else reference) as cri:
        cri.configure(NETWORK)
        cri.run("one", ports(8001), LIMITS)
        cri.run("two", ports(8002), LIMITS)
        assert [name for name in node.leftovers(links=[BRIDGE]) if "/networks/moving/10.78.0." in name]
    with machine(tmp_path) as node:
        node.install(bin_dir)
        with client.containerd(node) as cri:
            assert sorted(cri.pods()) == ["one", "two"]
            assert [name for name in node.leftovers() if "/networks/moving/10.78.0." in name]
            cri.configure(NETWORK)
            cri.remove_all()
            assert node.leftovers() == []
            cri.run("one", ports(8001), LIMITS)
            assert page(node.peer, ADDRESS, 8001) == PAGE
            cri.remove_all()
            assert node.leftovers(links=[BRIDGE]) == []
