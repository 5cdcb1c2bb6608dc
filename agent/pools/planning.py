"""Plans which blocks the networks of a node claim, drain and revoke.

One rule: the intent to claim a block is in the grants file before the request. The only request here lists all blocks,
when most of a pool's blocks have owners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from agent.pools import block_protocol as protocol
from agent.pools.grants_file import GRANT_STATES, NO_TOKEN, BlockState, FileEntry, Grants, PoolHead
from agent.pools.memory import HeldBlock, Memory, uses_pool
from agent.pools.network_blocks import NetworkBlocks
from agent.pools.space import SEGMENT, Pool, Space
from agent.pools.store import Stored
from agent.pools.supply import GROWTH_S, Candidates, PoolUsage, UnusedBlocks, count_to_claim, usage_of
from cni.address import Address, Network

_EXHAUSTED_S = 60.0


class Planning:
    """Plans for all networks of a node, from the numbers of reservations and of ADDs without an address.

    `problems`: why a network or a pool gets no block.
    """

    def __init__(self, memory: Memory, monotonic: Callable[[], float]) -> None:
        self._memory, self._monotonic = memory, monotonic
        self._unused = {network.path: UnusedBlocks() for network in memory.networks}
        self._candidates: dict[tuple[str, int], Candidates] = {}
        self._not_before_s: dict[tuple[str, int], float] = {}
        self._intended_s: dict[tuple[str, str, int], float] = {}  # when a network intended its latest block
        self._refreshed: dict[str, tuple[Space, Grants]] = {}  # the space and file of each network that are equal
        self.problems: dict[str, str] = {}

    def forget(self) -> None:
        """Forgets the candidates that were tried: after a change of the space."""
        self._candidates.clear()
        self._not_before_s.clear()

    def refresh(self) -> bool:
        """Writes pools, ranges and draining blocks of the space into the files; returns whether one changed."""
        memory = self._memory
        if memory.space is None:
            return False
        for network in memory.networks:
            refreshed = self._refreshed.get(network.path)
            if refreshed and refreshed[0] is memory.space and refreshed[1] is network.grants:
                continue
            self.problems.pop(f"network {network.name}", None)
            if network.pool and memory.space.pool(network.pool) is None:
                names = ", ".join(pool.name for pool in memory.space.pools) or "none"
                text = f"network {network.name}: there is no pool {network.pool}; the space has {names}"
                self.problems[f"network {network.name}"] = text
            elif (named := memory.space.pool(network.pool)) and named.is_sticky:
                self.problems[f"network {network.name}"] = (
                    f"network {network.name}: pool {named.name} is sticky, for the pods of its namespaces only: "
                    "name another pool in the network"
                )
            if self._with_space(network, network.grants) != network.grants:
                memory.save_locked(network, lambda grants, network=network: self._with_space(network, grants))  # type: ignore[misc]
                return True
            self._refreshed[network.path] = memory.space, network.grants
        return False

    def revoke(self) -> bool:
        """Revokes one block without reservations: one that drains or is lost, else a surplus one."""
        for network in self._memory.networks:
            used = network.count_used()
            now_s = self._monotonic()
            unused = self._unused[network.path]
            unused.observe(network.grants.entries, used, now_s)
            for entry in network.grants.entries:
                is_unused = entry.state in (BlockState.DRAINING, BlockState.LOST) and not used[entry.block]
                if is_unused and self._revoke(network, entry):
                    return True
            for pool, version in self._groups(network):
                entries = _of_group(network.grants, pool, version)
                surplus = unused.surplus(entries, now_s, is_on_demand=pool.name != network.pool)
                if surplus and self._revoke(network, surplus):
                    return True
        return False

    def write_intents(self) -> bool:
        """Writes the intent to claim the blocks that a network needs, or lists all blocks to choose from."""
        memory = self._memory
        if not memory.agent.may_claim:
            return False
        for network in memory.networks:
            used = network.count_used()
            for pool, version in self._groups(network):
                if self._write_intents(network, pool, version, used):
                    return True
            for pool in self._pools(network):
                if network.demand(pool.name):
                    network.forget_demand(pool.name)
        return False

    def usage(self) -> dict[str, PoolUsage]:
        """Returns the numbers of each pool on this node."""
        numbers: dict[str, PoolUsage] = {}
        for network in self._memory.networks:
            used = network.count_used()
            for name in {entry.pool for entry in network.grants.entries} | {head.name for head in network.grants.pools}:
                one = usage_of([e for e in network.grants.entries if e.pool == name], used)
                numbers[name] = PoolUsage(*(a + b for a, b in zip(numbers.get(name, PoolUsage()), one, strict=True)))
        return numbers

    def _revoke(self, network: NetworkBlocks, entry: FileEntry) -> bool:
        """Revokes a block, unless it got a reservation meanwhile; returns whether it is revoked."""

        def revoked(grants: Grants) -> Grants:
            if protocol.revoke(entry.token, network.count_reservations(entry.block)):
                return grants
            return grants.with_entry(entry._replace(state=BlockState.REVOKED, token=NO_TOKEN))

        self._memory.save_locked(network, revoked)
        after = network.grants.entry(entry.block)
        return after is not None and after.state is BlockState.REVOKED

    def _write_intents(self, network: NetworkBlocks, pool: Pool, version: int, used: Counter[Network]) -> bool:
        memory, key = self._memory, (pool.name, version)
        grants = network.grants
        demand = network.demand(pool.name)
        entries = _of_group(grants, pool, version)
        if pool.name != network.pool and not demand and not entries:
            return False
        size = 1 << (32 if version == 4 else 128) - pool.prefix_lengths[version]
        claimant = (network.path, *key)
        is_growing = self._monotonic() - self._intended_s.get(claimant, -GROWTH_S) < GROWTH_S
        count = count_to_claim(entries, used, size, demand, is_growing=is_growing)
        if not count:
            self.problems.pop(f"pool {pool.name} IPv{version}", None)
        if not count or self._monotonic() < self._not_before_s.get(key, 0.0):
            return False
        candidates = self._candidates.setdefault(key, Candidates(memory.agent.node, pool, version))
        if candidates.needs_list:
            claimed = {block for block, stored in memory.store.list_blocks().items() if stored.value.owner}
            candidates.use_list(claimed)
            return True
        blocks = self._choose(candidates, count)
        for block in blocks:
            self._intended_s[claimant] = self._monotonic()
            grants = grants.with_entry(new_entry(memory.space, block))
        if candidates.is_exhausted:
            self._note_exhausted(pool, version)
        memory.save(network, grants)
        for block in blocks:
            memory.requests.expect(block, Stored(protocol.FREE))  # most are free: no read before the claim
        return bool(blocks) or candidates.needs_list

    def _choose(self, candidates: Candidates, count: int) -> list[Network]:
        chosen: list[Network] = []
        known = [held.entry.block for held in self._memory.held_blocks()]
        while len(chosen) < count:
            block = candidates.next([*known, *chosen])
            if block is None:
                break
            chosen.append(block)
        return chosen

    def _note_exhausted(self, pool: Pool, version: int) -> None:
        key = (pool.name, version)
        self._not_before_s[key] = self._monotonic() + _EXHAUSTED_S
        del self._candidates[key]
        total = pool.count_blocks(version)
        self.problems[f"pool {pool.name} IPv{version}"] = (
            f"pool {pool.name} has no free IPv{version} block: all {total} have owners; add a CIDR to the pool, or "
            "free the blocks of nodes that are gone (`podwire ipam blocks`, `podwire ipam reclaim`)"
            if total
            else f"pool {pool.name} has no IPv{version} block that may be claimed: all its CIDRs drain; add a CIDR"
        )

    def _pools(self, network: NetworkBlocks) -> list[Pool]:
        space = self._memory.space
        return [pool for pool in space.pools if uses_pool(network, pool)] if space else []

    def _groups(self, network: NetworkBlocks) -> list[tuple[Pool, int]]:
        """Returns each pool and IP version of which a network claims blocks, except sticky pools."""
        pools = [pool for pool in self._pools(network) if not pool.is_sticky]
        return [(pool, version) for pool in pools for version in pool.versions]

    def _with_space(self, network: NetworkBlocks, grants: Grants) -> Grants:
        """Returns a network's grants with the pools, ranges and draining blocks of the space."""
        memory = self._memory
        heads = tuple(
            PoolHead(pool.name, pool.versions, pool.namespaces, pool.is_sticky) for pool in self._pools(network)
        )
        entries = (_with_pool(entry, memory.pool_of(HeldBlock(network, entry))) for entry in grants.entries)
        return grants._replace(pools=heads, entries=tuple(entries))


def new_entry(space: Space | None, block: Network) -> FileEntry:
    """Returns the entry of a block to claim; for a block of no pool, with all its addresses as the range."""
    pool = space.pool_of(block) if space else None
    ranges = tuple(pool.ranges(block)) if pool else ()
    subnet = pool.subnet_of(block) if pool else block
    ranges = ranges or ((block[0], block[-1]),)
    gateway = pool.gateway_of(subnet) if pool and pool.mode == SEGMENT else ranges[0][0]
    return FileEntry(block, pool.name if pool else "", BlockState.CLAIMING, NO_TOKEN, subnet, ranges, gateway)


def with_gateway(grants: Grants, entry: FileEntry) -> FileEntry:
    """Returns the entry with the gateway of the routed network on this node: the first address of its first block.

    All blocks of an IP version share one gateway, the address of the bridge.
    """
    if entry.subnet != entry.block:
        return entry
    return entry._replace(gateway=gateway_of(grants, entry.version) or entry.ranges[0][0])


def gateway_of(grants: Grants, version: int) -> Address | None:
    """Returns the gateway that a routed network has on this node; None before it has a block of that IP version."""
    return next(
        (
            entry.gateway
            for entry in grants.entries
            if entry.state in (*GRANT_STATES, BlockState.LOST)
            and (entry.version, entry.subnet, entry.key) == (version, entry.block, "")
        ),
        None,
    )


def _with_pool(entry: FileEntry, pool: Pool | None) -> FileEntry:
    """Returns an entry with the values of its pool; None as `pool`: the block must not be granted any longer."""
    if entry.state in GRANT_STATES:
        entry = entry._replace(state=BlockState.GRANTED if pool else BlockState.DRAINING)
    return entry._replace(pool=pool.name, ranges=tuple(pool.ranges(entry.block))) if pool else entry


def _of_group(grants: Grants, pool: Pool, version: int) -> list[FileEntry]:
    return [entry for entry in grants.entries if entry.pool == pool.name and entry.version == version]
