"""The invariants, each as the predicate that a step must keep; and the state that a cluster reaches without faults."""

from collections.abc import Callable

from agent.pools.block_protocol import BlockRecord
from tests.block_model.canonical import canonical
from tests.block_model.state import Model, State
from tests.block_model.world import booted, steps, with_machine

Invariant = Callable[[Model, State, str, State], bool]


def _no_address_is_used_twice(model: Model, before: State, what: str, after: State) -> bool:
    """I1: an address has one attachment; without attachments in the model, a block is granted on one machine."""
    for block in range(model.blocks):
        users = sum(
            bool(machine.slots[block].attached or (machine.slots[block].grant and not model.attachments))
            for machine in after.machines
            if machine.is_on
        )
        if users > 1:
            return False
    return True


def _attachments_have_grants(model: Model, before: State, what: str, after: State) -> bool:
    """I2: an attachment has an address of a granted block; a grant of this epoch is the store's owner and token."""
    for position, machine in enumerate(after.machines):
        for block, slot in enumerate(machine.slots):
            if slot.attached and not slot.grant:
                return False
            is_current = machine.is_on and slot.grant is not None and slot.grant.epoch == after.store.epoch
            if is_current and not _is_in_store(model, after, position, block):
                return False
    return True


def _tokens_rise(model: Model, before: State, what: str, after: State) -> bool:
    """I3: a block gets another owner with a higher generation only; a new epoch is one that never was."""
    if before.store.epoch != after.store.epoch and int(after.store.epoch) <= before.epochs:
        return False
    if what.startswith("restore"):
        return True
    for old, new in zip(before.store.blocks, after.store.blocks, strict=True):
        rise = new.token.generation - old.token.generation
        if rise < 0 or (rise == 0 and new.owner not in ("", old.owner)):
            return False
    return True


def _only_unused_blocks_become_free(model: Model, before: State, what: str, after: State) -> bool:
    """I4: a block becomes free only when its token of this epoch is in no file of a machine that is on.

    A grant of an earlier epoch may lose its block until the agent reasserts it: no other machine can use it until then.
    """
    if what.startswith("restore"):
        return True
    for block, (old, new) in enumerate(zip(before.store.blocks, after.store.blocks, strict=True)):
        if old.owner and not new.owner:
            for position, machine in enumerate(before.machines):
                grant = machine.slots[block].grant
                is_current = machine.is_on and grant is not None and grant.epoch == before.store.epoch
                if is_current and _is_in_store(model, before, position, block):
                    return False
    return True


def _registered_grants_are_the_stores(model: Model, before: State, what: str, after: State) -> bool:
    """I5: after contact, which ends when the agent may claim, a machine has no grant that the store does not have."""
    for position, machine in enumerate(after.machines):
        agent = model.agent_of(machine, position)
        if agent.may_claim and agent.epoch == after.store.epoch:
            for block, slot in enumerate(machine.slots):
                if slot.grant and not _is_in_store(model, after, position, block):
                    return False
    return True


def _is_in_store(model: Model, state: State, position: int, block: int) -> bool:
    """Returns whether the store has a machine's grant as owner and token of the block."""
    grant = state.machines[position].slots[block].grant
    return grant is not None and state.store.blocks[block] == BlockRecord(model.node_of(position), grant)


INVARIANTS: dict[str, Invariant] = {
    "I1": _no_address_is_used_twice,
    "I2": _attachments_have_grants,
    "I3": _tokens_rise,
    "I4": _only_unused_blocks_become_free,
    "I5": _registered_grants_are_the_stores,
}


def is_recoverable(model: Model, state: State) -> bool:
    """Returns whether nothing is lost (I7): without further faults, each block is free or granted by its owner.

    All machines are on then and agents do what they can, but for giving blocks back.
    """
    last = without_faults(model, state)
    for block, value in enumerate(last.store.blocks):
        granted = {model.node_of(i) for i, m in enumerate(last.machines) if m.slots[block].grant}
        if granted != ({value.owner} - {""}):
            return False
    return all(machine.may_claim and machine.epoch == last.store.epoch for machine in last.machines)


def without_faults(model: Model, state: State) -> State:
    """Returns the last state when all machines are on, no request is late and agents only go forward."""
    state = state._replace(late=frozenset(), proofs=frozenset(), restores=0, raises=0, backup=None)
    for position, machine in enumerate(state.machines):
        if not machine.is_on:
            state = with_machine(state, position, booted(model, state, position))
    helpful = ("reads", "registers", "looks", "reasserts", "claims", "grants")
    for _ in range(100):
        for what, after in steps(model._replace(late=0, renames=False), state):
            verb = what.split()[2] if what.startswith("agent ") else ""
            if verb not in helpful or what.endswith("no answer"):
                continue
            is_needed = verb != "claims" or state.store.blocks[int(what.split()[4])].owner != ""
            if is_needed and after != state:
                state = after
                break
        else:
            return canonical(model, state)
    raise AssertionError("agents do not come to an end")
