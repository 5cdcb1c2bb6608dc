"""Yields every step of a state: of the agents, by the protocol's functions, and of the world around them.

What is one step here is one in each order of events:

- An agent has one request at a time. A request that was decided earlier and succeeds is equal to one that is decided
  and executed at once: it compares the value, the agent does nothing meanwhile, and other machines cannot see its
  memory. All others are late: no agent waits for their answer, and the store executes them at any time, twice or never.
- No other machine sees a file or a memory, so writing it is one step with the answer before it. A crash between
  the two is a late request that the store executes at once.
- An agent that is cut off, slow or stopped is one that does not make its next step.
"""

from collections.abc import Callable, Iterator

from agent.pools import block_protocol as protocol
from agent.pools.block_protocol import BlockSwap, Evidence, NodeRecord, NodeSwap, SwapOutcome, Token
from tests.block_model.state import Late, Machine, Model, Slot, State, Store, replaced

Step = tuple[str, State]


def steps(model: Model, state: State) -> Iterator[Step]:
    """Yields the description of each possible next step, and the state after it."""
    for position, machine in enumerate(state.machines):
        if machine.is_on:
            yield from _machine_steps(model, state, position, machine)
            yield from _agent_steps(model, state, position, machine)
        else:
            yield f"machine {position} boots", with_machine(state, position, booted(model, state, position))
    yield from _late_steps(state)
    yield from _reclaimer_steps(model, state)
    yield from _store_steps(model, state)


def with_machine(state: State, position: int, machine: Machine) -> State:
    return state._replace(machines=replaced(state.machines, position, machine))


def with_slot(machine: Machine, block: int, slot: Slot) -> Machine:
    return machine._replace(slots=replaced(machine.slots, block, slot))


def executed(store: Store, position: int, swap: BlockSwap | NodeSwap) -> Store:
    """Returns the store after a compare-and-swap."""
    if isinstance(swap, BlockSwap):
        return store._replace(blocks=replaced(store.blocks, position, swap.new))
    return store._replace(records=replaced(store.records, position, swap.new))


def booted(model: Model, state: State, position: int) -> Machine:
    """Returns a machine after a boot."""
    return Machine(True, _new_instance(state, position), "", False, state.machines[position].slots)


def powered_off(machine: Machine) -> Machine:
    """Returns a machine that is off: its memory is lost, and of its file remains what the next boot may use."""
    slots = []
    for slot in machine.slots:
        entries = {"": slot.grant} if slot.grant else {}
        slots.append(Slot(grant=protocol.grants_of_boot("the next boot", "this boot", entries).get("")))
    return Machine(False, "", "", False, tuple(slots))


def _new_instance(state: State, position: int) -> str:
    """Returns an instance that no value of a state contains."""
    known = [int(record.instance or 0) for record in records_in(state) if record.machine == str(position)]
    return str(max((*known, int(state.machines[position].instance or 0))) + 1)


def records_in(state: State) -> Iterator[NodeRecord]:
    """Yields each record that a state contains: in the store, the backup, late requests and proofs."""
    yield from filter(None, state.store.records)
    if state.backup:
        yield from filter(None, state.backup.records)
    for late in state.late:
        if isinstance(late.swap, NodeSwap):
            yield from filter(None, late.swap)
    yield from (proof.record for proof in state.proofs)


def _machine_steps(model: Model, state: State, position: int, machine: Machine) -> Iterator[Step]:
    """Yields what happens to a machine and what its plugins do."""
    yield f"machine {position} is powered off", with_machine(state, position, powered_off(machine))
    restarted = machine._replace(
        epoch="", may_claim=False, slots=tuple(slot._replace(claimed=None) for slot in machine.slots)
    )
    if restarted != machine:
        yield f"agent {position} crashes and starts again", with_machine(state, position, restarted)
    if model.renames:
        renamed = machine._replace(instance=_new_instance(state, position), may_claim=False)
        yield f"the Node of machine {position} gets another UID", with_machine(state, position, renamed)
    for block, slot in enumerate(machine.slots):
        if slot.attached:
            detached = with_slot(machine, block, slot._replace(attached=False))
            yield f"DEL on machine {position}, block {block}", with_machine(state, position, detached)
        elif slot.grant and model.attachments:
            attached = with_slot(machine, block, slot._replace(attached=True))
            yield f"ADD on machine {position}, block {block}", with_machine(state, position, attached)
        if slot.grant and protocol.revoke(slot.grant, slot.attached) is None:
            revoked = with_slot(machine, block, slot._replace(grant=None))
            yield f"agent {position} revokes block {block}", with_machine(state, position, revoked)


def _agent_steps(model: Model, state: State, position: int, machine: Machine) -> Iterator[Step]:
    """Yields the decisions of an agent, each with every outcome."""
    agent = model.agent_of(machine, position)
    agent_after = protocol.after_epoch(agent, state.store.epoch)
    if agent_after != agent:
        slots = tuple(slot._replace(claimed=None) for slot in machine.slots)
        after = machine._replace(epoch=agent_after.epoch, may_claim=agent_after.may_claim, slots=slots)
        yield f"agent {position} reads epoch {after.epoch}", with_machine(state, position, after)
    if not machine.epoch:
        return
    if not machine.may_claim:
        yield from _registration(model, state, position, agent)
    for block in range(len(machine.slots)):
        yield from _block_steps(model, state, position, agent, block)


def _registration(model: Model, state: State, position: int, agent: protocol.AgentState) -> Iterator[Step]:
    machine, records = state.machines[position], state.store.records
    node = int(agent.node)
    swap = protocol.register(agent, [slot.grant for slot in machine.slots if slot.grant], records[node])
    if swap and swap.expected != swap.new:
        what = f"agent {position} registers"
        yield from _outcomes(model, state, position, what, Late(node, swap), lambda outcome: machine)
    by_node = {str(number): record for number, record in enumerate(records) if record}
    if protocol.after_records(agent, by_node).may_claim:
        yield f"agent {position} looks at the records", with_machine(state, position, machine._replace(may_claim=True))


def _block_steps(model: Model, state: State, position: int, agent: protocol.AgentState, block: int) -> Iterator[Step]:
    """Yields what an agent may do with a block."""
    machine, value, name = state.machines[position], state.store.blocks[block], f"agent {position}"
    slot = machine.slots[block]

    def granted(swap: BlockSwap, before: Token) -> Callable[[SwapOutcome], Machine]:
        def answered(outcome: SwapOutcome) -> Machine:
            return with_slot(machine, block, slot._replace(grant=protocol.grant_after(before, swap, outcome)))

        return answered

    def claimed(swap: BlockSwap) -> Callable[[SwapOutcome], Machine]:
        return lambda outcome: with_slot(machine, block, slot._replace(claimed=protocol.claim_after(swap, outcome)))

    if slot.grant and (swap := protocol.reassert(agent, slot.grant, value)):
        after = granted(swap, slot.grant)
        yield from _outcomes(model, state, position, f"{name} reasserts block {block}", Late(block, swap), after)
    if not slot.claimed and (swap := protocol.claim(agent, slot.grant, value)):
        yield from _outcomes(model, state, position, f"{name} claims block {block}", Late(block, swap), claimed(swap))
    if swap := protocol.give_back(agent, slot.grant, value):
        yield from _outcomes(
            model, state, position, f"{name} gives back block {block}", Late(block, swap), claimed(swap)
        )
    if slot.claimed and (token := protocol.token_to_grant(slot.claimed, state.store.epoch)):
        granting = with_slot(machine, block, slot._replace(grant=token, claimed=None))
        yield f"{name} grants block {block}", with_machine(state, position, granting)


def _outcomes(
    model: Model, state: State, position: int, what: str, request: Late, answered: Callable[[SwapOutcome], Machine]
) -> Iterator[Step]:
    """Yields the outcomes of an agent's request: executed and answered, or without an answer."""
    store = executed(state.store, request.position, request.swap)
    yield what, with_machine(state, position, answered(SwapOutcome.SUCCEEDED))._replace(store=store)
    unanswered = with_machine(state, position, answered(SwapOutcome.UNKNOWN))
    if len(state.late) < model.late:
        yield f"{what}: no answer", unanswered._replace(late=state.late | {request})
    else:
        yield f"{what}: executed, no answer", unanswered._replace(store=store)


def _late_steps(state: State) -> Iterator[Step]:
    for request in state.late:
        position, swap = request
        yield f"the late request {swap} is lost", state._replace(late=state.late - {request})
        value: protocol.BlockRecord | NodeRecord | None
        value = (state.store.blocks if isinstance(swap, BlockSwap) else state.store.records)[position]
        if value == swap.expected:
            late = state._replace(store=executed(state.store, position, swap))
            yield f"the store executes the late request {swap}", late


def _reclaimer_steps(model: Model, state: State) -> Iterator[Step]:
    """Yields statements of the administrator, and what any agent or tool does with them."""
    for node, record in enumerate(state.store.records):
        machines = [m for i, m in enumerate(state.machines) if model.node_of(i) == str(node)]
        if record is None or record.is_fenced or any(proof.node == str(node) for proof in state.proofs):
            continue
        evidence = [Evidence.NOT_READY, Evidence.SILENT]
        if not any(machine.is_on for machine in machines):
            evidence += [Evidence.POWERED_OFF]
        elif not any(machine.instance == record.instance for machine in machines):
            evidence += [Evidence.NODE_DELETED]
        for reason in evidence:
            if proof := protocol.prove(str(node), record, state.store.epoch, reason):
                yield f"node {node} is dead: {reason.value}", state._replace(proofs=state.proofs | {proof})
    for proof in state.proofs:
        if fencing := protocol.fence(proof, state.store.records[int(proof.node)]):
            store = executed(state.store, int(proof.node), fencing)
            yield f"a reclaimer fences node {proof.node}", state._replace(store=store)
    for block, value in enumerate(state.store.blocks):
        owner = state.store.records[int(value.owner)] if value.owner else None
        if owner is None or not (owner.is_fenced or any(proof.node == value.owner for proof in state.proofs)):
            continue
        if swap := protocol.reclaim(value, owner, state.store.epoch):
            what, request = f"a reclaimer frees block {block} of node {value.owner}", Late(block, swap)
            if len(state.late) < model.late:
                yield f"{what}: no answer", state._replace(late=state.late | {request})
            yield what, state._replace(store=executed(state.store, block, swap))


def _store_steps(model: Model, state: State) -> Iterator[Step]:
    if state.restores and state.backup is None:
        yield "backup of the store", state._replace(backup=state.store)
    if state.restores and state.backup is not None:
        yield "restore of the store", restored(state)
    if state.raises:
        epochs = state.epochs + 1
        yield (
            f"epoch {epochs} begins",
            state._replace(store=state.store._replace(epoch=str(epochs)), raises=state.raises - 1, epochs=epochs),
        )


def restored(state: State) -> State:
    """Returns a state after the restore of its backup and `recover`, before agents reach the store again."""
    backup = state.backup
    assert backup
    records = {str(node): record for node, record in enumerate(backup.records) if record}
    joined = [str(node) for node, record in enumerate(state.store.records) if record]
    missing, epoch = protocol.recover(records, joined, str(state.epochs + 1))
    store = backup._replace(epoch=epoch)
    for node, swap in missing.items():
        store = executed(store, int(node), swap)
    left = state.restores - 1
    epochs = max(state.epochs, int(epoch))
    return state._replace(store=store, backup=backup if left else None, restores=left, epochs=epochs)
