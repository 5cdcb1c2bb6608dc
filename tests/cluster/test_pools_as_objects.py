"""Pools as an IPSpace object: what `kubectl apply` writes is checked as the command's file is, and answered."""

from ipaddress import ip_network
from typing import Any

import pytest
import yaml

from agent.api_errors import Invalid
from agent.http_server import Refusal
from agent.pools import admin_changes
from agent.pools.acceptance import Acceptance
from agent.pools.block_protocol import BlockRecord, NodeRecord, SwapOutcome, Token
from agent.pools.cluster_view import digest_of_space
from agent.pools.kubernetes_store import KubernetesStore
from agent.pools.node_report import LocalReport
from agent.pools.reclaim import recover
from agent.pools.reports import PoolsDecided
from agent.pools.space import Space, parse_space
from agent.pools.store import BlockNote, NodeEntry, Stored
from tests.support import stores
from tests.support.admin_world import local_block
from tests.support.kubernetes_store import SPACES
from tests.support.manifests import DEPLOY

PATH = f"{SPACES}/default"
DEFAULT: dict[str, Any] = {"name": "default", "cidrs": ["10.22.0.0/24"]}
MORE = {"name": "more", "cidrs": ["10.23.0.0/24"]}
NODE = "a" * 32
BLOCK = ip_network("10.22.0.64/26")


class Cluster:
    """The pools of a server as the administrator, kubectl and an agent see them; `decisions` are the agent's."""

    def __init__(self, api: Any) -> None:
        self.admin = api.client("admin")
        self.store = KubernetesStore(api.client("agent"))
        self.report = LocalReport(NODE, "worker-1", machine="machine-1")
        self.decisions: list[PoolsDecided] = []
        self.log: list[str] = []
        put = self.decisions.append
        self.agent = Acceptance(self.store, lambda: self.report, lambda: 1, put, lambda _, text: self.log.append(text))

    def apply(self, *pools: Any, **more: Any) -> None:
        """Writes the spec, as `kubectl apply` does."""
        stores.apply_pools(self.admin, {"pools": list(pools), **more})

    def decide(self) -> tuple[str, str]:
        """Lets an agent decide; returns status and message of the condition."""
        self.agent.decide()
        document: Any = self.admin.get(PATH)
        (condition,) = document["status"]["conditions"]
        assert condition["observedGeneration"] == document["metadata"]["generation"]
        return condition["status"], condition["message"]

    def accept(self, *pools: Any) -> None:
        """Applies pools that an agent accepts."""
        self.apply(*pools)
        assert self.decide()[0] == "True"

    def pools(self) -> list[str]:
        """Returns the names of the pools in effect."""
        space = self.store.read_space().value
        return [pool.name for pool in space.pools] if space else []

    def set_pools(self, *pools: Any) -> admin_changes.Replacement:
        """Replaces the pools as `podwire ipam pools --set` does."""
        current = digest_of_space(self.store.read_space().value)
        document = {"pools": list(pools)}
        return admin_changes.replace_pools(self.store, self.report, document, current=current, dry_run=False)

    def claim(self) -> None:
        """Lets the node register and own a block."""
        space = self.store.read_space().value
        assert space
        entry = NodeEntry(NodeRecord("machine-1", "boot/uid", space.epoch), "worker-1")
        assert self.store.swap_entry(NODE, Stored(None), entry).outcome is SwapOutcome.SUCCEEDED
        self.set_owner(NODE)

    def set_owner(self, owner: str) -> None:
        """Gives the block to a node, or back."""
        before, space = self.store.read_block(BLOCK), self.store.read_space().value
        assert space
        block = BlockRecord(owner, Token(space.epoch, before.value.token.generation + bool(owner)))
        assert self.store.swap_block(BLOCK, before, block, BlockNote("default")).outcome is SwapOutcome.SUCCEEDED


@pytest.fixture
def cluster(pools):
    return Cluster(pools)


def test_applied_pools_are_in_effect(cluster):
    """An object without an epoch is all that people write; an agent puts its pools into effect, and says so once."""
    cluster.apply(DEFAULT, MORE)
    assert cluster.pools() == []
    assert cluster.decide() == ("True", "the pools are in effect")
    space = cluster.store.read_space().value
    assert space == parse_space({"pools": [DEFAULT, MORE], "epoch": space.epoch})
    assert space.epoch
    assert [(one.name, one.is_refused) for one in cluster.decisions] == [("default", False)]
    assert cluster.agent.decide()
    assert len(cluster.decisions) == 1
    spec: Any = cluster.admin.get(PATH)["spec"]
    assert spec == {"pools": [DEFAULT, MORE]}, "agents do not write what people have written"


def test_the_sample_is_accepted(cluster):
    """The pools of deploy/pools.yaml are valid for the API server and the agents."""
    sample = yaml.safe_load((DEPLOY / "pools.yaml").read_text())
    cluster.admin.create(SPACES, sample)
    assert cluster.decide()[0] == "True"
    assert cluster.pools() == ["default", "batch"]


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        ([{"name": "default", "cidrs": ["10.22.0.0/28"]}], "smaller than one block"),
        ([{"name": "default", "cidrs": ["10.22.0.0/33"]}], "does not appear to be an IPv4 or IPv6 network"),
        ([{"name": "default", "cidrs": ["10.22.0.0/16>", "\u00e9"]}], "does not appear to be an IPv4 or IPv6 network"),
        ([DEFAULT, {"name": "more", "cidrs": ["10.22.0.0/16"]}], "overlaps 10.22.0.0/24 of pool default"),
        ([{**DEFAULT, "exclude": ["10.22.0.0/28"]}], "unknown key 'exclude'"),
        ([{**DEFAULT, "namespaces": ["Team A"]}], "is not a valid name of a namespace"),
    ],
)
def test_the_same_pools_are_refused_in_both_ways(cluster, refused, text):
    """What the command refuses is refused in an object, with the same reason in its status and in an Event."""
    cluster.accept(DEFAULT)
    before = cluster.store.read_space().value
    cluster.apply(*refused)
    value, message = cluster.decide()
    assert (value, cluster.store.read_space().value) == ("False", before)
    assert text in message
    assert [one.is_refused for one in cluster.decisions] == [False, True]
    assert cluster.decisions[-1].text == message
    assert not cluster.agent.decide(), "it is checked again, and not reported again"
    assert len(cluster.decisions) == 2
    with pytest.raises(Refusal) as caught:
        cluster.set_pools(*refused)
    assert caught.value.msg.encode("ascii", "replace").decode()[:40] in message
    assert any(text in problem for problem in cluster.store.list_problems())


def test_another_key_beside_the_pools_is_refused(cluster):
    """A misspelt key beside the pools is not ignored."""
    cluster.apply(DEFAULT, draining=["10.22.0.0/24"])
    assert "unknown key 'draining'" in cluster.decide()[1]
    assert cluster.pools() == []
    assert "unknown key 'draining'" in cluster.store.read_space().problem


@pytest.mark.parametrize(
    "pool",
    [
        {"name": "Default", "cidrs": ["10.22.0.0/24"]},
        {"name": "default"},
        {"name": "default", "cidrs": []},
        {**DEFAULT, "mode": "bridged"},
        {**DEFAULT, "sticky": "yes"},
        {**DEFAULT, "blockPrefixLengths": {"ipv4": 8}},
    ],
)
def test_the_api_server_refuses_what_its_schema_can(cluster, request, pool):
    """The API server refuses wrong types, values and missing keys, so `kubectl apply` fails; agents refuse them."""
    if request.node.callspec.params["api"] == "real":
        with pytest.raises(Invalid):
            cluster.apply(pool)
        return
    cluster.apply(pool)
    assert cluster.decide()[0] == "False"


def test_a_cidr_that_a_node_uses_drains_first(cluster):
    """A pool of which a node has a block is kept until it has drained; then the waiting request comes into effect."""
    cluster.accept(DEFAULT)
    cluster.claim()
    cluster.apply(MORE)
    value, message = cluster.decide()
    assert (value, "loses block 10.22.0.64/26" in message) == ("False", True)
    cluster.apply({**DEFAULT, "draining": DEFAULT["cidrs"]}, MORE)
    assert cluster.decide()[0] == "True"
    cluster.apply(MORE)
    assert (cluster.decide()[0], cluster.pools()) == ("False", ["default", "more"])
    cluster.set_owner("")
    assert (cluster.decide()[0], cluster.pools()) == ("True", ["more"])


def test_the_command_writes_the_same_object(cluster):
    """`podwire ipam pools --set` creates and changes the object, spec and status, also over one that was applied."""
    cluster.set_pools(DEFAULT)
    assert cluster.decide() == ("True", "the pools are in effect")
    cluster.apply(DEFAULT, {**MORE, "draining": MORE["cidrs"]})
    cluster.decide()
    cluster.set_pools(DEFAULT)
    assert cluster.agent.decide(), "nothing is to decide"
    spec: Any = cluster.admin.get(PATH)["spec"]
    assert [pool["name"] for pool in spec["pools"]] == cluster.pools() == ["default"]
    cluster.apply({**DEFAULT, "exclude": []})
    cluster.decide()
    assert "unknown key" in cluster.set_pools(DEFAULT).problem
    assert cluster.decide()[0] == "True", "the command has replaced a spec that was refused"


def test_a_new_epoch_leaves_the_request(cluster):
    """After a restore `podwire ipam recover` begins an epoch; a spec that is refused stays, and stays refused."""
    cluster.accept(DEFAULT)
    cluster.apply({**DEFAULT, "exclude": []})
    cluster.decide()
    epoch = recover(cluster.store, [])
    document: Any = cluster.admin.get(PATH)
    assert document["spec"]["pools"] == [{**DEFAULT, "exclude": []}]
    assert (cluster.store.read_space().value.epoch, cluster.decide()[0]) == (epoch, "False")


def test_one_of_two_agents_decides(cluster):
    """Two agents that have read the same object do not both create a space: the second one's epoch is lost."""
    cluster.apply(DEFAULT)
    stored = cluster.store.read_space()
    pools = parse_space({"pools": [DEFAULT]}).pools
    assert cluster.store.swap_space(stored, Space("e1", pools)).outcome is SwapOutcome.SUCCEEDED
    assert cluster.store.swap_space(stored, Space("e2", pools)).outcome is SwapOutcome.LOST
    assert cluster.store.refuse_pools(stored, "Refused", "no").outcome is SwapOutcome.LOST
    assert cluster.store.read_space().value == Space("e1", pools)


def test_a_decision_about_an_older_spec_is_lost(cluster):
    """The spec that was changed while an agent checked it gets a decision of its own."""
    cluster.apply(DEFAULT)
    stored = cluster.store.read_space()
    cluster.apply(MORE)
    reply = cluster.store.swap_space(stored, parse_space({"pools": [DEFAULT], "epoch": "e1"}))
    assert reply.outcome is SwapOutcome.LOST
    assert cluster.pools() == []
    assert (cluster.decide()[0], cluster.pools()) == ("True", ["more"])


@pytest.mark.parametrize("api", ["double"], indirect=True)
def test_a_missing_right_to_the_status_is_logged(cluster, double):
    """An agent without the right to the status, as of older manifests, says so, and puts nothing into effect."""
    double.tokens["agent"] -= {"patch ipspaces/status"}
    cluster.apply(DEFAULT)
    assert not cluster.agent.decide()
    assert cluster.decisions == []
    assert 'cannot patch resource "ipspaces/status"' in cluster.log[0]
    assert cluster.pools() == []


def test_pools_are_not_applied_to_a_store_that_lost_its_content(cluster):
    """A node with blocks refuses a first space; a new node leaves that decision alone."""
    cluster.apply(DEFAULT)
    cluster.report = cluster.report._replace(blocks=(local_block(str(BLOCK)),))
    value, message = cluster.decide()
    assert (value, "the store has lost its content" in message) == ("False", True)
    cluster.report = cluster.report._replace(blocks=())
    assert not cluster.agent.decide()
    assert cluster.pools() == []


def test_a_deleted_object_begins_a_new_epoch(cluster):
    """After `kubectl delete` and `kubectl apply` of the object the epoch is another one, as after a restore."""
    cluster.accept(DEFAULT)
    epoch = cluster.store.read_space().value.epoch
    stores.delete(cluster.admin, PATH)
    assert cluster.store.read_space() == Stored(None)
    assert cluster.agent.decide(), "nothing is requested"
    cluster.accept(DEFAULT)
    assert cluster.store.read_space().value.epoch != epoch
