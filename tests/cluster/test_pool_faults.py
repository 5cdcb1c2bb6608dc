"""Five machines share a pool in three members of etcd, and all of them fail: no address is ever at two running pods."""

import os
import time

import pytest

from tests.support.machine import eventually
from tests.support.pool_faults import Run, unowned
from tests.support.pool_world import pool_world

pytestmark = pytest.mark.timeout(1500)
POOLS = [{"name": "default", "cidrs": ["10.22.0.0/22"], "blockPrefixLengths": {"ipv4": 27}}]  # 32 blocks of 30


@pytest.mark.long
def test_no_address_is_at_two_pods_whatever_fails(tmp_path, request, capsys):
    """Whatever stops, crashes, is cut off, replaced, restored or copied, no two running pods have one address."""
    seconds = 600 if request.config.getoption("--nightly") else 45
    seed = int(os.environ.get("PODWIRE_SEED") or time.time_ns() % 1_000_000)
    with pool_world(tmp_path, count=5, members=3, pools=POOLS, spare=True) as world:
        run = Run(world, seed)
        with run.working():
            run.cause(seconds)
            wrong = run.heal()
        remaining = [] if eventually(lambda: not unowned(world.store, 5), within_s=200) else unowned(world.store, 5)
        history = run.history
        with capsys.disabled():
            print(
                f"\nseed {seed}: {history.verbs} verbs, {history.added} addresses, {history.refused} code 11, "
                f"{len(history.faults)} faults, {len(history.duplicates)} duplicates"
            )
        story = "\n".join(history.faults)
        if os.environ.get("PODWIRE_STORY"):
            print(story)
        for problems in (history.duplicates, run.errors[:5], wrong, remaining):
            assert not problems, f"seed {seed}\n{problems}\n{story}"
