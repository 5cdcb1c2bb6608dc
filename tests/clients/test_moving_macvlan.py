"""A node with macvlan pods is moved from the reference plugins to podwire and back while its containers are running."""

from __future__ import annotations

import contextlib
import json

import pytest

from tests.clients import podman as podman_client
from tests.clients.podman import serving
from tests.clients.test_moving import Node
from tests.support import binaries, sockets
from tests.support.machine import CONF_DIR, PEER_ADDRESS, PEER_ADDRESS6
from tests.support.sockets import Reached, call

RANGES = [
    [{"subnet": "203.0.113.0/24", "rangeStart": "203.0.113.128", "gateway": PEER_ADDRESS}],
    [{"subnet": "2001:db8::/64", "rangeStart": "2001:db8::1:0", "gateway": PEER_ADDRESS6}],
]
NETWORK = {
    "cniVersion": "0.4.0",
    "name": "net",
    "plugins": [
        {
            "type": "macvlan",
            "master": "up0",
            "ipam": {
                "type": "host-local",
                "ranges": RANGES,
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
            },
        },
        {"type": "tuning", "mtu": 1400},
    ],
}


@pytest.fixture(scope="module")
def node(empty_machine, needs_programs, bin_dir, reference):
    """Podman with the reference plugins and the network."""
    needs_programs(*podman_client.PROGRAMS)
    empty_machine.install(binaries.REFERENCE)
    empty_machine.write(CONF_DIR / "10-net.conflist", json.dumps(NETWORK))
    return Node(podman_client.configure_with_image(empty_machine), bin_dir)


@pytest.mark.parametrize(("first", "second"), [("reference", "podwire"), ("podwire", "reference")])
def test_node_is_moved_while_containers_are_running(node, first, second):
    """A connection continues, old and new containers and the peer reach each other, each is removed completely."""
    machine = node.machine
    node.move("reference")
    before = machine.picture()
    node.move(first)
    assert node.installed_plugins() == first
    old, restarted = (node.podman.start(name, network="net") for name in ("old", "restarted"))
    with contextlib.ExitStack() as stack:
        services = stack.enter_context(serving(old))
        caller = stack.enter_context(sockets.open_socket(machine.peer, "tcp", "0.0.0.0"))
        caller.connect((old.address("net"), sockets.PORT))
        server = stack.enter_context(next(each for each in services if each.protocol == "tcp").socket.accept()[0])
        node.move(second)
        assert node.installed_plugins() == second
        new = node.podman.start("new", network="net")
        node.podman("restart", "--time=0", "restarted")
        restarted = node.podman.inspect("restarted")
        for each in (new, restarted):
            services += stack.enter_context(serving(each))
        for each in (old, restarted, new):
            settings = each.networks["net"]
            for ip, source in ((settings["IPAddress"], PEER_ADDRESS), (settings["GlobalIPv6Address"], PEER_ADDRESS6)):
                assert call(services, machine.peer, "tcp", ip, sockets.PORT) == Reached(each.name, source)
        for one, two in ((new, old), (old, new)):
            reached = call(services, one.namespace, "tcp", two.address("net"), sockets.PORT)
            assert reached == Reached(two.name, one.address("net"))
        assert node.states() == dict.fromkeys(("old", "restarted", "new"), "ok")
        assert node.problems() == []
        caller.sendall(b"ping")
        assert server.recv(4) == b"ping"
    with machine.unchanged(before):
        node.podman.remove()
        node.move("reference")
        machine.run("rm", "-rf", "/run/cni/tuning.podwire")  # the page's command for the note beside the backup
