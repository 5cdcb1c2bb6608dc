"""When pools may be replaced: no address is ever in two blocks."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from agent.pools.space import parse_space
from agent.pools.space_change import check

POOL = {"name": "default", "cidrs": ["10.22.0.0/24"]}
SEGMENT = {"name": "lan", "mode": "segment", "cidrs": ["192.168.0.0/24"]}
DRAINING = {**POOL, "draining": ["10.22.0.0/24"]}


def changed(before, after, *blocks):
    """Checks a change between two lists of pools, with claimed blocks."""
    old, new = (parse_space({"epoch": "e1", "pools": pools}) for pools in (before, after))
    check(old, new, [ip_network(block) for block in blocks])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([POOL], [POOL]),
        ([], [POOL]),
        ([POOL], [DRAINING]),
        ([POOL], [{**POOL, "excluded": ["10.22.0.0/28"], "namespaces": ["one"]}]),
        ([POOL], [{**POOL, "cidrs": ["10.22.0.0/16"]}]),
        ([POOL], [{**POOL, "cidrs": ["10.22.0.0/24", "10.23.0.0/24"]}]),
        ([POOL], [{**POOL, "cidrs": ["10.22.0.0/25", "10.22.0.128/25"]}]),
        ([SEGMENT], [{**SEGMENT, "cidrs": ["192.168.0.0/23"]}]),
        ([{**SEGMENT, "excluded": ["192.168.0.254/32"]}], [{**SEGMENT, "gateways": ["192.168.0.254"]}]),
    ],
)
def test_changes_that_keep_the_blocks_are_accepted(before, after):
    """A change after which each block is a block of the same pool is accepted while blocks are claimed."""
    changed(before, after, *(["10.22.0.64/26"] if before == [POOL] else []))


@pytest.mark.parametrize(
    "after",
    [
        [],
        [{**POOL, "name": "other"}],
        [{**POOL, "cidrs": ["10.22.0.0/25"]}],
        [{**POOL, "blockPrefixLengths": {"ipv4": 28}}],
        [{**POOL, "mode": "segment"}],
    ],
)
def test_blocks_end_only_after_draining(after):
    """The blocks of a CIDR end after it was draining, and when none is claimed: one may be claimed at this moment."""
    with pytest.raises(ValueError, match="which agents may be claiming now"):
        changed([POOL], after)
    with pytest.raises(ValueError, match=r"loses block 10.22.0.192/26"):
        changed([DRAINING], after, "10.22.0.192/26")
    changed([DRAINING], after)


def test_claimed_block_of_no_pool_keeps_its_addresses():
    """A pool whose blocks would overlap a claimed block of another size is refused."""
    with pytest.raises(ValueError, match=r"block 10.22.0.0/26.* overlaps pool default"):
        changed([], [{**POOL, "blockPrefixLengths": {"ipv4": 28}}], "10.22.0.0/26")
    changed([], [POOL], "10.22.0.0/26")


@pytest.mark.parametrize(
    "after",
    [
        {**SEGMENT, "gateways": ["192.168.0.254"]},
        {**SEGMENT, "cidrs": ["192.168.0.0/25", "192.168.0.128/25"]},
    ],
)
def test_address_of_a_pod_never_becomes_a_gateway(after):
    """In a segment, an address that a pod may have does not become the gateway, network or broadcast address."""
    with pytest.raises(ValueError, match="a pod may have it"):
        changed([SEGMENT], [after])
