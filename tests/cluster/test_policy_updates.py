"""Network policies that change while pods run, with real packets: the verdicts after all changes, and those between."""

import contextlib
import itertools
import random
import time
from contextlib import ExitStack
from ipaddress import ip_address

import pytest

from agent.policy.evaluator import ClusterState, PodConnection
from agent.policy.objects import parse_namespace, parse_pod, parse_policy
from tests.cluster.test_network_policy import DENY, Cluster, cluster  # noqa: F401 - a fixture
from tests.support.kubernetes_store import NAMESPACES, PODS, POLICIES
from tests.support.machine import eventually
from tests.support.policy_flood import Flood
from tests.support.policy_world import decide, pods_by_address
from tests.support.sockets import open_socket

pytestmark = pytest.mark.timeout(1000)
MATRIX = range(1, 9)
ALWAYS = 10


class Matrix:
    """Six pods under default-deny, and policies of which each allows one to send to another one, or to receive."""

    def __init__(self, one_node: Cluster, stack: ExitStack) -> None:
        self.cluster = one_node
        self.pods = [self.cluster.start("shop", f"m-{one}", f"n{one}") for one in range(6)]
        self.senders = [stack.enter_context(open_socket(pod.namespace, "udp", "0.0.0.0")) for pod in self.pods]
        self.receivers = {
            (one, port): stack.enter_context(open_socket(pod.namespace, "udp", "0.0.0.0", port))
            for one, pod in enumerate(self.pods)
            for port in MATRIX
        }

    def allow(self, name: str, source: int, target: int, port: int) -> None:
        """Sets a policy of one end at random, of port ALWAYS policies of both ends."""
        for end in (random.choice(("ingress", "egress")),) if port != ALWAYS else ("ingress", "egress"):
            subject, peer = (source, target) if end == "egress" else (target, source)
            peers = [{"podSelector": {"matchLabels": {"app": f"n{peer}"}}}]
            rule = {"to" if end == "egress" else "from": peers, "ports": [{"protocol": "UDP", "port": port}]}
            selector = {"matchLabels": {"app": f"n{subject}"}}
            spec = {"podSelector": selector, "policyTypes": [end.capitalize()], end: [rule]}
            self.cluster.policy("shop", name if port != ALWAYS else f"{name}-{end}", spec)

    def allow_any(self, name: str) -> None:
        """Sets a policy at random."""
        source, target = random.sample(range(6), 2)
        self.allow(name, source, target, random.choice(MATRIX))

    def expected(self) -> set[tuple[int, int, int]]:
        """Returns what the evaluator allows: source, target and port."""
        objects = self.cluster.world.server.store.objects
        pods, namespaces, policies = (
            [one for path, one in objects.items() if path.startswith(f"{kind}/")]
            for kind in (PODS, NAMESPACES, POLICIES)
        )
        state = ClusterState(
            pods_by_address(map(parse_pod, pods)),
            {one["metadata"]["name"]: parse_namespace(one) for one in namespaces},
            [*map(parse_policy, policies)],
        )
        ips = [ip_address(pod.addresses[4]) for pod in self.pods]
        return {
            (source, target, port)
            for source, target in itertools.permutations(range(6), 2)
            for port in MATRIX
            if decide(state, PodConnection(ips[source], ips[target], "udp", port)).allowed
        }

    def passing(self) -> set[tuple[int, int, int]]:
        """Returns the same of packets that are sent now."""
        mark = str(time.monotonic_ns())
        for source, (target, pod) in itertools.product(range(6), enumerate(self.pods)):
            for port in MATRIX if source != target else ():
                self.senders[source].sendto(f"{mark} {source}".encode(), (pod.addresses[4], port))
        arrived = set()
        for (target, port), receiver in self.receivers.items():
            receiver.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sent, sender = receiver.recv(100).decode().split()
                    arrived |= {(int(sender), target, port)} if sent == mark else set()
        return arrived


@pytest.mark.long
def test_500_policies_change_in_random_order(cluster, capsys):  # noqa: F811
    """All verdicts are right within a second; what old and new policies deny never passes, what both allow always."""
    with ExitStack() as stack:
        flood = Flood()
        stack.enter_context(flood.running())
        cluster.policy("shop", "default-deny", DENY)
        matrix = Matrix(cluster, stack)
        matrix.allow("always", 0, 1, ALWAYS)
        for number in range(500):
            matrix.allow_any(f"p-{number}")
        assert eventually(lambda: matrix.passing() == matrix.expected(), within_s=60)
        denied = [flood.receive(stack, pod.namespace) for pod in matrix.pods]
        allowed = flood.receive(stack, matrix.pods[1].namespace, ALWAYS)
        ips = [pod.addresses[4] for pod in matrix.pods]
        for one, pod in enumerate(matrix.pods):
            flood.to(stack, pod.namespace, f"{one}".encode(), [ip for ip in ips if ip != ips[one]])
        with ExitStack() as until:
            began = flood.rounds
            flood.to(until, matrix.pods[0].namespace, b"always", ips[1:2], ALWAYS)
            for number in random.sample(range(500), 500):
                matrix.allow_any(f"p-{number}")
                time.sleep(0.002)
            last = time.monotonic()
            samples = []
            while time.monotonic() < last + 2:
                samples.append((matrix.passing(), time.monotonic() - last))
            rounds = flood.rounds - began
        expected = matrix.expected()
        lag_s = next((at_s for passing, at_s in samples if passing == expected), 99)
        flood.settle()
        with capsys.disabled():
            print(f"\n{len(expected)} of 240 allowed, right after {lag_s:.2f} s; {rounds} rounds: {allowed}, {denied}")
        assert lag_s < 1
        assert all(passing == expected for passing, at_s in samples if at_s > 1)
        assert not any(denied)
        assert abs(allowed[b"always"] - rounds) <= 2
