"""The routes of a cluster of 5,000 nodes: requests and processor time."""

import time
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest

from agent.node import Node
from agent.route_plan import RouteOptions
from tests.support.cluster import cluster

NODES = 5000
OBJECTS = {"direct": 2, "vxlan": 5}  # of one dual-stack node
SYNC_S, CHANGE_S = 10.0, 0.02  # of processor time: about 15 times as much as on an idle machine


def nodes() -> dict[str, Node]:
    """Returns dual-stack nodes of the network 198.18.0.0/15, each with a /24 and a /64 for pods."""
    result = {}
    for number in range(NODES):
        prefix = (0xFD00 << 112) + (number + 1 << 64)
        networks = IPv4Network((0x0A640000 + (number << 8), 24)), IPv6Network((prefix, 64))
        addresses = IPv4Address(0xC6120000 + number + 2), IPv6Address((0x20010DB8 << 96) + (0x77 << 64) + number + 2)
        name = f"worker-{number}.example.com"
        result[name] = Node(name, f"00000000-0000-4000-8000-{number:012}", networks, addresses)
    return result


@pytest.mark.long
@pytest.mark.one_kernel
@pytest.mark.parametrize("mode", OBJECTS)
def test_five_thousand_nodes(root, mode):
    """The first synchronization sends each object once, a change only the objects of its node, a restart nothing."""
    with cluster(1, is_joined=True) as joined:
        (this,) = joined.nodes
        this.host.ip("address", "add", "198.18.255.254/15", "dev", "eth0")
        this.host.ip("address", "add", "2001:db8:0:77::ffff/64", "dev", "eth0", "nodad")
        peers, options = nodes(), RouteOptions(mode=mode)
        last = list(peers.values())[-1]
        with this.routes(options) as routes:
            begin = time.process_time()
            routes.set_node(this.node())
            routes.replace_peers(peers)
            sync_s = time.process_time() - begin
            routes.handle_notifications()
            counters = routes.counters
            assert routes.problems == []
            assert (counters.routes, counters.comparisons) == (2 * NODES, 1)
            assert counters.requests <= OBJECTS[mode] * NODES + 5
            begin = time.process_time()
            routes.remove_peer(last.name)
            routes.update_peer(last)
            change_s = (time.process_time() - begin) / 2
            assert routes.counters.requests == counters.requests + 2 * OBJECTS[mode]
        with this.routes(options) as again:
            again.set_node(this.node())
            again.replace_peers(peers)
            assert again.counters.requests == 0
    print(f"{mode}: {sync_s:.2f} s for {counters.requests} requests, {1e6 * change_s:.0f} us for a change")
    assert sync_s < SYNC_S
    assert change_s < CHANGE_S
