"""Policies that must fail: each is the protocol with one function replaced, and the invariant that it breaks."""

from collections.abc import Callable
from typing import NamedTuple

from agent.pools import block_protocol as protocol
from agent.pools.block_protocol import BlockSwap, Evidence, NodeSwap, Proof, SwapOutcome, Token
from tests.block_model.state import Model

ONE = Model(machines=2, blocks=1)
RENAMES = ONE._replace(renames=True)
# Without requests that are late, and without attachments, the models with restores are smaller.
RESTORE = ONE._replace(restores=1, late=0, attachments=False)
TWO_RESTORES = RESTORE._replace(restores=2)
LATE_RESTORE = RESTORE._replace(late=1)
COPIED_DISK = ONE._replace(nodes=(0, 0))


class Policy(NamedTuple):
    """A replacement of the protocol's function `name`, and the invariant that breaks in a model with it."""

    name: str
    replacement: Callable[..., object]
    breaks: str = "I1"
    model: Model = ONE


def _accepting(evidence: Evidence) -> Callable[..., Proof]:
    """Returns a `prove` that accepts more evidence."""

    def prove(node, record, epoch, reason):
        is_proof = protocol_prove(node, record, epoch, reason) or reason is evidence
        return Proof(node, record, epoch) if is_proof else None

    return prove


protocol_prove, protocol_fence, protocol_register = protocol.prove, protocol.fence, protocol.register
protocol_after_records, protocol_claim = protocol.after_records, protocol.claim


def _give_back_granted(agent, grant, block):
    is_owner = agent.may_claim and block.owner == agent.node
    return BlockSwap(block, block._replace(owner="")) if is_owner else None


def _give_back_unregistered(agent, grant, block):
    is_unused = grant is None and block.owner == agent.node
    return BlockSwap(block, block._replace(owner="")) if is_unused else None


def _claim_in_place(agent, grant, block):
    swap = protocol_claim(agent, grant, block)
    return BlockSwap(block, block) if swap and block.owner else swap


def _claim_same_generation(agent, grant, block):
    swap = protocol_claim(agent, grant, block)
    return swap and BlockSwap(block, swap.new._replace(token=Token(agent.epoch, block.token.generation)))


def _claim_free_only(agent, grant, block):
    return None if block.owner else protocol_claim(agent, grant, block)


def _claim_unregistered(agent, grant, block):
    return protocol_claim(agent._replace(may_claim=True), grant, block)


def _claim_after_failure(swap, outcome):
    if outcome is SwapOutcome.SUCCEEDED:
        return swap.new.token if swap.new.owner else None
    return None if swap.new.owner else swap.expected.token


def _register_unasserted(agent, grants, record):
    return None if protocol.is_foreign(agent, record) else NodeSwap(record, agent.record)


def _fence_any(proof, record):
    return protocol_fence(proof._replace(record=record), record) if record and not record.is_fenced else None


def _after_records_without_fenced(agent, records):
    return protocol_after_records(agent, {node: record for node, record in records.items() if not record.is_fenced})


def _reclaim_any(block, owner_record, epoch):
    return BlockSwap(block, block._replace(owner="")) if block.owner else None


def _reclaim_any_epoch(block, owner_record, epoch):
    return BlockSwap(block, block._replace(owner="")) if block.owner and owner_record.is_fenced else None


def _recover(*, joined: bool = True, epoch: Callable[[int], int] = lambda new: new) -> Callable[..., object]:
    def recover(records, names, new_epoch):
        return protocol_recover(records, names if joined else (), str(epoch(int(new_epoch))))

    return recover


protocol_recover = protocol.recover

POLICIES = {
    "a lease that expires": Policy("prove", _accepting(Evidence.SILENT)),
    "reclaim when the Node is not ready": Policy("prove", _accepting(Evidence.NOT_READY)),
    "a deleted Node proves that a running machine is off": Policy(
        "prove", _accepting(Evidence.NODE_DELETED), model=RENAMES
    ),
    "give back without revoking first": Policy("give_back", _give_back_granted),
    "a revoked block is granted again without a new generation": Policy("claim", _claim_in_place),
    "an unknown answer to giving back is a failure": Policy("claim_after", _claim_after_failure),
    "an unknown answer is a success": Policy(
        "succeeded", lambda outcome: outcome is not SwapOutcome.LOST, model=LATE_RESTORE
    ),
    "two reclaimers without the fence": Policy("reclaim", _reclaim_any, model=ONE._replace(keeps_proofs=True)),
    "a fence without compare-and-swap": Policy("fence", _fence_any, model=ONE._replace(keeps_proofs=True)),
    "claims before the registration": Policy("claim", _claim_unregistered),
    "grants survive a boot": Policy("grants_of_boot", lambda boot, file_boot, grants: grants),
    "a copied disk gives back": Policy("give_back", _give_back_unregistered, breaks="I4", model=COPIED_DISK),
    "a copied disk is accepted": Policy("is_foreign", lambda agent, record: False, model=COPIED_DISK),
    "restore without a new epoch": Policy("recover", _recover(epoch=lambda new: 1), model=RESTORE),
    "restore with objections only": Policy("after_records", lambda one, _: one._replace(may_claim=True), model=RESTORE),
    "restore without the nodes that joined": Policy("recover", _recover(joined=False), model=RESTORE),
    "restore: a fence counts in each epoch": Policy("after_records", _after_records_without_fenced, model=RESTORE),
    "restore: the epoch is not read after the claim": Policy("token_to_grant", lambda token, _: token, model=RESTORE),
    "restore: registration before grants are reasserted": Policy("register", _register_unasserted, model=RESTORE),
    "restore: a node fenced in another epoch is reclaimed": Policy("reclaim", _reclaim_any_epoch, model=RESTORE),
    "two restores begin the same epoch": Policy("recover", _recover(epoch=lambda new: 2), model=TWO_RESTORES),
    # Each invariant can fail.
    "grants that the store does not have": Policy("give_back", _give_back_granted, breaks="I2"),
    "a claim keeps the generation": Policy("claim", _claim_same_generation, breaks="I3"),
    "give back while granted": Policy("give_back", _give_back_granted, breaks="I4"),
    "registered with grants of an old epoch": Policy("register", _register_unasserted, breaks="I5", model=RESTORE),
    "no adoption after a crash": Policy("claim", _claim_free_only, breaks="I7"),
}
