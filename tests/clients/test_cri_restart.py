"""Running pods keep their network while containerd is killed and started again, and can then be removed."""

from __future__ import annotations

from tests.clients import cri as client
from tests.clients.cri import page, pb
from tests.clients.images import PAGE
from tests.support.machine import ADDRESS

BRIDGE = "cni-restart"
NETWORK = client.network("restart", BRIDGE, "10.77.0.0/24", "fd77::/64")
PORTS = ((8080, 80, pb.TCP, ""),)
LIMITS = {"kubernetes.io/ingress-bandwidth": "8M", "kubernetes.io/egress-bandwidth": "16M"}


def test_pods_outlive_containerd(needs_programs, bin_dir, empty_machine):
    """Pods keep their network while containerd is dead; a new containerd knows them, and removes them completely."""
    needs_programs(*client.PROGRAMS)
    with client.ready(empty_machine, bin_dir) as first:
        first.configure(NETWORK)
        first.remove(first.run("trial", PORTS, LIMITS))
        before = empty_machine.picture()
        web = first.run("web", PORTS, LIMITS)
        plain = first.run("plain")
    assert page(empty_machine.peer, ADDRESS, 8080) == PAGE
    with client.containerd(empty_machine) as second, empty_machine.unchanged(before):
        assert second.pods() == {"web": web.id, "plain": plain.id}
        assert [second.pod(pod.id, pod.name) for pod in (web, plain)] == [web, plain]
        assert page(empty_machine.peer, ADDRESS, 8080) == PAGE
        assert page(plain.namespace, ADDRESS, 8080) == PAGE
        late = second.run("late")
        assert late.ips not in (web.ips, plain.ips)
        second.remove_all()
        assert page(empty_machine.peer, ADDRESS, 8080) == ""
