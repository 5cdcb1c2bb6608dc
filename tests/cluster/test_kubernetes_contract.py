"""What the agent relies on, with two servers: the double, and a real kube-apiserver with etcd.

One rule: a test is the same for both, so the double answers as Kubernetes does.
"""

import queue
from typing import Any

import pytest

from agent.api_answer import BOOKMARK
from agent.api_errors import Conflict, Expired, Forbidden, Invalid, NotFound
from agent.api_object import Document
from agent.events import EventRecorder
from agent.kubernetes import ApiClient, object_path
from agent.node import Node, parse_node
from agent.object_source import kubernetes_nodes
from agent.object_watch import Changed, Deleted, ObjectEvent, ObjectWatch, Synced
from tests.cluster.conftest import Api
from tests.support.kubernetes_double import BLOCKS, EVENTS, NODES
from tests.support.stores import delete, replace


def node(name: str, cidr: str = "10.0.1.0/24") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"podCIDR": cidr}}


def event(name: str) -> dict[str, Any]:
    involved = {"apiVersion": "v1", "kind": "Node", "name": "a"}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": involved, "message": "x"}


def metadata_of(document: Document) -> Any:
    return document["metadata"]


def version_of(document: Document) -> str:
    return str(metadata_of(document)["resourceVersion"])


@pytest.fixture
def admin(api: Api) -> ApiClient:
    """A client with all rights, and a server without nodes and events."""
    client = api.client("admin")
    for collection in (NODES, EVENTS):
        for name in client.list_objects(collection, lambda one: metadata_of(one)["name"]).items:
            delete(client, object_path(collection, str(name)))
    return client


def test_an_object_is_created_once(admin):
    """An object has a UID and a resourceVersion after its creation; a second creation is a conflict."""
    created = admin.create(NODES, node("a"))
    assert metadata_of(created)["uid"]
    assert version_of(created).isdecimal()
    assert admin.get(f"{NODES}/a") == created
    with pytest.raises(Conflict) as caught:
        admin.create(NODES, node("a", "10.0.2.0/24"))
    assert (caught.value.status, caught.value.reason) == (409, "AlreadyExists")
    assert admin.get(f"{NODES}/a") == created


def test_a_list_shows_one_moment(admin):
    """The pages of a list, and its resourceVersion, are those of its first page."""
    for name in "abcde":
        admin.create(NODES, node(name))
    page = admin.get(NODES, {"limit": "2"})
    moment = version_of(page)
    admin.create(NODES, node("z"))
    delete(admin, f"{NODES}/d")
    names = []
    while True:
        names += [metadata_of(one)["name"] for one in page["items"]]
        position = metadata_of(page).get("continue")
        if not position:
            break
        page = admin.get(NODES, {"limit": "2", "continue": position})
    assert names == ["a", "b", "c", "d", "e"]
    assert version_of(page) == moment
    assert [one.name for one in admin.list_objects(NODES, parse_node).items] == ["a", "b", "c", "e", "z"]


def test_pages_expire(api, admin):
    """The next page of a list that is older than the history is 410."""
    for name in "abc":
        admin.create(NODES, node(name))
    page = admin.get(NODES, {"limit": "1"})
    admin.create(NODES, node("d"))
    api.compact()
    with pytest.raises(Expired) as caught:
        admin.get(NODES, {"limit": "1", "continue": str(metadata_of(page)["continue"])})
    assert caught.value.status == 410
    assert [one.name for one in admin.list_objects(NODES, parse_node).items] == ["a", "b", "c", "d"]


def test_a_watch_continues_after_a_resource_version(admin):
    """A watch has each change after its resourceVersion, in order and once, with rising resourceVersions."""
    admin.create(NODES, node("before"))
    start = admin.list_objects(NODES, dict).resource_version
    first = admin.create(NODES, node("a"))
    second = replace(admin, f"{NODES}/a", {**first, "metadata": {**metadata_of(first), "labels": {"a": "b"}}})
    delete(admin, f"{NODES}/a")
    admin.create(NODES, node("end"))
    events = changes(admin, NODES, start, "end")
    assert [(kind, metadata_of(document)["name"]) for kind, document in events] == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
        ("ADDED", "end"),
    ]
    versions = [int(version_of(document)) for _, document in events]
    assert versions[:2] == [int(version_of(first)), int(version_of(second))]
    assert versions == sorted(set(versions))
    assert [kind for kind, _ in changes(admin, NODES, version_of(second), "end")] == ["DELETED", "ADDED"]


def changes(client: ApiClient, collection: str, version: str, last: str, **query: str) -> list[tuple[str, Document]]:
    """Returns the events of a watch up to the first one about an object, without bookmarks."""
    watch, events = client.watch(collection, version, query, timeout_s=100), []
    for one in watch:
        if one.type != BOOKMARK:
            events.append((one.type, one.document))
            if metadata_of(one.document)["name"] == last:
                break
    watch.close()
    return events


def test_a_watch_of_one_node(admin):
    """A field selector restricts lists and watches to one Node."""
    admin.create(NODES, node("a"))
    admin.create(NODES, node("b", "10.0.2.0/24"))
    query = {"fieldSelector": "metadata.name=b"}
    listing = admin.list_objects(NODES, parse_node, query)
    assert [one.name for one in listing.items] == ["b"]
    delete(admin, f"{NODES}/a")
    delete(admin, f"{NODES}/b")
    events = changes(admin, NODES, listing.resource_version, "b", **query)
    assert [(kind, metadata_of(document)["name"]) for kind, document in events] == [("DELETED", "b")]


def test_bookmarks(admin):
    """A watch of one Node gets a bookmark after the changes of other Nodes, so that it need not read them again."""
    admin.create(NODES, node("a"))
    admin.create(NODES, node("b", "10.0.2.0/24"))
    query = {"fieldSelector": "metadata.name=b"}
    start = admin.list_objects(NODES, parse_node, query).resource_version
    watch = admin.watch(NODES, start, query, timeout_s=6)
    delete(admin, f"{NODES}/a")
    events = list(watch)
    assert {one.type for one in events} == {BOOKMARK}
    assert int(events[-1].resource_version) > int(start)


def test_a_pod_cidr_is_final(admin):
    """A Node's podCIDR cannot be changed: only a new Node of the same name has another one."""
    created = admin.create(NODES, node("a"))
    with pytest.raises(Invalid):
        replace(admin, f"{NODES}/a", {**created, "spec": {"podCIDR": "10.0.2.0/24", "podCIDRs": ["10.0.2.0/24"]}})
    assert [str(cidr) for cidr in parse_node(admin.get(f"{NODES}/a")).pod_cidrs] == ["10.0.1.0/24"]


def test_an_unknown_path(admin):
    """A kind that the server does not have is not found, and the error names no object."""
    with pytest.raises(NotFound) as caught:
        admin.get("/apis/podwire.example/v1/nothings/x")
    assert caught.value.name == ""


def test_events_of_the_agent(api, admin):
    """The agent's Event is valid, and an agent that starts again does not create it twice."""
    node_uid = str(metadata_of(admin.create(NODES, node("a")))["uid"])
    log: list[str] = []
    for _ in range(2):
        recorder = EventRecorder(api.client("agent"), "a", log.append)
        recorder.node_uid = node_uid
        recorder.report("DuplicatePodCIDR", "10.0.1.0/24 belongs to a and b")
        recorder.send_queued()
    events = admin.list_objects(EVENTS, dict).items
    assert [one["involvedObject"]["uid"] for one in events if one["reason"] == "DuplicatePodCIDR"] == [node_uid]
    assert log == []


def test_nodes_are_followed(api, admin):
    """A list and a watch report a Node, its deletion, and a Node of the same name with another podCIDR."""
    admin.create(NODES, node("a"))
    events: queue.Queue[ObjectEvent[Node]] = queue.Queue()
    watch = ObjectWatch(kubernetes_nodes(api.client("agent")), events.put)
    watch.start()
    first = events.get(timeout=60)
    assert isinstance(first, Synced)
    assert list(first.items) == ["a"]
    delete(admin, f"{NODES}/a")
    assert events.get(timeout=60) == Deleted("a")
    created = admin.create(NODES, node("a", "10.0.2.0/24"))
    assert events.get(timeout=60) == Changed(parse_node(created))
    watch.stop()


def test_rights(api, admin):
    """The agent reads nodes and creates events, and nothing else; without rights nothing works."""
    admin.create(NODES, node("a"))
    agent = api.client("agent")
    listing = agent.list_objects(NODES, parse_node)
    assert [one.name for one in listing.items] == ["a"]
    agent.watch(NODES, listing.resource_version, None, timeout_s=1).close()
    created = agent.create(EVENTS, event("x"))
    document = agent.get(f"{NODES}/a")
    for attempt in (
        lambda: replace(agent, f"{NODES}/a", document),
        lambda: delete(agent, f"{NODES}/a"),
        lambda: agent.create(NODES, node("b")),
        lambda: agent.get(f"{EVENTS}/x"),
        lambda: replace(agent, f"{EVENTS}/x", created),
        lambda: agent.create(BLOCKS, {"metadata": {"name": "a"}}),
        lambda: api.client("stranger").get(NODES),
        lambda: api.client("stranger").watch(NODES, listing.resource_version, None, timeout_s=1),
    ):
        with pytest.raises(Forbidden) as caught:
            attempt()
        assert caught.value.reason == "Forbidden"
