"""`podwire ipam pools --set|reclaim|recover`: changes of a cluster's addresses, which podwire-agent makes.

One rule: the operator sees what will change before confirming it, and the agent refuses the change if the store's
content is different by then.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from shlex import quote

from cni import gojson
from cni.errors import CniError, Code, invalid_conf
from cni.fields import Fields
from podwire import confirming
from podwire.cluster import agent_socket
from podwire.cluster.answers import StoreContent, find_node, read_cluster, read_local_report
from podwire.command import Context, ExitStatus, UsageError
from podwire.output import Cell, plural
from process import files

_MAX_FILE_BYTES = 1 << 20
_KEYS = {"pools"}
_STATEMENT = """\
You state that the machine is off now, and stays off until this command has ended: none of its pods runs. Check the
machine, its console or the cloud's API. "Not ready", a machine that cannot be reached, and an agent that does not
answer are no proof. If the statement is wrong, two pods may get the same address."""
_CLOSED = """\
After a restore no other agent may reach the store until this command has ended: an agent that was cut off or stopped
cannot notice the restore, and may claim blocks that other nodes have claimed since the backup. So stop podwire-agent
on all other nodes before the restore (podwire ipam recover --help); pods keep running and keep their addresses."""


def set_pools(context: Context, options: Namespace) -> ExitStatus:
    """Creates or replaces the pools with those of a file."""
    _require_confirmation_option(context, confirmed=options.yes, option="--yes")
    request: dict[str, object] = {"pools": _read_pools(options.set)}
    change = Fields(agent_socket.post(options.socket, "/pools/space", {**request, "dryRun": True}))
    lines = list(_difference(change.nested("before"), change.section("after")))
    if refusal := change.string("problem"):
        lines.append(f"~ {refusal}; its spec is replaced")
    for line in lines or ["the store has these pools already: nothing to change"]:
        context.out.print(line)
    if lines and not options.yes:
        otherwise = f"podwire ipam pools --set {quote(options.set)} --yes"
        confirming.require("Change the pools of the cluster? [yes/no]", "yes", otherwise)
    if lines:
        request["current"] = change.string("current")
        agent_socket.post(options.socket, "/pools/space", request)
    context.out.print_json({"before": change.raw("before"), "after": change.raw("after"), "difference": lines})
    if lines:
        context.out.print(Cell("changed", "good"))
    return ExitStatus.FINE


def _read_pools(path: str) -> list[object]:
    """Returns the pools in a file; raises CniError(5), CniError(7)."""
    example = '{"pools": [{"name": "default", "cidrs": ["10.22.0.0/16"]}]}'
    try:
        document = gojson.loads(files.read(path, _MAX_FILE_BYTES))
    except OSError as error:
        raise CniError(Code.IO_FAILURE, f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise invalid_conf(f"{path} is not JSON: {error}", f"such as {example}") from None
    pools = document.get("pools") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(pools, list):
        raise invalid_conf(f'{path} has no list "pools"', f"such as {example}")
    if unknown := sorted(set(document) - _KEYS):
        raise invalid_conf(f"{path}: unknown key {unknown[0]!r}", f"such as {example}")
    return pools


def _difference(before: Fields | None, after: Fields) -> Iterator[str]:
    """Yields a line for each pool and each key of a pool that differs."""
    old = _by_name(before) if before else {}
    new = _by_name(after)
    for name in old.keys() - new.keys():
        yield f"- pool {name}: {_shown(old[name])}"
    for name, pool in new.items():
        if name not in old:
            yield f"+ pool {name}: {_shown(pool)}"
            continue
        for key in pool:
            if pool[key] != old[name].get(key):
                yield f"~ pool {name}: {key}: {gojson.dumps(old[name].get(key))} -> {gojson.dumps(pool[key])}"


def _by_name(space: Fields) -> dict[str, Mapping[str, object]]:
    pools = space.raw("pools")
    items = [pool for pool in pools if isinstance(pool, dict)] if isinstance(pools, list) else []
    return {str(pool.get("name")): pool for pool in items}


def _shown(pool: Mapping[str, object]) -> str:
    return gojson.dumps({key: value for key, value in pool.items() if key != "name" and value != []})


def reclaim(context: Context, options: Namespace) -> ExitStatus:
    """Prints which blocks of a node would become free; with --powered-off declares it dead and frees them."""
    cluster = read_cluster(options.socket)
    node, name = find_node(cluster, options.node)
    blocks = [block for block in cluster.blocks if block.owner == node]
    entry = cluster.node(node)
    record = entry.record_digest if entry else next(block.owner_record_digest for block in blocks)
    line = f"podwire ipam reclaim --node {quote(options.node)} --powered-off"
    _print_plan(context, cluster, node, name)
    local = read_local_report(options.socket)
    if node == local.node and (entry is None or entry.machine in ("", local.machine)):
        msg = f"{name or node} is this node, which is running"
        raise CniError(Code.INVALID_ENVIRONMENT, msg, "run the command on another node")
    if not options.powered_off:
        names = [str(block.block) for block in blocks]
        context.out.print_json({"node": node, "name": name, "record": record, "blocks": names})
        context.out.print("Nothing was changed. Only while the machine is off:", Cell(line, "bold"))
        return ExitStatus.FINE
    _require_confirmation_option(context, confirmed=options.record, option=f"--record {record}")
    if options.record is None:
        word = name or node
        question = f"To state that the machine is off, type its name, {word}:"
        confirming.require(question, word, f"{line} --record {record}")
    request = {"node": node, "record": options.record or record, "statement": "powered-off"}
    answer = agent_socket.post(options.socket, "/pools/reclaim", request)
    return _print_reclaimed(context, Fields(answer), answer)


def _print_plan(context: Context, cluster: StoreContent, node: str, name: str) -> None:
    out, entry = context.out, cluster.node(node)
    blocks = [str(block.block) for block in cluster.blocks if block.owner == node]
    out.print(f"node {name or '-'} ({node}): {entry.state if entry else 'no entry'}, {plural(len(blocks), 'block')}")
    if entry and entry.instance:
        out.print(f"boot and Node: {entry.instance}")
    if blocks:
        out.print(f"other nodes will get these blocks: {' '.join(blocks)}")
    out.print("The node is declared dead. When it starts again its agent registers, and claims blocks anew.")
    out.print_block(_STATEMENT)


def _print_reclaimed(context: Context, answer: Fields, document: Mapping[str, object]) -> ExitStatus:
    freed, problem = answer.strings("freed"), answer.string("problem")
    context.out.print_json(document)
    context.out.print(Cell(f"declared dead; {plural(len(freed), 'block')} free", "good"), *freed)
    if problem:
        context.out.print(Cell(problem, "bad"))
    return ExitStatus.WRONG if problem else ExitStatus.FINE


def recover(context: Context, options: Namespace) -> ExitStatus:
    """Begins a new epoch after a restore of the store."""
    _require_confirmation_option(context, confirmed=options.yes, option="--yes")
    cluster = read_cluster(options.socket)
    context.out.print_block(_CLOSED)
    names = " ".join(sorted(node.name or node.id for node in cluster.nodes)) or "none"
    context.out.print(f"The restored store has {plural(len(cluster.nodes), 'node')}: {names}")
    context.out.print(f"Nodes that joined after the backup (--joined, by ID): {' '.join(options.joined) or 'none'}")
    context.out.print(
        "Every other node that may run must be in the backup. A node's ID is in its file /var/lib/podwire/node-id."
    )
    if not options.yes:
        joined = ["--joined", *options.joined] if options.joined else []
        question = "Is the store closed to all other agents, and are all nodes named? [yes/no]"
        confirming.require(question, "yes", " ".join(["podwire ipam recover --yes", *joined]))
    answer = Fields(agent_socket.post(options.socket, "/pools/recover", {"joined": options.joined}))
    context.out.print_json({"epoch": answer.string("epoch")})
    context.out.print(Cell(f"epoch {answer.string('epoch')} has begun", "good"))
    context.out.print("Start podwire-agent on all nodes. No node claims blocks before all have registered:")
    context.out.print("  podwire ipam verify --cluster")
    return ExitStatus.FINE


def _require_confirmation_option(context: Context, *, confirmed: object, option: str) -> None:
    """Raises UsageError with --json if the command would ask: the output is for a program."""
    if context.out.as_json and not confirmed:
        raise UsageError(Code.INVALID_ENVIRONMENT, "with --json no question is asked", f"confirm with {option}")
