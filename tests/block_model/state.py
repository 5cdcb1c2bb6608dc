"""The state of the modelled cluster, as values that can be compared and hashed.

A block has one address. Nodes, machines, instances, blocks and epochs are numbered; the numbers of the first four are
positions, so machine 1 has `machines[1]`.
"""

from typing import NamedTuple, TypeVar

from agent.pools.block_protocol import FREE, AgentState, BlockRecord, BlockSwap, NodeRecord, NodeSwap, Proof, Token

T = TypeVar("T")


class Slot(NamedTuple):
    """A block on a machine: `claimed` is the token that the agent's memory holds after a claim.

    `grant` is the entry of the grants file, `attached` whether an attachment has the address.
    """

    claimed: Token | None = None
    grant: Token | None = None
    attached: bool = False


class Machine(NamedTuple):
    """A machine: its instance, and the agent's memory and file. A machine that is off has nothing."""

    is_on: bool
    instance: str
    epoch: str
    may_claim: bool
    slots: tuple[Slot, ...]


class Store(NamedTuple):
    """The content of the store."""

    epoch: str
    blocks: tuple[BlockRecord, ...]
    records: tuple[NodeRecord | None, ...]


class Late(NamedTuple):
    """A request that the store may still execute, at any time and more than once."""

    position: int  # of the block, or of the record
    swap: BlockSwap | NodeSwap


class State(NamedTuple):
    """A state of the whole cluster. `epochs` is the number of the last epoch, which a restore does not forget."""

    store: Store
    backup: Store | None
    machines: tuple[Machine, ...]
    late: frozenset[Late]
    proofs: frozenset[Proof]
    restores: int  # that may still happen
    raises: int  # of the epoch, without a restore, that may still happen
    epochs: int


class Model(NamedTuple):
    """The size of the model, and the faults that it has.

    `late` is the number of requests that may be late at a time. `generations` limits the distance between generations
    of a block: states beyond are not continued. `nodes` are the node IDs of the machines; equal ones are a copied disk.
    Without `attachments` a granted block stands for one in use, which allows more: a grant can be revoked at any time.
    """

    machines: int
    blocks: int
    restores: int = 0
    raises: int = 0
    late: int = 1
    attachments: bool = True
    renames: bool = False
    generations: int = 9
    nodes: tuple[int, ...] = ()
    keeps_proofs: bool = False

    def node_of(self, position: int) -> str:
        """Returns the node ID of a machine."""
        return str(self.nodes[position] if self.nodes else position)

    def agent_of(self, machine: Machine, position: int) -> AgentState:
        """Returns the agent of a machine, as the protocol's functions see it."""
        return AgentState(self.node_of(position), str(position), machine.instance, machine.epoch, machine.may_claim)

    @property
    def first(self) -> State:
        """The first state: all machines are on, and the store is empty."""
        machine = Machine(True, "1", "", False, (Slot(),) * self.blocks)
        store = Store("1", (FREE,) * self.blocks, (None,) * self.machines)
        machines = (machine,) * self.machines
        return State(store, None, machines, frozenset(), frozenset(), self.restores, self.raises, 1)


def replaced(values: tuple[T, ...], position: int, value: T) -> tuple[T, ...]:
    """Returns a tuple with another value at a position."""
    return (*values[:position], value, *values[position + 1 :])
