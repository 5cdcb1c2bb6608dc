"""The sticky addresses of this node's pods: blocks of one address that belong to a pod's key, on whatever node it is.

One rule: an address belongs to one key for ever. The key is in the block's object, set by the first claim, kept when
the block is free; no claim for another key is made. Which node may use the block is block_protocol's decision, as with
every block: so a pod that was moved waits until its former node has given the address back, or is proved to be off.

A pod's address is claimed when the pod appears on its node, ahead of ADD, and given back as soon as the pod is gone and
its address is released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from agent.pools import block_protocol as protocol
from agent.pools.block_protocol import BlockRecord
from agent.pools.grants_file import NO_TOKEN, BlockState, FileEntry, Grants
from agent.pools.key_search import KeySearch
from agent.pools.memory import Memory, uses_pool
from agent.pools.network_blocks import NetworkBlocks
from agent.pools.planning import new_entry
from agent.pools.store import Stored
from cni.address import Network

_FIRST_WAIT_S, _LAST_WAIT_S = 1.0, 8.0  # between two reads of an address that another node still has
_FULL_WAIT_S = 60.0


class PodAddress(NamedTuple):
    """An address that a pod of this node should have in a network, of one IP version."""

    network: str  # the path of its file
    pod: str
    key: str
    pool: str
    version: int


class _Wait(NamedTuple):
    """How long a pod waits: until when, the present interval, and the block that another node has."""

    until_s: float
    interval_s: float
    block: Network | None = None


class StickyPlanning:
    """Plans the claims and returns of sticky addresses for all networks of a node."""

    def __init__(self, memory: Memory, monotonic: Callable[[], float]) -> None:
        self._memory, self._monotonic = memory, monotonic
        self._searches: dict[PodAddress, KeySearch] = {}
        self._waits: dict[PodAddress, _Wait] = {}
        self._reasons: dict[PodAddress, str] = {}

    def forget(self) -> None:
        """Forgets what was searched, as after a change of the space."""
        self._searches.clear()
        self._waits.clear()

    def release(self) -> bool:
        """Revokes an address whose pod is gone, or gives it to another pod of its key; makes no request."""
        memory = self._memory
        if memory.pods is None or memory.space is None:
            return False
        for network in memory.networks:
            used = network.count_used()
            for entry in network.grants.entries:
                is_idle = entry.key and entry.state is BlockState.GRANTED and not used[entry.block]
                if is_idle and not self._is_desired(entry, network) and self._release(network, entry):
                    return True
        return False

    def write_intents(self) -> bool:
        """Writes the intent to claim the address of a pod; returns whether it made a request for this."""
        memory = self._memory
        if memory.space is None or not memory.agent.may_claim:
            return False
        missing = list(self._missing())
        self._searches = {address: self._searches[address] for address in missing if address in self._searches}
        self._waits = {address: self._waits[address] for address in missing if address in self._waits}
        self._reasons = {address: self._reasons[address] for address in missing if address in self._reasons}
        has_requested = any(self._search(address) for address in missing if self._is_due(address))
        self._write_reasons()
        return has_requested

    # Which addresses this node should have.

    def _desired(self, network: NetworkBlocks) -> Iterator[PodAddress]:
        pods, space = self._memory.pods or {}, self._memory.space
        pools = [pool for pool in space.pools if pool.is_sticky and uses_pool(network, pool)] if space else []
        pool_of = {namespace: pool for pool in pools for namespace in pool.namespaces}
        for pod, key in pods.items():
            pool = pool_of.get(pod.partition("/")[0])
            for version in pool.versions if pool else ():
                assert pool
                yield PodAddress(network.path, pod, f"{key}@{network.name}" if key else "", pool.name, version)

    def _missing(self) -> Iterator[PodAddress]:
        """Yields the addresses that pods wait for."""
        for network in self._memory.networks:
            present = {
                (entry.pod, entry.version) for entry in network.grants.entries if entry.state is BlockState.GRANTED
            }
            for desired in self._desired(network):
                if (desired.pod, desired.version) not in present:
                    yield desired

    def _is_desired(self, entry: FileEntry, network: NetworkBlocks) -> bool:
        address = PodAddress(network.path, entry.pod, entry.key, entry.pool, entry.version)
        return address in self._desired(network)

    def _release(self, network: NetworkBlocks, entry: FileEntry) -> bool:
        heir = next((desired.pod for desired in self._desired(network) if desired.key == entry.key), "")

        def released(grants: Grants) -> Grants:
            if protocol.revoke(entry.token, network.count_reservations(entry.block)):
                return grants
            if heir:
                return grants.with_entry(entry._replace(pod=heir))
            return grants.with_entry(entry._replace(state=BlockState.REVOKED, token=NO_TOKEN))

        before = network.grants
        self._memory.save_locked(network, released)
        return network.grants != before

    # The search for the address of a key.

    def _is_due(self, desired: PodAddress) -> bool:
        wait = self._waits.get(desired)
        return wait is None or self._monotonic() >= wait.until_s

    def _search(self, desired: PodAddress) -> bool:
        """Reads the next block, or lists all, in the search for a pod's address; returns whether it did."""
        network = next(one for one in self._memory.networks if one.path == desired.network)
        pool = self._memory.space.pool(desired.pool) if self._memory.space else None
        of_key = (entry for entry in network.grants.entries if entry.key == desired.key)
        existing = next((entry for entry in of_key if entry.version == desired.version), None)
        if not desired.key:
            self._reasons[desired] = "its annotation podwire.io/sticky-key is not of letters, digits, . _ -, at most 63"
            return False
        if existing:
            self._reasons[desired] = self._reason_of(existing, desired.pod)
            return False
        assert pool
        search = self._searches.setdefault(desired, KeySearch(desired.key, pool, desired.version))
        wait = self._waits.get(desired)
        block = wait.block if wait and wait.block else search.next()
        if block is None and search.is_exhausted:
            self._wait(desired, f"pool {pool.name} has no IPv{desired.version} address without a pod", _FULL_WAIT_S)
            return False
        if block is None:
            search.use_list(self._memory.store.list_blocks())
            return True
        search.use_block(block, self._memory.store.read_block(block))
        if search.result:
            self._use(network, desired, *search.result)
        elif wait:
            self._waits[desired] = wait._replace(block=None)
        return True

    def _use(self, network: NetworkBlocks, desired: PodAddress, block: Network, stored: Stored[BlockRecord]) -> None:
        """Writes the intent to claim the address of a pod; waits if another node still has it."""
        memory = self._memory
        del self._searches[desired]
        if stored.value.owner not in ("", memory.agent.node):
            wait = self._waits.get(desired)
            interval_s = min(_LAST_WAIT_S, 2 * wait.interval_s) if wait else _FIRST_WAIT_S
            where = f"node {stored.note.node_name or stored.value.owner}"
            self._wait(desired, f"its address {block.network_address} is still at {where}", interval_s, block)
            return
        self._waits.pop(desired, None)
        self._reasons[desired] = f"its address {block.network_address} is being claimed"
        entry = new_entry(memory.space, block)._replace(key=desired.key, pod=desired.pod)
        memory.save(network, network.grants.with_entry(entry))
        memory.requests.expect(block, stored)

    def _wait(self, desired: PodAddress, reason: str, interval_s: float, block: Network | None = None) -> None:
        self._searches.pop(desired, None)
        self._reasons[desired] = reason
        self._waits[desired] = _Wait(self._monotonic() + interval_s, interval_s, block)

    def _reason_of(self, existing: FileEntry, pod: str) -> str:
        address = existing.block.network_address
        if existing.pod not in ("", pod):
            return f"its address {address} is still that of pod {existing.pod} on this node"
        if existing.state is BlockState.CLAIMING:
            is_claimed = existing.block in self._memory.grantable
            cause = "; the network has no block of its own pool yet" if is_claimed else ""
            return f"its address {address} is being claimed{cause}"
        return f"its address {address} is {existing.state.value} on this node"

    def _write_reasons(self) -> None:
        for network in self._memory.networks:
            reasons: dict[str, list[str]] = {}
            for desired, text in self._reasons.items():
                if desired.network == network.path:
                    reasons.setdefault(desired.pod, []).append(text)
            waiting = tuple((pod, "; ".join(reasons[pod])) for pod in sorted(reasons))
            if waiting != network.grants.waiting:
                self._memory.save(network, network.grants._replace(waiting=waiting))
