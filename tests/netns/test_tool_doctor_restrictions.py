"""The commands of `podwire doctor` pass no restriction that an administrator has written."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.doctor_node import DoctorNode, list_problems
from tests.support.fault_node import UPLINK, FaultNode, Shared, describe, fault_node
from tests.support.fault_table import FAULTS, Fault
from tests.support.namespaces import Namespace
from tests.support.tool import PORTMAP

pytestmark = pytest.mark.one_kernel

COMMANDS = [one for one in FAULTS if one.repair and one.run and not one.intended]


MAIL, ADMIN, LIMITED = 25, 9999, 8081
# No mail, a port of the node closed to the pods, a published port only for another network.
SHELL = f"""
iptables -N DOCKER-USER; iptables -I FORWARD -j DOCKER-USER
iptables -A DOCKER-USER -i out0 ! -s 192.168.1.0/24 -p tcp -m conntrack --ctorigdstport {LIMITED} -j REJECT
iptables -A FORWARD -p tcp --dport {MAIL} -j REJECT --reject-with tcp-reset
iptables -A INPUT -i {{gate}} -p tcp --dport {ADMIN} -j REJECT --reject-with tcp-reset
"""


class Restrictions:
    """The restrictions on a node. Everything that they refuse would be answered: a process listens there."""

    def __init__(self, node: FaultNode) -> None:
        self._node = node
        words = node.words
        pod, far = Namespace(words["pod"]), Namespace(words["far"])
        self._connections = (
            (pod, "192.0.2.2", MAIL, "mail from a pod"),
            (pod, words["gateway"], ADMIN, "a port of the node from a pod"),
            (far, "192.0.2.1", LIMITED, "a published port from another network"),
        )

    def install(self) -> None:
        """Writes the rules, if they are not there."""
        if "DOCKER-USER" not in self._node.shell("iptables -S").stdout:
            self._node.inject(SHELL)

    def passing(self) -> list[str]:
        """Returns the connections that are made in spite of the restrictions."""
        return [name for client, address, port, name in self._connections if connects(client, address, port)]


@contextmanager
def restricted_node(directory: Path) -> Iterator[tuple[FaultNode, Restrictions]]:
    """Yields a node with processes that listen, and restrictions: each connection is refused by a rule."""
    with fault_node(directory) as node, ExitStack() as stack:
        places = ((Namespace(node.words["far"]), MAIL), (node.host, ADMIN), (Namespace(node.words["pod2"]), 80))
        for namespace, port in places:
            with namespace.entered():
                stack.enter_context(socket.create_server(("", port)))
        written = Restrictions(node)
        assert len(written.passing()) == 3
        written.install()
        assert written.passing() == []
        yield node, written


Nodes = Shared[tuple[FaultNode, Restrictions]]


@pytest.fixture(scope="module")
def nodes(root: None, bin_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """The node of the module's tests."""
    shared = Shared(lambda: restricted_node(tmp_path_factory.mktemp("node")))
    yield shared
    shared.discard()


@pytest.mark.parametrize(
    "fault", [pytest.param(one, marks=pytest.mark.needs(*one.needs), id=one.name) for one in COMMANDS]
)
def test_no_command_passes_a_restriction(nodes: Nodes, fault: Fault) -> None:
    """After all commands of all findings of a fault, the packets that restrictions dropped are still dropped."""
    with nodes.used() as (node, written):
        node.inject(fault.shell)
        written.install()  # the fault may be that all rules are gone
        for finding in node.list_findings(before=fault.before):
            node.run_commands(finding)
        assert written.passing() == []
        node.shell(f"set +e; {fault.undo.format(**node.words)}")
        written.install()
        for finding in node.list_findings():
            node.run_commands(finding)
        is_damaged = list_problems(node.list_findings()) or written.passing()
    if is_damaged:
        nodes.discard()


@pytest.mark.long
def test_policy_does_not_open_the_isolation_of_networks(
    host: Namespace, new_sandbox, tmp_path: Path, bin_dir: Path
) -> None:
    """With a policy that drops, the command opens the published port, and no path between isolated networks."""
    node = DoctorNode(host, tmp_path)
    far = new_sandbox()
    host.run("sh", "-ec", UPLINK.format(far=far.name))
    pods = [new_sandbox(), new_sandbox()]
    addresses = []
    for number, pod in enumerate(pods):
        network = node.add_bridge(
            f"net{number}", f"10.4{number}.0.0/24", PORTMAP, {"type": "firewall", "ingressPolicy": "same-bridge"},
            routes=["0.0.0.0/0"], bridge=f"cni{number}", ipMasq=True,
        )  # fmt: skip
        mappings = [{"hostPort": 8080 + number, "containerPort": 80, "protocol": "tcp"}]
        result = node.attach(network.with_capabilities(portMappings=mappings), pod)
        addresses.append(result["ips"][0]["address"].partition("/")[0])
        node.attach(network, new_sandbox())  # a pod without a published port
    host.run("iptables", "-P", "FORWARD", "DROP")
    assert {one["name"] for one in list_problems(node.list_findings())} == {"forward-drop"}
    with ExitStack() as stack:
        for pod in pods:
            with pod.entered():
                stack.enter_context(socket.create_server(("", 80)))
        assert not connects(far, "192.0.2.1", 8080, within_s=0.5)
        node.doctor("--fix", "--yes")
        assert list_problems(node.list_findings()) == [], describe(node.list_findings())
        assert connects(far, "192.0.2.1", 8080)
        assert connects(far, "192.0.2.1", 8081)
        assert not connects(pods[0], addresses[1], 80, within_s=0.5)
        assert not connects(pods[1], addresses[0], 80, within_s=0.5)


def connects(client: Namespace, address: str, port: int, within_s: float = 20.0) -> bool:
    """Returns whether a TCP connection is made in time."""
    with client.entered(), socket.socket() as connection:
        connection.settimeout(within_s)
        return connection.connect_ex((address, port)) == 0
