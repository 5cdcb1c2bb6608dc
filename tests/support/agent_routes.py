"""The agent's routes on the nodes of tests.support.cluster, and the state of a node that they change."""

import json
from typing import Any

from agent.route_plan import RouteOptions
from agent.routes import Routes
from tests.support.cluster import Cluster, ask
from tests.support.namespaces import Namespace

DEVICE = "podwire-vxlan"


def started(nodes: Cluster, options: RouteOptions | None = None) -> Routes:
    """Returns the routes of the first node, synchronized once."""
    node = nodes.nodes[0]
    routes = node.routes(options or RouteOptions())
    routes.set_node(node.node())
    routes.replace_peers(nodes.peers())
    return routes


def assert_reached(nodes: Cluster, *versions: int) -> None:
    """Asserts that the pods of the first two nodes, and the nodes themselves, reach each other's pods."""
    first, second = nodes.nodes[:2]
    for version in versions or (4, 6):
        for source, target in ((first, second), (second, first)):
            address = target.pod_address(version)
            assert ask(source.pod, target.pod, address) == source.pod_address(version), (source.name, version)
            assert ask(source.host, target.pod, address), (source.name, version)


def state(host: Namespace) -> dict[str, Any]:
    """Returns everything that the agent may change on a node; link-local networks come and go with their links."""
    routes = json.loads(host.ip("-j", "-4", "route")) + json.loads(host.ip("-j", "-6", "route"))
    routes = [each for each in routes if each["dst"] != "fe80::/64"]
    return {
        "routes": sorted(json.dumps(each, sort_keys=True) for each in routes),
        "links": [(each["ifname"], each["mtu"], each["address"]) for each in json.loads(host.ip("-j", "link"))],
        "neighbours": sorted(line for line in host.ip("neigh").splitlines() if "PERMANENT" in line),
        "forwarding": sorted(line for line in host.run("bridge", "fdb").splitlines() if " dst " in line),
        "addresses": host.ip("-o", "address", "show", "scope", "global"),
    }


def route_to(host: Namespace, network: str) -> list[dict[str, Any]]:
    """Returns the agent's routes to a network."""
    version = "-6" if ":" in network else "-4"
    shown: list[dict[str, Any]] = json.loads(host.ip("-j", version, "route", "show", network, "proto", "112"))
    return shown


def strip_indexes(shown: dict[str, Any]) -> dict[str, Any]:
    """Returns a state without the ifindexes in its addresses."""
    lines = sorted(line.partition(": ")[2] for line in shown["addresses"].splitlines())
    return {**shown, "addresses": lines}
