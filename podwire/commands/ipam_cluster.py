"""`podwire ipam pools|blocks|who|why` and `verify --cluster`: the addresses of a cluster, reported by podwire-agent.

These commands only read; `pools --set`, `reclaim` and `recover` are in ipam_changes.py.
"""

from __future__ import annotations

from argparse import Namespace
from ipaddress import ip_address

from cni.address import Address
from cni.errors import CniError, Code
from podwire.cluster import local_check, why
from podwire.cluster.agent_socket import StoreError
from podwire.cluster.answers import (
    ClaimedBlock,
    ClusterFault,
    LocalReport,
    StoreContent,
    find_node,
    read_cluster,
    read_local_report,
)
from podwire.command import Context, ExitStatus, UsageError, exit_status, places
from podwire.node import reservations
from podwire.node.inspection import read_snapshot
from podwire.node.reservations import ListedReservation, ReservationState
from podwire.node.snapshot import Snapshot
from podwire.output import Cell, Text, plural

_STATES = {"fenced": "bad", "old epoch": "warning", "damaged": "bad"}


def pools(context: Context, options: Namespace) -> ExitStatus:
    """Prints the pools with their numbers."""
    cluster = read_cluster(options.socket)
    context.out.print_json({key: cluster.document.get(key) for key in ("space", "pools", "nodes")})
    if not cluster.pools:
        context.out.print("the store has no pools; to create them: podwire ipam pools --set FILE")
        return ExitStatus.FINE
    rows: list[list[Text]] = []
    for pool in cluster.pools:
        first: list[Text] = [pool.name, pool.mode]
        for version in pool.versions:
            cidrs = " ".join(str(cidr) for cidr in pool.cidrs if cidr.version == version.version)
            is_full = version.claimed >= version.total
            draining = f", {version.draining} draining" if version.draining else ""
            blocks = Cell(f"{version.claimed} of {version.total}{draining}", "bad" if is_full else "")
            namespaces = " ".join(pool.namespaces) or "-"
            rows.append([*first, cidrs, f"/{version.prefix_length}", blocks, str(version.addresses), namespaces])
            first = ["", ""]
    context.out.print_table(("POOL", "MODE", "CIDRS", "BLOCK", "CLAIMED", "ADDRESSES", "NAMESPACES"), rows)
    waiting = sum(node.epoch != cluster.epoch for node in cluster.nodes)
    context.out.print(f"{plural(len(cluster.nodes), 'node')}, epoch {cluster.epoch}")
    if waiting:
        text = f"{plural(waiting, 'node')} of another epoch: no blocks are claimed now; podwire ipam verify --cluster"
        context.out.print(Cell(text, "warning"))
    return ExitStatus.FINE


def blocks(context: Context, options: Namespace) -> ExitStatus:
    """Prints the claimed blocks of all nodes, or those of a node or pool."""
    cluster = read_cluster(options.socket)
    if options.pool and options.pool not in {pool.name for pool in cluster.pools}:
        names = ", ".join(pool.name for pool in cluster.pools) or "none"
        raise CniError(Code.UNKNOWN_CONTAINER, f"there is no pool {options.pool}", f"the pools are: {names}")
    owner = find_node(cluster, options.node)[0] if options.node else ""
    chosen = [
        block for block in cluster.blocks if owner in ("", block.owner) and options.pool in ("", None, block.pool)
    ]
    texts = {str(block.block) for block in chosen}
    listed = cluster.document.get("blocks")
    items = [item for item in listed if item.get("block") in texts] if isinstance(listed, list) else []
    context.out.print_json({"blocks": items, "nodes": cluster.document.get("nodes")})
    if chosen:
        titles = ("BLOCK", "POOL", "NODE", "NODE ID", "GENERATION", "SINCE", "STATE")
        context.out.print_table(titles, [_row(block, cluster) for block in chosen])
    else:
        context.out.print("no blocks are claimed")
    return ExitStatus.FINE


def _row(block: ClaimedBlock, cluster: StoreContent) -> list[Text]:
    node = cluster.node(block.owner)
    owner_state = node.state if node else "no entry"
    state = "damaged" if block.problem else "draining" if block.draining else "claimed"
    if owner_state != "registered":
        state += f", node {owner_state}"
    return [
        str(block.block),
        block.pool or Cell("-", "bad"),
        block.owner_name if node and node.name else "-",
        block.owner,
        str(block.generation),
        block.since or "-",
        Cell(state, "" if owner_state == "registered" and not block.problem else _STATES.get(owner_state, "bad")),
    ]


def who(context: Context, options: Namespace) -> ExitStatus:
    """Prints which node has an address, and, for this node, which pod."""
    try:
        address: Address = ip_address(options.address)
    except ValueError:
        msg = f"{options.address!r} is not an IP address"
        raise UsageError(Code.INVALID_ENVIRONMENT, msg, "podwire ipam who 10.22.0.70") from None
    local = read_local_report(options.socket)
    mine = next((block for block in local.blocks if address in block.block), None)
    unseen: list[str] = []
    cluster: StoreContent | None = None
    try:
        cluster = read_cluster(options.socket)
    except StoreError as error:
        if mine is None:
            raise
        unseen.append(error.msg)
    owned = next((item for item in cluster.blocks if address in item.block), None) if cluster else None
    document: dict[str, object] = {"address": str(address), **_place(address, local, cluster, owned)}
    is_here = mine is not None or (owned is not None and owned.owner == local.node)
    entry = None
    if is_here:
        snapshot = read_snapshot(places(context, options), rules=False)
        networks = {network for network, _ in local.networks}
        entry = next((item for item in reservations.entries(snapshot) if _is_of(item, address, networks)), None)
        unseen += [] if entry else snapshot.records.unread
    document |= {"isThisNode": is_here, "reservation": entry.to_json() if entry else None}
    context.out.print_json({**document, "unseen": unseen})
    _print_who(context, document, owned, entry)
    print_unseen(context, unseen)
    return exit_status(wrong=False, complete=not unseen)


def _place(
    address: Address, local: LocalReport, cluster: StoreContent | None, owned: ClaimedBlock | None
) -> dict[str, object]:
    """Returns pool, block and owner of an address; raises CniError(3) if no pool contains it."""
    if owned:
        token = {"epoch": owned.epoch, "generation": owned.generation, "since": owned.since}
        place = {"pool": owned.pool, "block": str(owned.block), "node": owned.owner, "nodeName": owned.owner_name}
        return {**place, **token}
    mine = next((block for block in local.blocks if address in block.block), None)
    if mine and cluster is None:
        return {"pool": mine.pool, "block": str(mine.block), "node": local.node, "nodeName": local.name}
    known = cluster.pools if cluster else ()
    pool, block = next(((pool, block) for pool in known if (block := pool.block_of(address))), (None, None))
    if pool is None:
        names = ", ".join(f"{pool.name} {' '.join(map(str, pool.cidrs))}" for pool in known) or "none"
        raise CniError(Code.UNKNOWN_CONTAINER, f"{address} is in no pool", f"the pools are: {names}")
    return {"pool": pool.name, "block": str(block), "node": "", "nodeName": ""}


def _is_of(entry: ListedReservation, address: Address, networks: set[str]) -> bool:
    """Returns whether an entry is a reservation of the address in one of the networks that have pools."""
    try:
        is_same = ip_address(entry.address) == address
    except ValueError:
        return False
    return is_same and entry.network in networks and entry.state is not ReservationState.LAST


def _print_who(
    context: Context, document: dict[str, object], owned: ClaimedBlock | None, entry: ListedReservation | None
) -> None:
    out = context.out
    out.print(f"{document['address']}: pool {document['pool'] or '(none)'}, block {document['block']}")
    if not document["node"]:
        out.print("no node has claimed the block")
        return
    name, node = document["nodeName"], document["node"]
    token = f", epoch {owned.epoch}, generation {owned.generation}, since {owned.since or '(unknown)'}" if owned else ""
    out.print(f"node {name}{f' ({node})' if node != name else ''}{token}")
    if not document["isThisNode"]:
        out.print(f"its pod: on node {name} run: podwire ipam who {document['address']}")
    elif entry is None:
        out.print("no pod has the address")
    else:
        owner = " ".join(filter(None, (entry.attachment.container_id, entry.attachment.ifname)))
        out.print(f"pod {entry.pod or '(unknown)'}, network {entry.network}, container {owner}, {entry.state}")


def explain(context: Context, options: Namespace) -> ExitStatus:
    """Prints why a node has no address."""
    local = read_local_report(options.socket)
    cluster: StoreContent | None = None
    problem = ""
    try:
        cluster = read_cluster(options.socket)
    except StoreError as error:
        problem = error.msg
    node, name = local.node, local.name
    if options.node and options.node not in (local.node, local.name):
        if cluster is None:
            raise StoreError(Code.TRY_AGAIN_LATER, problem, f"run it on node {options.node}: podwire ipam why")
        node, name = find_node(cluster, options.node)
    answer = why.explain(node, name, local, cluster, problem)
    context.out.print_json(
        {
            "node": answer.node,
            "name": answer.name,
            "complete": not answer.unseen,
            "facts": answer.facts,
            "reasons": [reason.to_json() for reason in answer.reasons],
            "unseen": answer.unseen,
        }
    )
    _print_why(context, answer, is_here=node == local.node)
    return exit_status(wrong=bool(answer.reasons), complete=not answer.unseen)


def _print_why(context: Context, answer: why.Explanation, *, is_here: bool) -> None:
    context.out.print(f"node {answer.name or '-'} ({answer.node}){', this node' if is_here else ''}")
    for fact in answer.facts:
        context.out.print(" ", fact)
    for reason in answer.reasons:
        context.out.print(Cell(reason.text, "bad"))
        context.out.print("  fix:", reason.fix)
    if not answer.reasons and is_here:
        context.out.print(Cell("no reason: the node has addresses, or gets a block", "good"))
    elif not answer.reasons:
        context.out.print("no reason in the store")


def verify(context: Context, options: Namespace) -> ExitStatus:
    """Prints the faults of blocks and entries of the whole cluster, and of this node's reservations."""
    if options.network:
        raise UsageError(Code.INVALID_ENVIRONMENT, "--cluster is for all networks", "podwire ipam verify --cluster")
    cluster = read_cluster(options.socket)
    local, snapshot, findings = _find_local(context, options)
    if findings:  # pods start and agents claim blocks meanwhile: report only faults that a second read shows again
        local, snapshot, again = _find_local(context, options)
        findings = [finding for finding in again if finding in findings]
    findings = [*cluster.findings, *findings]
    unseen = list(dict.fromkeys((*snapshot.records.unread, *snapshot.kernel.unseen))) if local.networks else []
    items = [finding.to_json() for finding in findings]
    context.out.print_json({"complete": not unseen, "findings": items, "unseen": unseen})
    for finding in findings:
        context.out.print(Cell(finding.text, "bad"))
        context.out.print("  fix:", finding.fix)
    print_unseen(context, unseen)
    if not findings:
        text = f"{plural(len(cluster.nodes), 'node')}, {plural(len(cluster.blocks), 'block')}"
        rest = "but this node could not be checked completely" if unseen else "nothing wrong"
        context.out.print(Cell(f"{text}, {rest}", "warning" if unseen else "good"))
    return exit_status(wrong=bool(findings), complete=not unseen)


def _find_local(context: Context, options: Namespace) -> tuple[LocalReport, Snapshot, list[ClusterFault]]:
    snapshot = read_snapshot(places(context, options), rules=False)
    local = read_local_report(options.socket)
    return local, snapshot, list(local_check.find_faults(local, snapshot))


def print_unseen(context: Context, unseen: list[str]) -> None:
    """Prints what could not be inspected."""
    for text in unseen:
        context.out.print(Cell("not seen:", "warning"), text)
