"""The membership of this node in the store: the epoch, its entry, and whether it may claim.

One rule: block_protocol makes every decision. A step here makes at most one request, and returns whether it did.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.pools import block_protocol as protocol
from agent.pools.block_requests import RequestFailed
from agent.pools.grants_file import GRANT_STATES, NO_TOKEN
from agent.pools.memory import Memory, is_routed
from agent.pools.store import NodeEntry, Stored, StorePosition
from cni.address import Network

RESTORED = (
    "the store was restored from a backup: run `podwire ipam recover` (its --help has all steps). Until then this node "
    "claims no block and gives none back; pods keep their addresses, and new pods get addresses of granted blocks"
)
_FIRST_LIST_S, _LAST_LIST_S = 1.0, 30.0


class Membership:
    """The steps that keep this node registered in the store. `problems`: why it cannot claim blocks."""

    def __init__(self, memory: Memory, monotonic: Callable[[], float]) -> None:
        self._memory, self._monotonic = memory, monotonic
        self._next_list_s, self._list_wait_s = 0.0, _FIRST_LIST_S
        self.problems: dict[str, str] = {}

    def read_space(self) -> bool:
        """Reads the space when it may have changed, and after claims; forgets tokens of another epoch."""
        memory = self._memory
        if not memory.space_is_due:
            return False
        try:
            stored = memory.store.read_space()
        except ValueError as error:
            stored = Stored(None, problem=f"the space is not valid: {error}")
        memory.space = stored.value if stored.value and stored.value.epoch else None
        if memory.space is None:
            memory.claimed.clear()
            missing = "the store has no pools: apply an IPSpace object, or run `podwire ipam pools --set FILE`"
            raise RequestFailed(stored.problem or missing)
        memory.space_is_due = False
        agent = protocol.after_epoch(memory.agent, memory.space.epoch)
        if agent != memory.agent:
            self._begin_epoch(agent)
        for block, claimed in list(memory.claimed.items()):
            del memory.claimed[block]
            token = protocol.token_to_grant(claimed, agent.epoch)
            if token:
                memory.grantable[block] = token
        return True

    def _begin_epoch(self, agent: protocol.AgentState) -> None:
        memory = self._memory
        memory.agent = agent
        memory.claimed.clear()
        memory.grantable.clear()
        memory.requests.forget_all()
        memory.mark_unverified()
        memory.is_restored = memory.position_is_checked = False
        has_no_entry = memory.identity.is_new and not memory.unverified
        memory.node_entry = Stored(None) if has_no_entry else None
        self.problems.pop("store", None)
        self.read_entries_again()

    def read_entry(self) -> bool:
        """Reads this node's entry; the first time with all others, because a list has the store's position."""
        memory = self._memory
        if memory.node_entry is not None:
            return False
        if not memory.position_is_checked:
            self._list_entries()
            return True
        self._set_entry(memory.store.read_entry(memory.agent.node))
        return True

    def register(self) -> bool:
        """Registers this instance, once all grants are reasserted and the record is not foreign."""
        memory = self._memory
        if memory.node_entry is None or self._stored_record() == memory.agent.record:
            return False
        tokens = [held.entry.token for held in memory.held_blocks() if held.entry.grant]
        if memory.has_unaccounted_reservations:
            tokens.append(NO_TOKEN)  # a lost file's grant: unknown, so of no epoch, which prevents the registration
        swap = protocol.register(memory.agent, tokens, self._stored_record())
        if swap is None:
            self._raise_if_unusable()
            return False
        memory.agent = memory.agent._replace(may_claim=False)
        self._swap_entry(self._desired_entry())
        self.read_entries_again()
        return True

    def read_entries(self) -> bool:
        """Reads all entries, again and again, until the agent may claim: until all other nodes are of this epoch."""
        memory = self._memory
        if memory.agent.may_claim or self._stored_record() != memory.agent.record:
            return False
        if self._monotonic() < self._next_list_s:
            return False
        self._next_list_s = self._monotonic() + self._list_wait_s
        self._list_wait_s = min(_LAST_LIST_S, 2 * self._list_wait_s)
        self._list_entries()
        return True

    def publish(self) -> bool:
        """Writes the entry when this node's name, addresses or networks have changed."""
        memory = self._memory
        if memory.node_entry is None or not memory.agent.may_claim or memory.node_entry.value == self._desired_entry():
            return False
        self._swap_entry(self._desired_entry())
        return True

    def is_published(self, block: Network) -> bool:
        """Returns whether this node's entry lists a block, so that other nodes have a route to it."""
        entry = self._memory.node_entry
        return entry is not None and entry.value is not None and block in entry.value.networks

    def read_entries_again(self) -> None:
        """Lets `read_entries` read them in the next step, without a wait."""
        self._next_list_s, self._list_wait_s = 0.0, _FIRST_LIST_S

    def _stored_record(self) -> protocol.NodeRecord | None:
        entry = self._memory.node_entry
        return entry.value.record if entry and entry.value else None

    def _list_entries(self) -> None:
        """Reads all entries; checks the store's position, and whether all nodes are of this epoch."""
        memory = self._memory
        entries = memory.store.list_entries()
        self._check_position(memory.store.position)
        if memory.is_restored:
            return
        self._set_entry(entries.by_node.get(memory.agent.node, Stored(None)))
        records = {node: stored.value.record for node, stored in entries.by_node.items()}
        memory.agent = protocol.after_records(memory.agent, records)
        waiting = [
            stored.value.name or node
            for node, stored in entries.by_node.items()
            if stored.value.record.epoch != memory.agent.epoch and node != memory.agent.node
        ]
        self.problems.pop("epoch", None)
        if waiting and not memory.agent.may_claim:
            some = ", ".join(sorted(waiting)[:5]) + (f" and {len(waiting) - 5} more" if len(waiting) > 5 else "")
            self.problems["epoch"] = (
                f"no block is claimed until these nodes have reached the restored store: {some}; start their agents; "
                "for a machine that is off: `podwire ipam reclaim --node NODE --powered-off`"
            )

    def _check_position(self, position: StorePosition) -> None:
        """Notes a restore: in this epoch the store had a higher revision, or another cluster ID."""
        memory = self._memory
        memory.position_is_checked = True
        known = [n.grants.position for n in memory.networks if n.grants.epoch == memory.agent.epoch]
        before = max(known, key=lambda one: one.revision, default=StorePosition())
        if before.cluster and (position.cluster != before.cluster or position.revision < before.revision):
            memory.is_restored = True
            memory.agent = memory.agent._replace(may_claim=False)
            self.problems["store"] = RESTORED
            return
        memory.position = position
        for network in memory.networks:
            if network.is_of_this_boot:
                memory.write(network, network.grants)  # for the new position

    def _set_entry(self, stored: Stored[NodeEntry | None]) -> None:
        """Notes this node's entry as it is; a fence, or another agent's registration, ends the right to claim."""
        memory = self._memory
        memory.node_entry = stored
        record = stored.value.record if stored.value else None
        if record != memory.agent.record:
            memory.agent = memory.agent._replace(may_claim=False)
        # Compares the boot only: the UID of the Node object, the other part of an instance, may change in one boot.
        memory.is_fenced = bool(record and record.is_fenced and record.instance.startswith(f"{memory.identity.boot}/"))
        if memory.is_fenced:
            self.problems["fenced"] = (
                "this node was declared dead while it ran; its blocks may have other owners. Delete the pods that have "
                "addresses of lost blocks (the log and Events name them), and look for the cause of the wrong statement"
            )
            memory.mark_unverified()

    def _raise_if_unusable(self) -> None:
        """Raises RequestFailed if the entry is damaged or of another machine, and lets it be read again."""
        memory, record = self._memory, self._stored_record()
        if memory.node_entry and memory.node_entry.problem:
            problem, memory.node_entry = memory.node_entry.problem, None
            raise RequestFailed(problem)
        if record and protocol.is_foreign(memory.agent, record):
            memory.node_entry = None
            raise RequestFailed(
                f"node ID {memory.agent.node} belongs to another machine ({record.machine}; this one is "
                f"{memory.agent.machine}): if this disk is a copy, delete node-id in the agent's state directory and "
                "reboot; if this machine replaces the other one, which is off, run `podwire ipam reclaim --node "
                f"{memory.agent.node} --powered-off`"
            )

    def _swap_entry(self, new: NodeEntry) -> None:
        memory = self._memory
        expected = memory.node_entry or Stored(None)
        memory.node_entry = None  # it has to be read, unless the answer has the new value
        change = memory.store.swap_entry(memory.agent.node, expected, new)
        if protocol.succeeded(memory.requests.check_outcome("entry", expected.raw, change)) and change.raw:
            memory.node_entry = Stored(new, change.raw)

    def _desired_entry(self) -> NodeEntry:
        """Returns the entry that this node should have."""
        memory = self._memory
        networks = []
        for held in memory.held_blocks():
            pool = memory.space.pool_of(held.entry.block) if memory.space else None
            is_used = held.entry.state in GRANT_STATES or held.entry.block in memory.grantable
            if is_used and is_routed(held.entry, pool):
                networks.append(held.entry.block)
        networks.sort(key=lambda block: (block.version, int(block.network_address)))
        existing = memory.node_entry.value if memory.node_entry else None
        is_registered = existing is not None and existing.record == memory.agent.record
        since = existing.registered if existing and is_registered else memory.time_text()
        return NodeEntry(memory.agent.record, memory.facts.name, memory.facts.addresses, tuple(networks), since)
