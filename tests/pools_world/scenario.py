"""What the tests of the manager share: a pool, steps until nothing is left to do, and what a node has."""

from agent.pools.grants_file import BlockState
from agent.pools.space import parse_space

POOL = {"name": "default", "cidrs": ["10.22.0.0/24"], "blockPrefixLengths": {"ipv4": 28}}


def space_of(*pools):
    return {"epoch": "epoch-0", "pools": list(pools)}


def run(node, steps=40, seconds=0.1):
    """Lets a node's agent work until nothing is left to do."""
    for _ in range(steps):
        node.step()
        node.time_s += seconds


def change_space(world, *pools, epoch="epoch-0"):
    world.store.swap_space(world.store.read_space(), parse_space({"epoch": epoch, "pools": list(pools)}))
    world._report_space()


def blocks_of(node, state=BlockState.GRANTED):
    return [str(entry.block) for entry in node.entries if entry.state is state]


def addresses(node):
    return {address for held in node.pods.values() for address in held}
