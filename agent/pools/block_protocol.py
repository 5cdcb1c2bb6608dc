"""The protocol by which agents share the blocks of a pool: every decision, as values in and values out.

A pool's addresses are divided into blocks. The store has an object for each block (its owner), one for each node, and
the epoch. An agent claims a block, then *grants* it: it writes the block's token into this machine's grants file, and
only then may plugins allocate addresses of the block. This module does no I/O and reads no clock and no random number.
tests/block_model/ runs these functions in every order of events.

The guarantee: no block is granted on two machines at the same time, so no address is used twice. It holds whatever
stops, is cut off, is late or is restored, as long as

- the store's compare-and-swap is atomic and compares the value. Revisions are not enough: a restored store counts again
  from the backup's revision, and a late request could meet its expected revision with another value.
- an administrator states that a machine is off (Evidence) only while it is off, and after its record was read.
- no agent reaches a restored store before `recover` is done: an agent cannot detect every restore.
- two machines that run at the same time do not have the same node ID and the same `machine`.

A block's states, in order: free, claimed (it has an owner), granted (also in the owner's file), claimed, free.

| object | written by |
|---|---|
| a free block | any agent that may claim: `claim` |
| a claimed block | its owner: `claim`, `give_back`; an agent with a grant of an old epoch: `reassert`; any: `reclaim` |
| a node's record | its agent: `register`; any other agent with a proof of death: `fence`; after a restore: `recover` |
| the epoch | `recover` |
| the grants file | this machine's agent, one process, holding the lock that plugins hold when they allocate |

Four rules carry the proof:

1. A block is granted only after a compare-and-swap of this process that is known to have succeeded. It sets a new
   generation, so all earlier requests for the block that arrive later fail. A return is `revoke`, then `give_back`;
   to grant a revoked block again, the agent claims it again.
2. Without an answer, nothing is known about a request. The agent forgets the request and reads again.
3. A boot ends all grants. So a machine that was declared dead has none when it starts, even without a connection.
   It registers by compare-and-swap on its record before it claims. `fence` changes the same record, so one of the two
   requests fails.
4. A restore begins a new epoch. An agent registers in it after it has reasserted each of its grants. It claims when
   every record, also that of a fenced node, is of this epoch, and grants when the epoch is still the same after that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from hashlib import sha256
from typing import NamedTuple


class Token(NamedTuple):
    """The right to use a block: the epoch and the generation that its owner's claim wrote into the store.

    Epochs are compared for equality only. Each is new, also after the same backup has been restored twice.
    """

    epoch: str
    generation: int


class BlockRecord(NamedTuple):
    """The protocol's part of a block's object, FREE if there is no object. Without an owner the block is free."""

    owner: str
    token: Token


class NodeRecord(NamedTuple):
    """The protocol's part of a node's object.

    `machine` identifies the hardware by a value that is not on the disk (such as the product UUID). `instance`
    is the boot ID, and the UID of the Node object if there is one. `epoch` is the last epoch in which this instance has
    reasserted its grants, or in which a fenced node was proved dead.
    """

    machine: str
    instance: str
    epoch: str
    is_fenced: bool = False


class AgentState(NamedTuple):
    """An agent's identity, and the epoch that it has read ("" before the first).

    `may_claim`: the agent may claim blocks and give them back. It has registered in this epoch, and after that it has
    read that all other nodes have: see `after_records`.
    """

    node: str
    machine: str
    instance: str
    epoch: str = ""
    may_claim: bool = False

    @property
    def record(self) -> NodeRecord:
        """The record of this instance in this epoch."""
        return NodeRecord(self.machine, self.instance, self.epoch)


class BlockSwap(NamedTuple):
    """A compare-and-swap of a block: the store sets `new` if the block is equal to `expected`."""

    expected: BlockRecord
    new: BlockRecord


class NodeSwap(NamedTuple):
    """A compare-and-swap of a node's record; None stands for a record that does not exist."""

    expected: NodeRecord | None
    new: NodeRecord


class SwapOutcome(Enum):
    """The outcome of a compare-and-swap. No answer, a time-out and an answer such as 503 are all UNKNOWN."""

    SUCCEEDED = "succeeded"
    LOST = "lost"  # certainly not executed; a lost block (`is_lost`) is another thing
    UNKNOWN = "unknown"


class Evidence(Enum):
    """A reason to believe that a machine is off. Only some are proofs: see `prove`."""

    POWERED_OFF = "the administrator states that the machine is off"
    OUT_OF_SERVICE = "the Node has the taint node.kubernetes.io/out-of-service"
    NODE_DELETED = "the Node object with the record's UID does not exist"
    NOT_READY = "the Node is not ready"
    SILENT = "the agent has not renewed a lease"


class Proof(NamedTuple):
    """A proof of death, for the record that was read before the evidence, in the epoch that was read before it."""

    node: str
    record: NodeRecord
    epoch: str


FREE = BlockRecord("", Token("", 0))
# The record of a node that joined after the backup: any machine may register over it. Until then no agent may claim.
MISSING = NodeRecord("", "", "")


def grants_of_boot(boot: str, file_boot: str, grants: Mapping[str, Token]) -> Mapping[str, Token]:
    """Returns the grants of a file that the boot `file_boot` wrote: none if `boot`, the present one, is another.

    While a machine is cut off, it cannot learn in any other way that it was declared dead.
    """
    return grants if file_boot == boot else {}


def after_epoch(agent: AgentState, epoch: str) -> AgentState:
    """Returns the agent after it has read the store's epoch; in a new one it has to register again.

    The caller then forgets the tokens of blocks that are not granted.
    """
    return agent if agent.epoch == epoch else agent._replace(epoch=epoch, may_claim=False)


def reassert(agent: AgentState, grant: Token, block: BlockRecord) -> BlockSwap | None:
    """Returns the request by which an agent keeps a granted block in a new epoch, whatever the restored store has.

    None in the epoch of the grant: see `is_lost`.
    """
    if grant.epoch == agent.epoch:
        return None
    return BlockSwap(block, BlockRecord(agent.node, _next(agent, block)))


def is_lost(agent: AgentState, grant: Token, block: BlockRecord) -> bool:
    """Returns whether a granted block has another owner or token in the grant's epoch.

    Then an administrator's statement was wrong, or the object was edited. The agent must end the grant. It does not
    claim the block again: another machine may use it already.
    """
    return grant.epoch == agent.epoch and block != BlockRecord(agent.node, grant)


def grant_after(grant: Token, swap: BlockSwap, outcome: SwapOutcome) -> Token:
    """Returns the token that the grants file has after `reassert`; the agent writes it at once."""
    return swap.new.token if succeeded(outcome) else grant


def is_foreign(agent: AgentState, record: NodeRecord | None) -> bool:
    """Returns whether a record belongs to another machine that is not proved dead, as after a disk was copied."""
    return record is not None and not record.is_fenced and record.machine not in ("", agent.machine)


def register(agent: AgentState, grants: Collection[Token], record: NodeRecord | None) -> NodeSwap | None:
    """Returns the request by which an agent registers; None if it has grants to reassert, or the record is foreign.

    An agent registers at its start, after each boot, in each epoch, and when its Node object has another UID.
    """
    if is_foreign(agent, record) or any(grant.epoch != agent.epoch for grant in grants):
        return None
    return NodeSwap(record, agent.record)


def after_records(agent: AgentState, records: Mapping[str, NodeRecord]) -> AgentState:
    """Returns the agent after it has read all records of the store: it may claim if all are of its epoch.

    Then no other node has a grant that it could still reassert, until the next epoch: a new node has no grants. The
    answer to `register` is not needed, since this node's record is among those that were read.
    """
    is_registered = records.get(agent.node) == agent.record
    return agent._replace(may_claim=is_registered and all(record.epoch == agent.epoch for record in records.values()))


def candidates(node: str, count: int) -> Iterator[int]:
    """Yields numbers of blocks in the order in which a node tries to claim them, another order for each node.

    If a share `load` of all blocks is claimed, a node needs 1 / (1 - load) tries on average, and no list of blocks. A
    number may be repeated; after `count` tries the agent lists the blocks.
    """
    for number in range(count):
        yield int.from_bytes(sha256(f"{node} {number}".encode()).digest()[:8], "big") % count


def claim(agent: AgentState, grant: Token | None, block: BlockRecord) -> BlockSwap | None:
    """Returns the request for a free block, or for one that this node owns without a grant; None if it may not claim.

    A node owns a block without a grant after a crash or a boot, or after it has revoked the grant.
    """
    if not agent.may_claim or grant or block.owner not in ("", agent.node):
        return None
    return BlockSwap(block, BlockRecord(agent.node, _next(agent, block)))


def claim_after(swap: BlockSwap, outcome: SwapOutcome) -> Token | None:
    """Returns the agent's token after a `claim` or a `give_back`: that of a claim that succeeded, otherwise None."""
    return swap.new.token if succeeded(outcome) and swap.new.owner else None


def token_to_grant(claimed: Token, epoch: str) -> Token | None:
    """Returns the token of a claim, to write into the grants file, if its epoch is still the store's.

    The epoch is read after the answer to `claim`, or by the transaction that executes it: the same order of events,
    without others between them. In another epoch the request may have been executed by a restored store, while another
    machine has a grant from before the restore.
    """
    return claimed if claimed.epoch == epoch else None


def revoke(grant: Token, reservations: int) -> Token | None:
    """Returns the token that the grants file keeps: None, unless addresses of the block are reserved.

    The agent holds the lock of the network from counting the reservations until the file is written.
    """
    return grant if reservations else None


def give_back(agent: AgentState, grant: Token | None, block: BlockRecord) -> BlockSwap | None:
    """Returns the request that makes a claimed block free; None for a granted block, or one of another node."""
    if not agent.may_claim or grant or block.owner != agent.node:
        return None
    return BlockSwap(block, block._replace(owner=""))


def prove(
    node: str, record: NodeRecord, epoch: str, evidence: Evidence, *, deleted_is_off: bool = False
) -> Proof | None:
    """Returns a proof of death; None if the evidence proves nothing. Record and epoch were read before the evidence.

    With `deleted_is_off` the administrator promises to delete Node objects only of machines that are off. A running
    kubelet registers a new Node, but `fence` may be faster than the agent's registration under the new UID.
    """
    proofs = {Evidence.POWERED_OFF, Evidence.OUT_OF_SERVICE} | ({Evidence.NODE_DELETED} if deleted_is_off else set())
    return Proof(node, record, epoch) if evidence in proofs else None


def fence(proof: Proof, record: NodeRecord | None) -> NodeSwap | None:
    """Returns the request that fences a node; None if the record has changed since: the machine has booted.

    A fence counts in the proof's epoch only. After a restore the same record may belong to a machine that runs.
    """
    return NodeSwap(record, record._replace(epoch=proof.epoch, is_fenced=True)) if record == proof.record else None


def reclaim(block: BlockRecord, owner_record: NodeRecord | None, epoch: str) -> BlockSwap | None:
    """Returns the request that makes a fenced node's block free; None if its owner is not fenced in this epoch.

    The caller reads the block first, then the record, then the epoch. In another order the machine may have booted
    between the reads, or the store may have been restored.
    """
    if not block.owner or owner_record is None or not owner_record.is_fenced or owner_record.epoch != epoch:
        return None
    return BlockSwap(block, block._replace(owner=""))


def recover(
    records: Mapping[str, NodeRecord], joined: Collection[str], new_epoch: str
) -> tuple[dict[str, NodeSwap], str]:
    """Returns the requests for a restored store, and the epoch that is set after they have succeeded.

    `joined` are the nodes that may have registered after the backup; the administrator names them. `new_epoch` is one
    that no store of this cluster has had, such as a random number.
    """
    missing = {node: NodeSwap(None, MISSING) for node in joined if node not in records}
    return missing, new_epoch


def succeeded(outcome: SwapOutcome) -> bool:
    """Returns whether a request is known to have been executed. Nothing follows from any other outcome."""
    return outcome is SwapOutcome.SUCCEEDED


def _next(agent: AgentState, block: BlockRecord) -> Token:
    return Token(agent.epoch, block.token.generation + 1)
