"""Other programs change a node's interfaces, addresses, routes and entries at random; the agent's routes recover.

A round makes a few changes, most of which the agent must repair. Then an administrator restores what is not the
agent's: uplink, pods' bridge, addresses, default routes. Afterwards the node must be as before, without a comparison
that a timer starts, and a new agent must find nothing to do.
"""

import random
import select
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from agent.node import Node
from agent.route_plan import RouteOptions, mac_of
from agent.routes import Routes
from tests.support.agent_routes import DEVICE, state, strip_indexes
from tests.support.cluster import BRIDGE, UPLINK, Cluster, TestNode, ask, cluster
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.timeout(1200)

ROUNDS, NIGHTLY_ROUNDS = 12, 200
# Reached through the tunnel, in one segment too, until a change of the uplink's addresses makes it a direct one.
FAR = Node("far", "u", (ip_network("10.244.9.0/24"), ip_network("fd00:244:9::/64")), (ip_address("198.51.100.9"),))
NETWORKS = [*(f"10.244.{number}.0/24" for number in (2, 3, 9)), *(f"fd00:244:{number}::/64" for number in (2, 3, 9))]
OTHER_MAC = "02:00:00:00:00:01"
Command = Callable[[TestNode, random.Random], str]


def network(chance: random.Random) -> str:
    return chance.choice(NETWORKS)


def assigned(node: TestNode, link: str, version: int) -> str:
    """Returns an address that the agent or the administrator assigned to a link."""
    length = 24 if version == 4 else 64
    if link == UPLINK:
        return f"{node.address(version)}/{length}"
    if link == BRIDGE:
        return f"{node.pod_address(version).removesuffix('0')}/{length}"
    return f"{node.network(version).partition('/')[0]}/{32 if version == 4 else 128}"


def router(node: TestNode, version: int) -> str:
    return node.address(version).removesuffix(str(node.number + 10)) + "1"


def any_link(chance: random.Random) -> str:
    return chance.choice((DEVICE, DEVICE, UPLINK, BRIDGE))


def change_address(node: TestNode, chance: random.Random) -> str:
    link, version = any_link(chance), chance.choice((4, 6))
    cidr = assigned(node, link, version)
    if chance.random() < 0.6:
        return f"ip address del {cidr} dev {link}"
    return f"ip address replace {cidr} dev {link}{' nodad' if version == 6 else ''}"


def replace_route(node: TestNode, chance: random.Random) -> str:
    destination = network(chance)
    version = 6 if ":" in destination else 4
    metric, protocol = chance.choice((1120, 1120, 7)), chance.choice(("static", "112"))
    return f"ip -{version} route replace {destination} via {router(node, version)} metric {metric} proto {protocol}"


def change_entry(node: TestNode, chance: random.Random) -> str:
    """Changes an entry of the node that is always behind the tunnel: in one segment there are no others to restore."""
    mac = mac_of(FAR.name).hex(":")
    return chance.choice(
        (
            f"bridge fdb del {mac} dev {DEVICE}",
            f"bridge fdb replace {mac} dev {DEVICE} dst 192.0.{chance.randint(1, 3)}.99 self permanent",
            f"bridge fdb add {OTHER_MAC} dev {DEVICE} dst 192.0.2.99 self permanent",
            f"ip neigh del 10.244.9.0 dev {DEVICE}",
            f"ip neigh replace 10.244.9.0 lladdr {OTHER_MAC} nud permanent dev {DEVICE}",
            f"ip neigh flush dev {DEVICE} nud permanent",
        )
    )


def change_device(node: TestNode, chance: random.Random) -> str:
    return chance.choice(
        (
            f"ip link set {DEVICE} down",
            f"ip link set {DEVICE} up",
            f"ip link del {DEVICE}",
            f"ip link set {DEVICE} mtu {chance.randint(1280, 1500)}",
            f"ip link set {DEVICE} address {OTHER_MAC}",
            f"ip link set {DEVICE} alias other",
            f"ip link set {DEVICE} type vxlan learning local {router(node, 4)}9",
            f"ip link set {DEVICE} down name renamed0",
            "ip link set renamed0 up",
            f"ip link set renamed0 down name {DEVICE} up",
            f"ip link add {DEVICE} type bridge",
            "ip link add foreign0 type vxlan id 112 dstport 4789",
            f"sysctl -qw net.ipv6.conf.{DEVICE}.disable_ipv6={chance.choice((0, 1))}",
        )
    )


def change_host(node: TestNode, chance: random.Random) -> str:
    link = any_link(chance)
    return chance.choice(
        (
            f"ip link set {link} down && ip link set {link} up",
            f"ip link set {chance.choice((UPLINK, BRIDGE, 'lo'))} {chance.choice(('down', 'up'))}",
            f"ip link set {UPLINK} mtu {chance.randint(1400, 9000)}",
            f"ip link set {UPLINK} down name uplink1 up",
            f"ip address add 198.51.100.{chance.randint(1, 3)}/24 dev {UPLINK}",
            f"sysctl -qw net.ipv6.conf.{UPLINK}.disable_ipv6=1",
            "ip link add foreign1 type dummy",
        )
    )


def flush(node: TestNode, chance: random.Random) -> str:
    version = chance.choice((4, 6))
    what = chance.choice(("proto 112", f"dev {any_link(chance)}", "table main"))
    return f"ip -{version} route flush {what}"


def delete_route(node: TestNode, chance: random.Random) -> str:
    version = chance.choice((4, 6))
    if chance.random() < 0.3:
        return f"ip -{version} route del unreachable {node.network(version)}"
    destination = network(chance)
    return f"ip -{6 if ':' in destination else 4} route del {destination} proto 112"


CHANGES: tuple[Command, ...] = (
    *(delete_route, replace_route, change_address, change_entry),
    *(change_device, change_device, change_host, flush),
)


def host_state(host: Namespace, link: str) -> str:
    """Returns what an administrator configured on a link: state, addresses, connected networks."""
    shown = host.run("ip", "-o", "address", "show", "dev", link, "scope", "global", check=False)
    lines = sorted(line.partition(": ")[2] for line in shown.splitlines())
    first = host.run("ip", "-o", "link", "show", "dev", link, check=False).partition("qdisc")[0].partition(": ")[2]
    connected = [host.run("ip", version, "route", "show", "dev", link, "proto", "kernel") for version in ("-4", "-6")]
    return "\n".join((first, *lines, *connected))


def restore_host(node: TestNode, before: dict[str, str]) -> None:
    """Restores what is not the agent's: links, addresses, default routes; deletes foreign links and routes."""
    host = node.host

    def run(command: str) -> None:
        host.run(*command.split(), check=False)

    run(f"bridge fdb del {OTHER_MAC} dev {DEVICE}")
    run(f"ip link set uplink1 down name {UPLINK} up")
    run("ip link del foreign0")
    run("ip link del foreign1")
    if DEVICE in host.ip("-o", "link", "show", "type", "bridge"):
        run(f"ip link del {DEVICE}")
    for link in (UPLINK, BRIDGE, DEVICE):
        run(f"sysctl -qw net.ipv6.conf.{link}.disable_ipv6=0")
    run("ip link set lo up")
    for link in (UPLINK, BRIDGE):
        if host_state(host, link) == before[link]:
            continue
        run(f"ip link set {link} down")
        run(f"ip address flush dev {link} scope global")
        run(f"ip link set {link} up mtu {1500 if link == UPLINK else 1430}")
        run(f"ip address add {assigned(node, link, 4)} dev {link}")
        run(f"ip address add {assigned(node, link, 6)} dev {link} nodad")
        assert host_state(host, link) == before[link]
    for destination in NETWORKS:
        run(f"ip -{6 if ':' in destination else 4} route del {destination} metric 7")
    for version in (4, 6):
        if not node.is_joined:
            run(f"ip -{version} route replace default via {router(node, version)}")


def handle(routes: Routes) -> None:
    """Handles the notifications that have arrived, as the agent's loop does."""
    while select.select([routes.fileno()], [], [], 0)[0]:
        routes.handle_notifications()


def run_round(node: TestNode, routes: Routes, chance: random.Random, before: dict[str, str]) -> list[str]:
    """Makes changes, restores the host, and handles notifications now and then; returns the changes."""
    done = []
    for _ in range(chance.randint(1, 6)):
        command = chance.choice(CHANGES)(node, chance)
        for part in command.split(" && "):
            node.host.run(*part.split(), check=False)
        done.append(command)
        # Of two devices that have neither its alias nor its MAC address the agent cannot know its own.
        if chance.random() < 0.4 or " alias " in command or f"{DEVICE} address" in command:
            handle(routes)
            done.append("(handled)")
    if chance.random() < 0.5:
        handle(routes)
    restore_host(node, before)
    handle(routes)
    # The agent compares all later, for refused objects and if another program seems to disagree.
    if routes.has_refusals or any("keeps changing" in text for _, text in routes.problems):
        routes.reconcile()
    return done


def agent_state(host: Namespace) -> dict[str, Any]:
    """Returns the state without ifindexes and without the kernel's route to the device's own IPv6 address."""
    after = strip_indexes(state(host))
    after["routes"] = [each for each in after["routes"] if DEVICE not in each or '"kernel"' not in each]
    return after


@pytest.mark.parametrize("is_joined", [False, True])
@pytest.mark.parametrize("mode", ["auto", "vxlan"])
def test_routes_recover_from_foreign_changes(root, nightly, is_joined, mode):
    """After random changes by other programs the node is as before, and pods reach each other."""
    seed = f"{is_joined} {mode}"
    chance = random.Random(seed)
    options = RouteOptions(mode=mode)
    with cluster(3, is_joined=is_joined) as nodes, nodes.routed(options) as running:
        node, routes, peers = nodes.nodes[0], running[0], {**nodes.peers(), "far": FAR}
        routes.replace_peers(peers)
        for each in nodes.nodes:
            each.set_pod_mtu(1430)
        expected = agent_state(node.host)
        before = {link: host_state(node.host, link) for link in (UPLINK, BRIDGE)}
        for number in range(NIGHTLY_ROUNDS if nightly else ROUNDS):
            changes = run_round(node, routes, chance, before)
            after = agent_state(node.host)
            assert (after, routes.problems) == (expected, []), f"round {number} of seed {seed!r}: {changes}"
            if number % 10 == 0:
                check_packets(nodes)
        with node.routes(options) as again:
            again.set_node(node.node())
            again.replace_peers(peers)
            assert again.counters.requests == 0


def check_packets(nodes: Cluster) -> None:
    """Checks that the first pod reaches another one, and that the target sees its address."""
    first, second, _ = nodes.nodes
    for version in (4, 6):  # the first packet may find an old neighbour entry of the segment
        seen = [ask(first.pod, second.pod, second.pod_address(version)) for _ in range(2)]
        assert seen[-1] == first.pod_address(version)
