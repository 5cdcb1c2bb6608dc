"""Checks whether the administrator may replace the pools of a space by others.

One rule: no address is ever in two blocks. An agent may have read the pools before a change and claim a block after it,
by a request that names only the block. So the CIDR must be draining before its blocks may change their size or pool, or
disappear. After each claim an agent reads the space again, and it does not grant a block that drains. So while the CIDR
drains, the list of claimed blocks contains every grant.

    Without that: A reads {10.22.0.0/24, /26}. The CIDR is removed, and added again with blocks of /28. B claims
    10.22.0.0/28. A claims 10.22.0.0/26, which is another object, and grants it: 10.22.0.1 is in two blocks.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.pools.space import SEGMENT, Pool, Space, contains
from cni.address import Address, Network

_WAIT = 'set the CIDR in "draining" first, and wait until `podwire ipam blocks --pool {}` lists none of its blocks'


def check(before: Space, after: Space, blocks: Iterable[Network]) -> None:
    """Raises ValueError if a change of the pools could put one address into two blocks; `blocks` are those claimed.

    The caller reads them after `before`, and changes the space by compare-and-swap from `before`.
    """
    claimed = tuple(blocks)
    _refuse_lost(before, after, claimed)
    for pool in before.pools:
        for cidr in pool.cidrs:
            if not (_continues(pool, cidr, after) or any(contains(network, cidr) for network in pool.draining)):
                raise ValueError(
                    f"pool {pool.name} loses the blocks of {cidr}, which agents may be claiming now: "
                    f"{_WAIT.format(pool.name)}"
                )
        new = after.pool(pool.name)
        if new is not None and new.mode == pool.mode == SEGMENT:
            _refuse_reserved(pool, new)
    check_blocks(after, claimed)


def check_blocks(after: Space, blocks: Iterable[Network]) -> None:
    """Raises ValueError if a claimed block overlaps a pool and is not one of its blocks."""
    for block in blocks:
        for pool in after.pools:
            if pool.cidr_of(block) is None and any(block.overlaps(cidr) for cidr in pool.cidrs):
                raise ValueError(
                    f"block {block}, which a node has, overlaps pool {pool.name} but is not one of its blocks: "
                    "`podwire ipam blocks` lists its node, which gives it back when no pod has an address of it"
                )


def _refuse_lost(before: Space, after: Space, blocks: Iterable[Network]) -> None:
    """Raises ValueError if a claimed block is not a block of the same pool after the change."""
    for block in blocks:
        one, other = before.pool_of(block), after.pool_of(block)
        if one is not None and (other is None or (other.name, other.mode) != (one.name, one.mode)):
            raise ValueError(
                f'pool {one.name} loses block {block}, which a node has: set its CIDR in "draining" first, and wait '
                "until `podwire ipam blocks` lists none of its blocks"
            )


def _continues(pool: Pool, cidr: Network, after: Space) -> bool:
    """Returns whether the blocks of a CIDR are blocks of the same pool after the change."""
    new = after.pool(pool.name)
    if new is None or new.mode != pool.mode or new.prefix_lengths[cidr.version] != pool.prefix_lengths[cidr.version]:
        return False
    parts = [part for part in new.cidrs if contains(cidr, part)]
    is_split = sum(part.num_addresses for part in parts) == cidr.num_addresses
    return is_split or any(contains(other, cidr) for other in new.cidrs)


def _refuse_reserved(pool: Pool, new: Pool) -> None:
    """Raises ValueError if an address that a pod may have becomes the gateway or an edge of a CIDR."""
    for cidr in new.cidrs:
        for address in _reserved(new, cidr):
            old = next((item for item in pool.cidrs if address in item), None)
            is_free = old is None or address in _reserved(pool, old) or any(address in hole for hole in pool.excluded)
            if not (is_free or any(address in network for network in pool.draining)):
                raise ValueError(
                    f"pool {pool.name}: {address} becomes the gateway, the network or the broadcast address of {cidr}, "
                    'and a pod may have it: set it in "excluded" first, and wait until no pod has it'
                )


def _reserved(pool: Pool, cidr: Network) -> set[Address]:
    return {cidr.network_address, cidr.broadcast_address, pool.gateway_of(cidr)}
