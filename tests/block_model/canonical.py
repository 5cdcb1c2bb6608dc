"""Renames what a state contains, so that states that behave in the same way become one.

Each renaming is a symmetry of the steps: they compare these values for equality only, and add 1 to a generation.

- The generations of a block all become smaller by the same number.
- The instances of a machine are numbered from 1, in their order.
- Machines are exchanged, with their nodes.
- Late requests and proofs that can have no effect any more are dropped: generations of a block do not fall and an
  instance does not come back, except by the restore of a backup.
"""

from collections.abc import Callable, Iterator

from agent.pools.block_protocol import BlockRecord, BlockSwap, NodeRecord, NodeSwap, Proof, Token
from tests.block_model.state import Late, Machine, Model, Slot, State, Store
from tests.block_model.world import records_in


def canonical(model: Model, state: State) -> State:
    """Returns the state that represents a state and all that differ from it by names only."""
    if state.late or state.proofs:
        state = _without_dead_requests(model, state)
    state = _renumbered_generations(_renumbered_instances(state))
    return state if model.nodes else _ordered(state)


def _without_dead_requests(model: Model, state: State) -> State:
    stores = [store for store in (state.store, state.backup) if store]
    records = {record for store in stores for record in store.records}
    records |= {request.swap.new for request in state.late if isinstance(request.swap, NodeSwap)}

    def may_return(record: NodeRecord | None) -> bool:
        return record in records or (record is not None and _is_current(state, record))

    late = frozenset(
        request
        for request in state.late
        if (
            any(_may_recur(request.swap.expected, store.blocks[request.position]) for store in stores)
            if isinstance(request.swap, BlockSwap)
            else may_return(request.swap.expected)
        )
    )
    proofs = state.proofs
    if proofs and not model.keeps_proofs:
        proofs = frozenset(proof for proof in proofs if may_return(proof.record))
    if len(late) < len(state.late) or len(proofs) < len(state.proofs):
        # A dropped request sets no record that another one or a proof expects.
        return _without_dead_requests(model, state._replace(late=late, proofs=proofs))
    return state


def _is_current(state: State, record: NodeRecord) -> bool:
    """Returns whether a machine that is on may write a record, since the record is of its instance."""
    return record.machine != "" and state.machines[int(record.machine)].instance == record.instance


def _may_recur(expected: BlockRecord, value: BlockRecord) -> bool:
    """Returns whether a block may get the expected value when it now has `value`, without a restore."""
    if expected.token.generation != value.token.generation:
        return expected.token.generation > value.token.generation
    return expected == value or (value.owner != "" and not expected.owner)


def tokens_in(state: State, block: int) -> Iterator[Token]:
    """Yields each token of a block that a state contains."""
    yield state.store.blocks[block].token
    if state.backup:
        yield state.backup.blocks[block].token
    for machine in state.machines:
        slot = machine.slots[block]
        if slot.claimed:
            yield slot.claimed
        if slot.grant:
            yield slot.grant
    for position, swap in state.late:
        if position == block and isinstance(swap, BlockSwap):
            yield swap.expected.token
            yield swap.new.token


def _ordered(state: State) -> State:
    """Returns a state whose machines are in the order of what each has, which does not depend on their numbers."""
    signatures = [_signature(state, i) for i in range(len(state.machines))]
    order = sorted(range(len(signatures)), key=signatures.__getitem__)
    if order == sorted(order):
        return state
    return permuted(state, order)


def _renumbered_generations(state: State) -> State:
    lowest = [min(token.generation for token in tokens_in(state, block)) for block in range(len(state.store.blocks))]
    if not any(lowest):
        return state

    def token(old: Token | None, position: int) -> Token | None:
        return old and Token(old.epoch, old.generation - lowest[position])

    def block(old: BlockRecord, position: int) -> BlockRecord:
        return BlockRecord(old.owner, Token(old.token.epoch, old.token.generation - lowest[position]))

    def slot(old: Slot, position: int) -> Slot:
        return Slot(token(old.claimed, position), token(old.grant, position), old.attached)

    machines = tuple(m._replace(slots=tuple(slot(s, i) for i, s in enumerate(m.slots))) for m in state.machines)
    return _mapped(state, machines, block=block)


def _renumbered_instances(state: State) -> State:
    known: dict[str, set[int]] = {str(i): {int(m.instance)} if m.is_on else set() for i, m in enumerate(state.machines)}
    for record in records_in(state):
        if record.machine:
            known[record.machine].add(int(record.instance))
    if all(len(numbers) == max(numbers, default=0) for numbers in known.values()):
        return state
    names = {name: {str(old): str(new) for new, old in enumerate(sorted(o), 1)} for name, o in known.items()}

    def renamed(old: NodeRecord) -> NodeRecord:
        return old._replace(instance=names[old.machine][old.instance]) if old.machine else old

    machines = tuple(
        machine._replace(instance=names[str(i)][machine.instance]) if machine.is_on else machine
        for i, machine in enumerate(state.machines)
    )
    return _mapped(state, machines, record=renamed)


def permuted(state: State, order: list[int]) -> State:
    """Returns a state whose machine and node `order[i]` have the number i."""
    names = {str(old): str(new) for new, old in enumerate(order)} | {"": ""}
    machines = tuple(state.machines[i] for i in order)
    return _mapped(
        state,
        machines,
        block=lambda old, _: BlockRecord(names[old.owner], old.token),
        record=lambda old: old._replace(machine=names[old.machine]),
        node=lambda old: int(names[str(old)]),
    )


def _mapped(
    state: State,
    machines: tuple[Machine, ...],
    *,
    block: Callable[[BlockRecord, int], BlockRecord] = lambda old, position: old,
    record: Callable[[NodeRecord], NodeRecord] = lambda old: old,
    node: Callable[[int], int] = lambda old: old,
) -> State:
    """Returns a state with other machines, and each block, record and number of a node replaced."""

    def store(old: Store) -> Store:
        records = {node(i): old_record and record(old_record) for i, old_record in enumerate(old.records)}
        blocks = tuple(block(old_block, i) for i, old_block in enumerate(old.blocks))
        return Store(old.epoch, blocks, tuple(records[i] for i in range(len(records))))

    def late(old: Late) -> Late:
        position, swap = old
        if isinstance(swap, BlockSwap):
            return Late(position, BlockSwap(block(swap.expected, position), block(swap.new, position)))
        return Late(node(position), NodeSwap(swap.expected and record(swap.expected), record(swap.new)))

    return state._replace(
        store=store(state.store),
        backup=state.backup and store(state.backup),
        machines=machines,
        late=frozenset(map(late, state.late)),
        proofs=frozenset(Proof(str(node(int(p.node))), record(p.record), p.epoch) for p in state.proofs),
    )


def _signature(state: State, position: int) -> tuple[object, ...]:
    """Returns what belongs to a machine and its node, without the names of machines, in a form that can be compared."""
    node, machine = str(position), state.machines[position]
    stores = (state.store, state.backup) if state.backup else (state.store,)
    return (
        machine.is_on,
        machine.instance,
        machine.epoch,
        machine.may_claim,
        tuple((s.claimed or (), s.grant or (), s.attached) for s in machine.slots),
        tuple((block.owner == node) for store in stores for block in store.blocks),
        tuple(_anonymous(store.records[position]) for store in stores),
        tuple(sorted(_late_signature(late, node) for late in state.late)) if state.late else (),
        tuple(sorted(_anonymous(p.record) for p in state.proofs if p.node == node)) if state.proofs else (),
    )


def _anonymous(record: NodeRecord | None) -> tuple[object, ...]:
    return record[1:] if record else ()


def _late_signature(late: Late, node: str) -> tuple[object, ...]:
    if isinstance(late.swap, BlockSwap):
        return (0, late.position, *((block.owner == node, *block.token) for block in late.swap))
    if str(late.position) != node:
        return (1,)
    return (2, 0, *(_anonymous(record) for record in late.swap))
