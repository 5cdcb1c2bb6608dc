"""A report of this node's blocks for the operator's tool.

One rule: it is read from the grants files and the reservations, so it needs neither the store nor the manager's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agent.pools.block_protocol import Token
from agent.pools.grants_file import GRANT_STATES, BlockState
from agent.pools.identity import NodeIdentity
from agent.pools.network_blocks import NetworkBlocks, NetworkOptions, list_networks
from cni.address import Network

_IN_USE = {state.value for state in (*GRANT_STATES, BlockState.LOST)}


class ManagerStatus(NamedTuple):
    """The status of the manager; LocalReport explains the fields."""

    contact_s: float | None = None
    problems: tuple[str, ...] = ()
    is_restored: bool = False


class LocalBlock(NamedTuple):
    """A block in a network's grants file. `used`: addresses that pods have. `size`: addresses that pods may get."""

    network: str
    block: Network
    pool: str
    state: str
    token: Token
    used: int
    size: int


class LocalReport(NamedTuple):
    """The state of this node: its ID and name, the pool of each network, the blocks, and its machine and boot.

    `contact_s` is how long ago the store answered, None if it never did. `problems` keep the agent from claiming
    blocks. `is_restored`: the agent has noticed a restore, and claims nothing before `recover`.
    """

    node: str
    name: str
    networks: tuple[tuple[str, str], ...] = ()
    blocks: tuple[LocalBlock, ...] = ()
    contact_s: float | None = None
    problems: tuple[str, ...] = ()
    is_restored: bool = False
    machine: str = ""
    boot: str = ""

    @property
    def has_grants(self) -> bool:
        """Whether plugins may allocate addresses on this node, or pods may have some."""
        return any(block.state in _IN_USE for block in self.blocks)


def read_report(
    identity: NodeIdentity, name: str, networks: Iterable[NetworkOptions], status: ManagerStatus
) -> LocalReport:
    """Returns the report of this node, from its files and the status of the manager."""
    options = list_networks(tuple(networks))
    return LocalReport(
        node=identity.node,
        name=name,
        networks=tuple((network.name, network.pool) for network in options),
        blocks=tuple(block for network in options for block in _read_blocks(network, identity)),
        contact_s=status.contact_s,
        problems=status.problems,
        is_restored=status.is_restored,
        machine=identity.machine,
        boot=identity.boot,
    )


def _read_blocks(options: NetworkOptions, identity: NodeIdentity) -> Iterator[LocalBlock]:
    network = NetworkBlocks(options, identity)
    used = network.count_used()
    for entry in network.grants.entries:
        count = min(used[entry.block], entry.size) if entry.state is BlockState.GRANTED else used[entry.block]
        yield LocalBlock(network.name, entry.block, entry.pool, entry.state.value, entry.token, count, entry.size)


def format_report(report: LocalReport) -> dict[str, object]:
    """Returns the report as a JSON object."""
    return {
        "id": report.node,
        "name": report.name,
        "machine": report.machine,
        "networks": [{"network": network, "pool": pool} for network, pool in report.networks],
        "blocks": list(_format_blocks(report.blocks)),
        "contactSeconds": None if report.contact_s is None else int(report.contact_s),
        "problems": list(report.problems),
        "isRestored": report.is_restored,
    }


def _format_blocks(blocks: Iterable[LocalBlock]) -> Iterable[dict[str, object]]:
    for block in blocks:
        yield {
            "network": block.network,
            "block": str(block.block),
            "pool": block.pool,
            "state": block.state,
            "epoch": block.token.epoch,
            "generation": block.token.generation,
            "used": block.used,
            "size": block.size,
        }
