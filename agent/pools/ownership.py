"""The blocks of this node in the store: verify, claim, grant and give back.

One rule: block_protocol makes every decision. A step makes at most one request, and returns whether it did, or changed
a file. A claim: Planning.write_intents, `claim`, Membership.read_space (the epoch), Membership.publish (the route),
`grant`. A return: Planning.revoke, Membership.publish, `give_back` (free in the store, then removed from the file).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent.pools import block_protocol as protocol
from agent.pools.block_protocol import BlockRecord
from agent.pools.grants_file import NO_TOKEN, BlockState, FileEntry
from agent.pools.memory import HeldBlock, Memory, is_routed
from agent.pools.network_blocks import NetworkBlocks
from agent.pools.planning import gateway_of, new_entry, with_gateway
from agent.pools.store import Stored
from cni.address import Network

_RELIST_S = 30.0


class Ownership:
    """The requests for blocks. `problems` are for administrators.

    `is_published` says whether other nodes have a route to a block. `delete_routes` deletes the routes that plugins
    left on this node for a block that is given back: they would win over the route to its next owner.
    """

    def __init__(
        self,
        memory: Memory,
        is_published: Callable[[Network], bool],
        event: Callable[[str], None],
        monotonic: Callable[[], float],
        delete_routes: Callable[[Network], None],
    ) -> None:
        self._memory, self._is_published, self._event = memory, is_published, event
        self._delete_routes, self._monotonic = delete_routes, monotonic
        self._next_list_s = 0.0
        self.problems: dict[str, str] = {}

    def verify(self) -> bool:
        """Compares a grant with the store: keeps it in a new epoch, and stops it if it is lost.

        A node that was declared dead while it runs loses all grants, even if it still owns their blocks in the store:
        another agent may be freeing them.
        """
        memory = self._memory
        held = next((h for h in memory.held_blocks() if h.entry.grant and h.entry.block in memory.unverified), None)
        if held is None:
            memory.unverified.clear()
            return False
        if memory.is_fenced:
            self._lose(held, "this node was declared dead while it runs")
            return True
        network, entry = held
        stored = memory.requests.take_or_read(entry.block)
        if stored is None:
            return True
        if protocol.is_lost(memory.agent, entry.token, stored.value):
            self._lose(held, _difference(entry, stored))
            return True
        swap = protocol.reassert(memory.agent, entry.token, stored.value)
        if swap is None:
            memory.unverified.discard(entry.block)
            return True
        outcome = memory.requests.swap(entry.block, stored, swap.new, entry.pool, entry.key)
        token = protocol.grant_after(entry.token, swap, outcome)
        memory.save(network, network.grants.with_entry(entry._replace(token=token)))
        return True  # the block stays unverified: a later step compares the token with the store

    def list_blocks_of_node(self) -> bool:
        """Lists this node's blocks once in each epoch, and at the first start; adds missing ones to the files."""
        memory = self._memory
        epoch = memory.agent.epoch
        is_waiting = memory.has_unaccounted_reservations and self._monotonic() < self._next_list_s
        if is_waiting or all(network.grants.listed_epoch == epoch for network in memory.networks):
            return False
        is_first = not any(network.grants.listed_epoch for network in memory.networks)
        is_known_empty = memory.identity.is_new and is_first and not any(memory.held_blocks())
        owned = {} if is_known_empty else memory.store.list_blocks(memory.agent.node)
        self._adopt(owned)
        self._next_list_s = self._monotonic() + _RELIST_S
        self.problems.pop("reservations", None)
        memory.has_unaccounted_reservations = False
        for network in memory.networks:
            if not self._report_unaccounted(network):
                memory.save(network, network.grants._replace(listed_epoch=epoch))
        return True

    def claim(self) -> bool:
        """Claims a block whose intent is in a file."""
        memory = self._memory
        held = next((held for held in memory.held_blocks() if self._is_to_claim(held)), None)
        if held is None or not memory.agent.may_claim:
            return False
        network, entry = held
        stored = memory.requests.take_or_read(entry.block)
        if stored is None:
            return True
        has_other_key = stored.note.key not in ("", entry.key)  # another pod's sticky address, even while free
        swap = None if has_other_key else protocol.claim(memory.agent, None, stored.value)
        if swap is None:
            memory.save(network, network.grants.without(entry.block))
            return True
        outcome = memory.requests.swap(entry.block, stored, swap.new, entry.pool, entry.key)
        token = protocol.claim_after(swap, outcome)
        if token is None:
            return True
        # The transaction has read the space, too. If the space has changed, the block may drain or be in no pool.
        space = memory.requests.space
        if space is not None and space == memory.space and protocol.token_to_grant(token, space.epoch):
            memory.grantable[entry.block] = token
        else:
            memory.claimed[entry.block] = token
        return True

    def recheck_epoch(self) -> bool:
        """Marks the space to be read after claims whose answers lack it: its epoch decides whether to grant."""
        memory = self._memory
        memory.space_is_due |= bool(memory.claimed)
        return bool(memory.claimed)

    def grant(self) -> bool:
        """Grants the claimed blocks of the store's epoch; a routed block only when other nodes have its route."""
        memory = self._memory
        has_changed = False
        for network in memory.networks:
            grants = network.grants
            for entry in grants.entries:
                if entry.block in memory.grantable and (after := self._after_claim(HeldBlock(network, entry))):
                    is_granted = after.state is BlockState.GRANTED
                    grants = grants.with_entry(with_gateway(grants, after) if is_granted else after)
            has_changed |= grants != network.grants
            memory.save(network, grants)
            for entry in grants.entries:
                if entry.state is not BlockState.CLAIMING:
                    memory.grantable.pop(entry.block, None)
        return has_changed

    def give_back(self) -> bool:
        """Gives back a revoked block; removes it from the file, also if it has another owner."""
        memory = self._memory
        held = next((held for held in memory.held_blocks() if held.entry.state is BlockState.REVOKED), None)
        if held is None or not memory.agent.may_claim or self._is_published(held.entry.block):
            return False
        network, entry = held
        stored = memory.requests.take_or_read(entry.block)
        if stored is None:
            return True
        self._delete_routes(entry.block)
        swap = protocol.give_back(memory.agent, None, stored.value)
        if swap is None or protocol.succeeded(memory.requests.swap(entry.block, stored, swap.new, entry.pool)):
            memory.requests.forget(entry.block)
            memory.save(network, network.grants.without(entry.block))
        return True

    def _is_to_claim(self, held: HeldBlock) -> bool:
        block = held.entry.block
        is_done = block in self._memory.claimed or block in self._memory.grantable
        return held.entry.state is BlockState.CLAIMING and not is_done

    def _after_claim(self, held: HeldBlock) -> FileEntry | None:
        """Returns the next entry of a claimed block: granted, or None while other nodes have no route to it.

        If the network must not use the block (any longer), it is revoked, or drains while it has reservations.
        """
        memory = self._memory
        network, entry = held
        token = memory.grantable[entry.block]
        pool = memory.pool_of(held)
        if pool is None:
            is_used = network.count_used()[entry.block] > 0
            state = BlockState.DRAINING if is_used else BlockState.REVOKED
            return entry._replace(state=state, token=token if is_used else NO_TOKEN)
        if is_routed(entry, pool) and not self._is_published(entry.block):
            return None
        if entry.key and entry.subnet == entry.block and gateway_of(network.grants, entry.version) is None:
            # A sticky address gets the gateway of the network's other blocks, and the network has no such block yet.
            is_gone = memory.pods is not None and entry.pod not in memory.pods
            return entry._replace(state=BlockState.REVOKED, token=NO_TOKEN) if is_gone else None
        return entry._replace(state=BlockState.GRANTED, token=token)

    def _lose(self, held: HeldBlock, cause: str) -> None:
        """Ends a lost grant, reports the pods that have its addresses; `give_back` removes it when they are gone."""
        memory = self._memory
        network, entry = held
        holders = network.describe_holders(entry.block)
        lost = entry._replace(state=BlockState.LOST if holders else BlockState.REVOKED, token=NO_TOKEN)
        memory.save_locked(network, lambda grants: grants.with_entry(lost))
        memory.unverified.discard(entry.block)
        self._event(
            f"block {entry.block} of pool {entry.pool} is lost: {cause}. Nothing of it is allocated any more. Delete "
            f"these pods, whose addresses others may get: {holders or 'none'}"
        )

    def _adopt(self, owned: Mapping[Network, Stored[BlockRecord]]) -> None:
        """Adds this node's blocks that no file names, each to the network whose pods have its addresses."""
        memory = self._memory
        known = {held.entry.block for held in memory.held_blocks()}
        self.problems.pop("blocks", None)
        for block in owned:
            if block in known:
                continue
            overlapping = [other for other in known if other.overlaps(block)]
            if overlapping:
                self.problems["blocks"] = f"block {block} of this node overlaps its block {overlapping[0]}"
                continue
            network = self._network_for(block)
            entry = new_entry(memory.space, block)._replace(key=owned[block].note.key)
            memory.save(network, network.grants.with_entry(entry))
            known.add(block)

    def _network_for(self, block: Network) -> NetworkBlocks:
        """Returns the network for a block that no file names."""
        networks = self._memory.networks
        pool = self._memory.space.pool_of(block) if self._memory.space else None
        holding = [one for one in networks if any(address in block for address in one.list_reserved())]
        using = [one for one in networks if pool and one.pool == pool.name]
        return [*holding, *using, *networks][0]

    def _report_unaccounted(self, network: NetworkBlocks) -> bool:
        """Returns whether a network that lost its file has reservations outside all blocks; reports them as a problem.

        In a new epoch the agent would have to reassert their blocks, but it does not know whether they were granted.
        """
        memory = self._memory
        if network.grants.listed_epoch or memory.space is None:
            return False
        known = [held.entry.block for held in memory.held_blocks()]
        unaccounted = [
            str(address)
            for address in network.list_reserved()
            if any(address in cidr for pool in memory.space.pools for cidr in pool.cidrs)
            and not any(address in block for block in known)
        ]
        if unaccounted:
            memory.has_unaccounted_reservations = True
            self.problems["reservations"] = (
                f"{network.problem or network.path}: network {network.name} has {len(unaccounted)} reservations in no "
                f"block of this node, such as {unaccounted[0]}: no block is claimed until they are released. Run "
                f"`podwire gc {network.name}`, which releases those of pods that no longer run, and delete the other "
                "pods of this node"
            )
        return bool(unaccounted)


def _difference(entry: FileEntry, stored: Stored[BlockRecord]) -> str:
    """Returns how the store differs from a grant."""
    owner = stored.problem or (f"owner {stored.value.owner}" if stored.value.owner else "no owner")
    return (
        f"this node had generation {entry.token.generation}, the store has {owner}, generation "
        f"{stored.value.token.generation}. The machine was declared dead while it ran, or the object was edited"
    )
