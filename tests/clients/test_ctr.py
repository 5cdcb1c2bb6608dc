"""Containers of containerd by `ctr run --cni`, with only podwire's plugins.

One rule: each test compares the machine's whole state before and after. ctr 1.6 runs no DEL for a container in the
background; `podwire gc` removes what such a container leaves.
"""

import json

import pytest

from tests.clients import containerd
from tests.clients.attaching import bridge
from tests.support import netstate, sockets
from tests.support.attaching import reaches
from tests.support.machine import ADDRESS, BIN_DIR, CONF_DIR, PEER_ADDRESS, eventually
from tests.support.sockets import Reached, call

TOOL = str(BIN_DIR / "podwire")
GATEWAY = "10.69.0.1"
PORTS = [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]  # ctr has no option for them
LIST = [
    bridge("10.69.0.0/24"),
    {"type": "portmap", "runtimeConfig": {"portMappings": PORTS}},
    {"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000},
]


@pytest.fixture(scope="module")
def ctr(empty_machine, needs_programs, bin_dir):
    """`ctr` with podwire's files and one network, which one container has used."""
    needs_programs(*containerd.PROGRAMS)
    with containerd.running(empty_machine) as ctr:
        if problem := empty_machine.problem("ctr", *ctr.line("trial", "--rm")):
            pytest.skip(f"ctr does not run a container here, without a network: {problem}")
        empty_machine.run(str(bin_dir / "podwire"), "install")
        network = {"cniVersion": "1.0.0", "name": "net", "plugins": LIST}
        empty_machine.write(CONF_DIR / "10-net.conflist", json.dumps(network))
        ctr(*ctr.line("first", "--rm", "--cni"))
        # The kernel removes the host veth some time after the container: no test begins before.
        assert eventually(lambda: not [name for name in netstate.links(empty_machine.network) if "veth" in name])
        yield ctr


@pytest.fixture(autouse=True)
def machine_unchanged(ctr):
    """Asserts that the machine is in the same state before and after a test."""
    with ctr.machine.unchanged():
        yield
        for name in ctr("containers", "list", "--quiet").split():  # a failed test leaves containers
            ctr.remove(name)


def address(namespace):
    """Returns the address of a container's eth0."""
    (entry,) = netstate.links(namespace)["eth0"]["addresses"]
    assert entry["prefixlen"] == 24
    return entry["local"]


def remove(ctr, *names):
    """Removes containers; `podwire gc` removes what ctr 1.6, which runs no DEL, leaves, and nothing else.

    A container counts as running while its host veth exists, which the kernel removes some time after the container.
    """
    for name in names:
        ctr.remove(name)
    if ctr.version >= (1, 7):
        return
    deleted: set[str] = set()

    def has_deleted_all():
        output = ctr.machine.run(TOOL, "gc", "net", "--json")
        deleted.update(one["containerID"] for one in json.loads(output)["deleted"])
        return len(deleted) >= len(names)

    eventually(has_deleted_all)
    assert deleted == {f"default-{name}" for name in names}


def test_container_in_the_background_has_the_network(ctr):
    """It reaches neighbours and other machines, has its host port and limit; `podwire gc` removes what ctr leaves."""
    machine = ctr.machine
    web, two = ctr.start("web"), ctr.start("two")
    with sockets.service(web, "tcp", "0.0.0.0", name="web") as server:
        assert call([server], two, "tcp", address(web), 80) == Reached("web", address(two))
        assert call([server], machine.network, "tcp", address(web), 80) == Reached("web", GATEWAY)
        for caller, ip, source in (
            (machine.peer, ADDRESS, PEER_ADDRESS),
            (machine.network, "127.0.0.1", GATEWAY),
            (two, ADDRESS, GATEWAY),
            (web, ADDRESS, GATEWAY),
        ):
            assert call([server], caller, "tcp", ip, 8080) == Reached("web", source), (caller.name, ip)
    with sockets.service(machine.peer, "tcp", PEER_ADDRESS, name="world") as world:
        assert call([world], two, "tcp", PEER_ADDRESS, 80) == Reached("world", ADDRESS)
    assert reaches(two, address(web))  # `ctr tasks exec` loses output on a busy machine
    assert "LOOPBACK,UP" in two.run("ip", "address", "show", "lo")
    limits = [line for line in machine.run("tc", "qdisc", "show").splitlines() if "rate 8Mbit burst 100000b" in line]
    assert len(limits) == 2, limits
    remove(ctr, "two", "web")


def test_container_that_ends_leaves_nothing(ctr):
    """`ctr run --rm --cni` has the network until its program ends; DEL then runs without the namespace."""
    program = f"ip -o address; ping -c1 -W5 {PEER_ADDRESS}; echo; true"
    output = ctr(*ctr.line("one", "--rm", "--cni", command=("sh", "-c", program)))
    assert "1 packets received" in output
    assert "inet 127.0.0.1/8" in output
    assert "eth0    inet 10.69.0." in output
