"""The administrator's changes of a store: the pools of the space, a dead node's blocks, a new epoch after a restore.

One rule: a change is refused unless the store still has the values that the administrator has seen. block_protocol
(by reclaim.py) and space_change decide which changes are safe.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from agent.http_server import BAD_REQUEST, Refusal
from agent.pools import block_protocol, reclaim, space_change
from agent.pools.block_protocol import Evidence, NodeRecord, SwapOutcome
from agent.pools.cluster_view import FENCED, digest_of_record, digest_of_space, record_state
from agent.pools.identity import is_node_id
from agent.pools.node_report import LocalReport
from agent.pools.reclaim import Reclaimed, SuspectedNode, free_blocks, read_suspect
from agent.pools.space import Space, format_space, parse_space
from agent.pools.store import NodeEntry, Store, Stored, SwapReply


class StoreLost(Refusal):
    """The store has lost its content: a new space in it would make the blocks of all nodes free."""


class Replacement(NamedTuple):
    """A change of a space; `current` is the digest of the space before it.

    With a `problem`, an IPSpace object requests other pools, which are refused: the change replaces them, too.
    """

    before: Space | None
    after: Space
    current: str
    problem: str = ""

    def to_json(self) -> dict[str, object]:
        """Returns this object as a JSON object."""
        before = format_space(self.before) if self.before else None
        after = format_space(self.after)
        return {"before": before, "after": after, "current": self.current, "problem": self.problem}


def replace_pools(
    store: Store, report: LocalReport, document: Mapping[str, object], *, current: str, dry_run: bool
) -> Replacement:
    """Replaces the pools of the space, or creates it; with `dry_run` only checks.

    `current` is the digest of the space that the administrator has seen. Raises Refusal, ApiError.
    """
    stored = read_space(store)
    before = stored.value
    after = check_pools(store, report, {"pools": document.get("pools")}, before)
    change = Replacement(before, after, digest_of_space(before), stored.problem)
    if dry_run or (before == after and not stored.problem):
        return change
    if current != change.current:
        raise Refusal("the pools were changed meanwhile", "run the command again and look at the difference")
    _swap_space(store, stored, after)
    return change


def check_pools(store: Store, report: LocalReport, document: Mapping[str, object], before: Space | None) -> Space:
    """Returns the space with the pools of a document in place of those before, for the command and for IPSpace objects.

    Raises Refusal for pools that are not valid or could give one address to two pods, and ApiError.
    """
    try:
        if unknown := sorted(set(document) - {"pools"}):
            raise ValueError(f'unknown key {unknown[0]!r} beside "pools"')
        after = parse_space(
            {"pools": document.get("pools"), "epoch": (before.epoch if before else "") or reclaim.random_epoch()}
        )
        claimed = [network for network, block in store.list_blocks().items() if block.value.owner]
        if before is None:
            space_change.check_blocks(after, claimed)
        else:
            space_change.check(before, after, claimed)
    except ValueError as error:
        raise Refusal(f"the pools are refused: {error}", "nothing was changed; correct the file", BAD_REQUEST) from None
    if before is None:
        _refuse_lost_store(store, report)
    return after


def reclaim_node(store: Store, report: LocalReport, node: str, record_digest: str, evidence: Evidence) -> Reclaimed:
    """Declares a node dead and makes its blocks free.

    `record_digest` is of the record and the epoch that were read before the evidence. If the node is fenced in
    this epoch already, its remaining blocks become free. This node's own ID is refused, unless its record is that of
    another machine, which this one replaces. Raises Refusal, ApiError, ValueError.
    """
    suspect = read_suspect(store, node)
    if suspect.entry.problem:
        raise Refusal(suspect.entry.problem)
    if node == report.node and (suspect.record is None or suspect.record.machine in ("", report.machine)):
        raise Refusal("this is the node on which the command runs: it is not off", "run it on another node")
    _refuse_running(store, report, suspect)
    if suspect.record is not None and record_state(suspect.record, suspect.epoch) == FENCED:
        return free_blocks(store, node)
    if digest_of_record(suspect.record, suspect.epoch) != record_digest:
        raise Refusal(
            f"the record of node {node} is no longer the one that you have seen: the machine has booted, its agent "
            "was restarted, or the store was restored",
            f"nothing was changed; make sure that the machine is off now, then: podwire ipam reclaim --node {node}",
        )
    if suspect.record is None:
        suspect = _create_missing(store, suspect)
    reclaimed = reclaim.reclaim(store, suspect, evidence)
    if reclaimed.problem and not reclaimed.blocks:
        raise Refusal(reclaimed.problem, f"podwire ipam reclaim --node {node}")
    return reclaimed


def _refuse_running(store: Store, report: LocalReport, suspect: SuspectedNode) -> None:
    """Raises Refusal if another node ID is of the same machine and boot, as after node-id was deleted: it runs."""
    if suspect.record is None or not suspect.record.machine:
        return
    place = suspect.record.machine, _boot(suspect.record)
    others = {
        stored.value.name or node: (stored.value.record.machine, _boot(stored.value.record))
        for node, stored in store.list_entries().by_node.items()
        if node != suspect.node and not stored.value.record.is_fenced
    } | {report.name: (report.machine, report.boot)}
    running = next((name for name, other in others.items() if other == place), "")
    if running:
        raise Refusal(
            f"node {suspect.node} is an earlier ID of node {running}, whose machine runs since before the ID was "
            "changed: it is not off, and its pods may have addresses of these blocks",
            f"nothing was changed; drain and reboot {running}, then: podwire ipam reclaim --node {suspect.node}",
        )


def _boot(record: NodeRecord) -> str:
    return record.instance.partition("/")[0]


def _create_missing(store: Store, suspect: SuspectedNode) -> SuspectedNode:
    """Creates the record of a node that has none, as after a restore.

    If the machine runs, its agent registers over this record. Then the fence fails: the evidence was about the record
    that is created here. Raises Refusal if the node has registered already.
    """
    missing, _ = block_protocol.recover({}, [suspect.node], suspect.epoch)
    record = missing[suspect.node].new
    change = store.swap_entry(suspect.node, suspect.entry, NodeEntry(record))
    _require(change, f"node {suspect.node} has registered meanwhile")
    suspect = suspect._replace(entry=store.read_entry(suspect.node))
    if suspect.record != record:
        raise Refusal(f"node {suspect.node} has registered meanwhile", "it runs: nothing was changed")
    return suspect


def recover_store(store: Store, report: LocalReport, joined: Collection[str]) -> str:
    """Begins a new epoch after a restore, and returns it; `joined` are the IDs of nodes that the backup may lack.

    Raises Refusal, ApiError, ValueError.
    """
    if report.networks and not report.is_restored:
        raise Refusal(
            "podwire-agent of this node has not noticed a restore of the store, so it may be claiming blocks",
            "nothing was changed. If the store was not restored, there is nothing to do. If it was, wait until "
            "`podwire ipam why` reports it; or run this on a node whose agent has no network with a pool",
        )
    for node in joined:
        if not is_node_id(node):
            raise Refusal(
                f"{node!r} is not a node ID of 32 hexadecimal digits",
                "print it on that node: cat /var/lib/podwire/node-id; nothing was changed",
                400,
            )
    try:
        return reclaim.recover(store, joined)
    except RuntimeError as error:
        raise Refusal(str(error), "podwire ipam recover, with the same --joined") from None


def read_space(store: Store) -> Stored[Space | None]:
    """Returns the space; raises Refusal if it is not valid, ApiError."""
    try:
        return store.read_space()
    except ValueError as error:
        raise Refusal(f"the space in the store is not valid: {error}", "correct the object by hand") from None


def _swap_space(store: Store, expected: Stored[Space | None], new: Space) -> None:
    change = store.swap_space(expected, new)
    if read_space(store).value != new:  # else changed, by this request or by an agent that has read the same IPSpace
        _require(change, "the space was not changed")
        raise Refusal("it is not known whether the space was changed", "podwire ipam pools prints the present pools")


def _require(change: SwapReply, text: str) -> None:
    """Raises Refusal if a request was certainly not executed; after an unknown outcome the caller reads the object."""
    if change.outcome is SwapOutcome.LOST:
        raise Refusal(f"{text}: {change.problem}", "nothing else was changed; run the command again")


def _refuse_lost_store(store: Store, report: LocalReport) -> None:
    """Raises StoreLost if this node has grants but the store lacks its entry."""
    if report.has_grants and report.node not in store.list_entries().by_node:
        raise StoreLost(
            "the store is empty, but this node has blocks: the store has lost its content",
            "restore a backup, then: podwire ipam recover; without a backup, drain and reboot all nodes first",
        )
