"""Explains why a node has no address: facts, and reasons with fixes, from its agent and the store. Pure.

One rule: only what is certain is a reason. Addresses in use and the last contact are known only on the node itself, so
there are no such facts about another node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from podwire.cluster.answers import ClusterPool, LocalBlock, LocalReport, StoreContent, Version
from podwire.output import plural

GRANTED = "granted"
_MOST = 5  # nodes that are named
FIX_OF_LOST = "delete these pods and create them again; podwire ipam list shows the addresses"
_AGENT_FIX = "check podwire-agent there: /readyz and its log"


@dataclass(frozen=True)
class Reason:
    """A reason, and what to do."""

    text: str
    fix: str

    def to_json(self) -> dict[str, object]:
        """Returns this object's part of the JSON document."""
        return {"what": self.text, "fix": self.fix}


@dataclass(frozen=True)
class Explanation:
    """The facts about a node, and the reasons; `unseen` lists the data that could not be read."""

    node: str
    name: str
    facts: list[str] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


def explain(node: str, name: str, local: LocalReport, cluster: StoreContent | None, store_problem: str) -> Explanation:
    """Returns why a node, this one or another, has no address; `cluster` is None if the store does not answer."""
    answer = Explanation(node, name)
    if node == local.node:
        _add_local_report(answer, local)
    else:
        answer.facts.append(
            "addresses in use and the last contact with the store are known on that node only; there: podwire ipam why"
        )
    if cluster is None:
        answer.unseen.append(store_problem)
        if node == local.node:
            answer.reasons.append(Reason(store_problem, "pods get the free addresses above until the store answers"))
        return answer
    _add_record(answer, node, cluster)
    _add_old_epochs(answer, node, cluster)
    _add_pools(answer, node, local, cluster)
    return answer


def describe_lost(block: LocalBlock) -> str:
    """Returns the problem of a block that the store gave to another node while pods here have its addresses."""
    return (
        f"block {block.block} of network {block.network} has another owner in the store, and pods of this node have "
        f"{block.used} of its addresses: other pods may have the same"
    )


def _add_local_report(answer: Explanation, local: LocalReport) -> None:
    for network, pool in local.networks:
        blocks = [block for block in local.blocks if block.network == network]
        answer.facts.append(f"network {network}, pool {pool}: {_describe(blocks)}")
        answer.reasons.extend(_find_full_blocks(network, pool, blocks))
    if not local.networks:
        answer.reasons.append(Reason("no network of this node uses a pool", 'set "pool" in the ipam of a network'))
    answer.facts.append(f"podwire-agent reached the store {_ago(local.contact_s)}")
    for problem in local.problems:
        answer.reasons.append(Reason(problem, "podwire-agent reports this; its log has more"))


def _describe(blocks: list[LocalBlock]) -> str:
    granted = [block for block in blocks if block.state == GRANTED]
    used, size = sum(block.used for block in granted), sum(block.size for block in granted)
    others = Counter(block.state for block in blocks if block.state != GRANTED)
    more = "".join(f", {number} {state}" for state, number in others.items())
    return f"{used} of {size} addresses in use in {plural(len(granted), 'granted block')}{more}"


def _find_full_blocks(network: str, pool: str, blocks: list[LocalBlock]) -> Iterator[Reason]:
    granted = [block for block in blocks if block.state == GRANTED]
    if not granted:
        text = f"network {network} has no granted block of pool {pool}"
        yield Reason(text, "podwire-agent claims one, unless another reason is listed here; its log has more")
    for version in sorted({block.block.version for block in granted}):
        same = [block for block in granted if block.block.version == version]
        if all(block.used >= block.size for block in same):
            text = f"all IPv{version} addresses of network {network} on this node are in use"
            yield Reason(text, f"podwire-agent claims another block; stale addresses: podwire ipam verify {network}")
    for block in blocks:
        if block.state == "lost":
            yield Reason(describe_lost(block), FIX_OF_LOST)


def _add_record(answer: Explanation, node: str, cluster: StoreContent) -> None:
    entry = cluster.node(node)
    if entry is None:
        answer.reasons.append(Reason(f"node {node} has no entry in the store: it is not registered", _AGENT_FIX))
        return
    answer.facts.append(f"its record: {entry.state}, epoch {entry.epoch or '(none)'}, instance {entry.instance}")
    if entry.problem:
        answer.reasons.append(Reason(*_split(entry.problem)))
    if entry.state == "fenced":
        answer.reasons.append(
            Reason("the node was declared dead, so other nodes may have its blocks", f"if it runs now, {_AGENT_FIX}")
        )


def _add_old_epochs(answer: Explanation, node: str, cluster: StoreContent) -> None:
    """Adds the nodes of another epoch: no node claims blocks until all have registered in the present one."""
    waiting = [item for item in cluster.nodes if item.epoch != cluster.epoch]
    for item in waiting[:_MOST]:
        label = item.name or item.id
        who = "the node itself" if item.id == node else f"node {label}"
        answer.reasons.append(
            Reason(
                f"no node claims blocks in epoch {cluster.epoch} before {who} has registered in it: its record is of "
                f"epoch {item.epoch or '(none)'}",
                f"if {label} runs, {_AGENT_FIX}; if it stays off: podwire ipam reclaim --node {item.id}",
            )
        )
    if len(waiting) > _MOST:
        rest = plural(len(waiting) - _MOST, "more node")
        answer.reasons.append(Reason(f"{rest} of another epoch", "podwire ipam verify --cluster"))


def _add_pools(answer: Explanation, node: str, local: LocalReport, cluster: StoreContent) -> None:
    if not cluster.has_space or not cluster.pools:
        answer.reasons.append(Reason("the store has no pools", "podwire ipam pools --set FILE"))
    known = {pool.name for pool in cluster.pools}
    for network, pool_name in local.networks if node == local.node else ():
        if pool_name not in known:
            text = f"network {network} uses pool {pool_name}, which does not exist"
            answer.reasons.append(Reason(text, f"the pools are {', '.join(sorted(known)) or 'none'}: correct the name"))
    for pool in cluster.pools:
        mine = sum(block.pool == pool.name and block.owner == node for block in cluster.blocks)
        answer.facts.append(f"pool {pool.name}: {plural(mine, 'block')} of this node; {_describe_blocks_of_pool(pool)}")
        for version in pool.versions:
            if version.claimed >= version.total and _may_need_block(node, local, pool, version):
                answer.reasons.append(_describe_exhausted_pool(pool, version, cluster))


def _may_need_block(node: str, local: LocalReport, pool: ClusterPool, version: Version) -> bool:
    """Returns whether a node may need another block; False if this node does not use the pool or has free addresses."""
    if node != local.node:
        return True
    if pool.name not in {name for _, name in local.networks} and not pool.namespaces:
        return False
    return not any(
        block.pool == pool.name
        and block.block.version == version.version
        and block.state == GRANTED
        and block.used < block.size
        for block in local.blocks
    )


def _describe_blocks_of_pool(pool: ClusterPool) -> str:
    texts = (f"{item.claimed} of {item.total} IPv{item.version} blocks claimed" for item in pool.versions)
    return ", ".join(texts)


def _describe_exhausted_pool(pool: ClusterPool, version: Version, cluster: StoreContent) -> Reason:
    owners = Counter(
        block.owner_name
        for block in cluster.blocks
        if block.pool == pool.name and block.block.version == version.version and not block.draining
    )
    most = ", ".join(f"{name} {number}" for name, number in owners.most_common(_MOST))
    more = f" and {plural(len(owners) - _MOST, 'more node')}" if len(owners) > _MOST else ""
    text = f"all {version.total} IPv{version.version} blocks of pool {pool.name} are claimed: {most}{more}"
    fix = "enlarge the pool: podwire ipam pools --set FILE; look for dead nodes: podwire ipam verify --cluster"
    return Reason(text, fix)


def _ago(seconds: int | None) -> str:
    if seconds is None:
        return "never since its start"
    return f"{seconds // 60} min ago" if seconds >= 120 else f"{seconds} s ago"


def _split(problem: str) -> tuple[str, str]:
    text, _, fix = problem.partition("; fix: ")
    return text, fix or _AGENT_FIX
