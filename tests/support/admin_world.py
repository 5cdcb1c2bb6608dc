"""A space with nodes and blocks in a double of the store, and this node's report, for tests of the operator's side."""

from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from agent.pools.admin import Admin
from agent.pools.block_protocol import BlockRecord, NodeRecord, SwapOutcome, Token
from agent.pools.node_report import LocalBlock, LocalReport
from agent.pools.space import parse_space
from agent.pools.store import BlockNote, NodeEntry
from tests.support.store_double import StoreDouble

EPOCH = "e1"
DEFAULT = {"name": "default", "cidrs": ["10.22.0.0/24"]}  # four blocks of /26
ONE, TWO, THREE = (digit * 32 for digit in "123")  # node IDs
NAMES = {ONE: "worker-1", TWO: "worker-2", THREE: "worker-3"}
SINCE = "2026-11-25T12:00:00Z"


@dataclass
class World:
    """A store, and the agent of node ONE, which reports `report`."""

    store: StoreDouble = field(default_factory=StoreDouble)
    report: LocalReport = field(
        default_factory=lambda: LocalReport(ONE, NAMES[ONE], contact_s=3.0, machine="machine-1")
    )

    def __post_init__(self) -> None:
        self.admin = Admin(self.store, lambda: self.report)

    def set_space(self, *pools: dict[str, object], epoch: str = EPOCH) -> None:
        """Writes the space as it is, without the checks of a change."""
        space = parse_space({"epoch": epoch, "pools": list(pools or (DEFAULT,))})
        assert self.store.swap_space(self.store.read_space(), space).outcome is SwapOutcome.SUCCEEDED

    def add_node(self, node: str, *networks: str, epoch: str = EPOCH, fenced: bool = False, name: str = "") -> None:
        """Writes the entry of a node, which lists routed blocks."""
        record = NodeRecord(f"machine-{node[0]}", f"boot-{node[0]}/", epoch, fenced)
        addresses = (ip_address(f"192.0.2.{node[0]}"),)
        entry = NodeEntry(record, name or NAMES[node], addresses, tuple(map(ip_network, networks)))
        assert self.store.swap_entry(node, self.store.read_entry(node), entry).outcome is SwapOutcome.SUCCEEDED

    def claim(self, node: str, *blocks: str, epoch: str = EPOCH, pool: str = "default") -> None:
        """Lets a node own blocks."""
        for text in blocks:
            network = ip_network(text)
            before = self.store.read_block(network)
            new = BlockRecord(node, Token(epoch, before.value.token.generation + 1))
            note = BlockNote(pool, NAMES.get(node, ""), SINCE)
            assert self.store.swap_block(network, before, new, note).outcome is SwapOutcome.SUCCEEDED

    def grant(self, *blocks: LocalBlock, network: str = "podnet") -> None:
        """Lets this node's report have blocks of a network."""
        self.report = self.report._replace(networks=((network, "default"),), blocks=blocks)

    def owners(self) -> dict[str, str]:
        """Returns the owner of each block, "" for a free one."""
        return {str(network): stored.value.owner for network, stored in self.store.list_blocks().items()}


def local_block(block: str, state: str = "granted", used: int = 0, network: str = "podnet") -> LocalBlock:
    """Returns a block of this node's report, with 61 addresses."""
    return LocalBlock(network, ip_network(block), "default", state, Token(EPOCH, 1), used, 61)


def healthy() -> World:
    """Returns a world without faults: two nodes, of which each has a block."""
    world = World()
    world.set_space()
    for node, block in ((ONE, "10.22.0.0/26"), (TWO, "10.22.0.64/26")):
        world.add_node(node, block)
        world.claim(node, block)
    world.grant(local_block("10.22.0.0/26", used=2))
    return world
