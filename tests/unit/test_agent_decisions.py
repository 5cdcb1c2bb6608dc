"""The decisions of the agent (agent.agent) about lists and changes of Nodes; routes are recorded."""

from ipaddress import ip_address
from typing import Any
from unittest.mock import Mock

import pytest

from agent.agent import Agent, Parts
from agent.events import Subject
from agent.log import Log
from agent.metrics import Metrics
from agent.node import Node, parse_node
from agent.object_watch import Changed, Deleted, Synced
from agent.pools.reports import PoolsDecided
from agent.route_report import Counters
from agent.settings import parse
from cni.errors import CniError, Code
from process.loop import Loop


def node(number: int) -> Node:
    metadata = {"name": f"node-{number}", "uid": str(number)}
    return parse_node({"metadata": metadata, "spec": {"podCIDR": f"10.244.{number}.0/24"}})


def synced(*numbers: int, is_older: bool = False) -> Synced[Node]:
    return Synced({f"node-{number}": node(number) for number in numbers}, is_older)


class RecordedRoutes(Mock):
    """Routes that store the peers."""

    peers: dict[str, Node] | None = None
    counters = Counters(0, 1, 0)
    failure: CniError | None = None
    problems: tuple[str, ...] = ()
    has_refusals = False
    note = ""

    def set_node(self, node: Node, conflicting: object) -> None:
        if self.failure:
            raise self.failure

    def replace_peers(self, peers: dict[str, Node], conflicting: object) -> None:
        self.peers = dict(peers)

    def update_peer(self, node: Node, conflicting: object) -> None:
        if self.failure:
            raise self.failure
        assert self.peers is not None
        self.peers[node.name] = node

    def remove_peer(self, name: str, conflicting: object) -> None:
        assert self.peers is not None
        self.peers.pop(name, None)

    def has_route(self, network: object) -> bool:
        return True

    def is_behind_tunnel(self, node: Node) -> bool:
        return False

    @property
    def numbers(self) -> list[int] | None:
        """The numbers of the nodes that have routes, None while nothing was changed."""
        return None if self.peers is None else sorted(int(name.removeprefix("node-")) for name in self.peers)


class RecordedLoop(Loop):
    """A loop that counts the calls it was asked to make later."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[Any] = []

    def call_at(self, when: float, callback: Any) -> Any:
        self.later.append(callback)

    def run_later(self) -> None:
        """Makes the calls."""
        calls, self.later = self.later, []
        for call in calls:
            call()


class Setup:
    """An agent of node-1 beside recorded parts."""

    def __init__(self) -> None:
        settings = parse(["--node-name=node-1", "--no-install"], {})
        self.routes, self.loop = RecordedRoutes(), RecordedLoop()
        self.masquerade, self.events = Mock(), Mock()
        self.masquerade.set_networks.return_value = self.masquerade.change_networks.return_value = 0
        parts: Any = (Log("warning", "1", "node-1"), Metrics("1"), self.routes, self.masquerade, self.events)
        self.agent = Agent(settings, self.loop, Parts(*parts))


@pytest.fixture
def setup() -> Setup:
    return Setup()


def test_a_node_that_is_created_after_the_list_gets_routes_to_all(setup):
    """If the first list lacks this node, the routes are made when its object exists, to all nodes of the list."""
    setup.agent.handle(synced(2, 3))
    assert setup.routes.numbers is None
    setup.agent.handle(Changed(node(1)))
    assert setup.routes.numbers == [2, 3]


def test_a_list_without_this_node_removes_no_routes(setup):
    """A list without this node changes nothing, also when its object is created again; new nodes get routes then."""
    setup.agent.handle(synced(1, 2, 3))
    setup.agent.handle(synced(3, 4))
    assert setup.routes.numbers == [2, 3]
    setup.agent.handle(Changed(node(1)))
    assert setup.routes.numbers == [2, 3, 4]
    setup.agent.handle(synced(1, 3, 4))
    assert setup.routes.numbers == [3, 4]


def test_nodes_that_a_restored_backup_lacks_stay_in_later_lists(setup):
    """The routes to nodes that a restored backup lacks outlast later lists, and end when such a node is deleted."""
    setup.agent.handle(synced(1, 2, 3, 4))
    setup.agent.handle(synced(1, 2, is_older=True))
    assert setup.routes.numbers == [2, 3, 4]
    setup.agent.handle(synced(1, 2))
    assert setup.routes.numbers == [2, 3, 4]
    setup.agent.handle(Changed(node(3)))
    setup.agent.handle(Deleted("node-3"))
    setup.agent.handle(synced(1, 2))
    assert setup.routes.numbers == [2, 4]


def test_a_backup_without_this_node_removes_no_routes_later(setup):
    """A restored backup that lacks this node too keeps the others' routes when this node is registered again."""
    setup.agent.handle(synced(1, 2, 3))
    setup.agent.handle(synced(2, is_older=True))
    setup.agent.handle(Changed(node(1)))
    setup.agent.handle(synced(1, 2))
    assert setup.routes.numbers == [2, 3]


def test_a_node_that_is_deleted_before_this_one_has_a_podcidr(setup):
    """While this node has no podCIDR, a deleted node changes nothing; the routes follow when the podCIDR is there."""
    without = node(1)._replace(pod_cidrs=())
    setup.agent.handle(Synced({**synced(2, 3).items, "node-1": without}))
    setup.agent.handle(Deleted("node-3"))
    assert setup.routes.numbers is None
    setup.agent.handle(Changed(node(1)))
    assert setup.routes.numbers == [2]


def test_an_address_of_two_nodes_is_a_note_on_readyz(setup, capsys):
    """While two nodes have one InternalIP, both have routes, this node is ready, /readyz and the log name them."""
    address = (ip_address("192.0.2.9"),)
    setup.agent.handle(Synced({**synced(1, 2).items, "node-2": node(2)._replace(addresses=address)}))
    setup.agent.handle(Changed(node(3)._replace(addresses=address)))
    assert setup.routes.numbers == [2, 3]
    setup.loop.run_later()
    page = setup.agent.status.pages()["/readyz"]()
    text = "nodes node-2, node-3 have the same InternalIP 192.0.2.9"
    assert page.status == 200
    assert f"[+]routes ok\n   note: {text}" in page.body.decode()
    setup.agent.handle(Changed(node(4)))
    setup.loop.run_later()
    assert capsys.readouterr().err.count(text) == 1
    setup.agent.handle(Deleted("node-2"))
    setup.loop.run_later()
    assert b"note" not in setup.agent.status.pages()["/readyz"]().body


@pytest.mark.parametrize(("is_refused", "reason"), [(True, "PoolsRefused"), (False, "PoolsAccepted")])
def test_a_decision_about_pools_is_an_event_about_their_object(setup, is_refused, reason):
    """`kubectl describe ipspace` finds Events by name and UID; that of refused pools is a warning."""
    setup.agent.handle_pools(PoolsDecided("default", "77ab", "the reason", is_refused))
    about = Subject("podwire.io/v1", "IPSpace", name="default", uid="77ab")
    setup.events.report.assert_called_once_with(reason, "the reason", is_warning=is_refused, about=about)


def test_repeated_failures_are_retried_once(setup):
    """Failures of many changes schedule one retry, not one each."""
    setup.agent.handle(synced(1, 2))
    setup.loop.run_later()
    setup.loop.later.clear()
    setup.routes.failure = CniError(Code.IO_FAILURE, "no buffer space")
    for function in (setup.masquerade.set_networks, setup.masquerade.change_networks):
        function.side_effect = setup.routes.failure
    for number in range(3, 20):
        setup.agent.handle(Changed(node(number)))
    assert len(setup.loop.later) == 3  # the report, the routes of all nodes, the masquerade set
    retry = setup.loop.later[1]
    retry()
    setup.routes.failure = None
    for function in (setup.masquerade.set_networks, setup.masquerade.change_networks):
        function.side_effect = None
    retry()
    assert setup.routes.numbers == list(range(2, 20))
