"""The command lines of `podwire ipam pools|blocks|who|why|reclaim|recover`, and their help."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _SubParsersAction

from podwire.command import Context, ExitStatus
from podwire.commands import ipam_changes, ipam_cluster
from podwire.commands.agent_command import add_command
from podwire.commands.show import add_places

_POOLS = """\
Prints the pools of the cluster: CIDRs, size of a block, number of claimed blocks and of all blocks, and the number of
addresses in the claimed blocks. podwire-agent of this node reads them from the store.

--set FILE creates the pools, or replaces them by those of FILE, after it has printed the difference. In Kubernetes it
writes the IPSpace object, which `kubectl apply` writes, too. Before a CIDR is removed, or its blocks get another size,
set it in "draining" and wait until no node has a block of it. FILE is JSON; only "name" and "cidrs" are required:

  {"pools": [{"name": "default", "mode": "routed", "cidrs": ["10.22.0.0/16", "fd00:22::/112"],
    "blockPrefixLengths": {"ipv4": 26, "ipv6": 122}, "excluded": [], "draining": [], "namespaces": [], "gateways": [],
    "sticky": false}]}

--json prints {"space": {"epoch", "pools"} or null, "pools": [{"name", "mode", "cidrs", "namespaces", "versions":
[{"version", "blockPrefixLength", "total", "claimed", "draining", "addresses"}]}], "nodes": [...]}, with --set
{"before", "after", "difference": ["..."]}."""
_BLOCKS = """\
Prints the blocks that nodes have claimed, with node, node ID, generation and time of the claim.

STATE   claimed      the node has it
        draining     the node has it, and no node claims it again
        damaged      the object in the store is not valid: podwire ipam verify --cluster

If the node is not registered, its state follows: fenced (declared dead), old epoch (not registered since the store
was restored), no entry, damaged.

--json prints {"blocks": [{"block", "pool", "owner", "ownerName", "epoch", "generation", "since", ...}], "nodes":
[{"id", "name", "state", "epoch", "instance", "addresses", "networks", "blocks", ...}]}."""
_WHO = """\
Prints the pool, the block and the node of an address, and on this node its pod.

Exit status: 0; 3 for an address of no pool, or if the store does not answer; 4 if not everything could be read, such
as the store for an address of this node's blocks.

--json prints {"address", "pool", "block", "node", "nodeName", "epoch", "generation", "since", "isThisNode",
"reservation": as `podwire ipam list --json` or null, "unseen": ["..."]}."""
_WHY = """\
Prints why a node has no addresses: how many are in use in how many blocks, when its agent last reached the store,
whether it was declared dead, which nodes have the blocks of a pool that is used up, and which nodes all others wait
for after a restore. NODE is a name or an ID, this node by default. About another node only the store's data is known.

Exit status: 0 no reason is known; 1 at least one; 4 no reason, but not everything could be read.

--json prints {"node", "name", "complete", "facts": ["..."], "reasons": [{"what", "fix"}], "unseen": ["..."]}."""
_RECLAIM = """\
Prints the blocks of a node that a reclaim would make free for other nodes. With --powered-off it declares the node
dead and makes them free.

--powered-off is your statement that the machine is off now, and stays off until the command has ended. A Node that is
not ready, and a machine that cannot be reached, are no proofs that none of its pods runs. After a wrong statement two
pods may have one address. To confirm, type the node's name, or pass the record that the command has printed (--record).
The command is refused if the node has another record by then, because the machine has booted. A machine that starts
again later registers and claims other blocks; there is nothing to undo.

Exit status: 0; 1 if some blocks are not free: run it again; 3 if it was refused.

--json prints {"node", "name", "record", "blocks"}, with --powered-off {"freed": ["..."], "problem": "..."};
"problem" is "" if all blocks are free."""
_RECOVER = """\
Begins a new epoch. Do it after each restore of the store from a backup, and only then. In the new epoch each agent
first claims again the blocks that its node has, whatever the backup contains; no node claims other blocks before all
nodes have done that. Without a new epoch, a block that was claimed after the backup is free in the restored store, and
two nodes may use it.

  1. Stop podwire-agent on all nodes but this one. Pods keep running, and new ones get addresses of the blocks that
     their node has. A node that cannot be reached must stay off or cut off. systemd: systemctl stop podwire-agent.
     DaemonSet:
       kubectl label node NODE podwire.io/recover=yes
       kubectl --namespace podwire patch daemonset podwire --patch \\
         '{"spec": {"template": {"spec": {"nodeSelector": {"podwire.io/recover": "yes"}}}}}'
  2. Restore the store. The agent of this node notices that, and claims nothing: podwire ipam why
  3. podwire ipam recover, with --joined for each node that joined the cluster after the backup, also for those that
     cannot be reached now. The ID is in /var/lib/podwire/node-id on the node.
  4. Start podwire-agent on all nodes. DaemonSet:
       kubectl --namespace podwire patch daemonset podwire --patch \\
         '{"spec": {"template": {"spec": {"nodeSelector": {"podwire.io/recover": null}}}}}'
     The nodes that the others wait for: podwire ipam verify --cluster
     If one of them stays off: podwire ipam reclaim --node NODE

--json prints {"epoch"}."""
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "pools": (
        ("podwire ipam pools", "how full the pools are"),
        ("podwire ipam pools --set pools.json", "change the pools, after a look at the difference"),
    ),
    "blocks": (("podwire ipam blocks --node worker-2", "the blocks of a node"),),
    "who": (("podwire ipam who 10.22.0.70", "which node and pod have an address"),),
    "why": (("podwire ipam why", "why this node has no addresses"),),
    "reclaim": (
        ("podwire ipam reclaim --node worker-2", "what would become free; nothing is changed"),
        ("podwire ipam reclaim --node worker-2 --powered-off", "declare a machine dead that is off"),
    ),
    "recover": (("podwire ipam recover", "begin a new epoch after a restore"),),
}


def add_commands(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Adds the commands to those of `podwire ipam`."""
    pools = add_command(commands, "pools", "the pools of the cluster, and how full they are", _POOLS, _pools, EXAMPLES)
    pools.add_argument("--set", metavar="FILE", default="", help="create or replace the pools by those of FILE (JSON)")
    _add_yes(pools)
    blocks = add_command(
        commands, "blocks", "which node has which block of a pool", _BLOCKS, ipam_cluster.blocks, EXAMPLES
    )
    blocks.add_argument("--node", metavar="NODE", default="", help="only those of this node (name or ID)")
    blocks.add_argument("--pool", metavar="POOL", default="", help="only those of this pool")
    who = add_command(commands, "who", "which node and pod have an address", _WHO, ipam_cluster.who, EXAMPLES)
    who.add_argument("address", metavar="ADDRESS", help="an address of a pool")
    add_places(who)
    why = add_command(commands, "why", "why a node has no addresses", _WHY, ipam_cluster.explain, EXAMPLES)
    why.add_argument("node", metavar="NODE", nargs="?", default="", help="name or ID (default: this node)")
    reclaim = add_command(
        commands, "reclaim", "free the blocks of a machine that is off", _RECLAIM, ipam_changes.reclaim, EXAMPLES
    )
    reclaim.add_argument("--node", metavar="NODE", required=True, help="name or ID")
    reclaim.add_argument("--powered-off", action="store_true", help="state that the machine is off, and do it")
    reclaim.add_argument("--record", metavar="RECORD", help="confirm the statement for this record, without a question")
    recover = add_command(
        commands, "recover", "begin a new epoch after a restore of the store", _RECOVER, ipam_changes.recover, EXAMPLES
    )
    recover.add_argument(
        "--joined", metavar="ID", nargs="+", action="extend", default=[], help="nodes that joined after the backup"
    )
    _add_yes(recover)


def _add_yes(parser: ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _pools(context: Context, options: Namespace) -> ExitStatus:
    return (ipam_changes.set_pools if options.set else ipam_cluster.pools)(context, options)
