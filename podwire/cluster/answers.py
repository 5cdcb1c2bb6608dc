"""The agent's answers as typed values; `document` is the JSON document itself, for --json.

One rule: an answer about pools is parsed only here. A missing key, as in the answer of an older agent, has a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network

from cni.address import Address, Network
from cni.errors import CniError, Code
from cni.fields import Fields
from podwire.cluster import agent_socket

Document = Mapping[str, object]


@dataclass(frozen=True)
class LocalBlock:
    """A block in the grants file of a network of this node."""

    network: str
    block: Network
    pool: str
    state: str
    used: int
    size: int


@dataclass(frozen=True)
class LocalReport:
    """The report of this node: ID, name, the pool of each network, blocks.

    `contact_s` is how long ago the store answered the agent, None if it never did.
    """

    node: str
    name: str
    machine: str
    networks: tuple[tuple[str, str], ...]
    blocks: tuple[LocalBlock, ...]
    contact_s: int | None
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Version:
    """The numbers of a pool's blocks and addresses of one IP version."""

    version: int
    prefix_length: int
    total: int
    claimed: int
    draining: int
    addresses: int


@dataclass(frozen=True)
class ClusterPool:
    """A pool with its numbers."""

    name: str
    mode: str
    cidrs: tuple[Network, ...]
    namespaces: tuple[str, ...]
    versions: tuple[Version, ...]

    def block_of(self, address: Address) -> Network | None:
        """Returns the block of an address; None if the address is not of this pool."""
        if not any(address in cidr for cidr in self.cidrs):
            return None
        lengths = {version.version: version.prefix_length for version in self.versions}
        return ip_network((int(address), lengths[address.version]), strict=False)


@dataclass(frozen=True)
class NodeEntry:
    """An entry of a node. `record_digest` changes with the node's record and with the epoch."""

    id: str
    name: str
    state: str
    machine: str
    instance: str
    epoch: str
    record_digest: str
    problem: str


@dataclass(frozen=True)
class ClaimedBlock:
    """A claimed block. `owner_record_digest` is that of its owner's entry, also if there is none."""

    block: Network
    pool: str
    owner: str
    owner_name: str
    owner_record_digest: str
    epoch: str
    generation: int
    since: str
    draining: bool
    problem: str


@dataclass(frozen=True)
class ClusterFault:
    """A fault."""

    kind: str
    subject: str
    text: str
    fix: str

    def to_json(self) -> Document:
        """Returns this object's part of the JSON document."""
        return {"kind": self.kind, "object": self.subject, "what": self.text, "fix": self.fix}


@dataclass(frozen=True)
class StoreContent:
    """The content of the store."""

    has_space: bool
    epoch: str
    pools: tuple[ClusterPool, ...]
    nodes: tuple[NodeEntry, ...]
    blocks: tuple[ClaimedBlock, ...]
    findings: tuple[ClusterFault, ...]
    document: Document

    def nodes_named(self, name: str) -> list[tuple[str, str]]:
        """Returns ID and name of each node whose name or ID is `name`, also of owners of blocks that have no entry."""
        known = {node.id: node.name for node in self.nodes}
        known |= {block.owner: "" for block in self.blocks if block.owner not in known}
        return [(node, label) for node, label in known.items() if name in (node, label)]

    def node(self, node: str) -> NodeEntry | None:
        """Returns the entry of a node by its ID."""
        return next((item for item in self.nodes if item.id == node), None)


def find_node(cluster: StoreContent, name: str) -> tuple[str, str]:
    """Returns ID and name of a node; raises CniError(3) if no node or several nodes have the name."""
    nodes = cluster.nodes_named(name)
    if len(nodes) > 1:
        ids = " or ".join(node for node, _ in nodes)
        raise CniError(Code.UNKNOWN_CONTAINER, f"{len(nodes)} nodes have the name {name}", f"use the ID: {ids}")
    if not nodes:
        msg = f"the store has no node {name}"
        raise CniError(Code.UNKNOWN_CONTAINER, msg, "podwire ipam blocks --json lists all nodes, by name and ID")
    return nodes[0]


def read_local_report(socket: str) -> LocalReport:
    """Requests the report of this node and of the space; raises CniError."""
    document = agent_socket.get(socket, "/pools")
    fields = Fields(document, context=f"the answer of podwire-agent at {socket}")
    node = fields.section("node")
    return LocalReport(
        node=node.string("id"),
        name=node.string("name"),
        machine=node.string("machine"),
        networks=tuple((item.string("network"), item.string("pool")) for item in node.objects("networks")),
        blocks=tuple(map(_local_block, node.objects("blocks"))),
        contact_s=node.integer("contactSeconds"),
        problems=node.strings("problems"),
    )


def read_cluster(socket: str) -> StoreContent:
    """Requests all blocks and entries; raises CniError, and StoreError if the store does not answer."""
    document = agent_socket.get(socket, "/pools/cluster")
    fields = Fields(document, context=f"the answer of podwire-agent at {socket}")
    return StoreContent(
        has_space=fields.has("space"),
        epoch=fields.section("space").string("epoch"),
        pools=tuple(map(_pool, fields.objects("pools"))),
        nodes=tuple(map(_node, fields.objects("nodes"))),
        blocks=tuple(map(_block, fields.objects("blocks"))),
        findings=tuple(map(_finding, fields.objects("findings"))),
        document=document,
    )


def _local_block(fields: Fields) -> LocalBlock:
    return LocalBlock(
        network=fields.string("network"),
        block=_network(fields, "block"),
        pool=fields.string("pool"),
        state=fields.string("state"),
        used=fields.integer("used") or 0,
        size=fields.integer("size") or 0,
    )


def _pool(fields: Fields) -> ClusterPool:
    return ClusterPool(
        name=fields.string("name"),
        mode=fields.string("mode"),
        cidrs=tuple(map(ip_network, fields.strings("cidrs"))),
        namespaces=fields.strings("namespaces"),
        versions=tuple(map(_version, fields.objects("versions"))),
    )


def _version(fields: Fields) -> Version:
    keys = ("version", "blockPrefixLength", "total", "claimed", "draining", "addresses")
    return Version(*(fields.integer(key) or 0 for key in keys))


def _node(fields: Fields) -> NodeEntry:
    return NodeEntry(
        id=fields.string("id"),
        name=fields.string("name"),
        state=fields.string("state"),
        machine=fields.string("machine"),
        instance=fields.string("instance"),
        epoch=fields.string("epoch"),
        record_digest=fields.string("record"),
        problem=fields.string("problem"),
    )


def _block(fields: Fields) -> ClaimedBlock:
    return ClaimedBlock(
        block=_network(fields, "block"),
        pool=fields.string("pool"),
        owner=fields.string("owner"),
        owner_name=fields.string("ownerName"),
        owner_record_digest=fields.string("ownerRecord"),
        epoch=fields.string("epoch"),
        generation=fields.integer("generation") or 0,
        since=fields.string("since"),
        draining=fields.boolean("draining"),
        problem=fields.string("problem"),
    )


def _finding(fields: Fields) -> ClusterFault:
    return ClusterFault(fields.string("kind"), fields.string("object"), fields.string("what"), fields.string("fix"))


def _network(fields: Fields, key: str) -> Network:
    try:
        network: Network = ip_network(fields.string(key))
    except ValueError as error:
        raise fields.error(key, str(error)) from None
    return network
